/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Frames that arrive at a port of a bridge (net/bridge/br_input.c, br_forward.c). A program forwards those of a known
 * sender to a known receiver. The kernel gets all others: it learns, floods, answers, and ages what it has learned.
 */
#ifndef TOLLWAY_BRIDGE_H
#define TOLLWAY_BRIDGE_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>

#include "bridge_ports.h"
#include "checksum.h"
#include "decide.h"
#include "fdb.h"
#include "header.h"
#include "ingress.h"

/* Says whether the sender of a packet may have left its checksum to a card. These are the engine's part (send_*.h). */
static __always_inline int may_lack_sum(const struct packet *packet);
static __always_inline int lacks_sum(const struct packet *packet, const struct iphdr *ip, const void *end);
static __always_inline int lacks_sum6(const struct packet *packet, const struct ipv6hdr *ip, const void *end);

/* Sends a frame as it is. This is the engine's part, too. */
static __always_inline int send_bridged(struct packet *packet, __u32 port, __u32 len);

/* Protocols that the bridge itself has to do with (br_process_frame_type, br_do_proxy_suppress_arp). */
#ifndef ETH_P_MRP
#define ETH_P_MRP 0x88e3
#endif
#ifndef ETH_P_CFM
#define ETH_P_CFM 0x8902
#endif

static __always_inline int is_of_bridge(__be16 protocol)
{
	return protocol == bpf_htons(ETH_P_ARP) || protocol == bpf_htons(ETH_P_RARP) || protocol == bpf_htons(ETH_P_MRP) ||
	       protocol == bpf_htons(ETH_P_CFM);
}

/* Neighbour discovery, or what may hide it from a look at the first header. */
static __always_inline int may_be_nd(const struct ipv6hdr *ip)
{
	return ip->nexthdr == IPPROTO_ICMPV6 || ip->nexthdr == IPPROTO_HOPOPTS || ip->nexthdr == IPPROTO_ROUTING ||
	       ip->nexthdr == IPPROTO_DSTOPTS || ip->nexthdr == IPPROTO_FRAGMENT;
}

/*
 * Says whether br_validate_ipv4() changes nothing about a packet, for which a frame has so many bytes. Options are the
 * kernel's.
 */
static __always_inline int is_whole4(const struct iphdr *ip, __u32 len)
{
	return *(const __u8 *)ip == 0x45 && bpf_ntohs(ip->tot_len) == len && checksum_is_right(ip);
}

/* The same of br_validate_ipv6(). */
static __always_inline int is_whole6(const struct ipv6hdr *ip, __u32 len)
{
	return ip->version == 6 && ip->nexthdr != IPPROTO_HOPOPTS && sizeof(*ip) + bpf_ntohs(ip->payload_len) == len;
}

/* What becomes of an IPv4 packet in a frame: GOES_ON, or what the kernel gets it for. */
static __always_inline int bridge_v4(struct packet *packet, __u32 flags, const struct iphdr *ip, const void *end,
				     __u32 len)
{
	if (flags & BRIDGE_KERNEL4)
		return pass(packet, PASS_OFFLOAD);
	if ((const void *)(ip + 1) > end)
		return pass(packet, PASS_MALFORMED);
	if (flags & BRIDGE_VALIDATES4 && !is_whole4(ip, len))
		return pass(packet, PASS_OFFLOAD);
	return lacks_sum(packet, ip, end) ? pass(packet, PASS_CHECKSUM) : GOES_ON;
}

/* The same of one of IPv6. */
static __always_inline int bridge_v6(struct packet *packet, __u32 flags, const struct ipv6hdr *ip, const void *end,
				     __u32 len)
{
	if (flags & BRIDGE_KERNEL6)
		return pass(packet, PASS_OFFLOAD);
	if ((const void *)(ip + 1) > end)
		return pass(packet, PASS_MALFORMED);
	if (flags & BRIDGE_VALIDATES6 && !is_whole6(ip, len))
		return pass(packet, PASS_OFFLOAD);
	if (flags & BRIDGE_SUPPRESSES_ND && may_be_nd(ip))
		return pass(packet, PASS_OFFLOAD);
	return lacks_sum6(packet, ip, end) ? pass(packet, PASS_CHECKSUM) : GOES_ON;
}

/* The same of anything behind this ethertype. Of other protocols, nobody can say whether a checksum in them is finished. */
static __always_inline int bridge_l3(struct packet *packet, __u32 flags, __be16 protocol, const void *l3,
				     const void *end, __u32 len)
{
	if (protocol == bpf_htons(ETH_P_IP))
		return bridge_v4(packet, flags, l3, end, len);
	if (protocol == bpf_htons(ETH_P_IPV6))
		return bridge_v6(packet, flags, l3, end, len);
	if (is_of_bridge(protocol))
		return pass(packet, PASS_ETHERTYPE);
	return may_lack_sum(packet) ? pass(packet, PASS_CHECKSUM) : GOES_ON;
}

/*
 * The same of what a frame of `len` bytes has behind its addresses. A bridge without VLANs does not know tags, of which the
 * outer one may lie beside the frame.
 */
static __always_inline int bridge_content(struct packet *packet, __u32 flags, const void *eth, const void *end,
					  __u32 len)
{
	const struct vlan *vlan = eth + ETH_HLEN;
	__be16 protocol = ethertype_of(eth);
	__u32 beside = tag_len(packet->ctx);

	if (!beside && !is_tag(protocol))
		return bridge_l3(packet, flags, protocol, vlan, end, len - ETH_HLEN);
	if (flags & BRIDGE_KERNEL_TAGGED)
		return pass(packet, PASS_OFFLOAD);
	flags &= ~(BRIDGE_VALIDATES4 | BRIDGE_VALIDATES6 | BRIDGE_KERNEL4 | BRIDGE_KERNEL6);
	if (beside)
		return bridge_l3(packet, flags, protocol, vlan, end, len - ETH_HLEN - beside);
	if ((const void *)(vlan + 1) > end)
		return pass(packet, PASS_MALFORMED);
	return bridge_l3(packet, flags, vlan->protocol, vlan + 1, end, len - ETH_HLEN - sizeof(*vlan));
}

/*
 * What the kernel knows of a sender at a port. Once in a while it gets a frame all the same, so that it does not forget a
 * sender that goes on.
 */
static __always_inline enum sender judge_sender(const struct packet *packet, const struct bridge_port *port, __u64 source)
{
	struct fdb_entry entry = look_up_fdb(source | (__u64)port->domain << MAC_BITS);
	__u32 tick = tick_of(packet);

	if (!entry.slot || (entry.word & (FDB_PORT | FDB_KIND)) != (PORT | FDB_HOST))
		return SENDER_UNKNOWN;
	if (tick - *(volatile __u32 *)&entry.slot->tick < port->refresh_ticks)
		return SENDER_KNOWN;
	*(volatile __u32 *)&entry.slot->tick = tick;
	return SENDER_DUE;
}

/*
 * Says whether a frame may leave by a port, as should_deliver() and br_dev_queue_push_xmit(). Where br_netfilter has seen a
 * packet, the kernel cuts it to the MTU, which a tag beside the frame does not count for.
 */
static __always_inline int may_leave(const struct packet *packet, const struct bridge_port *in, __u32 flags,
				     const struct bridge_port *out, __u32 len)
{
	__u32 flags_out = bridge_flags(out);

	if (!(flags_out & BRIDGE_FORWARDS) || out->bridge != in->bridge)
		return 0;
	if (flags & flags_out & BRIDGE_ISOLATED)
		return 0;
	return len <= ETH_HLEN + out->mtu + tag_len(packet->ctx) || is_super_frame(packet->ctx);
}

/* Forwards a frame of a known sender, which is for this address. */
static __always_inline int bridge_to(struct packet *packet, const struct bridge_port *in, __u32 flags, __u64 destination,
				     __u32 len)
{
	__u32 word = look_up_fdb(destination | (__u64)in->domain << MAC_BITS).word;
	__u32 port = word & FDB_PORT;
	const struct bridge_port *out;

	if ((word & FDB_KIND) == FDB_LOCAL)
		return pass(packet, PASS_LOCAL);
	out = ELEMENT(bridge_ports, port);
	if (port == PORT || !out)
		return pass(packet, PASS_BRIDGE_DESTINATION);
	if (!may_leave(packet, in, flags, out, len))
		return pass(packet, PASS_BRIDGE_PORT);
	return send_bridged(packet, port, len);
}

/* The bridge hands the frame up, to be routed. No verdict of any engine has this value. */
#define HANDED_UP (-5)

/* Leaves a frame for the bridge itself to the kernel. Tracks of TCP miss it, and those that follow (tcp_track.h). */
static __always_inline int leave_unseen(struct packet *packet, struct bridge_port *in, enum pass_reason reason, __u32 left)
{
	volatile __u32 *has_left = &in->has_left;

	if (!(*has_left & left)) {
		*has_left |= left;
		note_unserved(packet);
	}
	return pass(packet, reason);
}

/* Takes note that a frame is handed up, of a port with these flags. */
static __always_inline void note_seen(struct bridge_port *in, __u32 flags)
{
	volatile __u32 *has_left = &in->has_left;
	__u32 before = *has_left, now = flags & BRIDGE_KERNEL_TAGGED ? before & LEFT_TAGGED : 0;

	if (before != now)
		*has_left = now;
}

/*
 * What becomes of a frame for the bridge itself: HANDED_UP, or what the kernel gets it for. Where the kernel has to see the sender,
 * it gets the packet only after its connection's track has seen it. Rules of IP see the packet once, as one that the bridge's
 * device has received, whether br_netfilter shows it to them or not (br_nf_pre_routing(), ip_sabotage_in()).
 */
static __always_inline int hand_up(struct packet *packet, struct bridge_port *in, __u32 flags, const void *eth)
{
	if (flags & BRIDGE_KERNEL_TAGGED && (tag_len(packet->ctx) || is_tag(ethertype_of(eth))))
		return leave_unseen(packet, in, PASS_OFFLOAD, LEFT_TAGGED);
	note_seen(in, flags);
	packet->sender = flags & BRIDGE_CHECKS_SOURCE ? judge_sender(packet, in, mac_at(eth + ETH_ALEN)) : SENDER_KNOWN;
	return HANDED_UP;
}

/*
 * Forwards a frame that has arrived at a port of a bridge, or leaves it to the kernel. What is for the bridge itself is
 * HANDED_UP.
 */
static __always_inline int bridge_frame(struct packet *packet)
{
	const void *eth = data_of(packet->ctx), *end = end_of(packet->ctx);
	struct bridge_port *in = ELEMENT(bridge_ports, PORT);
	__u64 destination, source;
	__u32 flags, len;
	enum sender sender;
	int action;

	if (eth + ETH_HLEN > end)
		return pass(packet, PASS_MALFORMED);
	destination = mac_at(eth);
	source = mac_at(eth + ETH_ALEN);
	if (destination & 1)
		return pass(packet, PASS_GROUP_MAC);
	if (!in)
		return pass(packet, PASS_BRIDGE_PORT);
	flags = bridge_flags(in);
	if (!(flags & BRIDGE_FORWARDS))
		return destination == in->mac ? leave_unseen(packet, in, PASS_BRIDGE_PORT, LEFT_ANY) :
						pass(packet, PASS_BRIDGE_PORT);
	if (!source || source & 1)
		return pass(packet, PASS_MALFORMED);
	if (destination == in->mac)
		return hand_up(packet, in, flags, eth);
	len = whole_len(packet->ctx);
	action = bridge_content(packet, flags, eth, end, len);
	if (action != GOES_ON)
		return action;
	sender = flags & BRIDGE_CHECKS_SOURCE ? judge_sender(packet, in, source) : SENDER_KNOWN;
	return sender == SENDER_KNOWN ? bridge_to(packet, in, flags, destination, len) : pass_sender(packet, sender);
}

#endif
