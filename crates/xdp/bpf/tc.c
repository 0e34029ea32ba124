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

#include "decide_l3.h"

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

/* Says whether the kernel would forward a packet with this Ethernet header; a layer-3 device's has none. */
static __always_inline int is_ours(const context *ctx, const struct ethhdr *eth)
{
	if (ctx->pkt_type != PACKET_HOST)
		return 0;
	return LAYER3 || is_for(eth, MAC_FIRST, MAC_LAST);
}

/* Decides about the packet in a frame for this host, or for the bridge. */
static __always_inline int decide_packet(struct packet *packet, const void *eth, const void *end)
{
	context *ctx = packet->ctx;
	__u32 tag = tag_len(ctx), eth_len = LAYER3 ? 0 : ETH_HLEN, l3 = eth_len + tag, len = whole_len(ctx);
	__be16 protocol = ctx->protocol;
	const struct vlan *inner;

	if (!find_link(packet, tag ? ctx->vlan_proto : 0, tag ? ctx->vlan_tci & 0xfff : 0))
		return pass(packet, PASS_VLAN_UNKNOWN);
	inner = eth + eth_len;
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

static __always_inline int decide_frame(struct packet *packet)
{
	context *ctx = packet->ctx;
	const struct ethhdr *eth;
	const void *end;

	pull_headers(ctx);
	eth = data_of(ctx);
	end = end_of(ctx);
	if ((const void *)(eth + 1) > end)
		return pass(packet, PASS_MALFORMED);
	if (!is_ours(ctx, eth))
		return pass(packet, !LAYER3 && eth->h_dest[0] & 1 ? PASS_GROUP_MAC : PASS_NOT_OURS_MAC);
	return decide_packet(packet, eth, end);
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
	const void *eth, *end;
	int action;

	if (!takes_up(&packet))
		return TO_KERNEL;
	pull_headers(ctx);
	action = bridge_frame(&packet);
	if (action != HANDED_UP)
		return action;
	eth = data_of(ctx);
	end = end_of(ctx);
	return eth + ETH_HLEN > end ? pass(&packet, PASS_MALFORMED) : decide_packet(&packet, eth, end);
}

char _license[] SEC("license") = "Dual MIT/GPL";
