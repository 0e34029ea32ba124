/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A packet in the XDP program, and the maps that the program uses for it. */
#ifndef TOLLWAY_PACKET_H
#define TOLLWAY_PACKET_H

#include "state.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MOST_PORTS);
	__type(key, __u32);
	__type(value, struct port_counts);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, MOST_PORTS *MOST_QUEUES);
	__type(key, __u32);
	__type(value, __u32);
} xsks SEC(".maps");

/*
 * Links by port, kind of tag and VLAN. This is an array, because a hash costs ten times as much.
 * VLAN 0 holds untagged and priority-tagged frames.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MOST_PORTS *LINKS_PER_PORT);
	__type(key, __u32);
	__type(value, __u32);
} links SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __be32);
	__type(value, __u32);
} locals4 SEC(".maps");

/* A bit for each hash of an address in `locals4` (src/locals.rs): without the bit, it is not there. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LOCALS4_WORDS);
	__type(key, __u32);
	__type(value, __u64);
} locals4_bits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __be32[4]);
	__type(value, __u32);
} locals6 SEC(".maps");

/* What is known about a packet before its IP header is read. */
struct packet {
	struct xdp_md *ctx;
	const struct state *state;
	const struct heartbeat *heartbeat; /* of the worker that serves the queue */
	struct port_counts *counts;
	__u32 link;
	__u32 kernel_path; /* the link's flags: what takes the kernel path */
};

/* Passes a packet to the kernel, and counts the reason. */
static __always_inline int pass(struct packet *packet, enum pass_reason reason)
{
	packet->counts->pass[reason]++;
	return XDP_PASS;
}

/* Drops a packet, since no worker is there to evaluate the rules. */
static __always_inline int drop_closed(struct packet *packet)
{
	packet->counts->closed_packets++;
	packet->counts->closed_bytes += bpf_xdp_get_buff_len(packet->ctx);
	return XDP_DROP;
}

static __always_inline int fails_closed(const struct packet *packet)
{
	return (packet->state->ruled & FAIL_CLOSED) != 0;
}

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

	return wanted <= len ? len : bpf_xdp_get_buff_len(packet->ctx);
}

#endif
