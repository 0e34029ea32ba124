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
#include "tcp.h"

/* A packet on a tracked link, and what it is looked up by. */
struct tracked {
	struct flow4_key key;
	struct passage passage;
	struct found_connection found;
	struct tracking *tracking;
};

/* How long the kernel keeps a connection of this protocol after each packet, in ms from 1 on; 0 if it forwards all. */
static __always_inline __u32 timeout_of(const struct packet *packet, __u8 protocol)
{
	return protocol == IPPROTO_TCP ? packet->state->tcp_timeout_ms : packet->state->udp_timeout_ms;
}

/* As udp_error() in net/netfilter/nf_conntrack_proto_udp.c, for a packet with `rest` bytes behind its IP header. */
static __always_inline int is_whole_udp(const struct udphdr *udp, __u32 rest)
{
	__u32 udp_len = bpf_ntohs(udp->len);

	return udp_len >= sizeof(*udp) && udp_len <= rest;
}

/* Says whether a packet of TCP is the first one of its direction. */
static __always_inline int is_first(const struct iphdr *ip, const void *end)
{
	const __u8 *tcp = (const void *)(ip + 1);

	return ip->protocol == IPPROTO_TCP && (const void *)(tcp + TCP_FLAGS_AT + 1) <= end &&
	       tcp[TCP_FLAGS_AT] & TCP_SYN;
}

/* Reads the key. Returns 0 for what only the kernel tracks: other protocols, fragments, headers that are not whole. */
static __always_inline int read_key4(const struct packet *packet, const struct iphdr *ip, const void *end,
				     struct tracked *tracked)
{
	const struct udphdr *udp = (const void *)(ip + 1);
	__u32 rest = tracked->passage.l3_len - sizeof(*ip);

	if (!has_ports(ip->protocol) || ip->frag_off & bpf_htons(0x3fff))
		return 0;
	if (rest < sizeof(*udp) || (const void *)(udp + 1) > end)
		return 0;
	if (ip->protocol == IPPROTO_UDP && !is_whole_udp(udp, rest))
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
 * Asks the kernel about the connection, and sets how long it has to live. Ends the entry, and returns 0, if the kernel
 * has it no longer as it was.
 */
static __always_inline int ask(struct packet *packet, struct tracked *tracked, __u32 timeout_ms)
{
	struct connection4 *connection = tracked->found.connection;
	__u64 tick = tick_of(packet), begin_ns = bpf_ktime_get_ns();
	struct ct_expected *expected = &tracked->tracking->expected;
	int alive;

	*expected = (struct ct_expected){
		.src = tracked->key.src,
		.dst = tracked->key.dst,
		.ports = tracked->key.ports,
		.new_src = tracked->tracking->translation.src,
		.new_dst = tracked->tracking->translation.dst,
		.new_ports = tracked->tracking->translation.ports,
		.mark = connection->mark,
		.timeout_ms = timeout_ms,
		.protocol = tracked->key.protocol,
	};

	alive = is_alive(packet->ctx, expected, &tracked->tracking->windows);
	tracked->tracking->asking_ns += bpf_ktime_get_ns() - begin_ns;
	if (!alive) {
		end_connection(&tracked->found);
		return 0;
	}
	/* Another connection may have the slot by now. */
	if (read_connection_head(connection) == tracked->found.head.word)
		*(volatile __u64 *)&connection->bytes =
			(*(volatile __u64 *)&connection->bytes & FLOW_PACKETS) | tick << 48;
	return 1;
}

/* Whether a packet's connection is current. */
enum currency {
	NOT_CURRENT, /* the kernel has it no longer, or has to see the packet */
	CURRENT,
	ASKED_NOW,
};

/*
 * Says whether the kernel still has the connection; asks it once a tick. A pause leaves the packet to the kernel, so
 * that it is the kernel that ends connections.
 */
static __always_inline enum currency is_current(struct packet *packet, struct tracked *tracked)
{
	struct connection4 *connection = tracked->found.connection;
	__u64 tick = tick_of(packet);
	__u64 used = *(volatile __u64 *)&connection->used;
	__u64 asked = *(volatile __u64 *)&connection->bytes;
	__u32 timeout_ms = timeout_of(packet, tracked->key.protocol);

	if ((__u16)((__u16)tick - (__u16)(used >> 48)) > MOST_PAUSE) {
		*(volatile __u64 *)&connection->used = (used & FLOW_PACKETS) | tick << 48;
		return NOT_CURRENT;
	}
	if (!may_ask(tracked->tracking, tick, (__u16)tick - (__u16)(asked >> 48), timeout_ms))
		return CURRENT;
	return ask(packet, tracked, timeout_ms) ? ASKED_NOW : NOT_CURRENT;
}

static __always_inline void count_connection(const struct packet *packet, struct connection4 *connection, __u32 len)
{
	__u64 used = connection->used & FLOW_PACKETS;

	connection->used = ((used + packets_of(packet->ctx)) & FLOW_PACKETS) | tick_of(packet) << 48;
	/* The kernel may have been asked meanwhile. */
	*(volatile __u64 *)&connection->bytes += len;
}

/* The next hop of a connection's packet, by its source as it arrives and its destination as it leaves. */
static __always_inline const struct next_hop *next_hop_of_tracked(const struct engine_link *link,
								  const struct tracked *tracked,
								  const struct iphdr *ip,
								  const void *end)
{
	__u32 entry = route4(link->root4, tracked->key.src, tracked->tracking->translation.dst, 0);

	/* Which member of a group it is depends on more than these addresses. */
	if (is_translated(&tracked->tracking->translation) && !(entry & ENTRY_NODE) && entry & NEXT_HOP_GROUP)
		return 0;
	return next_hop_of(member_of(entry, ip, end, 1));
}

/* Says whether an entry has a track in the place of the time when to ask again. */
static __always_inline int has_track(const struct tracked *tracked)
{
	return tracked->key.protocol == IPPROTO_TCP && tracked->found.head.kind > CONNECTION_KERNEL;
}

/* Says whether to ask user space about a connection that has no entry, or whose entry does not answer. */
static __always_inline int is_due_now(const struct tracked *tracked, const struct iphdr *ip, const void *end)
{
	if (!tracked->found.connection || has_track(tracked))
		return is_due_newcomer(tracked->found.hash, is_first(ip, end));
	return is_due(tracked->found.connection);
}

/* Forwards a packet by its connection's entry, or drops it. */
static __always_inline int follow_connection(struct packet *packet, struct tracked *tracked,
					     const struct next_hop *hop)
{
	const struct passage *passage = &tracked->passage;
	int action;

	if (tracked->found.head.kind == CONNECTION_DROPPED)
		action = drop_for(packet, passage, DROP_NETFILTER);
	else
		action = forward_by(packet, hop, passage->l3, passage->l3_len, passage->len,
				    &tracked->tracking->translation, 1);
	if (action == NOT_TAKEN)
		return pass(packet, PASS_UNDECIDED);
	if (action == SENT || action == DROPPED)
		count_connection(packet, tracked->found.connection, passage->len);
	return action;
}

/* Says whether an entry decides about packets that leave by a next hop; asks user space if it does not yet. */
static __always_inline int is_ruled(const struct tracked *tracked, const struct next_hop *hop, const struct iphdr *ip,
				    const void *end)
{
	union connection_head head = tracked->found.head;

	if (head.kind != CONNECTION_UNRULED && head.output == hop->link)
		return 1;
	if (is_due_now(tracked, ip, end))
		query(&tracked->key, hop->link);
	return 0;
}

/* What becomes of a packet of TCP that is out of window. The kernel translates it neither, nor does it know that. */
static __always_inline int take_invalid(struct packet *packet, struct tracked *tracked, const struct iphdr *ip,
					const void *end, __u32 at)
{
	enum connection_kind kind = tracked->found.head.kind;

	if (tracked->tracking->translation.dst != tracked->key.dst)
		return make_invalid(packet, ip, end, at);
	if (kind == CONNECTION_UNRULED)
		return pass_connection(packet);
	if (kind != CONNECTION_FORWARDED_INVALID)
		return drop_for(packet, &tracked->passage, DROP_NETFILTER);
	tracked->tracking->translation = (struct translation){
		.src = tracked->key.src, .dst = tracked->key.dst, .ports = tracked->key.ports,
	};
	return GOES_ON;
}

/*
 * Follows the windows of a packet of TCP, also for one that the kernel forwards. An entry that is no longer active
 * (`is_active`) judges nothing.
 */
static __always_inline int follow_tcp(struct packet *packet, struct tracked *tracked, const struct iphdr *ip,
				      const void *end, int is_active)
{
	const struct passage *passage = &tracked->passage;
	__u32 at = l3_in_frame(packet, passage->l3) + sizeof(*ip), len = passage->l3_len - sizeof(*ip);
	enum currency currency = CURRENT;
	struct segment *segment = &tracked->tracking->segment;
	const struct tcp_windows *windows = &tracked->tracking->windows;
	enum sum sum;
	int verdict, action;

	/* What the kernel finds malformed, or with a wrong checksum, is invalid, and changes no number. */
	if (!read_segment(packet->ctx, at, len, segment))
		return pass_connection(packet);
	sum = lacks_sum(packet, ip, end) ? SUM_UNKNOWN : sum_of(packet, ip, at, len, segment->check);
	if (sum == SUM_WRONG)
		return pass_connection(packet);
	if (is_active)
		currency = is_current(packet, tracked);
	segment->track = *(volatile __u32 *)&tracked->found.connection->retry;
	segment->way = segment->track >> 31;
	segment->tick = tick_of(packet);
	segment->unserved = *(volatile __u32 *)&packet->state->unserved_tick;
	segment->settings = packet->state->tcp_settings;
	/* Another connection may have the slot by now. */
	if (read_connection_head(tracked->found.connection) != tracked->found.head.word && currency != NOT_CURRENT)
		return pass_connection(packet);
	verdict = follow_segment(segment, windows, currency == ASKED_NOW);
	if (verdict == TCP_STALE || verdict == TCP_ENDS) {
		end_connection(&tracked->found);
		return pass_connection(packet);
	}
	if (!is_active || currency == NOT_CURRENT)
		return pass_connection(packet);
	/*
	 * A packet that was in the kernel has made it sure of what an RST must have. An entry without rules has no link
	 * yet to ask about.
	 */
	if (currency == ASKED_NOW && !is_handed_over(windows) && tracked->found.head.kind != CONNECTION_UNRULED)
		query(&tracked->key, tracked->found.head.output);
	if (verdict == TCP_INVALID) {
		action = take_invalid(packet, tracked, ip, end, at);
		if (action != GOES_ON)
			return action;
	}
	if (verdict == TCP_NEAR_RESET && !ask(packet, tracked, packet->state->tcp_close_timeout_ms))
		return pass_connection(packet);
	return sum == SUM_UNKNOWN ? pass(packet, PASS_CHECKSUM) : GOES_ON;
}

/* The same for one of UDP, behind all other checks. */
static __always_inline int follow_udp(struct packet *packet, struct tracked *tracked, const struct iphdr *ip,
				      const void *end)
{
	if (!udp_sum_is_right(packet, ip, end, l3_in_frame(packet, tracked->passage.l3) + sizeof(*ip)) ||
	    is_current(packet, tracked) == NOT_CURRENT)
		return pass_connection(packet);
	return GOES_ON;
}

/* The link that a packet leaves by if its addresses stay as they are. */
static __always_inline __u32 output_of(const struct engine_link *link, const struct iphdr *ip, const void *end)
{
	__u32 entry = route4(link->root4, ip->saddr, ip->daddr, 0);
	const struct next_hop *hop = next_hop_of(member_of(entry, ip, end, 1));

	return hop && hop->action == ACTION_FORWARD ? hop->link : NO_LINK;
}

/* Does with a packet of an active entry what that says, if its next hop and the checks of its link permit. */
static __always_inline int pass_on(struct packet *packet, const struct engine_link *link, __u32 flags,
				   const struct next_hop *hop, const struct iphdr *ip, const void *end,
				   struct tracked *tracked)
{
	int action;

	if (!hop || hop->action != ACTION_FORWARD)
		return pass_connection(packet);
	if (ip->ttl <= 1)
		return pass(packet, PASS_TTL);
	action = filter_source(packet, &tracked->passage, link, flags, hop, ip->saddr, tracked->tracking->translation.dst);
	if (action != GOES_ON)
		return action == NOT_TAKEN ? pass_connection(packet) : action;
	if (!fits(packet, hop, tracked->passage.l3_len, 1))
		return pass(packet, PASS_MTU);
	if (is_left_to_kernel(packet, hop))
		return leave_to_kernel(packet);
	/* The kernel may send a redirect for it. */
	if (hop->link == packet->link || !is_ruled(tracked, hop, ip, end))
		return pass_connection(packet);
	if (ip->protocol == IPPROTO_UDP) {
		action = follow_udp(packet, tracked, ip, end);
		if (action != GOES_ON)
			return action;
	}
	return follow_connection(packet, tracked, hop);
}

/* Looks an IPv4 packet's connection up. */
static __always_inline int track4(struct packet *packet, const struct engine_link *link, __u32 flags,
				  const struct iphdr *ip, const void *end, struct tracked *tracked)
{
	const struct next_hop *hop;
	int action, is_active, is_followed;

	tracked->found = find_connection4(&tracked->key);
	is_followed = has_track(tracked);
	is_active = tracked->found.head.generation == packet->state->connections_generation &&
		    tracked->found.head.kind > CONNECTION_KERNEL;
	if (!tracked->found.connection || !(is_active || is_followed)) {
		if (is_due_now(tracked, ip, end))
			query(&tracked->key, output_of(link, ip, end));
		return pass_connection(packet);
	}
	if (is_followed)
		fetch_track(*(volatile __u32 *)&tracked->found.connection->retry);
	if (!copy_translation(&tracked->found, &tracked->tracking->translation))
		return pass_connection(packet);
	hop = next_hop_of_tracked(link, tracked, ip, end);
	if (is_followed && !(hop && is_for_tc(packet, hop))) {
		action = follow_tcp(packet, tracked, ip, end, is_active);
		if (action != GOES_ON && !is_active && is_due_now(tracked, ip, end))
			query(&tracked->key, output_of(link, ip, end));
		if (action != GOES_ON)
			return action;
	}
	return pass_on(packet, link, flags, hop, ip, end, tracked);
}

/*
 * The program `tracked`, which decides about these packets. It is a program of its own, so that the verifier looks at it
 * once, and not once for each length of an Ethernet header. User space enters it if the kernel has the functions that it
 * calls (src/tracked.rs).
 */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} tracked_program SEC(".maps");

/* Leaves a packet to that program. It is for IPv4 packets without options and with valid lengths. */
static __always_inline int decide_tracked4(struct packet *packet, __u32 l3, __u32 len)
{
	__u32 zero = 0;
	struct tracking *tracking_of_processor = bpf_map_lookup_elem(&tracking, &zero);

	if (tracking_of_processor) {
		tracking_of_processor->arrival = (struct arrival){
			.l3 = l3,
			.len = len,
			.link = packet->link,
			.kernel_path = packet->kernel_path,
			.inner_len = packet->inner_len,
		};
		bpf_tail_call(packet->ctx, &tracked_program, 0);
	}
	return pass_connection(packet);
}

/* Decides about an IPv4 packet of which decide_tracked4() has noted the arrival. */
static __always_inline int take_tracked4(context *ctx)
{
	struct packet packet = { .ctx = ctx };
	struct tracked tracked = {};
	const struct engine_link *link;
	const struct arrival *arrival;
	const struct iphdr *ip;
	const void *end = end_of(ctx);
	__u32 flags, zero = 0, port = PORT;

	packet.state = bpf_map_lookup_elem(&state, &zero);
	packet.counts = bpf_map_lookup_elem(&counts, &port);
	tracked.tracking = bpf_map_lookup_elem(&tracking, &zero);
	if (!packet.state || !packet.counts || !tracked.tracking)
		return TO_KERNEL;
	arrival = &tracked.tracking->arrival;
	packet.link = arrival->link;
	packet.kernel_path = arrival->kernel_path;
	packet.inner_len = arrival->inner_len;
	tracked.passage.l3 = arrival->l3;
	tracked.passage.len = arrival->len;
	if (tracked.passage.l3 > MOST_BEFORE)
		return pass_connection(&packet);
	ip = data_of(ctx) + l3_in_frame(&packet, tracked.passage.l3);
	if ((const void *)(ip + 1) > end)
		return pass(&packet, PASS_MALFORMED);
	tracked.passage.l3_len = bpf_ntohs(ip->tot_len);
	link = ELEMENT(engine_links, packet.link);
	/* User space has evaluated the rules for packets without a mark. */
	if (!link || !timeout_of(&packet, ip->protocol) || mark_of(ctx))
		return pass_connection(&packet);
	flags = *(const volatile __u64 *)&link->decision;
	if (!(flags & ENGINE_DECIDES4) || !read_key4(&packet, ip, end, &tracked))
		return pass_connection(&packet);
	if (ip->protocol != IPPROTO_TCP && lacks_sum(&packet, ip, end))
		return pass(&packet, PASS_CHECKSUM);
	if (is_special4(ip->daddr) || is_suspect4(ip->saddr) || is_link_local4(ip->daddr))
		return pass(&packet, PASS_SPECIAL);
	if (!checksum_is_right(ip))
		return pass(&packet, PASS_MALFORMED);
	return track4(&packet, link, flags, ip, end, &tracked);
}

#endif
