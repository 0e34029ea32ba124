/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Changes to the headers of a packet that leaves, and its counts. */
#ifndef TOLLWAY_HEADER_H
#define TOLLWAY_HEADER_H

#include <linux/in.h>
#include <linux/ip.h>

#include "fold.h"
#include "packet.h"

/*
 * The program does not take the packet, and has not changed it. No verdict of any engine has this value.
 */
#define NOT_TAKEN (-2)

/*
 * Bytes after the Ethernet header below which trailing bytes are a small frame's padding (802.3).
 */
#define PADDED 46

static __always_inline int has_ports(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP;
}

/* Says whether the checksum of a header without options is right. */
static __always_inline int checksum_is_right(const struct iphdr *ip)
{
	const __u32 *word = (const __u32 *)ip;

	return is_all_ones((__u64)word[0] + word[1] + word[2] + word[3] + word[4]);
}

/* As ip_decrease_ttl() in include/net/ip.h. */
static __always_inline void decrease_ttl(struct iphdr *ip)
{
	__u32 check = ip->check;

	check += bpf_htons(0x0100);
	ip->check = check + (check >= 0xffff);
	ip->ttl--;
}

/* Stores a header whose length is a compile-time constant. */
static __always_inline void store_header(void *data, const void *l2, __u32 len)
{
	*(__u64 *)data = *(const __u64 *)l2;
	if (len == 14) {
		*(__u32 *)(data + 8) = *(const __u32 *)(l2 + 8);
		*(__u16 *)(data + 12) = *(const __u16 *)(l2 + 12);
		return;
	}
	*(__u64 *)(data + 8) = *(const __u64 *)(l2 + 8);
	if (len == 18) {
		*(__u16 *)(data + 16) = *(const __u16 *)(l2 + 16);
		return;
	}
	*(__u32 *)(data + 16) = *(const __u32 *)(l2 + 16);
	*(__u16 *)(data + 20) = *(const __u16 *)(l2 + 20);
}

/* What a packet leaves by, and the lengths that matter for this. */
struct way {
	__u32 port;
	__u32 l2; /* bytes of the new Ethernet header */
	__u32 l3; /* bytes before the layer-3 header */
	__u32 l3_len;
	__u32 len; /* of the frame, as it arrived */
	__u32 headers; /* of layers 3 and 4, which each of several packets had that the kernel has put together */
};

/*
 * Addresses and ports that a packet leaves with, as in its headers, and what the addresses, and all together, add to
 * the sums that cover them (RFC 1624); both are 0 if nothing changes.
 */
struct translation4 {
	__be32 src;
	__be32 dst;
	__be32 ports; /* source, then destination */
	__u16 address_sum; /* to that of the IP header */
	__u16 l4_sum; /* to that of layer 4 */
};

/* The same of IPv6, whose header has no checksum. */
struct translation6 {
	__be32 src[4];
	__be32 dst[4];
	__be32 ports;
	__u16 address_sum; /* the part of `l4_sum` that comes of the addresses */
	__u16 l4_sum;
};

/* Of the packet's family. */
union translation {
	struct translation4 v4;
	struct translation6 v6;
} __attribute__((aligned(8)));

/* Says whether a packet changes but for its TTL and its Ethernet header. The compiler may know that it does not. */
static __always_inline int is_translated(const union translation *translation, int v4)
{
	if (!translation)
		return 0;
	return v4 ? translation->v4.address_sum | translation->v4.l4_sum : translation->v6.l4_sum;
}

/* The checksum of UDP that stands for 0 (`CSUM_MANGLED_0`): 0 itself means that there is none. */
#define MANGLED_0 0xffff

/* A checksum whose sum grows; never 0xffff, as by `csum_replace4`. */
static __always_inline __u16 add_to_sum(__u16 check, __u16 more)
{
	__u32 sum = (__u32)(__u16)~check + more;

	return ~(sum + (sum >> 16));
}

/* Says whether bytes follow the packet that the user path trims; a small frame's padding may stay. */
static __always_inline int has_trailer(const struct way *way)
{
	return way->len != way->l3 + way->l3_len && way->len > way->l3 + PADDED;
}

/* Counts a packet that leaves at once. */
static __always_inline void count_sent(struct packet *packet, const struct way *way)
{
	__u32 port = way->port;
	struct port_counts *sent = bpf_map_lookup_elem(&counts, &port);
	__u32 others = packets_of(packet->ctx) - 1;

	packet->counts->xdp_rx_packets += 1 + others;
	packet->counts->xdp_rx_bytes += way->len + others * (way->l3 + way->headers);
	if (sent) {
		sent->xdp_tx_packets += 1 + others;
		sent->xdp_tx_bytes += way->len - way->l3 + way->l2 + others * (way->l2 + way->headers);
	}
}

#endif
