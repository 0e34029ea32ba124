/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What is the same for all programs, in the words of tc. */
#ifndef TOLLWAY_ENGINE_TC_H
#define TOLLWAY_ENGINE_TC_H

#include <linux/pkt_cls.h>
#include <stddef.h>

#include "maps.h"

typedef struct __sk_buff context;

/* In `pkt_type`, as in linux/if_packet.h. */
#define PACKET_HOST 0

/* Further programs of others follow, and then the kernel. TC_ACT_OK would leave the programs out. */
#define TO_KERNEL TC_ACT_UNSPEC
#define DROPPED TC_ACT_SHOT
#define SENT TC_ACT_REDIRECT

/* The program decides by the tables of user space, if there are any. */
#define HAS_TABLES TABLES
/* A packet of tc has more to gain from a short program (take_tracked.h). */
#define DECIDES_AT_ONCE 0
/* Added to the generation of what an engine's programs note (tracked.h). */
#define NOTES_OF_ENGINE (1U << 31)

/* Bytes of the tag that lies beside the frame: the kernel has taken the outer one out of each frame. */
static __always_inline __u32 tag_len(const context *ctx)
{
	return ctx->vlan_present ? 4 : 0;
}

/* Says whether the kernel still has to cut a frame into segments. */
static __always_inline int is_super_frame(const context *ctx)
{
	return ctx->gso_size != 0;
}

/*
 * Where the accessible bytes of a frame begin and end. The instructions are given: the compiler may add an offset to the
 * context's address first, which the verifier does not allow.
 */
static __always_inline void *data_of(const context *ctx)
{
	__u64 data;

	asm volatile("%0 = *(u32 *)(%1 + %2)" : "=r"(data) : "r"(ctx), "i"(offsetof(context, data)));
	return (void *)data;
}

static __always_inline void *end_of(const context *ctx)
{
	__u64 end;

	asm volatile("%0 = *(u32 *)(%1 + %2)" : "=r"(end) : "r"(ctx), "i"(offsetof(context, data_end)));
	return (void *)end;
}

/* Volatile: the compiler must not select among addresses, which the verifier does not allow for the context. */
static __always_inline __u32 mark_of(const context *ctx)
{
	return *(const volatile __u32 *)&ctx->mark;
}

/* Qdiscs and further devices see the mark that rules have given a packet. */
static __always_inline void set_mark(context *ctx, __u32 mark)
{
	ctx->mark = mark;
}

/*
 * The packets to count for this one. Behind a card, they are those that the kernel has put together, as the card counts
 * them. A super-frame that a sender has made is one.
 */
static __always_inline __u32 packets_of(const context *ctx)
{
	__u32 segments = BESIDE ? *(const volatile __u32 *)&ctx->gso_segs : 0;

	return segments ? segments : 1;
}

static __always_inline int load_bytes(context *ctx, __u32 at, void *to, __u32 len)
{
	return bpf_skb_load_bytes(ctx, at, to, len);
}

/* Length of the whole frame as on a wire, in all of its buffers. */
static __always_inline __u32 whole_len(context *ctx)
{
	return ctx->len + tag_len(ctx);
}

#endif
