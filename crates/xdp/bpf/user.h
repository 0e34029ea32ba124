/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Frames of the XDP program that go to user space. */
#ifndef TOLLWAY_USER_H
#define TOLLWAY_USER_H

#include "engine_xdp.h"
#include "own.h"
#include "packet.h"

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, MOST_PORTS *MOST_QUEUES);
	__type(key, __u32);
	__type(value, __u32);
} xsks SEC(".maps");

/*
 * Returns the number of the worker that serves a queue. With one worker, this costs no division.
 */
static __always_inline __u32 worker_of(const struct packet *packet, __u32 queue)
{
	__u32 workers = packet->state->workers;

	if (workers <= 1)
		return 0;
	/* The last operation changes nothing, but shows the verifier the bound. */
	return queue % workers % MOST_WORKERS;
}

/*
 * Says whether the worker of a queue takes packets. A processor takes the frames of one queue in
 * bursts, so the last worker of this tick is enough to remember.
 */
static __always_inline int has_worker(struct packet *packet, __u32 queue)
{
	__u32 worker = worker_of(packet, queue);
	__u64 tick = bpf_jiffies64() << WORKER_BITS | worker;

	if (packet->counts->alive_tick == tick)
		return 1;
	if (is_older(packet->state->heartbeats[worker].ns, STALE_NS))
		return 0;
	packet->counts->alive_tick = tick;
	return 1;
}

/* What user space does not take, the kernel gets, or it fails closed. */
static __always_inline int without_user(struct packet *packet, enum pass_reason reason)
{
	if (packet->own4)
		return leave_own(packet, packet->own4, reason, 1);
	if (packet->own6)
		return leave_own(packet, packet->own6, reason, 0);
	return fails_closed(packet) ? drop_closed(packet) : pass(packet, reason);
}

/* Sends a packet to the socket of its queue, if there are a worker and a socket. */
static __always_inline int to_user(struct packet *packet)
{
	__u32 queue = packet->ctx->rx_queue_index;

	if (packet->state->workers_late)
		return without_user(packet, PASS_BYPASS);
	if (!has_worker(packet, queue))
		return without_user(packet, PASS_STALE);
	if (queue >= QUEUES ||
	    bpf_redirect_map(&xsks, PORT * MOST_QUEUES + queue, XDP_PASS) != XDP_REDIRECT)
		return without_user(packet, PASS_NO_SOCKET);
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
