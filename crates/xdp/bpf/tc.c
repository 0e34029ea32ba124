// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The tc program of a port. It forwards what the tables decide, and leaves all else to the kernel.
 * There is no user path behind it, and no socket; but see beside.h.
 *
 * It runs where a device hands frames to the kernel's stack. So it suits devices whose frames are made
 * by the kernel, and not by a card: veth, TAP, virtio-net, bond, bridge, macvlan, tunnels. A frame may be a
 * super-frame, and its checksum may be unfinished. The packets of a layer-3 device have no Ethernet header.
 *
 * Frames that user space hands to the kernel are none of this program's: user space gets no frame of the port, or, beside
 * an XDP program, they have no mark.
 */
#include "engine_tc.h"

#include "beside.h"
#include "bridge.h"
#include "decide.h"
#include "ingress.h"
#include "send_tc.h"
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
		return TABLES ? decide_tracked(packet, l3, len, TRACKED4) : pass_connection(packet);
	return or_kernel(packet, TABLES ? decide4(packet, ip, end, l3, len) : NOT_TAKEN);
}

static __always_inline int decide_v6(struct packet *packet, const struct ipv6hdr *ip, const void *end,
				     __u32 l3, __u32 len)
{
	if ((const void *)(ip + 1) > end)
		return pass(packet, PASS_MALFORMED);
	if (ip->version != 6 || l3 + sizeof(*ip) + bpf_ntohs(ip->payload_len) > len)
		return pass(packet, PASS_MALFORMED);
	if (packet->kernel_path & LINK_TRACKED6)
		return TABLES ? decide_tracked(packet, l3, len, TRACKED6) : pass_connection(packet);
	return or_kernel(packet, TABLES ? decide6(packet, ip, end, l3, len) : NOT_TAKEN);
}

/*
 * Makes the headers accessible, if they are not. In a super-frame only the IP header: bytes that are moved
 * from behind the headers would break the order of its segments.
 */
static __always_inline void pull_headers(context *ctx)
{
	__u64 linear = end_of(ctx) - data_of(ctx), most = LAYER3 ? 0 : ETH_HLEN;
	__be16 protocol = ctx->protocol;

	if (is_tag(protocol)) {
		/* The ethertype at the end of the inner tag. */
		if (bpf_skb_load_bytes(ctx, ETH_HLEN + 2, &protocol, sizeof(protocol)))
			return;
		most += sizeof(struct vlan);
	}
	most += protocol == bpf_htons(ETH_P_IPV6) ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	most += ctx->gso_size ? 0 : TRANSPORT_BYTES;
	if (linear < most && linear < ctx->len)
		bpf_skb_pull_data(ctx, most < ctx->len ? most : ctx->len);
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

/* Says whether the kernel would forward a packet with this Ethernet header; a layer-3 device's has none. */
static __always_inline int is_ours(const context *ctx, const struct ethhdr *eth)
{
	if (ctx->pkt_type != 0 /* PACKET_HOST */)
		return 0;
	return LAYER3 || is_for(eth, MAC_FIRST, MAC_LAST);
}

static __always_inline int decide_frame(struct packet *packet)
{
	context *ctx = packet->ctx;
	__u32 tag = tag_len(ctx), eth_len = LAYER3 ? 0 : ETH_HLEN, l3 = eth_len + tag, len = whole_len(ctx);
	__be16 protocol = ctx->protocol;
	const struct ethhdr *eth;
	const struct vlan *inner;
	const void *end;

	pull_headers(ctx);
	eth = data_of(ctx);
	end = end_of(ctx);
	if ((const void *)(eth + 1) > end)
		return pass(packet, PASS_MALFORMED);
	if (!is_ours(ctx, eth))
		return pass(packet, !LAYER3 && eth->h_dest[0] & 1 ? PASS_GROUP_MAC : PASS_NOT_OURS_MAC);
	if (!find_link(packet, tag ? ctx->vlan_proto : 0, tag ? ctx->vlan_tci & 0xfff : 0))
		return pass(packet, PASS_VLAN_UNKNOWN);
	inner = (const void *)eth + eth_len;
	if (!is_tag(protocol))
		return decide_l3(packet, protocol, inner, end, l3, len);
	if ((const void *)(inner + 1) > end)
		return pass(packet, PASS_MALFORMED);
	if (!tag || !find_inner_link(packet, number_of(ctx->vlan_proto, ctx->vlan_tci & 0xfff), protocol,
				     inner))
		return pass(packet, PASS_UNDECIDED);
	packet->inner_len = sizeof(*inner);
	return decide_l3(packet, inner->protocol, inner + 1, end, l3 + sizeof(*inner), len);
}

/*
 * Takes a packet, or those that it consists of, if the XDP program beside this one has left it to this one. The kernel
 * may lead what this one does not forward here again.
 */
static __always_inline int take_marked(const struct packet *packet)
{
	__u32 *mark = (void *)(long)packet->ctx->data_meta;

	if ((void *)(mark + 1) > (void *)(long)packet->ctx->data || *mark != MARK_FOR_TC)
		return 0;
	*mark = 0;
	packet->counts->taken += packets_of(packet->ctx);
	return 1;
}

/* Take over from `forward` what decide_tracked() leaves to them. */
SEC("classifier")
int tracked4(context *ctx)
{
	return take_tracked(ctx, 1);
}

SEC("classifier")
int tracked6(context *ctx)
{
	return take_tracked(ctx, 0);
}

/* Says whether the program decides about a packet. */
static __always_inline int takes_up(struct packet *packet)
{
	__u32 zero = 0, port = PORT;

	packet->state = bpf_map_lookup_elem(&state, &zero);
	packet->counts = bpf_map_lookup_elem(&counts, &port);
	if (!packet->state || !packet->counts)
		return 0;
	if (BESIDE && !take_marked(packet))
		return 0;
	return is_served(packet);
}

SEC("classifier")
int forward(context *ctx)
{
	struct packet packet = { .ctx = ctx };

	return takes_up(&packet) ? decide_frame(&packet) : TO_KERNEL;
}

/* In the place of `forward`, where the port is one of a bridge. The bridge would see a frame behind this hook. */
SEC("classifier")
int member(context *ctx)
{
	struct packet packet = { .ctx = ctx };

	if (!takes_up(&packet))
		return TO_KERNEL;
	pull_headers(ctx);
	return bridge_frame(&packet);
}

char _license[] SEC("license") = "Dual MIT/GPL";
