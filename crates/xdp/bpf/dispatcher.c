// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The XDP program of a port. It dispatches each frame to the XDP path, to a socket of user space,
 * or to the kernel. A frame that only the kernel can handle correctly goes to the kernel. So does
 * every frame while nobody confirms the tables, and what is for user space while no worker takes it.
 */
#include "engine_xdp.h"

#include "bridge.h"
#include "checksum.h"
#include "decide.h"
#include "ingress.h"
#include "punted.h"
#include "send_xdp.h"
#include "take_tracked.h"
#include "user.h"

#include "decide_l3.h"

/*
 * Removes the mark from a frame that user space handed to the kernel; the kernel gets it in any
 * case.
 */
static __always_inline int unmark(struct packet *packet)
{
	/* Fails if less than an Ethernet header follows the mark; the kernel drops such a frame. */
	bpf_xdp_adjust_head(packet->ctx, MARK_BYTES);
	return packet->counts ? pass(packet, PASS_PUNTED) : XDP_PASS;
}

/*
 * Sends a packet to user space. The kernel gets it if user space would only hand it over; if no
 * worker is there, the packet is dropped.
 */
static __always_inline int to_whom(struct packet *packet, int served, int v4)
{
	__u64 crowded = v4 ? packet->state->crowded4 : packet->state->crowded6;

	if (!served)
		return drop_closed(packet);
	/* Rules that the kernel does not know hold for what it has to carry as well. */
	if (!packet->state->ruled && crowded >> PORT & 1)
		return pass(packet, PASS_CROWDED);
	return to_user(packet);
}

/* The kernel forwards these itself, but it does not know the rules of a firewall in user space. */
static __always_inline int pass_options(struct packet *packet, int served)
{
	if (!served)
		return drop_closed(packet);
	return packet->state->ruled ? to_user(packet) : pass(packet, PASS_OPTIONS);
}

/* Bytes before layer 3 under two tags. No flow is of such frames (src/xdp_path/entry.rs). */
#define TWICE_TAGGED (ETH_HLEN + 2 * sizeof(struct vlan))

/*
 * The functions below dispatch two kinds of packets: those that a worker can take (`served`), and
 * those that must fail closed while no worker runs. The compiler knows which.
 */
static __always_inline int dispatch4(struct packet *packet, void *data, void *end, __u32 l3, int served)
{
	struct iphdr *ip = data + l3;
	__u32 l3_len, len, header_len, *own;

	if ((void *)(ip + 1) > end)
		return pass(packet, PASS_MALFORMED);
	l3_len = bpf_ntohs(ip->tot_len);
	len = frame_len(packet, data, end, l3 + l3_len);
	header_len = 4 * ip->ihl;
	if (ip->version != 4 || header_len < sizeof(*ip) || l3_len < header_len ||
	    l3 + l3_len > len)
		return pass(packet, PASS_MALFORMED);
	if (packet->kernel_path & LINK_TRACKED4 && served)
		return XDP_PATH && TABLES && header_len == sizeof(*ip) ?
			       decide_tracked(packet, l3, len, TRACKED4) :
			       pass_connection(packet);
	if (served && lacks_sum(packet, ip, end))
		return pass(packet, PASS_CHECKSUM);
	if (served && XDP_PATH && header_len == sizeof(*ip)) {
		int action = TABLES ? decide4(packet, ip, end, l3, len) : NOT_TAKEN;

		if (action == NOT_TAKEN && l3 < TWICE_TAGGED)
			action = xdp_forward4(packet, ip, end, l3, len);
		if (action != NOT_TAKEN)
			return action;
	}
	if (is_special4(ip->daddr))
		return pass(packet, PASS_SPECIAL);
	if (is_link_local4(ip->daddr))
		return pass(packet, PASS_LINK_LOCAL);
	own = bpf_map_lookup_elem(&locals4, &ip->daddr);
	if (own && *own != LOCAL_TRANSLATED)
		return pass(packet, PASS_LOCAL);
	if (own && !served)
		return leave_own(packet, l3, PASS_LOCAL, 1);
	/* A worker says whether it is for others, also about its TTL. */
	packet->own4 = own ? l3 : 0;
	if (packet->kernel_path & LINK_FRAGMENTS4 && ip->frag_off & bpf_htons(0x3fff))
		return pass(packet, PASS_OFFLOAD);
	if (header_len != sizeof(*ip))
		return pass_options(packet, served);
	if (ip->ttl <= 1 && !own)
		return pass(packet, PASS_TTL);
	return to_whom(packet, served, 1);
}

static __always_inline int dispatch6(struct packet *packet, void *data, void *end, __u32 l3, int served)
{
	struct ipv6hdr *ip = data + l3;
	__u32 l3_len, len, *own;

	if ((void *)(ip + 1) > end)
		return pass(packet, PASS_MALFORMED);
	l3_len = sizeof(*ip) + bpf_ntohs(ip->payload_len);
	len = frame_len(packet, data, end, l3 + l3_len);
	if (ip->version != 6 || l3 + l3_len > len)
		return pass(packet, PASS_MALFORMED);
	if (packet->kernel_path & LINK_TRACKED6 && served)
		return XDP_PATH && TABLES ? decide_tracked(packet, l3, len, TRACKED6) : pass_connection(packet);
	if (served && lacks_sum6(packet, ip, end))
		return pass(packet, PASS_CHECKSUM);
	if (served && XDP_PATH) {
		int action = TABLES ? decide6(packet, ip, end, l3, len) : NOT_TAKEN;

		if (action == NOT_TAKEN && l3 < TWICE_TAGGED)
			action = xdp_forward6(packet, ip, end, l3, len);
		if (action != NOT_TAKEN)
			return action;
	}
	if (is_special6(&ip->daddr))
		return pass(packet, PASS_SPECIAL);
	if (is_link_local6(&ip->daddr) || is_link_local6(&ip->saddr))
		return pass(packet, PASS_LINK_LOCAL);
	own = bpf_map_lookup_elem(&locals6, &ip->daddr);
	if (own && *own != LOCAL_TRANSLATED)
		return pass(packet, PASS_LOCAL);
	if (own && !served)
		return leave_own(packet, l3, PASS_LOCAL, 0);
	packet->own6 = own ? l3 : 0;
	if (packet->kernel_path & LINK_FRAGMENTS6 && is_extension(ip->nexthdr))
		return pass(packet, PASS_OFFLOAD);
	if (ip->nexthdr == IPPROTO_HOPOPTS)
		return pass_options(packet, served);
	if (ip->hop_limit <= 1 && !own)
		return pass(packet, PASS_TTL);
	return to_whom(packet, served, 0);
}

/* Dispatches a packet whose layer-3 header begins at `l3`, a compile-time constant. */
static __always_inline int dispatch_l3(struct packet *packet, void *data, void *end, __be16 protocol,
				    __u32 l3, int served)
{
	if (protocol == bpf_htons(ETH_P_IP))
		return packet->kernel_path & LINK_KERNEL4 ? pass(packet, PASS_OFFLOAD) :
						   dispatch4(packet, data, end, l3, served);
	if (protocol == bpf_htons(ETH_P_IPV6))
		return packet->kernel_path & LINK_KERNEL6 ? pass(packet, PASS_OFFLOAD) :
						   dispatch6(packet, data, end, l3, served);
	return pass(packet, PASS_ETHERTYPE);
}

/*
 * Dispatches a packet with a second tag of this protocol behind one of this number. With more tags, and with
 * priority tags, user space finds the link; it does not see which fragments the kernel reassembles.
 */
static __always_inline int dispatch_twice_tagged(struct packet *packet, void *data, void *end,
						 __u32 outer, __be16 protocol)
{
	struct vlan *vlan = data + ETH_HLEN + sizeof(*vlan);
	void *l3 = vlan + 1;

	if (l3 <= end && !is_tag(vlan->protocol) && find_inner_link(packet, outer, protocol, vlan))
		return dispatch_l3(packet, data, end, vlan->protocol, TWICE_TAGGED, 1);
	if (packet->kernel_path & (LINK_FRAGMENTS4 | LINK_FRAGMENTS6))
		return pass(packet, PASS_OFFLOAD);
	if (!UNFINISHED || packet->state->ruled)
		return to_user(packet);
	if (l3 > end)
		return pass(packet, PASS_MALFORMED);
	if (vlan->protocol == bpf_htons(ETH_P_IP)) {
		if (l3 + sizeof(struct iphdr) > end)
			return pass(packet, PASS_MALFORMED);
		return is_unfinished4(l3, end) ? pass(packet, PASS_CHECKSUM) : to_user(packet);
	}
	if (vlan->protocol == bpf_htons(ETH_P_IPV6)) {
		if (l3 + sizeof(struct ipv6hdr) > end)
			return pass(packet, PASS_MALFORMED);
		return is_unfinished6(l3, end) ? pass(packet, PASS_CHECKSUM) : to_user(packet);
	}
	return pass(packet, PASS_ETHERTYPE);
}

static __always_inline int dispatch_tagged(struct packet *packet, void *data, void *end,
					__be16 protocol, int served)
{
	struct vlan *vlan = data + ETH_HLEN;
	__u32 vid;

	if ((void *)(vlan + 1) > end)
		return pass(packet, PASS_MALFORMED);
	vid = bpf_ntohs(vlan->tci) & 0xfff;
	if (!find_link(packet, protocol, vid))
		return pass(packet, PASS_VLAN_UNKNOWN);
	if (is_tag(vlan->protocol))
		return served ? dispatch_twice_tagged(packet, data, end, number_of(protocol, vid),
						      vlan->protocol) :
				drop_closed(packet);
	return dispatch_l3(packet, data, end, vlan->protocol, ETH_HLEN + sizeof(*vlan), served);
}

static __always_inline int dispatch_frame(struct packet *packet, int served)
{
	void *data = (void *)(long)packet->ctx->data;
	void *end = (void *)(long)packet->ctx->data_end;
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > end)
		return pass(packet, PASS_MALFORMED);
	if (!is_for(eth, MAC_FIRST, MAC_LAST))
		return pass(packet, eth->h_dest[0] & 1 ? PASS_GROUP_MAC : PASS_NOT_OURS_MAC);
	if (is_tag(ethertype_of(eth)))
		return dispatch_tagged(packet, data, end, ethertype_of(eth), served);
	if (!find_link(packet, 0, 0))
		return pass(packet, PASS_VLAN_UNKNOWN);
	return dispatch_l3(packet, data, end, ethertype_of(eth), ETH_HLEN, served);
}

/* Take over from `dispatch` what decide_tracked() leaves to them. */
SEC("xdp.frags")
int tracked4(struct xdp_md *ctx)
{
	return take_tracked(ctx, 1);
}

SEC("xdp.frags")
int tracked6(struct xdp_md *ctx)
{
	return take_tracked(ctx, 0);
}

SEC("xdp.frags")
int dispatch(struct xdp_md *ctx)
{
	struct packet packet = { .ctx = ctx };
	__u32 zero = 0, port = PORT;

	packet.state = bpf_map_lookup_elem(&state, &zero);
	packet.counts = bpf_map_lookup_elem(&counts, &port);
	if (GENERIC && has_mark((void *)(long)ctx->data, (void *)(long)ctx->data_end))
		return unmark(&packet);
	if (!packet.state || !packet.counts)
		return XDP_PASS;
	if (is_served(&packet))
		return dispatch_frame(&packet, 1);
	/* Nobody is there to evaluate the rules, and the kernel does not know them. */
	return fails_closed(&packet) ? dispatch_frame(&packet, 0) : XDP_PASS;
}

/* Decides about the packet in a frame that a bridge hands up. */
static __always_inline int decide_handed_up(struct packet *packet)
{
	const void *eth = data_of(packet->ctx), *end = end_of(packet->ctx);
	const struct vlan *vlan = eth + ETH_HLEN, *inner = vlan + 1;
	__u32 len = whole_len(packet->ctx), vid;
	__be16 protocol;

	if (eth + ETH_HLEN > end)
		return pass(packet, PASS_MALFORMED);
	protocol = ethertype_of(eth);
	if (!is_tag(protocol))
		return find_link(packet, 0, 0) ? decide_l3(packet, protocol, vlan, end, ETH_HLEN, len) :
						 pass(packet, PASS_VLAN_UNKNOWN);
	if ((const void *)(vlan + 1) > end)
		return pass(packet, PASS_MALFORMED);
	vid = bpf_ntohs(vlan->tci) & 0xfff;
	if (!find_link(packet, protocol, vid))
		return pass(packet, PASS_VLAN_UNKNOWN);
	if (!is_tag(vlan->protocol))
		return decide_l3(packet, vlan->protocol, inner, end, ETH_HLEN + sizeof(*vlan), len);
	if ((const void *)(inner + 1) > end)
		return pass(packet, PASS_MALFORMED);
	if (!find_inner_link(packet, number_of(protocol, vid), vlan->protocol, inner))
		return pass(packet, PASS_UNDECIDED);
	return decide_l3(packet, inner->protocol, inner + 1, end, TWICE_TAGGED, len);
}

/* In the place of `dispatch`, where the port is one of a bridge. */
SEC("xdp.frags")
int member(struct xdp_md *ctx)
{
	struct packet packet = { .ctx = ctx };
	__u32 zero = 0, port = PORT;
	int action;

	packet.state = bpf_map_lookup_elem(&state, &zero);
	packet.counts = bpf_map_lookup_elem(&counts, &port);
	if (GENERIC && has_mark((void *)(long)ctx->data, (void *)(long)ctx->data_end))
		return unmark(&packet);
	if (!packet.state || !packet.counts || !is_served(&packet))
		return XDP_PASS;
	action = bridge_frame(&packet);
	return action == HANDED_UP ? decide_handed_up(&packet) : action;
}
