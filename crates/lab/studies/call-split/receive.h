/* The data that the receive function works on, both as one function and split in two. */
#ifndef RECEIVE_H
#define RECEIVE_H

#include <stdint.h>

enum verdict { SENT, DROPPED, BAD, OTHER_HOST, NO_ROUTE, VERDICTS };

struct frame {
	unsigned char *data;
	uint32_t len;
	uint16_t out;
	uint16_t verdict;
};

struct device {
	uint64_t packets;
	uint64_t bytes;
	uint64_t forwarded;
	unsigned char mac[8];
};

struct next {
	unsigned char header[14];
	uint16_t device;
};

struct path {
	struct device in;
	uint64_t verdicts[VERDICTS];
	uint64_t tapped;
	uint32_t taps;
	/* Destination port of UDP packets to drop early, network byte order; 0 for none. */
	uint16_t drop_port;
	struct next nexts[64];
	uint8_t routes[65536];
};

int receive_whole(struct path *path, struct frame *frame);
int receive_call(struct path *path, struct frame *frame);
int receive_inline(struct path *path, struct frame *frame);

#endif
