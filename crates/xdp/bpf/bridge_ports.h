/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The ports of bridges, and the ports behind which the hosts are that packets are routed to (br_dev_xmit()). */
#ifndef TOLLWAY_BRIDGE_PORTS_H
#define TOLLWAY_BRIDGE_PORTS_H

#include <linux/if_ether.h>

#include "fdb.h"
#include "header.h"
#include "packet.h"

/* A port of a bridge (dataplane/src/stages/bridge/port.rs), or a bridge itself: a cache line. */
struct bridge_port {
	__u64 mac; /* of the bridge: what is for it is not forwarded */
	__u32 flags; /* BRIDGE_*; 0 if no frame is forwarded from the port, or to it */
	__u32 refresh_ticks; /* after so many, the kernel sees a frame of each sender again */
	__u32 mtu;
	__u32 domain;
	__u32 bridge;
	__u32 has_left; /* LEFT_*: programs write it */
	__u64 rest[4];
};

TABLE(bridge_ports, struct bridge_port);

/* Frames are forwarded from the port, and to it. */
#define BRIDGE_FORWARDS (1U << 0)
/* The sender has to be known at the port: the kernel learns there, or the port is locked. */
#define BRIDGE_CHECKS_SOURCE (1U << 1)
/* Nothing is forwarded to another port with this flag. */
#define BRIDGE_ISOLATED (1U << 2)
/* The kernel looks at IPv4 packets, and at those of IPv6, and cuts off what follows them (br_netfilter). */
#define BRIDGE_VALIDATES4 (1U << 3)
#define BRIDGE_VALIDATES6 (1U << 4)
/* It evaluates rules for them. */
#define BRIDGE_KERNEL4 (1U << 5)
#define BRIDGE_KERNEL6 (1U << 6)
/* The same of tagged frames, or they belong to VLAN devices on top of the port. */
#define BRIDGE_KERNEL_TAGGED (1U << 7)
/* It answers for others: neighbour discovery (neigh_suppress). */
#define BRIDGE_SUPPRESSES_ND (1U << 8)

static __always_inline __u32 bridge_flags(const struct bridge_port *port)
{
	return *(const volatile __u32 *)&port->flags;
}

/* What a bridge knows of the sender of a frame that it hands up. */
enum sender {
	NOT_HANDED_UP,
	SENDER_KNOWN,
	SENDER_DUE, /* as long as not, so that the kernel has to see the frame */
	SENDER_UNKNOWN, /* or known at another port */
};

/* Passes a frame to the kernel, which has to see its sender. */
static __always_inline int pass_sender(struct packet *packet, enum sender sender)
{
	return sender == SENDER_DUE ? pass(packet, PASS_BRIDGE_REFRESH) : pass(packet, PASS_BRIDGE_SOURCE);
}

/* Frames for the bridge itself have been the kernel's, unseen, since one was handed up: any, or tagged ones. */
#define LEFT_ANY (1U << 0)
#define LEFT_TAGGED (1U << 1)

/* In a next hop, the number of a bridge in the place of a port's (PortId::of_bridge). */
#define FIRST_BRIDGE (1U << 15)
/* No port: the bridge's database does not say by which one a packet leaves. */
#define NO_EXIT 0xffffU

/* A word of a header as a number whose lowest byte comes first. */
static __always_inline __u64 in_order(__u64 word)
{
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
	return __builtin_bswap64(word);
#endif
	return word;
}

/* The address that a next hop's header is for. It ends two bytes before the header's last word, or one tag or two before that. */
static __always_inline __u64 neighbour_of(const struct next_hop *hop)
{
	__u64 first = in_order(hop->header[0]), second = in_order(hop->header[1]);

	if (hop->header_len == ETH_HLEN)
		return second >> 16;
	if (hop->header_len == ETH_HLEN + 4)
		return first >> 48 | (second & ((1ULL << 32) - 1)) << 16;
	return first >> 16;
}

/*
 * The port of a bridge of this number behind which an address is, if its device takes packets of this length, and the port has
 * none of these flags. Global, so that the verifier looks at it once, and with a stack of its own.
 */
__attribute__((noinline)) __u32 bridged_exit(__u32 number, __u64 address, __u32 mtu, __u32 without)
{
	const struct bridge_port *bridge = ELEMENT(bridge_ports, MOST_PORTS + number), *out;
	__u32 word, flags;

	if (!bridge || !(bridge_flags(bridge) & BRIDGE_FORWARDS))
		return NO_EXIT;
	word = look_up_fdb(address | (__u64)bridge->domain << MAC_BITS).word;
	out = ELEMENT(bridge_ports, word & FDB_PORT);
	if ((word & FDB_KIND) != FDB_HOST || !out || out->bridge != bridge->bridge)
		return NO_EXIT;
	flags = bridge_flags(out);
	if (!(flags & BRIDGE_FORWARDS) || flags & without)
		return NO_EXIT;
	return mtu <= out->mtu ? word & FDB_PORT : NO_EXIT;
}

/* Finds the port that a packet leaves by. Where no program sees the answers to a tagged one, it is none. */
static __always_inline void find_exit(struct packet *packet, const struct next_hop *hop)
{
	__u32 without = hop->header_len > ETH_HLEN ? BRIDGE_KERNEL_TAGGED : 0;

	if (hop->action != ACTION_BRIDGE)
		packet->exit = hop->port;
	else
		packet->exit = bridged_exit(hop->port & (FIRST_BRIDGE - 1), neighbour_of(hop), hop->bridged_mtu, without);
}

#endif
