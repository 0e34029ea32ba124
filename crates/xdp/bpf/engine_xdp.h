/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What is the same for all programs, in the words of XDP. */
#ifndef TOLLWAY_ENGINE_XDP_H
#define TOLLWAY_ENGINE_XDP_H

#include "maps.h"

typedef struct xdp_md context;

#define TO_KERNEL XDP_PASS
#define DROPPED XDP_DROP
#define SENT XDP_REDIRECT

/* The program decides by the tables of user space. */
#define HAS_TABLES (XDP_PATH && TABLES)
/* A port's program decides about packets of connections as far as it can (take_tracked.h). */
#define DECIDES_AT_ONCE 1
/* Added to the generation of what an engine's programs note (tracked.h). */
#define NOTES_OF_ENGINE 0

/* Tags are in the frame. */
static __always_inline __u32 tag_len(const context *ctx)
{
	(void)ctx;
	return 0;
}

/* A frame is as long as on a wire. */
static __always_inline int is_super_frame(const context *ctx)
{
	(void)ctx;
	return 0;
}

/* Where the accessible bytes of a frame begin and end. */
static __always_inline void *data_of(const context *ctx)
{
	return (void *)(long)ctx->data;
}

static __always_inline void *end_of(const context *ctx)
{
	return (void *)(long)ctx->data_end;
}

/* A frame has no mark in XDP. */
static __always_inline __u32 mark_of(const context *ctx)
{
	(void)ctx;
	return 0;
}

static __always_inline void set_mark(context *ctx, __u32 mark)
{
	(void)ctx;
	(void)mark;
}

static __always_inline __u32 packets_of(const context *ctx)
{
	(void)ctx;
	return 1;
}

static __always_inline int load_bytes(context *ctx, __u32 at, void *to, __u32 len)
{
	return bpf_xdp_load_bytes(ctx, at, to, len);
}

/* Length of the whole frame, in all of its buffers. */
static __always_inline __u32 whole_len(context *ctx)
{
	return bpf_xdp_get_buff_len(ctx);
}

#endif
