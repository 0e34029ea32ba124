/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Verifies the checksums of UDP and TCP, as connection tracking does with those that no card has verified
 * (net.netfilter.nf_conntrack_checksum). A program of XDP does not know what a card has verified.
 */
#ifndef TOLLWAY_L4_SUM_H
#define TOLLWAY_L4_SUM_H

#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include "checksum.h"

/* Longer packets are the kernel's: eight pieces of as many bytes as the helper takes, and some more. */
#define SUM_PIECE 512
#define SUM_PIECES 8
/* What is left of a piece is summed by so many bytes, and then by words. */
#define SUM_BLOCK 32
/* All bits of their lengths. */
#define SUM_MOST (2 * SUM_PIECES * SUM_PIECE - 1)

/* What is known of a checksum. */
enum sum {
	SUM_WRONG,
	SUM_RIGHT,
	SUM_UNKNOWN, /* the packet is too long, or lies in several buffers */
};

/* Says whether a frame ends before this. The compiler must not compute with the end, which the verifier does not allow. */
static __always_inline int ends_before(const void *next, __u32 len, const void *end)
{
	const void *behind = next + len;

	asm volatile("" : "+r"(behind));
	return behind > end;
}

/* As sum_in_frame(), where not all bytes are accessible. This is the engine's part. */
static __always_inline int sum_beyond(context *ctx, __u32 at, __u32 len, __u64 sum);

/* Says whether a loop has another turn. The compiler keeps both bounds: by the first one, the verifier knows that the loop ends. */
static __always_inline int has_turn(__u32 i, __u32 most, __u32 times)
{
	asm volatile("" : "+r"(times));
	return i < most && i < times;
}

/*
 * What `len` bytes of a frame from `at` on, and a sum before them, are (`enum sum`). Global, so that the verifier looks at
 * it once; it wants to see that each access is within the frame. What follows a loop does not depend on how often that has
 * run, or the verifier would look at it once for each time.
 */
__attribute__((noinline)) int sum_in_frame(context *ctx, __u32 at, __u32 len, __u64 sum)
{
	const void *begin = data_of(ctx), *end = end_of(ctx);
	const __u8 *next;
	__s64 pieces = 0;

	if (at > SUM_PIECE)
		return SUM_UNKNOWN;
	if ((__u64)at + len > (__u64)(end - begin))
		return sum_beyond(ctx, at, len, sum);
	if (len / SUM_PIECE > SUM_PIECES)
		return SUM_UNKNOWN;
	/* Changes nothing, but shows the verifier the bound in the register that is used below. */
	asm volatile("%0 &= %1" : "+r"(len) : "i"(SUM_MOST));
	next = begin + at;
	for (__u32 i = 0; has_turn(i, SUM_PIECES, len / SUM_PIECE); i++) {
		const __u8 *piece = next + i * SUM_PIECE;

		if (ends_before(piece, SUM_PIECE, end))
			return SUM_UNKNOWN;
		pieces = bpf_csum_diff(0, 0, (__be32 *)piece, SUM_PIECE, pieces);
	}
	sum += (__u32)pieces;
	next += len / SUM_PIECE * SUM_PIECE;
	len %= SUM_PIECE;
	for (__u32 i = 0; has_turn(i, SUM_PIECE / SUM_BLOCK, len / SUM_BLOCK); i++) {
		const __u8 *block = next + SUM_BLOCK * i;

		if (ends_before(block, SUM_BLOCK, end))
			return SUM_UNKNOWN;
		for (int word = 0; word < SUM_BLOCK / 4; word++)
			sum += ((const __u32 *)block)[word];
	}
	next += len / SUM_BLOCK * SUM_BLOCK;
	len %= SUM_BLOCK;
	for (__u32 i = 0; has_turn(i, SUM_BLOCK / 4, len / 4); i++) {
		const __u8 *word = next + 4 * i;

		if (ends_before(word, 4, end))
			return SUM_UNKNOWN;
		sum += *(const __u32 *)word;
	}
	next += len / 4 * 4;
	if (len % 4 / 2) {
		if (ends_before(next, 2, end))
			return SUM_UNKNOWN;
		sum += *(const __u16 *)next;
		next += 2;
	}
	if (len % 2) {
		if (ends_before(next, 1, end))
			return SUM_UNKNOWN;
		sum += bpf_htons(*next << 8);
	}
	return fold(sum) == 0xffff ? SUM_RIGHT : SUM_WRONG;
}

/*
 * Says whether the kernel knows that a packet's checksum is right, where the sum of the pseudo-header is `pseudo`. This
 * is the engine's part.
 */
static __always_inline int is_verified(const struct packet *packet, __u16 check, __u16 pseudo);

/* A packet of a protocol above IP: where its header begins in the frame, and how long it is with all data. */
struct l4 {
	__u8 protocol;
	__u32 at, len;
};

/* The sum of the words of a packet's pseudo-header. */
static __always_inline __u64 sum_of_pseudo(const void *ip, struct l4 l4, int v4)
{
	return sum_of_addresses(ip, v4) + bpf_htons(l4.protocol) + bpf_htons(l4.len);
}

/* The checksum of a packet; right if nobody wants to know. */
static __always_inline enum sum sum_of(const struct packet *packet, const void *ip, struct l4 l4, __u16 check, int v4)
{
	__u64 pseudo;

	if (!packet->state->verifies_sums)
		return SUM_RIGHT;
	pseudo = sum_of_pseudo(ip, l4, v4);
	return is_verified(packet, check, fold(pseudo)) ? SUM_RIGHT :
							  sum_in_frame(packet->ctx, l4.at, l4.len, pseudo);
}

#endif
