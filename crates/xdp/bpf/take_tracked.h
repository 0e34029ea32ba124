/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Decides about packets of links whose connections the kernel tracks. What an entry says is forwarded, or
 * dropped; all else is the kernel's, which makes, changes and ends connections.
 *
 * A program of its own does that for each family (`tracked4`, `tracked6`), to which a port's program leaves such packets.
 * Only these programs ask the kernel, look a next hop up, and ask user space (`asks`). Most packets need nothing of that:
 * the XDP program of a port decides about those without a tag itself, by the same functions.
 */
#ifndef TOLLWAY_TAKE_TRACKED_H
#define TOLLWAY_TAKE_TRACKED_H

#include "l4_sum.h"
#include "tcp.h"
#include "tracked.h"

/* A program that asks decides; nothing has changed so far. No verdict of any engine has this value. */
#define TO_WHO_ASKS (-4)

/*
 * Leaves a packet to the kernel whose entry user space changes just now, or that nothing here looks at. If it is one of TCP, its
 * track misses it.
 */
static __always_inline int leave_unfollowed(struct packet *packet, __u8 protocol)
{
	if (protocol == IPPROTO_TCP)
		note_unserved(packet);
	return pass_connection(packet);
}

/* Forwards a packet by its connection's entry, or drops it. */
static __always_inline int follow_connection(struct packet *packet, struct tracked *tracked,
					     const struct next_hop *hop, int v4)
{
	const struct passage *passage = &tracked->passage;
	int action;

	if (tracked->found.head.kind == CONNECTION_DROPPED)
		action = drop_for(packet, passage, DROP_NETFILTER);
	else
		action = forward_by(packet, hop, passage->l3, passage->l3_len, passage->len,
				    &tracked->tracking->translation, v4);
	if (action == NOT_TAKEN)
		return pass(packet, PASS_UNDECIDED);
	if (action == SENT || action == DROPPED)
		count_connection(packet, tracked->found.connection, passage->l3_len);
	return action;
}

/* Says whether an entry decides about packets that leave by a next hop; asks user space if it does not yet. */
static __always_inline int is_ruled(const struct tracked *tracked, const struct next_hop *hop, const void *ip,
				    const void *end, int v4)
{
	union connection_head head = tracked->found.head;

	if (head.kind != CONNECTION_UNRULED && head.output == hop->link)
		return 1;
	if (is_due_now(tracked, is_first(tracked, ip, end, v4), v4))
		ask_user(tracked->tracking, hop->link, v4);
	return 0;
}

/* Says whether the destination of a connection's packet changes. */
static __always_inline int changes_destination(const struct tracked *tracked, int v4)
{
	const union translation *translation = &tracked->tracking->translation;
	const __be32 *dst = tracked->tracking->query6.key.dst, *new_dst = translation->v6.dst;

	if (v4)
		return translation->v4.dst != tracked->tracking->query4.key.dst;
	return (dst[0] ^ new_dst[0]) | (dst[1] ^ new_dst[1]) | (dst[2] ^ new_dst[2]) | (dst[3] ^ new_dst[3]);
}

/* Says whether a packet's checksum is not finished, and nobody here finishes it. */
static __always_inline int is_without_sum(const struct packet *packet, const void *ip, const void *end, int v4)
{
	return v4 ? lacks_sum(packet, ip, end) : lacks_sum6(packet, ip, end);
}

/*
 * What is known of a packet's checksum. One that is right is finished: whether it may be left to a card is looked at
 * only if it is not right, or nobody wants to know.
 */
static __always_inline enum sum known_sum(const struct packet *packet, const void *ip, const void *end, struct l4 l4,
					  __u16 check, int v4)
{
	enum sum sum = sum_of(packet, ip, l4, check, v4);

	if (sum == SUM_RIGHT && packet->state->verifies_sums)
		return sum;
	return is_without_sum(packet, ip, end, v4) ? SUM_UNKNOWN : sum;
}

/* What becomes of a packet of TCP that is out of window. The kernel translates it neither, nor does it know that. */
static __always_inline int take_invalid(struct packet *packet, struct tracked *tracked, void *ip, const void *end,
					__u32 at, int v4)
{
	enum connection_kind kind = tracked->found.head.kind;
	union translation *translation = &tracked->tracking->translation;

	if (changes_destination(tracked, v4))
		return make_invalid(packet, ip + header_len_of(v4), end, at, is_without_sum(packet, ip, end, v4));
	if (kind == CONNECTION_UNRULED)
		return pass_connection(packet);
	if (kind != CONNECTION_FORWARDED_INVALID)
		return drop_for(packet, &tracked->passage, DROP_NETFILTER);
	/* It leaves as it is. */
	if (v4)
		translation->v4.address_sum = translation->v4.l4_sum = 0;
	else
		translation->v6.address_sum = translation->v6.l4_sum = 0;
	return GOES_ON;
}

/*
 * Follows the windows of a packet of TCP, also for one that the kernel forwards. An entry that is no longer active
 * (`is_active`) judges nothing.
 */
static __always_inline int follow_tcp(struct packet *packet, struct tracked *tracked, void *ip, const void *end,
				      int is_active, int asks, int v4)
{
	const struct passage *passage = &tracked->passage;
	struct l4 l4 = {
		.protocol = IPPROTO_TCP,
		.at = l3_in_frame(packet, passage->l3) + header_len_of(v4),
		.len = passage->l3_len - header_len_of(v4),
	};
	enum currency currency = CURRENT;
	struct segment *segment = &tracked->tracking->segment;
	const struct tcp_windows *windows = &tracked->tracking->windows;
	enum sum sum;
	int verdict, action;

	/* What the kernel finds malformed, or with a wrong checksum, is invalid, and changes no number. */
	if (!read_segment(packet->ctx, l4.at, l4.len, segment))
		return pass_connection(packet);
	if (!asks && segment->bits & (TCP_SYN | TCP_FIN | TCP_RST))
		return TO_WHO_ASKS;
	sum = known_sum(packet, ip, end, l4, segment->check, v4);
	if (sum == SUM_WRONG)
		return pass_connection(packet);
	if (is_active)
		currency = is_current(packet, tracked, asks, v4);
	if (currency == TO_BE_ASKED)
		return TO_WHO_ASKS;
	segment->track = *retry_of(tracked->found.connection, v4);
	segment->way = segment->track >> 31;
	segment->tick = tick_of(packet);
	/* Behind a port that no program serves, nobody sees what the other side sends. */
	segment->unserved = packet->exit == NO_EXIT ? segment->tick : *(volatile __u32 *)&packet->state->unserved_tick;
	segment->settings = packet->state->tcp_settings;
	/* Another connection may have the slot by now. */
	if (read_connection_head(tracked->found.connection) != tracked->found.head.word && currency != NOT_CURRENT)
		return leave_unfollowed(packet, IPPROTO_TCP);
	verdict = follow_segment(segment, windows, currency == ASKED_NOW);
	if (verdict == TCP_MISSED)
		return pass_connection(packet);
	if (verdict == TCP_STALE || verdict == TCP_ENDS) {
		end_connection(&tracked->found, 0);
		return pass_connection(packet);
	}
	if (!is_active || currency == NOT_CURRENT)
		return pass_connection(packet);
	/*
	 * A packet that was in the kernel has made it sure of what an RST must have. An entry without rules has no link
	 * yet to ask about.
	 */
	if (asks && currency == ASKED_NOW && !is_handed_over(windows) && tracked->found.head.kind != CONNECTION_UNRULED)
		ask_user(tracked->tracking, tracked->found.head.output, v4);
	if (verdict == TCP_INVALID) {
		action = take_invalid(packet, tracked, ip, end, l4.at, v4);
		if (action != GOES_ON)
			return action;
	}
	if (asks && verdict == TCP_NEAR_RESET && !ask(packet, tracked, packet->state->tcp_close_timeout_ms, v4))
		return pass_connection(packet);
	return sum == SUM_UNKNOWN ? pass(packet, PASS_CHECKSUM) : GOES_ON;
}

/* The same for one of UDP, behind all other checks. */
static __always_inline int follow_udp(struct packet *packet, struct tracked *tracked, const void *ip, const void *end,
				      int asks, int v4)
{
	enum currency currency;
	const struct udphdr *udp = ip + header_len_of(v4);
	struct l4 l4 = { .protocol = IPPROTO_UDP, .at = l3_in_frame(packet, tracked->passage.l3) + header_len_of(v4) };
	enum sum sum = SUM_RIGHT;

	if ((const void *)(udp + 1) > end || (!udp->check && !v4))
		return pass_connection(packet);
	l4.len = bpf_ntohs(udp->len);
	/* Over IPv4, 0 means that there is none. Two numbers that add up to 0 do so as well. */
	if (udp->check)
		sum = known_sum(packet, ip, end, l4, udp->check, v4);
	else if (may_lack_sum(packet) && is_all_ones(sum_of_pseudo(ip, l4, v4)))
		sum = SUM_UNKNOWN;
	if (sum == SUM_UNKNOWN)
		return pass(packet, PASS_CHECKSUM);
	if (sum == SUM_WRONG)
		return pass_connection(packet);
	currency = is_current(packet, tracked, asks, v4);
	if (currency == TO_BE_ASKED)
		return TO_WHO_ASKS;
	return currency == NOT_CURRENT ? pass_connection(packet) : GOES_ON;
}

/* The link that a packet leaves by if its addresses stay as they are. */
static __always_inline __u32 output_of(const struct engine_link *link, const struct tracked *tracked, const void *ip,
				       const void *end, int v4)
{
	const struct flow4_key *key4 = &tracked->tracking->query4.key;
	const struct flow6_key *key6 = &tracked->tracking->query6.key;
	__u32 entry = v4 ? route4(link->root4, key4->src, key4->dst, 0) :
			   route6(link->root6, key6->src, key6->dst, 0);
	const struct next_hop *hop = next_hop_of(member_of(entry, ip, end, v4));

	return hop && forwards(hop) ? hop->link : NO_LINK;
}

/* As filter_source(), which is there for IPv4 only. */
static __always_inline int filter_source_of(struct packet *packet, const struct engine_link *link, __u32 flags,
					    const struct next_hop *hop, const struct tracked *tracked, int v4)
{
	if (!v4)
		return GOES_ON;
	return filter_source(packet, &tracked->passage, link, flags, hop, tracked->tracking->query4.key.src,
			     tracked->tracking->translation.v4.dst);
}

static __always_inline __u8 ttl_of(const void *ip, int v4)
{
	return v4 ? ((const struct iphdr *)ip)->ttl : ((const struct ipv6hdr *)ip)->hop_limit;
}

/* What the addresses and ports of a packet say about it: whether it is one that only the kernel handles. */
static __always_inline int judge_key(struct packet *packet, const void *ip, const void *end, int v4)
{
	const struct iphdr *ip4 = ip;
	const struct ipv6hdr *ip6 = ip;

	if (lacks_inner_sum(packet, v4 ? ip4->protocol : ip6->nexthdr, ip + header_len_of(v4), end))
		return pass(packet, PASS_CHECKSUM);
	if (v4)
		return is_special4(ip4->daddr) || is_suspect4(ip4->saddr) || is_link_local4(ip4->daddr) ?
			       pass(packet, PASS_SPECIAL) :
			       GOES_ON;
	if (is_special6(&ip6->daddr) || is_special6(&ip6->saddr))
		return pass(packet, PASS_SPECIAL);
	return is_link_local6(&ip6->daddr) || is_link_local6(&ip6->saddr) ? pass(packet, PASS_LINK_LOCAL) : GOES_ON;
}

/* What a next hop from the tables says about a connection's packets. Those that go on, the next packet need not ask. */
static __always_inline int judge_next_hop(struct packet *packet, const struct engine_link *link, __u32 flags,
					  const struct next_hop *hop, const void *ip, const void *end,
					  struct tracked *tracked, int v4)
{
	int action = filter_source_of(packet, link, flags, hop, tracked, v4);

	if (action != GOES_ON)
		return action == NOT_TAKEN ? pass_connection(packet) : action;
	if (is_left_to_kernel(packet))
		return leave_to_kernel(packet);
	/* The kernel may send a redirect for it. */
	if (hop->link == packet->link || !is_ruled(tracked, hop, ip, end, v4))
		return pass_connection(packet);
	if (tracked->found.head.kind != CONNECTION_DROPPED && !takes(packet, hop))
		return pass(packet, PASS_UNDECIDED);
	/*
	 * The program that does not ask takes a packet with a noted next hop for one of a connection. By a bridge, the port may be
	 * another one for the next packet.
	 */
	if (tracked->found.head.kind != CONNECTION_UNTRACKED && hop->action != ACTION_BRIDGE)
		note_route(tracked);
	return GOES_ON;
}

/* Says whether rules keep a packet out of connection tracking. A program that does not ask hands such packets on before. */
static __always_inline int is_untracked(const struct tracked *tracked, int asks)
{
	return asks && tracked->found.head.kind == CONNECTION_UNTRACKED;
}

/* Does with a packet of an active entry what that says, if its next hop and the checks of its link permit. */
static __always_inline int pass_on(struct packet *packet, const struct engine_link *link, __u32 flags,
				   const struct next_hop *hop, int is_noted, const void *ip, const void *end,
				   struct tracked *tracked, int asks, int v4)
{
	int action;

	if (packet->sender > SENDER_KNOWN)
		return pass_sender(packet, packet->sender);
	if (!hop || !forwards(hop))
		return pass_connection(packet);
	if (ttl_of(ip, v4) <= 1)
		return pass(packet, PASS_TTL);
	if (!fits(packet, hop, tracked->passage.l3_len, v4))
		return pass(packet, PASS_MTU);
	if (packet->exit == NO_EXIT)
		return pass(packet, PASS_BRIDGE_DESTINATION);
	if (asks && !is_noted) {
		action = judge_next_hop(packet, link, flags, hop, ip, end, tracked, v4);
		if (action != GOES_ON)
			return action;
	}
	if (is_untracked(tracked, asks)) {
		if (is_without_sum(packet, ip, end, v4))
			return pass(packet, PASS_CHECKSUM);
	} else if (protocol_of(tracked, v4) == IPPROTO_UDP) {
		action = follow_udp(packet, tracked, ip, end, asks, v4);
		if (action != GOES_ON)
			return action;
	}
	return follow_connection(packet, tracked, hop, v4);
}

/*
 * Forgets what an entry has counted that judges no packets: it was of another connection than the one that begins. A call of
 * its own, as end_with().
 */
static __attribute__((noinline)) void forget_counts(struct connection *connection, __u64 word)
{
	/* Another connection may have the slot by now. */
	if (read_connection_head(connection) != word)
		return;
	*(volatile __u64 *)&connection->used &= ~FLOW_PACKETS;
	*(volatile __u64 *)&connection->bytes &= ~FLOW_PACKETS;
}

/* Asks user space about a packet that no entry judges, if it is time to. */
static __always_inline void ask_if_due(const struct engine_link *link, const struct tracked *tracked, const void *ip,
				       const void *end, int v4)
{
	int begins = is_first(tracked, ip, end, v4);

	if (tracked->found.connection && begins)
		forget_counts(tracked->found.connection, tracked->found.head.word);
	if (is_due_now(tracked, begins, v4))
		ask_user(tracked->tracking, output_of(link, tracked, ip, end, v4), v4);
}

/* Does so, unless the packet is one that only the kernel handles; it is the kernel's in any case. */
static __always_inline int leave_unknown(struct packet *packet, const struct engine_link *link,
					 const struct tracked *tracked, const void *ip, const void *end, int v4)
{
	int action = judge_key(packet, ip, end, v4);

	if (action != GOES_ON)
		return action;
	ask_if_due(link, tracked, ip, end, v4);
	return pass_connection(packet);
}

/* Looks a packet's connection up. */
static __always_inline int track(struct packet *packet, const struct engine_link *link, __u32 flags, void *ip,
				 const void *end, struct tracked *tracked, const struct key_words *key, int asks, int v4)
{
	const struct next_hop *hop;
	int action, is_active, is_followed, is_noted;

	if (protocol_of(tracked, v4) == IPPROTO_TCP)
		fetch_home(packet->state, key->words, v4);
	tracked->found = find_connection(packet->state, key->words, v4);
	is_followed = has_track(tracked, v4);
	is_active = tracked->found.head.generation == packet->state->connections_generation &&
		    tracked->found.head.kind > CONNECTION_KERNEL;
	if (!asks && !(tracked->found.connection && is_active))
		return TO_WHO_ASKS;
	/* Only while user space writes a slot, it is of no kind. */
	if (tracked->found.connection && !tracked->found.head.kind)
		return leave_unfollowed(packet, protocol_of(tracked, v4));
	if (!tracked->found.connection || !(is_active || is_followed))
		return leave_unknown(packet, link, tracked, ip, end, v4);
	if (is_followed)
		fetch_track(*retry_of(tracked->found.connection, v4));
	if (!copy_translation(&tracked->found, key->words, &tracked->tracking->translation, v4))
		return leave_unfollowed(packet, protocol_of(tracked, v4));
	hop = noted_next_hop(packet, tracked, flags, v4);
	is_noted = hop != 0;
	if (!asks && !is_noted)
		return TO_WHO_ASKS;
	if (asks && !is_noted) {
		action = judge_key(packet, ip, end, v4);
		if (action != GOES_ON)
			return action;
		hop = next_hop_in_tables(link, tracked, ip, end, v4);
	}
	if (hop)
		find_exit(packet, hop);
	if (is_followed && (is_noted || !(hop && packet->sender <= SENDER_KNOWN && is_for_tc(packet)))) {
		action = follow_tcp(packet, tracked, ip, end, is_active, asks, v4);
		if (asks && action != GOES_ON && !is_active)
			ask_if_due(link, tracked, ip, end, v4);
		if (action != GOES_ON)
			return action;
	}
	return pass_on(packet, link, flags, hop, is_noted, ip, end, tracked, asks, v4);
}

/* Decides about an IPv4 packet behind its link. */
static __always_inline int take4(struct packet *packet, const struct engine_link *link, __u32 flags, struct iphdr *ip,
				 const void *end, struct tracked *tracked, int asks)
{
	struct key_words key;

	if (!(flags & ENGINE_DECIDES4))
		return leave_unfollowed(packet, ip->protocol);
	if (!read_key4(packet, ip, end, tracked, &key))
		return pass_connection(packet);
	if (!checksum_is_right(ip))
		return pass(packet, PASS_MALFORMED);
	return track(packet, link, flags, ip, end, tracked, &key, asks, 1);
}

static __always_inline int take6(struct packet *packet, const struct engine_link *link, __u32 flags,
				 struct ipv6hdr *ip, const void *end, struct tracked *tracked, int asks)
{
	struct key_words key;

	if (!(flags & ENGINE_DECIDES6))
		return leave_unfollowed(packet, ip->nexthdr);
	if (!read_key6(packet, ip, end, tracked, &key))
		return pass_connection(packet);
	return track(packet, link, flags, ip, end, tracked, &key, asks, 0);
}

/* Decides about a packet on a tracked link, whose layer-3 header begins at `l3`. */
static __always_inline int take(struct packet *packet, struct tracking *tracking, __u32 l3, __u32 len, int asks, int v4)
{
	struct tracked tracked = { .tracking = tracking, .passage = { .l3 = l3, .len = len } };
	void *ip = data_of(packet->ctx) + l3_in_frame(packet, l3);
	const void *end = end_of(packet->ctx);
	const struct engine_link *link;
	struct ipv6hdr *ip6 = ip;
	struct iphdr *ip4 = ip;
	__u32 flags;

	if (ip + header_len_of(v4) > end)
		return pass(packet, PASS_MALFORMED);
	tracked.passage.l3_len = v4 ? bpf_ntohs(ip4->tot_len) : sizeof(*ip6) + bpf_ntohs(ip6->payload_len);
	tracked.generation = *(const volatile __u32 *)&packet->state->generation;
	read_fence();
	link = ELEMENT(engine_links, packet->link);
	/* User space has evaluated the rules for packets without a mark. */
	if (!link || !timeout_of(packet, v4 ? ip4->protocol : ip6->nexthdr) || mark_of(packet->ctx))
		return leave_unfollowed(packet, v4 ? ip4->protocol : ip6->nexthdr);
	flags = *(const volatile __u64 *)&link->decision;
	return v4 ? take4(packet, link, flags, ip4, end, &tracked, asks) :
		    take6(packet, link, flags, ip6, end, &tracked, asks);
}

/*
 * The programs that decide about these packets. They are programs of their own, so that the verifier looks at them once,
 * and not once for each length of an Ethernet header. User space enters them if the kernel has the functions that they
 * call (src/tracked.rs).
 */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u32);
} tracked_programs SEC(".maps");

/* As in src/tracked.rs. */
#define TRACKED4 0
#define TRACKED6 1

/*
 * Leaves a packet to that program of its family, unless it needs nothing of what only that does. It is for packets without
 * IPv4 options, with valid lengths.
 */
static __always_inline int decide_tracked(struct packet *packet, __u32 l3, __u32 len, const __u32 program)
{
	__u32 zero = 0;
	struct tracking *tracking_of_processor = bpf_map_lookup_elem(&tracking, &zero);
	int action;

	if (!tracking_of_processor)
		return pass_connection(packet);
	if (DECIDES_AT_ONCE && l3 == ETH_HLEN) {
		action = take(packet, tracking_of_processor, l3, len, 0, program == TRACKED4);
		if (action != TO_WHO_ASKS)
			return action;
	}
	tracking_of_processor->arrival = (struct arrival){
		.l3 = l3,
		.len = len,
		.link = packet->link,
		.kernel_path = packet->kernel_path,
		.inner_len = packet->inner_len,
		.sender = packet->sender,
	};
	/* Not one call for both, whose target the kernel would not know: 10 ns. */
	bpf_tail_call_static(packet->ctx, &tracked_programs, program);
	return pass_connection(packet);
}

/* Decides about a packet of which decide_tracked() has noted the arrival. */
static __always_inline int take_tracked(context *ctx, int v4)
{
	struct packet packet = { .ctx = ctx };
	const struct arrival *arrival;
	struct tracking *tracking_of_processor;
	__u32 l3, zero = 0, port = PORT;

	packet.state = bpf_map_lookup_elem(&state, &zero);
	packet.counts = bpf_map_lookup_elem(&counts, &port);
	tracking_of_processor = bpf_map_lookup_elem(&tracking, &zero);
	if (!packet.state || !packet.counts || !tracking_of_processor)
		return TO_KERNEL;
	arrival = &tracking_of_processor->arrival;
	packet.link = arrival->link;
	packet.kernel_path = arrival->kernel_path;
	packet.inner_len = arrival->inner_len;
	packet.sender = arrival->sender;
	l3 = arrival->l3;
	if (l3 > MOST_BEFORE)
		return pass_connection(&packet);
	return take(&packet, tracking_of_processor, l3, arrival->len, 1, v4);
}

#endif
