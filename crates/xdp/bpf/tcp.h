/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Reads what a connection's track wants to know of a packet of TCP. */
#ifndef TOLLWAY_TCP_H
#define TOLLWAY_TCP_H

#include <linux/tcp.h>

#include "header.h"
#include "tcp_track.h"

/* Options of TCP by their kind (RFC 9293, 3.1; RFC 2018), and the only ones of most packets: a timestamp behind two NOPs. */
#define OPTION_END 0
#define OPTION_NOP 1
#define OPTION_SACK 5
#define TIMESTAMP_ONLY 0x0101080a
#define TIMESTAMP_BYTES 12
/* Where the byte with the flags is. */
#define TCP_FLAGS_AT 13
/* More bytes than the headers before that of TCP have. */
#define MOST_BEFORE 64
/* Bytes of all options at most, and room for an index that the verifier can bound by a mask. */
#define MOST_OPTIONS 40
#define OPTIONS_ROOM 64
/* No sender has more options in a packet; more are the kernel's to read. */
#define OPTIONS_READ 20

static __always_inline __u32 word_at(const __u8 *bytes, __u32 at)
{
	return (__u32)bytes[at & (OPTIONS_ROOM - 1)] << 24 | (__u32)bytes[(at + 1) & (OPTIONS_ROOM - 1)] << 16 |
	       (__u32)bytes[(at + 2) & (OPTIONS_ROOM - 1)] << 8 | bytes[(at + 3) & (OPTIONS_ROOM - 1)];
}

/* 1 for an option of one byte, or else 0. It does not branch: the verifier would follow each sequence of options. */
static __always_inline __u32 is_nop(__u32 kind)
{
	__u32 is = ((kind ^ OPTION_NOP) - 1) >> 31;

	asm volatile("" : "+r"(is));
	return is;
}

/* Says whether an option acknowledges blocks, four at most. */
static __always_inline int has_blocks(__u32 kind, __u32 size)
{
	return kind == OPTION_SACK && size >= 10 && !((size - 2) % 8);
}

/*
 * Raises `*sack` to the end of the highest block that options of `len` bytes acknowledge (`tcp_sack`). Returns 0 if it
 * does not read them to the end. Global, so that the verifier looks at it once.
 */
__attribute__((noinline)) int read_sack(context *ctx, __u32 begin, __u32 len, __u32 *sack)
{
	__u8 bytes[OPTIONS_ROOM] = {};
	__u32 at = 0, last = len - 1, blocks = 0;

	/* A verifier of Linux 6.1 knows that `len` is not 0 only if it is made of a number that has been compared. */
	asm volatile("" : "+r"(last));
	if (!sack || last >= MOST_OPTIONS)
		return 0;
	len = last + 1;
	if (load_bytes(ctx, begin, bytes, len))
		return 0;
	for (int i = 0; i < OPTIONS_READ && at < len; i++) {
		/* Behind the last option, the size is 0. */
		__u32 kind = bytes[at & (OPTIONS_ROOM - 1)], size = bytes[(at + 1) & (OPTIONS_ROOM - 1)];
		__u32 nop = is_nop(kind);

		if (kind == OPTION_END)
			return 1;
		size = nop + size * (1 - nop);
		if (size + nop < 2 || at + size > len)
			return 1;
		if (has_blocks(kind, size)) {
			blocks = size;
			break;
		}
		at += size;
	}
	if (!blocks)
		return at >= len;
	for (__u32 block = 0; block < 4 && 10 + 8 * block <= blocks; block++)
		raise(sack, word_at(bytes, at + 6 + 8 * block));
	return 1;
}

/* Says whether a packet's flags are what connection tracking knows (`tcp_valid_flags`). */
static __always_inline int has_valid_flags(__u32 bits)
{
	switch (bits & ~TCP_URG) {
	case TCP_SYN:
	case TCP_FIN | TCP_ACK:
	case TCP_ACK:
		return 1;
	case TCP_SYN | TCP_ACK:
	case TCP_RST:
	case TCP_RST | TCP_ACK:
		return !(bits & TCP_URG);
	}
	return 0;
}

/*
 * Reads a packet of TCP with valid flags, whose header is at `at` in the frame and `len` bytes long with all data.
 * Returns 0 for what connection tracking finds malformed, and for headers that are not whole. Global, so that the verifier
 * looks at it once.
 */
__attribute__((noinline)) int read_segment(context *ctx, __u32 at, __u32 len, struct segment *segment)
{
	const void *begin = data_of(ctx), *end = end_of(ctx);
	const struct tcphdr *tcp;
	const __be32 *options;
	const __u8 *bytes;
	__u32 header_len;

	if (!segment || at > MOST_BEFORE)
		return 0;
	tcp = begin + at;
	options = (const void *)(tcp + 1);
	bytes = (const void *)tcp;
	if ((const void *)(tcp + 1) > end)
		return 0;
	header_len = bytes[12] >> 4 << 2;
	segment->bits = bytes[TCP_FLAGS_AT] & (TCP_FIN | TCP_SYN | TCP_RST | TCP_ACK | TCP_URG);
	if (header_len < sizeof(*tcp) || len < header_len || !has_valid_flags(segment->bits))
		return 0;
	segment->seq = bpf_ntohl(tcp->seq);
	segment->ack = bpf_ntohl(tcp->ack_seq);
	segment->sack = segment->ack;
	segment->win = bpf_ntohs(tcp->window);
	segment->check = tcp->check;
	segment->end = segment->seq + len - header_len + (segment->bits & TCP_FIN) + !!(segment->bits & TCP_SYN);
	if (header_len == sizeof(*tcp))
		return 1;
	if (header_len == sizeof(*tcp) + TIMESTAMP_BYTES && (const void *)(options + 1) <= end &&
	    *options == bpf_htonl(TIMESTAMP_ONLY))
		return 1;
	return read_sack(ctx, at + sizeof(*tcp), header_len - sizeof(*tcp), &segment->sack);
}

#endif
