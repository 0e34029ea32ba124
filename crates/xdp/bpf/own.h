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

#include "ecmp.h"
#include "tcp.h"

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
 * Says whether a packet is the host's: it has a socket for it, or the packet is neither TCP nor UDP, or not whole. IPv4
 * with options and fragments are the host's, too.
 */
static __always_inline int is_hosts(context *ctx, __u32 l3, int v4)
{
	const __u32 header_len = v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	struct bpf_sock_tuple tuple = {};
	const struct iphdr *ip4;
	const struct ipv6hdr *ip6;
	const __be16 *ports;
	__u8 protocol;

	if (l3 > MOST_BEFORE)
		return 1;
	ip4 = data_of(ctx) + l3;
	ip6 = (const void *)ip4;
	ports = (const void *)ip4 + header_len;
	if ((const void *)(ports + 2) > end_of(ctx))
		return 1;
	protocol = v4 ? ip4->protocol : ip6->nexthdr;
	if (!is_tcp_or_udp(protocol) || (v4 && (ip4->ihl != 5 || ip4->frag_off & bpf_htons(0x3fff))))
		return 1;
	if (v4) {
		tuple.ipv4.saddr = ip4->saddr;
		tuple.ipv4.daddr = ip4->daddr;
		tuple.ipv4.sport = ports[0];
		tuple.ipv4.dport = ports[1];
		return finds_socket(ctx, &tuple, sizeof(tuple.ipv4), protocol);
	}
	__builtin_memcpy(tuple.ipv6.saddr, &ip6->saddr, sizeof(tuple.ipv6.saddr));
	__builtin_memcpy(tuple.ipv6.daddr, &ip6->daddr, sizeof(tuple.ipv6.daddr));
	tuple.ipv6.sport = ports[0];
	tuple.ipv6.dport = ports[1];
	return finds_socket(ctx, &tuple, sizeof(tuple.ipv6), protocol);
}

/* Global, so that the verifier looks at each once. */
__attribute__((noinline)) int is_hosts4(context *ctx, __u32 l3)
{
	return is_hosts(ctx, l3, 1);
}

__attribute__((noinline)) int is_hosts6(context *ctx, __u32 l3)
{
	return is_hosts(ctx, l3, 0);
}

/* Leaves such a packet to the host, or drops it: its sender tries again. */
static __always_inline int leave_own(struct packet *packet, __u32 l3, enum pass_reason reason, int v4)
{
	int is_hosts = v4 ? is_hosts4(packet->ctx, l3) : is_hosts6(packet->ctx, l3);

	return is_hosts ? pass(packet, reason) : drop_closed(packet);
}

#endif
