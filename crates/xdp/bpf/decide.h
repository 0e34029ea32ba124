/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Decides about packets by the tables of user space, first packets included: forwards those that need
 * nothing but a route and rules, drops those that these forbid, and leaves to the kernel what is its
 * own. About all others (NOT_TAKEN) the flows decide, and then user space; or the kernel, if the engine
 * is tc.
 */
#ifndef TOLLWAY_DECIDE_H
#define TOLLWAY_DECIDE_H

#include "addresses.h"
#include "bridge_ports.h"
#include "ecmp.h"
#include "fib.h"
#include "header.h"
#include "route_rules.h"
#include "rules.h"

/* Says whether a packet fits its next hop, or its segments do. This is the engine's part (send_xdp.h, send_tc.h). */
static __always_inline int fits(const struct packet *packet, const struct next_hop *hop, __u32 l3_len,
				int v4);

/* Says whether the kernel sends what leaves by a packet's port. This is the engine's part. */
static __always_inline int is_left_to_kernel(const struct packet *packet);

/* Passes such a packet to the kernel. This is the engine's part. */
static __always_inline int leave_to_kernel(struct packet *packet);

/* Says whether the device of a packet's port takes it by this next hop. This is the engine's part. */
static __always_inline int takes(const struct packet *packet, const struct next_hop *hop);

/*
 * Forwards a packet by its port, with the header of a next hop, and with the addresses of a translation if there is one.
 * This is the engine's part (send_xdp.h, send_tc.h).
 */
static __always_inline int forward_by(struct packet *packet, const struct next_hop *hop, __u32 l3,
				      __u32 l3_len, __u32 len, const union translation *translation,
				      int v4);

/* The packet continues on its way. No verdict of any engine has this value. */
#define GOES_ON (-3)

/* Lengths of a packet, and where its rules are: 0 if there are none. */
struct passage {
	__u32 rules;
	__u32 l3; /* bytes before the layer-3 header */
	__u32 l3_len;
	__u32 len; /* of the frame, as it arrived */
};

/* Drops a packet: by then, it has matched all counters that it will. */
static __always_inline int drop_for(struct packet *packet, const struct passage *passage,
				    enum drop_reason reason)
{
	if (passage->rules)
		count_rules(passage->rules, passage->l3_len, passage->len - passage->l3);
	count_drop(packet, reason, passage->len);
	return DROPPED;
}

/* Does what rules say about a packet. */
static __always_inline int obey(struct packet *packet, const struct passage *passage, int report)
{
	if (report == RULES_ACCEPT)
		return GOES_ON;
	if (report == RULES_DROP)
		return drop_for(packet, passage, DROP_NETFILTER);
	/* The kernel evaluates its rules from the first one on, and does not know those of user space. */
	if (report == RULES_KERNEL && !packet->state->ruled)
		return pass(packet, PASS_KERNEL_RULE);
	return NOT_TAKEN;
}

/* Evaluates the rules before the route lookup. Fields have been read, if `is_read`. */
static __always_inline int before_route(struct packet *packet, const struct passage *passage, int is_read,
					struct rules_walk *walk, int v4)
{
	int report;

	if (!is_read)
		return NOT_TAKEN;
	walk->at_ingress = TOUCHED_AT_INGRESS;
	report = rules_at(passage->rules, POINT_INGRESS, v4);
	if (report != RULES_ACCEPT)
		return obey(packet, passage, report);
	walk->at_ingress = 0;
	return obey(packet, passage, rules_at(passage->rules, POINT_PREROUTING, v4));
}

/* Evaluates the rules behind it, for a packet that is forwarded by this next hop. */
static __always_inline int behind_route(struct packet *packet, const struct passage *passage,
					const struct next_hop *hop, __u32 ttl, int v4)
{
	struct rules_walk *walk = walk_of_processor();

	if (!walk)
		return NOT_TAKEN;
	walk->value[FIELD_TTL] = ttl - 1;
	walk->value[FIELD_OUTPUT] = hop->link;
	walk->absent &= ~(1U << FIELD_OUTPUT);
	return obey(packet, passage, rules_at(passage->rules, POINT_FORWARD, v4));
}

/* Gives a packet that is sent the mark of its rules, and counts it by them. */
static __always_inline void leave_rules(struct packet *packet, const struct passage *passage)
{
	struct rules_walk *walk = walk_of_processor();

	if (walk)
		set_mark(packet->ctx, walk->mark);
	count_rules(passage->rules, passage->l3_len, passage->len - passage->l3);
}

/* Passes a packet to the kernel; user space decides instead, if only it knows the rules. */
static __always_inline int pass_unless_ruled(struct packet *packet, enum pass_reason reason)
{
	return packet->state->ruled ? NOT_TAKEN : pass(packet, reason);
}

/* Forwards a packet by a next hop. */
static __always_inline int forward_ruled(struct packet *packet, const struct passage *passage,
					 const struct next_hop *hop, __u32 ttl, int v4)
{
	int action;

	if (!fits(packet, hop, passage->l3_len, v4))
		return pass_unless_ruled(packet, PASS_MTU);
	find_exit(packet, hop);
	if (packet->exit == NO_EXIT)
		return pass_unless_ruled(packet, PASS_BRIDGE_DESTINATION);
	if (is_left_to_kernel(packet))
		return packet->state->ruled ? NOT_TAKEN : leave_to_kernel(packet);
	/* The kernel may send a redirect for it. */
	if (hop->link == packet->link)
		return NOT_TAKEN;
	if (passage->rules) {
		action = behind_route(packet, passage, hop, ttl, v4);
		if (action != GOES_ON)
			return action;
	}
	if (!takes(packet, hop))
		return hop->action == ACTION_BRIDGE ? pass_unless_ruled(packet, PASS_BRIDGE_PORT) : NOT_TAKEN;
	action = forward_by(packet, hop, passage->l3, passage->l3_len, passage->len, 0, v4);
	if (passage->rules && action == SENT)
		leave_rules(packet, passage);
	return action;
}

/* Does with a packet what its next hop says. */
static __always_inline int follow(struct packet *packet, const struct passage *passage,
				  const struct next_hop *hop, __u32 ttl, int v4)
{
	if (!hop)
		return NOT_TAKEN;
	if (hop->action == ACTION_DROP)
		return hop->reason == DROP_BLACKHOLE ? drop_for(packet, passage, DROP_BLACKHOLE) :
						       NOT_TAKEN;
	if (hop->action == ACTION_LOCAL)
		return pass(packet, PASS_LOCAL);
	if (ttl <= 1)
		return pass(packet, PASS_TTL);
	if (forwards(hop))
		return forward_ruled(packet, passage, hop, ttl, v4);
	if (hop->action == ACTION_KERNEL_EXIT)
		return pass_unless_ruled(packet, PASS_KERNEL_EXIT);
	return pass_unless_ruled(packet,
				 hop->action == ACTION_PUNT ? PASS_KERNEL_ROUTE : PASS_NEIGH);
}

/* What the route back says about a packet's source. */
enum source {
	SOURCE_VALID,
	SOURCE_INVALID,
	SOURCE_UNSURE, /* the kernel, or user space, says what becomes of the packet */
};

/* Says whether a next hop that is no unicast route stands for no route at all. */
static __always_inline int is_unreachable(const struct next_hop *hop)
{
	if (hop->action == ACTION_DROP)
		return 1;
	return hop->action == ACTION_PUNT &&
	       (hop->reason == PUNT_NO_ROUTE || hop->reason == PUNT_UNREACHABLE ||
		hop->reason == PUNT_PROHIBIT);
}

/*
 * Checks the source of an IPv4 packet, as its link demands, which has this root; once for the verifier, and not
 * once for each caller.
 */
__attribute__((noinline)) int check_source(__u32 root4, __be32 source, __be32 destination, __u32 flags,
					   __u32 link)
{
	__u32 entry = route4(root4, destination, source, 0);
	const struct next_hop *back = next_hop_of(entry);

	if (!(entry & ENTRY_NODE) && entry & NEXT_HOP_GROUP)
		return flags & ENGINE_SOURCE_KIND4 ? SOURCE_VALID : SOURCE_UNSURE;
	if (!back)
		return SOURCE_UNSURE;
	if (back->action > ACTION_BRIDGE) {
		if (!is_unreachable(back))
			return SOURCE_UNSURE;
		return flags & ENGINE_SOURCE_KIND4 ? SOURCE_VALID : SOURCE_INVALID;
	}
	return flags & ENGINE_SOURCE_LINK4 && back->link != link ? SOURCE_INVALID : SOURCE_VALID;
}

/*
 * Says whether the route back to a packet's source depends on the link that the packet leaves by: user
 * space then decides.
 */
static __always_inline int depends_on_vrf(__u32 flags, const struct next_hop *hop)
{
	const struct engine_link *out;

	if (!(flags & ENGINE_SOURCE_NOT_TO_VRF4))
		return 0;
	out = ELEMENT(engine_links, hop->link);
	return !out || out->decision & ENGINE_IN_VRF;
}

/* Drops a packet whose source is not valid, or does not take it; others go on. Only unicast routes demand a source. */
static __always_inline int filter_source(struct packet *packet, const struct passage *passage,
					 const struct engine_link *link, __u32 flags,
					 const struct next_hop *hop, __be32 src, __be32 dst)
{
	int source;

	if (!(flags & ENGINE_SOURCE_ROUTE4) || !hop || (hop->action > ACTION_GLEAN && hop->action != ACTION_BRIDGE))
		return GOES_ON;
	if (depends_on_vrf(flags, hop))
		return NOT_TAKEN;
	source = check_source(link->root4, src, dst, flags, packet->link);
	if (source == SOURCE_VALID)
		return GOES_ON;
	/* User space looks at redirects first. */
	if (source == SOURCE_UNSURE || !(flags & ENGINE_SOURCE_DROPS4) || hop->link == packet->link)
		return NOT_TAKEN;
	/* The root may be newer than the flags. */
	if (*(volatile __u64 *)&link->decision != (flags | (__u64)passage->rules << 32))
		return NOT_TAKEN;
	return drop_for(packet, passage, DROP_RPFILTER);
}

/* The mark of a packet that comes to its route lookup. */
static __always_inline __u32 mark_at_route(const struct packet *packet, const struct passage *passage)
{
	const struct rules_walk *walk = passage->rules ? walk_of_processor() : 0;

	return walk ? walk->mark : mark_of(packet->ctx);
}

/* What is for the host does not come to rules that the kernel does not know, unless they may translate it. */
static __always_inline int decide_own(struct packet *packet, __u32 own)
{
	return own == LOCAL_TRANSLATED ? NOT_TAKEN : pass(packet, PASS_LOCAL);
}

/* Evaluates the rules for an IPv4 packet before the route lookup. */
static __always_inline int ruled4(struct packet *packet, const struct passage *passage,
				  const struct iphdr *ip, const void *end)
{
	struct rules_walk *walk = walk_of_processor();

	if (packet->state->ruled) {
		__u32 *own = bpf_map_lookup_elem(&locals4, &ip->daddr);

		if (own)
			return decide_own(packet, *own);
	}
	if (!walk || ip->ttl <= 1)
		return walk ? pass(packet, PASS_TTL) : NOT_TAKEN;
	return before_route(packet, passage, read_fields4(walk, packet, ip, end), walk, 1);
}

/* As ruled4, for an IPv6 packet. */
static __always_inline int ruled6(struct packet *packet, const struct passage *passage,
				  const struct ipv6hdr *ip, const void *end)
{
	struct rules_walk *walk = walk_of_processor();

	if (packet->state->ruled) {
		__u32 *own = bpf_map_lookup_elem(&locals6, &ip->daddr);

		if (own)
			return decide_own(packet, *own);
	}
	if (!walk || ip->hop_limit <= 1)
		return walk ? pass(packet, PASS_TTL) : NOT_TAKEN;
	return before_route(packet, passage, read_fields6(walk, packet, ip, end), walk, 0);
}

/* Decides about an IPv4 packet without options and with valid lengths. */
static __always_inline int decide4(struct packet *packet, const struct iphdr *ip, const void *end,
				   __u32 l3, __u32 len)
{
	__u32 flags, entry, root;
	int action;
	struct engine_link *link = ELEMENT(engine_links, packet->link);
	struct passage passage = { .l3 = l3, .l3_len = bpf_ntohs(ip->tot_len), .len = len };
	const struct next_hop *hop;
	__u64 decision;

	if (!link)
		return NOT_TAKEN;
	decision = *(volatile __u64 *)&link->decision;
	flags = decision;
	passage.rules = decision >> 32;
	if (!(flags & ENGINE_DECIDES4))
		return NOT_TAKEN;
	if (is_special4(ip->daddr) || is_suspect4(ip->saddr))
		return pass(packet, PASS_SPECIAL);
	if (is_link_local4(ip->daddr))
		return pass(packet, PASS_LINK_LOCAL);
	if (packet->kernel_path & LINK_FRAGMENTS4 && ip->frag_off & bpf_htons(0x3fff))
		return pass(packet, PASS_OFFLOAD);
	if (!checksum_is_right(ip))
		return pass(packet, PASS_MALFORMED);
	if (passage.rules) {
		action = ruled4(packet, &passage, ip, end);
		if (action != GOES_ON)
			return action;
	}
	root = link->root4;
	entry = route4(root, ip->saddr, ip->daddr, root & ROOT_RULES ? mark_at_route(packet, &passage) : 0);
	hop = next_hop_of(member_of(entry, ip, end, 1));
	action = filter_source(packet, &passage, link, flags, hop, ip->saddr, ip->daddr);
	if (action != GOES_ON)
		return action;
	return follow(packet, &passage, hop, ip->ttl, 1);
}

/* Decides about an IPv6 packet with valid lengths. */
static __always_inline int decide6(struct packet *packet, const struct ipv6hdr *ip, const void *end,
				   __u32 l3, __u32 len)
{
	__u32 entry, root;
	struct engine_link *link = ELEMENT(engine_links, packet->link);
	struct passage passage = {
		.l3 = l3, .l3_len = sizeof(*ip) + bpf_ntohs(ip->payload_len), .len = len,
	};
	__u64 decision;

	if (!link)
		return NOT_TAKEN;
	decision = *(volatile __u64 *)&link->decision;
	passage.rules = decision >> 32;
	if (!(decision & ENGINE_DECIDES6))
		return NOT_TAKEN;
	if (is_special6(&ip->daddr) || is_special6(&ip->saddr))
		return pass(packet, PASS_SPECIAL);
	if (is_link_local6(&ip->daddr) || is_link_local6(&ip->saddr))
		return pass(packet, PASS_LINK_LOCAL);
	if (packet->kernel_path & LINK_FRAGMENTS6 && is_extension(ip->nexthdr))
		return pass(packet, PASS_OFFLOAD);
	if (ip->nexthdr == IPPROTO_HOPOPTS)
		return pass_unless_ruled(packet, PASS_OPTIONS);
	if (passage.rules) {
		int action = ruled6(packet, &passage, ip, end);

		if (action != GOES_ON)
			return action;
	}
	root = link->root6;
	entry = route6(root, ip->saddr.s6_addr32, ip->daddr.s6_addr32,
		       root & ROOT_RULES ? mark_at_route(packet, &passage) : 0);
	entry = member_of(entry, ip, end, 0);
	return follow(packet, &passage, next_hop_of(entry), ip->hop_limit, 0);
}

#endif
