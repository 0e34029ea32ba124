/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Decides about packets of links whose connections the kernel tracks. What an entry says is forwarded, or
 * dropped; all else is the kernel's, which makes, changes and ends connections.
 */
#ifndef TOLLWAY_TRACKED_H
#define TOLLWAY_TRACKED_H

#include "connections.h"
#include "decide.h"
#include "l4_sum.h"

/* A packet on a tracked link, and what it is looked up by. */
struct tracked {
	struct flow4_key key;
	struct passage passage;
	struct found_connection found;
	struct translation translation;
};

static __always_inline int pass_tracked(struct packet *packet)
{
	return pass(packet, PASS_CONNECTION);
}

/* The kernel's functions take a timeout in ms from 1 on. */
static __always_inline int has_timeout(const struct packet *packet)
{
	return packet->state->udp_timeout_ms != 0;
}

/* Reads the key. Returns 0 for what only the kernel tracks: other protocols, fragments, headers that are not whole. */
static __always_inline int read_key4(const struct packet *packet, const struct iphdr *ip, const void *end,
				     struct tracked *tracked)
{
	const struct udphdr *udp = (const void *)(ip + 1);
	__u32 rest = tracked->passage.l3_len - sizeof(*ip), udp_len;

	if (ip->protocol != IPPROTO_UDP || ip->frag_off & bpf_htons(0x3fff))
		return 0;
	if (rest < sizeof(*udp) || (const void *)(udp + 1) > end)
		return 0;
	/* As udp_error() in net/netfilter/nf_conntrack_proto_udp.c. */
	udp_len = bpf_ntohs(udp->len);
	if (udp_len < sizeof(*udp) || udp_len > rest)
		return 0;
	tracked->key.src = ip->saddr;
	tracked->key.dst = ip->daddr;
	tracked->key.ports = *(const __be32 *)udp;
	tracked->key.protocol = ip->protocol;
	tracked->key.pad = 0;
	tracked->key.link = packet->link;
	return 1;
}

/*
 * Says whether the kernel still has the connection; asks it once a tick. A pause leaves the packet to the kernel, so
 * that it is the kernel that ends connections.
 */
static __always_inline int is_current(struct packet *packet, struct tracked *tracked, __u64 tick)
{
	struct connection4 *connection = tracked->found.connection;
	__u64 used = *(volatile __u64 *)&connection->used;
	__u16 pause = (__u16)tick - (__u16)(used >> 48);
	__u64 bytes = *(volatile __u64 *)&connection->bytes;
	__u16 ago = (__u16)tick - (__u16)(bytes >> 48);
	struct ct_expected expected;

	if (pause > MOST_PAUSE) {
		*(volatile __u64 *)&connection->used = (used & FLOW_PACKETS) | tick << 48;
		return 0;
	}
	if (!may_ask(tick, ago, packet->state->udp_timeout_ms))
		return 1;
	expected.src = tracked->key.src;
	expected.dst = tracked->key.dst;
	expected.ports = tracked->key.ports;
	expected.new_src = tracked->translation.src;
	expected.new_dst = tracked->translation.dst;
	expected.new_ports = tracked->translation.ports;
	expected.mark = connection->mark;
	expected.timeout_ms = packet->state->udp_timeout_ms;
	expected.protocol = tracked->key.protocol;
	if (is_alive(packet->ctx, &expected)) {
		/* Another connection may have the slot by now. */
		if (read_connection_head(connection) == tracked->found.head.word)
			*(volatile __u64 *)&connection->bytes = (bytes & FLOW_PACKETS) | tick << 48;
		return 1;
	}
	end_connection(&tracked->found);
	return 0;
}

static __always_inline void count_connection(const struct packet *packet, struct connection4 *connection,
					     __u64 tick, __u32 len)
{
	__u64 used = connection->used & FLOW_PACKETS;

	connection->used = ((used + packets_of(packet->ctx)) & FLOW_PACKETS) | tick << 48;
	/* The kernel may have been asked meanwhile. */
	*(volatile __u64 *)&connection->bytes += len;
}

/* The next hop of a connection's packet, by its source as it arrives and its destination as it leaves. */
static __always_inline const struct next_hop *next_hop_of_tracked(const struct engine_link *link,
								  const struct tracked *tracked,
								  const struct iphdr *ip,
								  const void *end)
{
	__u32 entry = route4(link->root4, tracked->key.src, tracked->translation.dst, 0);

	/* Which member of a group it is depends on more than these addresses. */
	if (is_translated(&tracked->translation) && !(entry & ENTRY_NODE) && entry & NEXT_HOP_GROUP)
		return 0;
	return next_hop_of(member_of(entry, ip, end, 1));
}

/* Forwards a packet by its connection's entry, or drops it. */
static __always_inline int follow_connection(struct packet *packet, struct tracked *tracked,
					     const struct next_hop *hop, const struct iphdr *ip,
					     const void *end)
{
	const struct passage *passage = &tracked->passage;
	union connection_head head = tracked->found.head;
	__u64 tick = packet->state->confirmed_ns >> FLOW_TICK_SHIFT;
	int action;

	if (!fits(packet, hop, passage->l3_len, 1))
		return pass(packet, PASS_MTU);
	/* The kernel may send a redirect for it. */
	if (is_left_to_kernel(packet, hop) || hop->link == packet->link)
		return is_left_to_kernel(packet, hop) ? leave_to_kernel(packet) : pass_tracked(packet);
	if (head.kind == CONNECTION_UNRULED || head.output != hop->link) {
		if (is_due(tracked->found.connection))
			query(&tracked->key, hop->link);
		return pass_tracked(packet);
	}
	if (!udp_sum_is_right(packet, ip, end, l3_in_frame(packet, passage->l3) + sizeof(*ip)))
		return pass_tracked(packet);
	if (!is_current(packet, tracked, tick))
		return pass_tracked(packet);
	if (head.kind == CONNECTION_DROPPED)
		action = drop_for(packet, passage, DROP_NETFILTER);
	else
		action = forward_by(packet, hop, passage->l3, passage->l3_len, passage->len, &tracked->translation, 1);
	if (action == NOT_TAKEN)
		return pass(packet, PASS_UNDECIDED);
	if (action == SENT || action == DROPPED)
		count_connection(packet, tracked->found.connection, tick, passage->len);
	return action;
}

/* The link that a packet leaves by if its addresses stay as they are. */
static __always_inline __u32 output_of(const struct engine_link *link, const struct iphdr *ip, const void *end)
{
	__u32 entry = route4(link->root4, ip->saddr, ip->daddr, 0);
	const struct next_hop *hop = next_hop_of(member_of(entry, ip, end, 1));

	return hop && hop->action == ACTION_FORWARD ? hop->link : NO_LINK;
}

/* Looks an IPv4 packet's connection up. */
static __always_inline int track4(struct packet *packet, const struct engine_link *link, __u32 flags,
				  const struct iphdr *ip, const void *end, struct tracked *tracked)
{
	const struct next_hop *hop;
	int action;

	tracked->found = find_connection4(&tracked->key);
	if (!tracked->found.connection || tracked->found.head.generation != packet->state->generation ||
	    tracked->found.head.kind <= CONNECTION_KERNEL) {
		if (tracked->found.connection ? is_due(tracked->found.connection) :
						is_due_newcomer(tracked->found.hash))
			query(&tracked->key, output_of(link, ip, end));
		return pass_tracked(packet);
	}
	if (!copy_translation(&tracked->found, &tracked->translation))
		return pass_tracked(packet);
	hop = next_hop_of_tracked(link, tracked, ip, end);
	if (!hop || hop->action != ACTION_FORWARD)
		return pass_tracked(packet);
	action = filter_source(packet, &tracked->passage, link, flags, hop, ip->saddr, tracked->translation.dst);
	if (action != GOES_ON)
		return action == NOT_TAKEN ? pass_tracked(packet) : action;
	return follow_connection(packet, tracked, hop, ip, end);
}

/* Decides about an IPv4 packet without options and with valid lengths that arrives on a tracked link. */
static __always_inline int decide_tracked4(struct packet *packet, const struct iphdr *ip, const void *end,
					   __u32 l3, __u32 len)
{
	const struct engine_link *link = ELEMENT(engine_links, packet->link);
	struct tracked tracked = {
		.passage = { .l3 = l3, .l3_len = bpf_ntohs(ip->tot_len), .len = len },
	};
	__u32 flags;

	/* User space has evaluated the rules for packets without a mark. */
	if (!link || !has_timeout(packet) || mark_of(packet->ctx))
		return pass_tracked(packet);
	flags = *(const volatile __u64 *)&link->decision;
	if (!(flags & ENGINE_DECIDES4) || !read_key4(packet, ip, end, &tracked))
		return pass_tracked(packet);
	if (is_special4(ip->daddr) || is_suspect4(ip->saddr) || is_link_local4(ip->daddr))
		return pass(packet, PASS_SPECIAL);
	if (!checksum_is_right(ip))
		return pass(packet, PASS_MALFORMED);
	if (ip->ttl <= 1)
		return pass(packet, PASS_TTL);
	return track4(packet, link, flags, ip, end, &tracked);
}

#endif
