/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What a program looks at before it decides: whether user space runs, and the link of a frame. */
#ifndef TOLLWAY_INGRESS_H
#define TOLLWAY_INGRESS_H

#include <linux/if_ether.h>

#include "packet.h"

/*
 * Counts a packet that no worker serves, unless it fails closed: the program counts that one later,
 * when it decides on it.
 */
static __always_inline int not_served(struct packet *packet, enum pass_reason reason)
{
	if (!fails_closed(packet))
		packet->counts->pass[reason]++;
	return 0;
}

/*
 * Says whether a worker runs and takes packets; counts the packet if not.
 *
 * Its heartbeat alone decides, for the XDP path as well as for the socket. The flows of a queue are
 * those that its worker entered. So a worker that hangs loses its queues to the kernel altogether,
 * and the other queues go on. A change of the tables needs no worker to stop flows: whoever makes
 * it raises the generation, or sets the bypass, and both hold for all queues.
 *
 * The coarse clock advances once per tick, so one read per tick and worker is as good as one per
 * packet, and reading the tick costs only a load. A processor takes the frames of one queue in
 * bursts, so the last worker is enough to remember.
 */
static __always_inline int is_served(struct packet *packet, __u32 worker)
{
	__u64 tick = bpf_jiffies64() << WORKER_BITS | worker;
	__s64 age;

	packet->heartbeat = &packet->state->heartbeats[worker];
	if (packet->state->bypass)
		return not_served(packet, PASS_BYPASS);
	if (packet->counts->alive_tick == tick)
		return 1;
	age = bpf_ktime_get_coarse_ns() - packet->heartbeat->ns;
	/*
	 * Signed: a heartbeat from another processor may be newer than the clock that was read
	 * here.
	 */
	if (age > STALE_NS)
		return not_served(packet, PASS_STALE);
	packet->counts->alive_tick = tick;
	return 1;
}

static __always_inline int is_tag(__be16 protocol)
{
	return protocol == bpf_htons(ETH_P_8021Q) || protocol == bpf_htons(ETH_P_8021AD);
}

/* Finds the link; returns 0 if there is none. */
static __always_inline int find_link(struct packet *packet, __be16 protocol, __u32 vid)
{
	__u32 slot = PORT * LINKS_PER_PORT + vid;
	__u32 *link;

	if (vid && protocol == bpf_htons(ETH_P_8021AD))
		slot += LINKS_PER_PORT / 2;
	link = bpf_map_lookup_elem(&links, &slot);
	if (!link || !(*link & LINK_EXISTS))
		return 0;
	packet->link = (__u16)*link;
	packet->kernel_path = *link & ~LINK_EXISTS;
	return 1;
}

#endif
