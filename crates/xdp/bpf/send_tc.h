/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How tc sends a packet by a next hop. The frame may be a super-frame that still has to be cut into
 * segments, and its checksum may be unfinished: the egress device gets it as it is, or the kernel
 * finishes it before.
 */
#ifndef TOLLWAY_SEND_TC_H
#define TOLLWAY_SEND_TC_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include "fib.h"
#include "header.h"
#include "ingress.h"
#include "l4_sum.h"
#include "tcp.h"

/*
 * More bytes than the headers of a segment's packet have. With UDP, the segments may be of a packet in
 * a tunnel: IPv6, UDP, Geneve with all options, Ethernet, IPv6, TCP with all options.
 */
#define MOST_HEADERS (40 + 8 + 8 + 252 + 14 + 40 + 60)
/* Bytes of TCP's header up to its data offset. */
#define TCP_OFFSET_END 13
/* Headers that the program does not read to the end. */
#define UNKNOWN_HEADERS (1 << 16)

/* Where the layer-3 header begins in the frame, in which the inner tag lies; without an Ethernet header, at the start. */
static __always_inline __u32 l3_in_frame(const struct packet *packet, __u32 l3)
{
	(void)l3;
	return LAYER3 ? 0 : ETH_HLEN + (packet->inner_len & sizeof(struct vlan));
}

/* A card has verified it, or it is unfinished, since the kernel itself has made the packet (checksum.h). */
static __always_inline int is_verified(const struct packet *packet, __u16 check, __u16 pseudo)
{
	return check == pseudo || bpf_csum_level(packet->ctx, BPF_CSUM_LEVEL_QUERY) >= 0;
}

/* Room for a piece of a frame whose data lie elsewhere. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32[SUM_PIECE / 4]);
} sum_room SEC(".maps");

/* Most pieces: more than the longest packet of any card has; and the length of small ones at its end. */
#define MOST_PIECES 32
#define SUM_SMALL 32

/* Sums copies of a frame's pieces. */
static __always_inline int sum_beyond(context *ctx, __u32 at, __u32 len, __u64 sum)
{
	__u32 zero = 0, last = 0, *room = bpf_map_lookup_elem(&sum_room, &zero);
	__s64 pieces = 0;

	if (!room)
		return SUM_UNKNOWN;
	for (int i = 0; i < MOST_PIECES && len >= SUM_PIECE; i++) {
		if (bpf_skb_load_bytes(ctx, at, room, SUM_PIECE))
			return SUM_UNKNOWN;
		pieces = bpf_csum_diff(0, 0, room, SUM_PIECE, pieces);
		at += SUM_PIECE;
		len -= SUM_PIECE;
	}
	for (int i = 0; i < SUM_PIECE / SUM_SMALL && len >= SUM_SMALL; i++) {
		if (bpf_skb_load_bytes(ctx, at, room, SUM_SMALL))
			return SUM_UNKNOWN;
		pieces = bpf_csum_diff(0, 0, room, SUM_SMALL, pieces);
		at += SUM_SMALL;
		len -= SUM_SMALL;
	}
	sum += (__u32)pieces;
	for (int i = 0; i < SUM_SMALL / 4 && len >= 4; i++) {
		if (bpf_skb_load_bytes(ctx, at, &last, 4))
			return SUM_UNKNOWN;
		sum += last;
		at += 4;
		len -= 4;
	}
	last = 0;
	if (len == 1 ? bpf_skb_load_bytes(ctx, at, &last, 1) :
	    len == 2 ? bpf_skb_load_bytes(ctx, at, &last, 2) :
	    len == 3 ? bpf_skb_load_bytes(ctx, at, &last, 3) :
		       len)
		return SUM_UNKNOWN;
	return fold(sum + last) == 0xffff ? SUM_RIGHT : SUM_WRONG;
}

/* The length of a super-frame's headers of layers 3 and 4, which each segment has; at least so many. */
static __always_inline __u32 headers_len(const struct packet *packet, int v4)
{
	const void *l3 = data_of(packet->ctx) + l3_in_frame(packet, 0);
	const void *end = end_of(packet->ctx);
	__u32 l3_len = v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	/* Up to TCP's data offset. */
	const __u8 *tcp = l3 + l3_len;
	__u8 protocol;

	if ((const void *)(tcp + TCP_OFFSET_END) > end)
		return UNKNOWN_HEADERS;
	protocol = v4 ? ((const struct iphdr *)l3)->protocol : ((const struct ipv6hdr *)l3)->nexthdr;
	if (protocol == IPPROTO_TCP)
		return l3_len + (tcp[12] >> 4) * 4;
	return protocol == IPPROTO_UDP ? MOST_HEADERS : UNKNOWN_HEADERS;
}

/* The same length where the kernel has put packets together, which it does with TCP and plain UDP; 0 if it has not. */
static __always_inline __u32 joined_headers(const struct packet *packet, int v4)
{
	__u32 len;

	if (packets_of(packet->ctx) == 1)
		return 0;
	len = headers_len(packet, v4);
	if (len != MOST_HEADERS)
		return len == UNKNOWN_HEADERS ? 0 : len;
	return (v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)) + sizeof(struct udphdr);
}

/* Says whether a packet fits its next hop, or each segment of a super-frame (`skb_gso_validate_network_len`). */
static __always_inline int fits(const struct packet *packet, const struct next_hop *hop, __u32 l3_len,
				int v4)
{
	__u32 segment = packet->ctx->gso_size;

	return l3_len <= mtu_of(hop) || (segment && segment + headers_len(packet, v4) <= mtu_of(hop));
}

/* The kernel's priority of a forwarded packet, by its type of service (`rt_tos2priority`). */
static __always_inline __u32 priority_of(__u8 tos)
{
	/* `ip_tos2prio`, four bits each, the first one last. */
	return 0x4444666622220000ULL >> (tos >> 1 & 15) * 4 & 15;
}

/* Gives the packet the Ethernet addresses of a header; a packet of a layer-3 device also the ethertype. */
static __always_inline void address(void *data, const void *header, int v4)
{
	*(__u64 *)data = *(const __u64 *)header;
	*(__u32 *)(data + 8) = *(const __u32 *)(header + 8);
	if (LAYER3)
		((struct ethhdr *)data)->h_proto = v4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
}

/*
 * Gives the packet the Ethernet addresses of a header of `l2` bytes, and decrements its TTL. Returns false
 * if the headers are not where they were a moment ago.
 */
static __always_inline int rewrite(struct packet *packet, const void *header, __u32 l2, int v4)
{
	void *data = data_of(packet->ctx);
	const void *end = end_of(packet->ctx);
	/* A packet of a layer-3 device has its header by now. */
	struct iphdr *ip = data + (LAYER3 && l2 ? ETH_HLEN : l3_in_frame(packet, 0));
	struct ipv6hdr *ip6 = (void *)ip;

	if (data + ETH_HLEN > end)
		return 0;
	if (v4 ? (const void *)(ip + 1) > end : (const void *)(ip6 + 1) > end)
		return 0;
	if (l2)
		address(data, header, v4);
	if (v4) {
		packet->ctx->priority = priority_of(ip->tos);
		decrease_ttl(ip);
		return 1;
	}
	ip6->hop_limit--;
	/*
	 * The sum of a whole packet that a card has given (CHECKSUM_COMPLETE) is less by one, too. In
	 * IPv4, the header's checksum makes up for the TTL.
	 */
	bpf_csum_update(packet->ctx, ~(__u32)bpf_htons(1));
	return 1;
}

/* Gives a word of a packet's header another value; returns 0 if the kernel has no memory for it. */
static __always_inline int replace(context *ctx, __u32 at, __be32 value)
{
	return !bpf_skb_store_bytes(ctx, at, &value, sizeof(value), 0);
}

/* The place of a checksum in the header of layer 4, and what the kernel's function has to know of it. */
struct l4_check {
	__u32 at;
	__u64 flags;
};

static __always_inline struct l4_check check_of(__u8 protocol)
{
	if (protocol == IPPROTO_TCP)
		return (struct l4_check){ offsetof(struct tcphdr, check), 0 };
	return (struct l4_check){ offsetof(struct udphdr, check), BPF_F_MARK_MANGLED_0 };
}

/* Makes up for another word in a checksum of layer 4, which may be unfinished. */
static __always_inline int replace_in_sum(context *ctx, __u32 at, __be32 before, __be32 after, __u64 flags)
{
	return before == after || !bpf_l4_csum_replace(ctx, at, before, after, flags | 4);
}

/*
 * Gives an IPv4 packet of UDP or TCP its new addresses and ports (`nf_nat_ipv4_manip_pkt`). The kernel's functions know
 * unfinished checksums. Returns 0 if the kernel has no memory for it, or the headers are not there.
 */
static __always_inline int translate4(struct packet *packet, __u32 l2, const struct translation4 *translation)
{
	context *ctx = packet->ctx;
	__u32 l3 = LAYER3 && l2 ? ETH_HLEN : l3_in_frame(packet, 0), l4 = l3 + sizeof(struct iphdr);
	struct l4_check check;
	struct iphdr ip;
	__be32 ports;

	if (bpf_skb_load_bytes(ctx, l3, &ip, sizeof(ip)) || bpf_skb_load_bytes(ctx, l4, &ports, sizeof(ports)))
		return 0;
	check = check_of(ip.protocol);
	check.at += l4;
	return replace_in_sum(ctx, check.at, ip.saddr, translation->src, check.flags | BPF_F_PSEUDO_HDR) &&
	       replace_in_sum(ctx, check.at, ip.daddr, translation->dst, check.flags | BPF_F_PSEUDO_HDR) &&
	       replace_in_sum(ctx, check.at, ports, translation->ports, check.flags) &&
	       !bpf_l3_csum_replace(ctx, l3 + offsetof(struct iphdr, check), ip.saddr, translation->src, 4) &&
	       !bpf_l3_csum_replace(ctx, l3 + offsetof(struct iphdr, check), ip.daddr, translation->dst, 4) &&
	       replace(ctx, l3 + offsetof(struct iphdr, saddr), translation->src) &&
	       replace(ctx, l3 + offsetof(struct iphdr, daddr), translation->dst) &&
	       replace(ctx, l4, translation->ports);
}

/*
 * The same of an IPv6 packet (`nf_nat_ipv6_manip_pkt`). The sum of a whole packet that a card has given (CHECKSUM_COMPLETE)
 * loses with the checksum what it gains with the addresses, which the kernel's functions do not assume.
 */
static __always_inline int translate6(struct packet *packet, __u32 l2, const struct translation6 *translation)
{
	context *ctx = packet->ctx;
	__u32 l3 = LAYER3 && l2 ? ETH_HLEN : l3_in_frame(packet, 0), l4 = l3 + sizeof(struct ipv6hdr);
	struct l4_check check;
	__be32 ports;
	__u8 protocol;

	if (bpf_skb_load_bytes(ctx, l3 + offsetof(struct ipv6hdr, nexthdr), &protocol, sizeof(protocol)) ||
	    bpf_skb_load_bytes(ctx, l4, &ports, sizeof(ports)))
		return 0;
	check = check_of(protocol);
	check.at += l4;
	return !bpf_l4_csum_replace(ctx, check.at, 0, translation->address_sum, check.flags | BPF_F_PSEUDO_HDR) &&
	       replace_in_sum(ctx, check.at, ports, translation->ports, check.flags) &&
	       !bpf_skb_store_bytes(ctx, l3 + offsetof(struct ipv6hdr, saddr), translation,
				    2 * sizeof(translation->src), BPF_F_RECOMPUTE_CSUM) &&
	       replace(ctx, l4, translation->ports);
}

/*
 * Gives a packet of TCP flags that make it invalid for connection tracking, whatever its windows are, and hands it to the
 * kernel. It is for the host itself, whose sockets answer it as they would without these flags. Its header of layer 4 is
 * at `at`.
 */
static __always_inline int make_invalid(struct packet *packet, const struct tcphdr *tcp, const void *end, __u32 at,
					int is_unfinished)
{
	__u16 before, after;

	(void)is_unfinished;
	if ((const void *)(tcp + 1) > end)
		return pass_connection(packet);
	before = ((const __u16 *)tcp)[6];
	after = before | bpf_htons(TCP_SYN | TCP_FIN);
	/* Without memory, it stays as it is. */
	if (!bpf_l4_csum_replace(packet->ctx, at + offsetof(struct tcphdr, check), before, after, 2))
		bpf_skb_store_bytes(packet->ctx, at + 12, &after, sizeof(after), 0);
	return pass_connection(packet);
}

/*
 * Replaces the packet's tags by those of a header of `l2` bytes, a compile-time constant. Returns
 * false if the kernel has no memory for it.
 */
static __always_inline int change_tags(struct packet *packet, const void *header, __u32 l2)
{
	const __be16 *tags = header + 2 * ETH_ALEN;

	if (packet->ctx->vlan_present && bpf_skb_vlan_pop(packet->ctx))
		return 0;
	/* The kernel has taken the inner tag out of the frame then. */
	if (packet->inner_len && bpf_skb_vlan_pop(packet->ctx))
		return 0;
	/* The outer tag comes last. */
	if (l2 == ETH_HLEN + 8 && bpf_skb_vlan_push(packet->ctx, tags[2], bpf_ntohs(tags[3])))
		return 0;
	return l2 <= ETH_HLEN || !bpf_skb_vlan_push(packet->ctx, tags[0], bpf_ntohs(tags[1]));
}

/*
 * Gives the packet a new header of `l2` bytes, a compile-time constant; 0 if it leaves by a layer-3 device,
 * for which bpf_redirect() takes the old one away. Only a second tag can lack memory; the kernel drops such
 * a packet, too, and counts it for tc.
 */
static __always_inline int give_header(struct packet *packet, const void *header, __u32 l2,
				       const union translation *translation, int v4)
{
	/* Room for an Ethernet header. Without memory for it, the packet is unchanged. */
	if (LAYER3 && l2 && bpf_skb_change_head(packet->ctx, ETH_HLEN, 0))
		return pass(packet, PASS_UNDECIDED);
	if (is_translated(translation, v4) &&
	    !(v4 ? translate4(packet, l2, &translation->v4) : translate6(packet, l2, &translation->v6)))
		return DROPPED;
	if (!rewrite(packet, header, l2, v4))
		return pass(packet, PASS_MALFORMED);
	return change_tags(packet, header, l2) ? SENT : DROPPED;
}

/* The program itself sends to all ports. */
static __always_inline int is_left_to_kernel(const struct packet *packet)
{
	(void)packet;
	return 0;
}

/* What a device does not take, the kernel drops, as it would without this program. */
static __always_inline int takes(const struct packet *packet, const struct next_hop *hop)
{
	(void)packet;
	(void)hop;
	return 1;
}

static __always_inline int is_for_tc(const struct packet *packet)
{
	(void)packet;
	return 0;
}

/* Unfinished checksums stay so, or the kernel finishes them. */
static __always_inline int may_lack_sum(const struct packet *packet)
{
	(void)packet;
	return 0;
}

static __always_inline int lacks_sum(const struct packet *packet, const struct iphdr *ip, const void *end)
{
	(void)packet;
	(void)ip;
	(void)end;
	return 0;
}

static __always_inline int lacks_sum6(const struct packet *packet, const struct ipv6hdr *ip, const void *end)
{
	(void)packet;
	(void)ip;
	(void)end;
	return 0;
}

static __always_inline int lacks_inner_sum(const struct packet *packet, __u8 protocol, const void *l4, const void *end)
{
	(void)packet;
	(void)protocol;
	(void)l4;
	(void)end;
	return 0;
}

static __always_inline int leave_to_kernel(struct packet *packet)
{
	return pass(packet, PASS_KERNEL_EXIT);
}

/* The device of a port, to which the program sends; 0 if it is not up. */
static __always_inline __u32 exit_device(const struct packet *packet, __u64 port)
{
	if (port >= MOST_PORTS)
		return 0;
	/* Changes nothing, but shows the verifier of Linux 6.1 the bound. */
	asm volatile("%0 &= %1" : "+r"(port) : "i"(MOST_PORTS - 1));
	return packet->state->exit_devices[port];
}

/* Forwards a packet by its port, with the header of a next hop. */
static __always_inline int forward_by(struct packet *packet, const struct next_hop *hop, __u32 l3,
				      __u32 l3_len, __u32 len, const union translation *translation,
				      int v4)
{
	struct way way = {
		.port = packet->exit, .l2 = hop->header_len, .l3 = l3, .l3_len = l3_len, .len = len,
	};
	const void *end_of_header = hop->header + HEADER_ROOM / 8;
	__u32 device;
	int action;

	if (has_trailer(&way))
		return NOT_TAKEN;
	/* Only Ethernet has padding. */
	if ((LAYER3 || !way.l2) && len != l3 + l3_len)
		return NOT_TAKEN;
	device = exit_device(packet, way.port);
	if (!device)
		return NOT_TAKEN;
	way.headers = joined_headers(packet, v4);
	if (way.l2 == 14)
		action = give_header(packet, end_of_header - 14, 14, translation, v4);
	else if (way.l2 == 18)
		action = give_header(packet, end_of_header - 18, 18, translation, v4);
	else if (way.l2 == 22)
		action = give_header(packet, end_of_header - 22, 22, translation, v4);
	else if (way.l2 == 0)
		action = give_header(packet, end_of_header, 0, translation, v4);
	else
		return NOT_TAKEN;
	if (action != SENT)
		return action;
	/* A bridge does so with what it hands up (br_handle_frame()). */
	if (packet->sender && packet->ctx->pkt_type != PACKET_HOST)
		bpf_skb_change_type(packet->ctx, PACKET_HOST);
	count_sent(packet, &way);
	return bpf_redirect(device, 0);
}

/* Sends a frame that a bridge forwards, as it is: the kernel does the same to super-frames and unfinished checksums. */
static __always_inline int send_bridged(struct packet *packet, __u32 port, __u32 len)
{
	__u32 before_l3 = ETH_HLEN + tag_len(packet->ctx), device = exit_device(packet, port);
	struct way way = { .port = port, .l2 = before_l3, .l3 = before_l3, .len = len };

	if (!device)
		return pass(packet, PASS_BRIDGE_PORT);
	way.headers = joined_headers(packet, packet->ctx->protocol == bpf_htons(ETH_P_IP));
	count_sent(packet, &way);
	return bpf_redirect(device, 0);
}

#endif
