/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What a program looks at before it decides: whether user space runs, and the link of a frame. */
#ifndef TOLLWAY_INGRESS_H
#define TOLLWAY_INGRESS_H

#include <linux/if_ether.h>

#include "packet.h"

/* Takes note that the kernel gets a packet without anybody having looked: tracks of TCP miss it then (tcp_track.h). */
static __always_inline void note_unserved(const struct packet *packet)
{
	struct state *state = (struct state *)packet->state;
	__u32 tick = bpf_ktime_get_coarse_ns() >> FLOW_TICK_SHIFT;

	if (state->unserved_tick != tick)
		state->unserved_tick = tick;
}

/*
 * Counts a packet that the tables do not serve, unless it fails closed: the program counts that one
 * later, when it decides on it.
 */
static __always_inline int not_served(struct packet *packet, enum pass_reason reason)
{
	note_unserved(packet);
	if (!fails_closed(packet))
		packet->counts->pass[reason] += packets_of(packet->ctx);
	return 0;
}

/*
 * Says whether user space keeps the tables; counts the packet if not.
 *
 * What the program decides needs no worker, but somebody who makes the kernel's changes in the tables. A
 * thread of its own confirms that, which computes nothing, so that it is in time on busy processors
 * (worker/src/heartbeat.rs). A worker that hangs loses only what the program has for user space
 * (user.h): it enters no flows then. Whoever changes the tables or a port voids those that are there.
 *
 * After a pause, the bypass begins before the next confirmation, so the program looks for it after that.
 *
 * The coarse clock advances once per tick, so one read per tick is as good as one per packet, and
 * reading the tick costs only a load.
 */
static __always_inline int is_served(struct packet *packet)
{
	__u64 tick = bpf_jiffies64();

	if (packet->counts->confirmed_tick != tick) {
		if (is_older(packet->state->confirmed_ns, UNCONFIRMED_NS))
			return not_served(packet, packet->state->bypass ? PASS_BYPASS : PASS_STALE);
		packet->counts->confirmed_tick = tick;
	}
	if (packet->state->bypass)
		return not_served(packet, PASS_BYPASS);
	return 1;
}

/*
 * Reads of an Ethernet header, which is at least there. Of `struct ethhdr`, which is packed, the compiler would read byte
 * by byte.
 */
static __always_inline int is_for(const void *eth, __u32 mac_first, __u32 mac_last)
{
	return *(const __u32 *)eth == mac_first && *(const __u16 *)(eth + 4) == mac_last;
}

static __always_inline __be16 ethertype_of(const void *eth)
{
	return *(const __be16 *)(eth + 2 * ETH_ALEN);
}

static __always_inline int is_tag(__be16 protocol)
{
	return protocol == bpf_htons(ETH_P_8021Q) || protocol == bpf_htons(ETH_P_8021AD);
}

struct vlan {
	__be16 tci;
	__be16 protocol;
};

/* Makes a packet one of a link that was found; returns 0 if there is none. */
static __always_inline int is_of(struct packet *packet, const __u32 *link)
{
	if (!link || !(*link & LINK_EXISTS))
		return 0;
	packet->link = (__u16)*link;
	packet->kernel_path = *link & ~LINK_EXISTS;
	return 1;
}

/* The number of a tag among the links of a port; 0 for none and for priority tags. */
static __always_inline __u32 number_of(__be16 protocol, __u32 vid)
{
	return vid && protocol == bpf_htons(ETH_P_8021AD) ? LINKS_PER_PORT / 2 + vid : vid;
}

/* Finds the link; returns 0 if there is none. */
static __always_inline int find_link(struct packet *packet, __be16 protocol, __u32 vid)
{
	__u32 slot = PORT * LINKS_PER_PORT + number_of(protocol, vid);

	return is_of(packet, bpf_map_lookup_elem(&links, &slot));
}

/* Finds the link of an inner tag behind an outer one, which has this number; returns 0 if there is none. */
static __always_inline int find_inner_link(struct packet *packet, __u32 outer, __be16 protocol,
					   const struct vlan *tag)
{
	__u32 inner = number_of(protocol, bpf_ntohs(tag->tci) & 0xfff);
	__u32 key = (PORT * LINKS_PER_PORT + outer) * LINKS_PER_PORT + inner;

	return is_of(packet, bpf_map_lookup_elem(&inner_links, &key));
}

#endif
