/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Decides about packets by the tables of user space, first packets included: forwards those that need
 * nothing but a route, and leaves to the kernel what is its own. About all others (NOT_TAKEN) the
 * flows decide, and then user space; or the kernel, if the engine is tc.
 */
#ifndef TOLLWAY_DECIDE_H
#define TOLLWAY_DECIDE_H

#include "addresses.h"
#include "ecmp.h"
#include "fib.h"
#include "header.h"

/*
 * Forwards a packet by a next hop, which has a header for it. This is the engine's part (send_xdp.h,
 * send_tc.h).
 */
static __always_inline int forward_by(struct packet *packet, const struct next_hop *hop, __u32 l3,
				      __u32 l3_len, __u32 len, int v4);

/* Does with a packet what its next hop says. */
static __always_inline int follow(struct packet *packet, const struct next_hop *hop, __u32 ttl,
				  __u32 l3, __u32 l3_len, __u32 len, int v4)
{
	if (!hop || hop->action == ACTION_DROP)
		return NOT_TAKEN;
	if (hop->action == ACTION_LOCAL)
		return pass(packet, PASS_LOCAL);
	if (ttl <= 1)
		return pass(packet, PASS_TTL);
	if (hop->action == ACTION_FORWARD)
		return forward_by(packet, hop, l3, l3_len, len, v4);
	return pass(packet, hop->action == ACTION_PUNT ? PASS_KERNEL_ROUTE : PASS_NEIGH);
}

/*
 * Says whether a packet's source is certainly valid, as the link demands. The kernel, or user space,
 * says what becomes of the others.
 */
static __always_inline int has_route_back(const struct packet *packet, const struct engine_link *link,
					  __be32 source)
{
	const struct next_hop *back;

	if (!(link->flags & ENGINE_SOURCE_ROUTE4))
		return 1;
	back = next_hop_of(look_up4(link->root4, source));
	if (!back || back->action > ACTION_GLEAN)
		return 0;
	return !(link->flags & ENGINE_SOURCE_LINK4) || back->link == packet->link;
}

/*
 * Says whether the route back to a packet's source depends on the link that the packet leaves by: user
 * space then decides.
 */
static __always_inline int depends_on_vrf(const struct engine_link *link, const struct next_hop *hop)
{
	const struct engine_link *out;
	__u32 number;

	if (!(link->flags & ENGINE_SOURCE_NOT_TO_VRF4) || !hop)
		return 0;
	number = hop->link;
	out = bpf_map_lookup_elem(&engine_links, &number);
	return !out || out->flags & ENGINE_IN_VRF;
}

/* Decides about an IPv4 packet without options and with valid lengths. */
static __always_inline int decide4(struct packet *packet, const struct iphdr *ip, const void *end,
				   __u32 l3, __u32 len)
{
	__u32 number = packet->link;
	struct engine_link *link = bpf_map_lookup_elem(&engine_links, &number);
	const struct next_hop *hop;

	if (!link || !(link->flags & ENGINE_DECIDES4))
		return NOT_TAKEN;
	if (is_special4(ip->daddr) || is_suspect4(ip->saddr))
		return pass(packet, PASS_SPECIAL);
	if (is_link_local4(ip->daddr))
		return pass(packet, PASS_LINK_LOCAL);
	if (packet->kernel_path & LINK_FRAGMENTS4 && ip->frag_off & bpf_htons(0x3fff))
		return pass(packet, PASS_OFFLOAD);
	if (!checksum_is_right(ip))
		return pass(packet, PASS_MALFORMED);
	if (!has_route_back(packet, link, ip->saddr))
		return NOT_TAKEN;
	hop = next_hop_of(member_of(look_up4(link->root4, ip->daddr), ip, end, 1));
	if (depends_on_vrf(link, hop))
		return NOT_TAKEN;
	return follow(packet, hop, ip->ttl, l3, bpf_ntohs(ip->tot_len), len, 1);
}

/* Decides about an IPv6 packet with valid lengths. */
static __always_inline int decide6(struct packet *packet, const struct ipv6hdr *ip, const void *end,
				   __u32 l3, __u32 len)
{
	__u32 number = packet->link, entry;
	struct engine_link *link = bpf_map_lookup_elem(&engine_links, &number);

	if (!link || !(link->flags & ENGINE_DECIDES6))
		return NOT_TAKEN;
	if (is_special6(&ip->daddr) || is_special6(&ip->saddr))
		return pass(packet, PASS_SPECIAL);
	if (is_link_local6(&ip->daddr) || is_link_local6(&ip->saddr))
		return pass(packet, PASS_LINK_LOCAL);
	if (packet->kernel_path & LINK_FRAGMENTS6 && is_extension(ip->nexthdr))
		return pass(packet, PASS_OFFLOAD);
	if (ip->nexthdr == IPPROTO_HOPOPTS)
		return pass(packet, PASS_OPTIONS);
	entry = member_of(look_up6(link->root6, ip->daddr.s6_addr32), ip, end, 0);
	return follow(packet, next_hop_of(entry), ip->hop_limit, l3,
		      sizeof(*ip) + bpf_ntohs(ip->payload_len), len, 0);
}

#endif
