/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The XDP path: forwards or drops packets of flows that user space has decided on. */
#ifndef TOLLWAY_XDP_PATH_H
#define TOLLWAY_XDP_PATH_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include "egress.h"
#include "flows.h"
#include "header.h"
#include "user.h"

/* Packets and layer-3 bytes of flows that matched the same counters of the firewall. */
struct tally {
	__u64 packets;
	__u64 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MOST_TALLIES);
	__type(key, __u32);
	__type(value, struct tally);
} tallies SEC(".maps");

/* The protocols that the XDP path knows. */
static __always_inline int is_known4(__u8 protocol)
{
	return has_ports(protocol) || protocol == IPPROTO_ICMP;
}

static __always_inline int is_known6(__u8 protocol)
{
	return has_ports(protocol) || protocol == IPPROTO_ICMPV6;
}

/* A consistent copy of a flow's decision for a packet. */
struct flow_copy {
	__u64 l2[3]; /* the new Ethernet header (FLOW_DROP: the reason) and, in the last two bytes, `tally_tags` */
	__u16 mtu;
	__u8 egress_port;
};

/*
 * The generation under which a flow between two addresses is active: the sum of the XDP path's
 * generation and those of the regions of the routes that were looked up. Each of them only grows.
 * So whatever changes during the reads, the sum never equals one that was superseded before them.
 */
static __always_inline __u32 active_generation(const struct packet *packet,
						 const struct found *found, const __be32 *src,
						 const __be32 *dst, int v4)
{
	const struct flow *head = (const struct flow *)&found->head;
	__u32 sum = packet->state->generation;

	sum += v4 ? generation4(*dst) : generation6(dst);
	if (head->egress_port & FLOW_BY_SOURCE)
		sum += v4 ? generation4(*src) : generation6(src);
	return sum;
}

/* Copies a flow that was found. Returns 0 if it is inactive or has changed since. */
static __always_inline int copy_flow(const struct found *found, __u32 generation,
				     struct flow_copy *copy)
{
	const __u64 *l2 = (const __u64 *)found->flow->l2;
	const struct flow *head = (const struct flow *)&found->head;

	if (!head->generation || head->generation != generation)
		return 0;
	copy->l2[0] = l2[0];
	copy->l2[1] = l2[1];
	copy->l2[2] = l2[2];
	copy->mtu = head->mtu;
	copy->egress_port = head->egress_port & ~FLOW_BY_SOURCE;
	read_fence();
	return read_head(found->flow) == found->head;
}

/* Gives an IPv4 packet of UDP or TCP its new addresses and ports (`nf_nat_ipv4_manip_pkt`). Returns 0 if the headers are not there. */
static __always_inline int translate4(struct iphdr *ip, const void *end, const struct translation4 *translation)
{
	struct udphdr *udp = (void *)(ip + 1);
	struct tcphdr *tcp = (void *)(ip + 1);
	__u16 check;

	if ((const void *)(udp + 1) > end)
		return 0;
	ip->saddr = translation->src;
	ip->daddr = translation->dst;
	ip->check = add_to_sum(ip->check, translation->address_sum);
	*(__be32 *)udp = translation->ports;
	if (ip->protocol == IPPROTO_TCP) {
		if ((const void *)(tcp + 1) > end)
			return 0;
		tcp->check = add_to_sum(tcp->check, translation->l4_sum);
	} else if (udp->check) {
		check = add_to_sum(udp->check, translation->l4_sum);
		udp->check = check ? check : MANGLED_0;
	}
	return 1;
}

/* The same of an IPv6 packet (`nf_nat_ipv6_manip_pkt`), whose UDP has a checksum. */
static __always_inline int translate6(struct ipv6hdr *ip, const void *end, const struct translation6 *translation)
{
	struct udphdr *udp = (void *)(ip + 1);
	struct tcphdr *tcp = (void *)(ip + 1);
	__u16 check;

	if ((const void *)(udp + 1) > end)
		return 0;
	if (ip->nexthdr == IPPROTO_TCP) {
		if ((const void *)(tcp + 1) > end)
			return 0;
		tcp->check = add_to_sum(tcp->check, translation->l4_sum);
	} else {
		check = add_to_sum(udp->check, translation->l4_sum);
		udp->check = check ? check : MANGLED_0;
	}
	for (int i = 0; i < 4; i++) {
		ip->saddr.s6_addr32[i] = translation->src[i];
		ip->daddr.s6_addr32[i] = translation->dst[i];
	}
	*(__be32 *)udp = translation->ports;
	return 1;
}

/*
 * Gives the packet a header of `l2` bytes, for which there is room, decrements its TTL, and translates it. The
 * length is a compile-time constant.
 */
static __always_inline int rewrite(struct packet *packet, const void *header, __u32 l2,
				   const union translation *translation, int v4)
{
	void *data = (void *)(long)packet->ctx->data;
	void *end = (void *)(long)packet->ctx->data_end;

	if (data + l2 + sizeof(struct iphdr) > end)
		return XDP_ABORTED; /* it was there a moment ago */
	if (is_translated(translation, v4) &&
	    !(v4 ? translate4(data + l2, end, &translation->v4) : translate6(data + l2, end, &translation->v6)))
		return XDP_ABORTED;
	if (v4)
		decrease_ttl(data + l2);
	else
		((struct ipv6hdr *)(data + l2))->hop_limit--;
	store_header(data, header, l2);
	return XDP_REDIRECT;
}

/* Says whether the XDP path can send a packet; the device may refuse it all the same. */
static __always_inline int can_send(const struct way *way)
{
	if (has_trailer(way))
		return 0;
	if (way->l2 != 14 && way->l2 != 18 && way->l2 != 22)
		return 0;
	return bpf_redirect_map(&egress, way->port, XDP_PASS) == XDP_REDIRECT;
}

/*
 * Makes room for a packet's new header of `way->l2` bytes. If there is no room before the frame, it is
 * unchanged. It then goes to user space, because the verifier would require new bounds checks for
 * anything else.
 */
static __always_inline int has_room(struct packet *packet, const struct way *way)
{
	return way->l2 == way->l3 ||
	       !bpf_xdp_adjust_head(packet->ctx, (int)way->l3 - (int)way->l2);
}

/*
 * Counts a packet of a flow. Another flow may have taken the slot meanwhile. That does no harm: the
 * counts of single flows serve only reports and the choice of a flow to evict.
 */
static __always_inline void count_flow(const struct packet *packet, struct flow *flow, __u32 len)
{
	flow->used = ((flow->used + 1) & FLOW_PACKETS) | tick_of(packet) << 48;
	flow->bytes += len;
}

/* Counts a packet for the firewall rules that its flow matched. */
static __always_inline void count_tally(__u32 tally_index, __u32 bytes)
{
	struct tally *tally;

	if (!tally_index)
		return;
	tally = bpf_map_lookup_elem(&tallies, &tally_index);
	if (tally) {
		tally->packets++;
		tally->bytes += bytes;
	}
}

/* Drops a packet of a flow whose packets the user path drops. */
static __always_inline int drop(struct packet *packet, struct flow *flow,
				const struct flow_copy *copy, __u32 l3, __u32 l3_len, __u32 len)
{
	const __u8 *l2 = (const __u8 *)copy->l2;
	__u32 reason = l2[0];
	struct drop_counts *drops;

	/* One register for both uses, so that the verifier sees the bound of the second. */
	asm volatile("" : "+r"(reason));
	if (reason >= DROP_REASONS)
		return NOT_TAKEN;
	drops = &packet->counts->drops[reason];
	drops->packets++;
	drops->bytes += len;
	count_flow(packet, flow, len);
	count_tally(((const __u16 *)l2)[11] >> 2, l2[1] ? len - l3 : l3_len);
	return XDP_DROP;
}

/* Forwards or drops a packet whose flow was found, if it meets all other conditions of the flow. */
static __always_inline int forward(struct packet *packet, const struct found *found,
				   __u32 generation, __u32 l3, __u32 l3_len, __u32 len, int v4)
{
	struct way way = { .l3 = l3, .l3_len = l3_len, .len = len };
	struct flow_copy copy;
	__u32 tally_index;
	int action;

	if (!copy_flow(found, generation, &copy))
		return NOT_TAKEN;
	if (l3_len > copy.mtu)
		return packet->state->ruled ? NOT_TAKEN : pass(packet, PASS_MTU);
	if (copy.egress_port == FLOW_DROP)
		return drop(packet, found->flow, &copy, l3, l3_len, len);
	if (copy.egress_port & FLOW_TO_KERNEL) {
		count_flow(packet, found->flow, len);
		return pass(packet, PASS_KERNEL_FLOW);
	}
	tally_index = ((const __u16 *)copy.l2)[11];
	way.l2 = 14 + 4 * (tally_index & 3);
	tally_index >>= 2;
	way.port = copy.egress_port;
	if (!can_send(&way))
		return NOT_TAKEN;
	if (!has_room(packet, &way))
		return to_user(packet);
	if (way.l2 == 14)
		action = rewrite(packet, copy.l2, 14, 0, v4);
	else if (way.l2 == 18)
		action = rewrite(packet, copy.l2, 18, 0, v4);
	else
		action = rewrite(packet, copy.l2, 22, 0, v4);
	if (action != XDP_REDIRECT)
		return action;
	count_flow(packet, found->flow, len);
	count_sent(packet, &way);
	count_tally(tally_index, l3_len);
	return XDP_REDIRECT;
}

/* Tries an IPv4 packet without options and with valid lengths. */
static __always_inline int xdp_forward4(struct packet *packet, const struct iphdr *ip, const void *end,
				    __u32 l3, __u32 len)
{
	struct flow4_key key;
	struct found found;
	__u32 l3_len = bpf_ntohs(ip->tot_len), generation;

	if (ip->ttl <= 1 || ip->frag_off & bpf_htons(0x3fff) || !is_known4(ip->protocol))
		return NOT_TAKEN;
	key.ports = 0;
	if (has_ports(ip->protocol)) {
		if (l3_len < sizeof(*ip) + 4 || (const void *)(ip + 1) + 4 > end)
			return NOT_TAKEN;
		key.ports = *(const __be32 *)(ip + 1);
	}
	key.src = ip->saddr;
	key.dst = ip->daddr;
	key.protocol = ip->protocol;
	key.pad = 0;
	key.link = packet->link;
	found = find4(&key);
	if (!found.flow || !checksum_is_right(ip))
		return NOT_TAKEN;
	generation = active_generation(packet, &found, &key.src, &key.dst, 1);
	return forward(packet, &found, generation, l3, l3_len, len, 1);
}

/*
 * Says whether a packet has the flow label that its flow requires. The flow's head shows whether
 * the flow changes meanwhile.
 */
static __always_inline int has_label(const struct found *found, const struct ipv6hdr *ip)
{
	const struct flow_label *label = (const struct flow_label *)(found->flow + 1);

	return !((*(const __be32 *)ip ^ label->value) & label->mask);
}

/* Tries an IPv6 packet with valid lengths. */
static __always_inline int xdp_forward6(struct packet *packet, const struct ipv6hdr *ip,
				    const void *end, __u32 l3, __u32 len)
{
	struct flow6_key key;
	struct found found;
	__u32 l3_len = sizeof(*ip) + bpf_ntohs(ip->payload_len), generation;

	if (ip->hop_limit <= 1 || !is_known6(ip->nexthdr))
		return NOT_TAKEN;
	key.ports = 0;
	if (has_ports(ip->nexthdr)) {
		if (l3_len < sizeof(*ip) + 4 || (const void *)(ip + 1) + 4 > end)
			return NOT_TAKEN;
		key.ports = *(const __be32 *)(ip + 1);
	}
	__builtin_memcpy(key.src, &ip->saddr, sizeof(key.src));
	__builtin_memcpy(key.dst, &ip->daddr, sizeof(key.dst));
	key.protocol = ip->nexthdr;
	key.pad = 0;
	key.link = packet->link;
	found = find6(&key);
	if (!found.flow || !has_label(&found, ip))
		return NOT_TAKEN;
	generation = active_generation(packet, &found, key.src, key.dst, 0);
	return forward(packet, &found, generation, l3, l3_len, len, 0);
}

#endif
