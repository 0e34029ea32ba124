// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Redirects a frame of the router's own to a port's device, to learn if that takes redirected frames. It is on no
 * device: src/steer/prober.rs runs it.
 */
#include <linux/if_ether.h>

#include "egress.h"

/* The loopback of the Ethernet configuration testing protocol, as src/steer/prober.rs fills it in. */
struct loopback {
	struct ethhdr eth;
	__le16 skip_count;
	__le16 function;
	__be16 receipt; /* the port */
	__u8 bare;
} __attribute__((packed));

/* The room before a frame (XDP_PACKET_HEADROOM), and steps in which it is taken away. */
#define HEADROOM 256
#define STEP 4

static __always_inline struct loopback *loopback(struct xdp_md *ctx)
{
	struct loopback *frame = (void *)(long)ctx->data;

	return (void *)(frame + 1) > (void *)(long)ctx->data_end ? 0 : frame;
}

/* As bpf/steer.c: a map of devices serves programs of one kind. */
SEC("xdp.frags")
int ask(struct xdp_md *ctx)
{
	struct loopback *frame = loopback(ctx);
	struct loopback asked;
	int step;

	if (!frame)
		return XDP_DROP;
	asked = *frame;
	/* Frames from sockets without copies have no room for anything before them. */
	for (step = 0; asked.bare && step < HEADROOM / STEP; step++) {
		if (bpf_xdp_adjust_head(ctx, -STEP))
			break;
	}
	frame = loopback(ctx);
	if (!frame)
		return XDP_DROP;
	*frame = asked;
	return bpf_redirect_map(&egress, bpf_ntohs(asked.receipt), XDP_DROP);
}

char _license[] SEC("license") = "Dual MIT/GPL";
