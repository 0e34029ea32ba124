/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* How XDP sends a packet by a next hop. */
#ifndef TOLLWAY_SEND_XDP_H
#define TOLLWAY_SEND_XDP_H

#include "beside.h"
#include "checksum.h"
#include "fib.h"
#include "l4_sum.h"
#include "refusals.h"
#include "tcp.h"
#include "xdp_path.h"

/* The longest frame that a port's device takes, or EXIT_OF_KERNEL. */
static __always_inline __u32 exit_limit(const struct packet *packet, __u64 port)
{
	if (port >= MOST_PORTS)
		return 0;
	/* Changes nothing, but shows the verifier of Linux 6.1 the bound. */
	asm volatile("%0 &= %1" : "+r"(port) : "i"(MOST_PORTS - 1));
	return packet->state->exit_limits[port];
}

/* Says whether a port's device takes a frame of this length. */
static __always_inline int takes_frame(const struct packet *packet, __u32 port, __u32 len)
{
	struct refusals *refused;

	if (len > exit_limit(packet, port))
		return 0;
	refused = bpf_map_lookup_elem(&refusals, &port);
	return refused && !refused->cause;
}

/* Says whether the device of a packet's port takes it by this next hop. */
static __always_inline int takes(const struct packet *packet, const struct next_hop *hop)
{
	return takes_frame(packet, packet->exit, mtu_of(hop) + hop->header_len);
}

/* What a card has verified, only the kernel knows. */
static __always_inline int is_verified(const struct packet *packet, __u16 check, __u16 pseudo)
{
	(void)packet;
	(void)check;
	(void)pseudo;
	return 0;
}

/* A frame in several buffers is the kernel's. */
static __always_inline int sum_beyond(context *ctx, __u32 at, __u32 len, __u64 sum)
{
	(void)ctx;
	(void)at;
	(void)len;
	(void)sum;
	return SUM_UNKNOWN;
}

/* Where the layer-3 header begins in the frame. */
static __always_inline __u32 l3_in_frame(const struct packet *packet, __u32 l3)
{
	(void)packet;
	return l3;
}

/* Says whether a packet fits its next hop. */
static __always_inline int fits(const struct packet *packet, const struct next_hop *hop, __u32 l3_len,
				int v4)
{
	(void)packet;
	(void)v4;
	return l3_len <= mtu_of(hop);
}

/* Says whether the kernel sends what leaves by a port. */
static __always_inline int is_exit_of_kernel(const struct packet *packet, __u32 port)
{
	return exit_limit(packet, port) == EXIT_OF_KERNEL;
}

/* Says whether the kernel sends what leaves by a packet's port. */
static __always_inline int is_left_to_kernel(const struct packet *packet)
{
	return is_exit_of_kernel(packet, packet->exit);
}

/* Says whether the tc program beside this one forwards what leaves by a packet's port. */
static __always_inline int is_for_tc(const struct packet *packet)
{
	return BESIDE && !(packet->kernel_path & LINK_KERNEL_EXITS) && is_left_to_kernel(packet);
}

/*
 * Says whether packets take the kernel path if their checksum looks unfinished. The kernel does not know the rules of a
 * firewall in user space, so under such a firewall these packets are dispatched like all others.
 */
static __always_inline int may_lack_sum(const struct packet *packet)
{
	return UNFINISHED && !packet->state->ruled;
}

/* Says whether a packet is one of these. */
static __always_inline int lacks_sum(const struct packet *packet, const struct iphdr *ip, const void *end)
{
	return may_lack_sum(packet) && is_unfinished4(ip, end);
}

/* The same of an IPv6 packet. */
static __always_inline int lacks_sum6(const struct packet *packet, const struct ipv6hdr *ip, const void *end)
{
	return may_lack_sum(packet) && is_unfinished6(ip, end);
}

/* Says the same of what a packet of UDP may have in it. */
static __always_inline int lacks_inner_sum(const struct packet *packet, __u8 protocol, const void *l4, const void *end)
{
	const struct udphdr *udp = l4;

	return may_lack_sum(packet) && protocol == IPPROTO_UDP &&
	       ((const void *)(udp + 1) > end || is_tunnel_port(udp->dest));
}

/*
 * Gives a packet of TCP flags that make it invalid for connection tracking, whatever its windows are, and hands it to the
 * kernel. It is for the host itself, whose sockets answer it as they would without these flags. The kernel finishes its
 * checksum, if that `is_unfinished`.
 */
static __always_inline int make_invalid(struct packet *packet, struct tcphdr *tcp, const void *end, __u32 at,
					int is_unfinished)
{
	__u16 *flags = (__u16 *)tcp + 6, before;

	(void)at;
	if ((const void *)(tcp + 1) > end)
		return pass_connection(packet);
	before = *flags;
	*flags |= bpf_htons(TCP_SYN | TCP_FIN);
	if (!is_unfinished)
		tcp->check = add_to_sum(tcp->check, fold((__u64)(__u16)~before + *flags));
	return pass_connection(packet);
}

/* Passes such a packet to the kernel, marked for the tc program beside this one. */
static __always_inline int leave_to_kernel(struct packet *packet)
{
	__u32 *mark;

	if (!BESIDE || packet->kernel_path & LINK_KERNEL_EXITS)
		return pass(packet, PASS_KERNEL_EXIT);
	/* Not every driver has room for it. */
	if (bpf_xdp_adjust_meta(packet->ctx, -(int)sizeof(*mark)))
		return pass(packet, PASS_KERNEL_EXIT);
	mark = (void *)(long)packet->ctx->data_meta;
	if ((void *)(mark + 1) > (void *)(long)packet->ctx->data)
		return pass(packet, PASS_KERNEL_EXIT);
	*mark = MARK_FOR_TC;
	packet->counts->marked++;
	return XDP_PASS;
}

/* Forwards a packet by its port, whose device takes packets by the next hop. */
static __always_inline int forward_by(struct packet *packet, const struct next_hop *hop, __u32 l3,
				      __u32 l3_len, __u32 len, const union translation *translation,
				      int v4)
{
	struct way way = {
		.port = packet->exit, .l2 = hop->header_len, .l3 = l3, .l3_len = l3_len, .len = len,
	};
	const void *end_of_header = hop->header + HEADER_ROOM / 8;
	int action;

	if (!can_send(&way))
		return NOT_TAKEN;
	if (!has_room(packet, &way))
		return translation || packet->sender ? NOT_TAKEN : to_user(packet);
	if (way.l2 == 14)
		action = rewrite(packet, end_of_header - 14, 14, translation, v4);
	else if (way.l2 == 18)
		action = rewrite(packet, end_of_header - 18, 18, translation, v4);
	else
		action = rewrite(packet, end_of_header - 22, 22, translation, v4);
	if (action == XDP_REDIRECT)
		count_sent(packet, &way);
	return action;
}

/* Sends a frame that a bridge forwards. */
static __always_inline int send_bridged(struct packet *packet, __u32 port, __u32 len)
{
	struct way way = { .port = port, .l2 = ETH_HLEN, .l3 = ETH_HLEN, .len = len };

	if (is_exit_of_kernel(packet, port))
		return leave_to_kernel(packet);
	if (!takes_frame(packet, port, len) || bpf_redirect_map(&egress, port, XDP_PASS) != XDP_REDIRECT)
		return pass(packet, PASS_BRIDGE_PORT);
	count_sent(packet, &way);
	return XDP_REDIRECT;
}

#endif
