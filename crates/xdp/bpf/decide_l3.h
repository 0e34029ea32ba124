/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Decides about packets by the tables alone: those of a tc program, and those that a bridge hands up. What the tables do not
 * decide, the kernel does. Include what sends (send_xdp.h, send_tc.h) first.
 */
#ifndef TOLLWAY_DECIDE_L3_H
#define TOLLWAY_DECIDE_L3_H

#include "decide.h"
#include "ingress.h"
#include "take_tracked.h"

/* What the tables do not decide, the kernel does. */
static __always_inline int or_kernel(struct packet *packet, int action)
{
	return action == NOT_TAKEN ? pass(packet, PASS_UNDECIDED) : action;
}

static __always_inline int decide_v4(struct packet *packet, const struct iphdr *ip, const void *end,
				     __u32 l3, __u32 len)
{
	__u32 l3_len, header_len;

	if ((const void *)(ip + 1) > end)
		return pass(packet, PASS_MALFORMED);
	/* 0 in packets of more than 64 KB (BIG TCP). */
	l3_len = bpf_ntohs(ip->tot_len);
	header_len = 4 * ip->ihl;
	if (ip->version != 4 || header_len < sizeof(*ip) || l3_len < header_len || l3 + l3_len > len)
		return pass(packet, PASS_MALFORMED);
	if (header_len != sizeof(*ip))
		return pass(packet, PASS_OPTIONS);
	if (packet->kernel_path & LINK_TRACKED4)
		return HAS_TABLES ? decide_tracked(packet, l3, len, TRACKED4) : pass_connection(packet);
	if (packet->sender > SENDER_KNOWN)
		return pass_sender(packet, packet->sender);
	if (lacks_sum(packet, ip, end))
		return pass(packet, PASS_CHECKSUM);
	return or_kernel(packet, HAS_TABLES ? decide4(packet, ip, end, l3, len) : NOT_TAKEN);
}

static __always_inline int decide_v6(struct packet *packet, const struct ipv6hdr *ip, const void *end,
				     __u32 l3, __u32 len)
{
	if ((const void *)(ip + 1) > end)
		return pass(packet, PASS_MALFORMED);
	if (ip->version != 6 || l3 + sizeof(*ip) + bpf_ntohs(ip->payload_len) > len)
		return pass(packet, PASS_MALFORMED);
	if (packet->kernel_path & LINK_TRACKED6)
		return HAS_TABLES ? decide_tracked(packet, l3, len, TRACKED6) : pass_connection(packet);
	if (packet->sender > SENDER_KNOWN)
		return pass_sender(packet, packet->sender);
	if (lacks_sum6(packet, ip, end))
		return pass(packet, PASS_CHECKSUM);
	return or_kernel(packet, HAS_TABLES ? decide6(packet, ip, end, l3, len) : NOT_TAKEN);
}

/* Decides about a packet that has this ethertype behind its Ethernet header and its tags. */
static __always_inline int decide_l3(struct packet *packet, __be16 protocol, const void *data, const void *end,
				     __u32 l3, __u32 len)
{
	if (protocol == bpf_htons(ETH_P_IP))
		return packet->kernel_path & LINK_KERNEL4 ? pass(packet, PASS_OFFLOAD) :
							    decide_v4(packet, data, end, l3, len);
	if (protocol == bpf_htons(ETH_P_IPV6))
		return packet->kernel_path & LINK_KERNEL6 ? pass(packet, PASS_OFFLOAD) :
							    decide_v6(packet, data, end, l3, len);
	return pass(packet, is_tag(protocol) ? PASS_UNDECIDED : PASS_ETHERTYPE);
}

#endif
