/* The frame that the generator sends and the sink recognizes. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* The discard service; a stream of random flows uses all ports. */
#define PORT 9
#define MAGIC 0x70117011
/* The sender's TTL; a router decrements it by one. */
#define TTL 64

/* The structures are not packed: clang would take packed ones apart byte by byte. */
struct tag {
	__be16 tci;
	__be16 inner;
};

struct payload {
	__u32 magic;
	__u32 seq;
	__u32 sent_ns; /* the low half of the clock; 0 from a generator that goes as fast as it can */
	__u32 stream; /* 0 or 1 */
};

/* What follows the Ethernet header and its tag. */
struct packet {
	struct iphdr ip;
	struct udphdr udp;
	struct payload payload;
};

/* The same of TCP. */
struct packet_tcp {
	struct iphdr ip;
	struct tcphdr tcp;
	struct payload payload;
};

/* UDP over IPv6. */
struct packet6 {
	struct ipv6hdr ip;
	struct udphdr udp;
	struct payload payload;
};

/*
 * The last four bytes of the address of the host with a number, behind a bridge's port on the left, or on the right. The
 * first two are HOST_MAC.
 */
#define HOST_MAC 0x0200
#define LEFT_HOST(number) (0x02000000U | ((number) & 0xffffff))
#define RIGHT_HOST(number) (0x01000000U | ((number) & 0xffffff))

/* Two more bytes make a frame of 60: 64 on the wire, with the FCS. */
#define LENGTH (sizeof(struct packet) + 2)
#define TCP_LENGTH (sizeof(struct tcphdr) + sizeof(struct payload))

static __always_inline __u16 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* The sum that the checksum of TCP makes 0xffff, in network byte order: a pseudo header, and the segment. */
static __always_inline __u16 sum_tcp(const struct packet_tcp *packet)
{
	const __u32 *addresses = (const void *)&packet->ip.saddr, *words = (const void *)&packet->tcp;
	__u64 sum = bpf_htons(IPPROTO_TCP) + bpf_htons(TCP_LENGTH);
	int i;

	for (i = 0; i < 2; i++)
		sum += addresses[i];
	for (i = 0; i < TCP_LENGTH / 4; i++)
		sum += words[i];
	return fold((__u32)(sum & 0xffff) + (__u32)(sum >> 16 & 0xffff) + (__u32)(sum >> 32));
}
