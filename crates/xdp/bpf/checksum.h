/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Checksums that a sender leaves to a network card (CHECKSUM_PARTIAL).
 *
 * Between devices without a card, such as a veth and its peer, only the kernel finishes these
 * checksums, because it has a flag per packet; XDP sees only the field. The field holds the sum of
 * the pseudo-header until the kernel adds the rest. So a packet whose field equals that sum takes
 * the kernel path. One in 65536 other packets looks the same, and takes the kernel path too.
 *
 * Limit: this does not detect packets in a UDP tunnel at an unusual port.
 */
#ifndef TOLLWAY_CHECKSUM_H
#define TOLLWAY_CHECKSUM_H

#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>

#include "fold.h"
#include "packet.h"

/* A packet inside of these may have its checksum left to a card, whatever the outer header says. */
static __always_inline int is_tunnel(__u8 protocol)
{
	return protocol == IPPROTO_IPIP || protocol == IPPROTO_IPV6 || protocol == IPPROTO_GRE ||
	       protocol == IPPROTO_MPLS || protocol == 97 /* EtherIP */ || protocol == 115 /* L2TP */;
}

/* The same over UDP: VXLAN (and Linux's own port), VXLAN-GPE, GUE, Geneve, MPLS. */
static __always_inline int is_tunnel_port(__be16 port)
{
	return port == bpf_htons(4789) || port == bpf_htons(8472) || port == bpf_htons(4790) ||
	       port == bpf_htons(6080) || port == bpf_htons(6081) || port == bpf_htons(6635);
}

/*
 * Says whether a packet's checksum may be unfinished; `pseudo` is the sum of the words of its
 * pseudo-header.
 */
static __always_inline int is_unfinished(const void *l4, const void *end, __u8 protocol,
					 __u64 pseudo)
{
	const __u16 *words = l4;
	__u16 field, sum = fold(pseudo);

	if (protocol == IPPROTO_TCP) {
		if ((const void *)(words + 9) > end)
			return 1;
		field = words[8];
	} else if (protocol == IPPROTO_UDP) {
		if ((const void *)(words + 4) > end || is_tunnel_port(words[1]))
			return 1;
		field = words[3];
	} else if (protocol == IPPROTO_SCTP) {
		return (const void *)(words + 6) > end || (!words[4] && !words[5]);
	} else {
		return is_tunnel(protocol);
	}
	/* All ones and zero are the same sum. */
	return field == sum || (sum == 0xffff && !field);
}

/* A fragmented packet has a finished checksum: the sender computes it before it fragments. */
static __always_inline int is_unfinished4(const struct iphdr *ip, const void *end)
{
	__u32 header_len = 4 * ip->ihl;
	__u64 pseudo = (__u64)ip->saddr + ip->daddr + bpf_htons(ip->protocol) +
		       bpf_htons(bpf_ntohs(ip->tot_len) - header_len);

	return !(ip->frag_off & bpf_htons(0x3fff)) &&
	       is_unfinished((const void *)ip + header_len, end, ip->protocol, pseudo);
}

/* The sum of a packet's addresses, as of a pseudo-header. */
static __always_inline __u64 sum_of_addresses(const void *ip, int v4)
{
	const struct iphdr *ip4 = ip;
	const struct ipv6hdr *ip6 = ip;
	const __be32 *src = ip6->saddr.s6_addr32, *dst = ip6->daddr.s6_addr32;

	if (v4)
		return (__u64)ip4->saddr + ip4->daddr;
	return (__u64)src[0] + src[1] + src[2] + src[3] + dst[0] + dst[1] + dst[2] + dst[3];
}

static __always_inline int is_unfinished6(const struct ipv6hdr *ip, const void *end)
{
	__u64 pseudo = sum_of_addresses(ip, 0) + bpf_htons(ip->nexthdr) + ip->payload_len;

	/* The program does not look for the end of these headers. */
	if (ip->nexthdr == IPPROTO_HOPOPTS || ip->nexthdr == IPPROTO_ROUTING ||
	    ip->nexthdr == IPPROTO_DSTOPTS)
		return 1;
	return is_unfinished(ip + 1, end, ip->nexthdr, pseudo);
}

#endif
