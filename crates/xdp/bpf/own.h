/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Packets for own addresses that may be for others (LOCAL_TRANSLATED), while nobody in user space translates them. The
 * host would reset a connection that it has no socket for, and call a port of UDP unreachable.
 */
#ifndef TOLLWAY_OWN_H
#define TOLLWAY_OWN_H

#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>

#include "packet.h"

/* Bytes before layer 3, at most. */
#define MOST_BEFORE_OWN 64

/* Says whether the host has a socket of TCP or UDP for a tuple. */
static __always_inline int finds_socket(context *ctx, struct bpf_sock_tuple *tuple, __u32 size, __u8 protocol)
{
	struct bpf_sock *socket = protocol == IPPROTO_TCP ?
					  bpf_skc_lookup_tcp(ctx, tuple, size, BPF_F_CURRENT_NETNS, 0) :
					  bpf_sk_lookup_udp(ctx, tuple, size, BPF_F_CURRENT_NETNS, 0);

	if (!socket)
		return 0;
	bpf_sk_release(socket);
	return 1;
}

/*
 * Says whether an IPv4 packet is the host's: it has a socket for it, or the packet is neither TCP nor UDP, or not whole.
 * Global, so that the verifier looks at it once.
 */
__attribute__((noinline)) int is_hosts4(context *ctx, __u32 l3)
{
	struct bpf_sock_tuple tuple = {};
	const struct iphdr *ip;
	const __be16 *ports;

	if (l3 > MOST_BEFORE_OWN)
		return 1;
	ip = data_of(ctx) + l3;
	ports = (const void *)(ip + 1);
	if ((const void *)(ports + 2) > end_of(ctx) || ip->ihl != 5 || ip->frag_off & bpf_htons(0x3fff) ||
	    (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP))
		return 1;
	tuple.ipv4.saddr = ip->saddr;
	tuple.ipv4.daddr = ip->daddr;
	tuple.ipv4.sport = ports[0];
	tuple.ipv4.dport = ports[1];
	return finds_socket(ctx, &tuple, sizeof(tuple.ipv4), ip->protocol);
}

/* The same of an IPv6 packet. */
__attribute__((noinline)) int is_hosts6(context *ctx, __u32 l3)
{
	struct bpf_sock_tuple tuple = {};
	const struct ipv6hdr *ip;
	const __be16 *ports;

	if (l3 > MOST_BEFORE_OWN)
		return 1;
	ip = data_of(ctx) + l3;
	ports = (const void *)(ip + 1);
	if ((const void *)(ports + 2) > end_of(ctx) ||
	    (ip->nexthdr != IPPROTO_TCP && ip->nexthdr != IPPROTO_UDP))
		return 1;
	__builtin_memcpy(tuple.ipv6.saddr, &ip->saddr, sizeof(tuple.ipv6.saddr));
	__builtin_memcpy(tuple.ipv6.daddr, &ip->daddr, sizeof(tuple.ipv6.daddr));
	tuple.ipv6.sport = ports[0];
	tuple.ipv6.dport = ports[1];
	return finds_socket(ctx, &tuple, sizeof(tuple.ipv6), ip->nexthdr);
}

/* Leaves such a packet to the host, or drops it: its sender tries again. */
static __always_inline int leave_own(struct packet *packet, __u32 l3, enum pass_reason reason, int v4)
{
	int is_hosts = v4 ? is_hosts4(packet->ctx, l3) : is_hosts6(packet->ctx, l3);

	return is_hosts ? pass(packet, reason) : drop_closed(packet);
}

#endif
