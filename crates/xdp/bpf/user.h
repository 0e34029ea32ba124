/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Frames of the XDP program that go to user space. */
#ifndef TOLLWAY_USER_H
#define TOLLWAY_USER_H

#include "engine_xdp.h"
#include "packet.h"

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, MOST_PORTS *MOST_QUEUES);
	__type(key, __u32);
	__type(value, __u32);
} xsks SEC(".maps");

/*
 * Sends a packet to the socket of its queue. Without a socket, the kernel gets it, or it fails
 * closed.
 */
static __always_inline int to_user(struct packet *packet)
{
	__u32 queue = packet->ctx->rx_queue_index;

	if (queue >= QUEUES ||
	    bpf_redirect_map(&xsks, PORT * MOST_QUEUES + queue, XDP_PASS) != XDP_REDIRECT) {
		if (fails_closed(packet))
			return drop_closed(packet);
		return pass(packet, PASS_NO_SOCKET);
	}
	packet->counts->to_user++;
	return XDP_REDIRECT;
}

/* Length of the frame from `data` on, including bytes that are not in its first buffer. */
static __always_inline __u32 frame_len(struct packet *packet, const void *data, const void *end,
				       __u32 wanted)
{
	__u32 len = end - data;

	return wanted <= len ? len : whole_len(packet->ctx);
}

#endif
