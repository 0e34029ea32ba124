// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Redirects a frame of the router's own to a port's device, to learn whether the device accepts
 * redirected frames. The program is attached to no device: src/prober.rs runs it.
 */
#include <linux/if_ether.h>

#include "egress.h"

/*
 * The loopback message of the Ethernet configuration testing protocol, as src/prober.rs fills
 * it in.
 */
struct loopback {
	struct ethhdr eth;
	__le16 skip_count;
	__le16 function;
	__be16 receipt; /* the port */
	__u8 bare;
	__u8 rest[39]; /* zero: up to 60 bytes, ETH_ZLEN */
} __attribute__((packed));

/* The room before a frame (XDP_PACKET_HEADROOM), and the step by which the program removes it. */
#define HEADROOM 256
#define STEP 4

static __always_inline struct loopback *loopback(struct xdp_md *ctx)
{
	struct loopback *frame = (void *)(long)ctx->data;

	return (void *)(frame + 1) > (void *)(long)ctx->data_end ? 0 : frame;
}

/* As in bpf/dispatcher.c: a map of devices serves programs of one kind. */
SEC("xdp.frags")
int probe(struct xdp_md *ctx)
{
	struct loopback *frame = loopback(ctx);
	struct loopback probe_frame;
	int step, moved = 0;

	if (!frame)
		return XDP_DROP;
	probe_frame = *frame;
	/* Frames from zero-copy sockets have no headroom. */
	for (step = 0; probe_frame.bare && step < HEADROOM / STEP; step++) {
		if (bpf_xdp_adjust_head(ctx, -STEP))
			break;
		moved += STEP;
	}
	/* Trim the bytes that lay before the frame, so that it has its old length. */
	if (moved && bpf_xdp_adjust_tail(ctx, -moved))
		return XDP_DROP;
	frame = loopback(ctx);
	if (!frame)
		return XDP_DROP;
	*frame = probe_frame;
	return bpf_redirect_map(&egress, bpf_ntohs(probe_frame.receipt), XDP_DROP);
}

char _license[] SEC("license") = "Dual MIT/GPL";
