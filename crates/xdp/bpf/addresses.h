/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Kinds of addresses and headers that only the kernel handles. */
#ifndef TOLLWAY_ADDRESSES_H
#define TOLLWAY_ADDRESSES_H

#include <linux/in.h>
#include <linux/in6.h>
#include <linux/ip.h>
#include <linux/ipv6.h>

#include "packet.h"

static __always_inline int is_special4(__be32 address)
{
	__u32 first = bpf_ntohl(address) >> 24;

	return first == 0 || first == 127 || first >= 224;
}

static __always_inline int is_link_local4(__be32 address)
{
	return (address & bpf_htonl(0xffff0000)) == bpf_htonl(0xa9fe0000);
}

static __always_inline int is_link_local6(const struct in6_addr *address)
{
	return (address->s6_addr32[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000);
}

/* Multicast, unspecified, loopback. */
static __always_inline int is_special6(const struct in6_addr *address)
{
	const __be32 *words = address->s6_addr32;

	return address->s6_addr[0] == 0xff ||
	       ((words[0] | words[1] | words[2]) == 0 && bpf_ntohl(words[3]) <= 1);
}

/*
 * Says whether a packet from this source is never forwarded, or only the kernel knows: special
 * addresses (RFC 1122, 3.2.1.3), and the router's own and broadcast addresses.
 */
static __always_inline int is_suspect4(__be32 address)
{
	__u32 first = bpf_ntohl(address) >> 24, hash = address * 0x9e3779b1U >> 16, word = hash >> 6;
	__u64 *bits = bpf_map_lookup_elem(&locals4_bits, &word);

	if (first == 0 || first == 127 || (first >= 224 && first < 240) || first == 255)
		return 1;
	/* Without this, each packet would pay for a lookup in the hash. */
	if (bits && !(*(volatile __u64 *)bits >> (hash & 63) & 1))
		return 0;
	return bpf_map_lookup_elem(&locals4, &address) != 0;
}

/* Says whether a header may precede a fragment header, or is one (`ipv6_ext_hdr`). */
static __always_inline int is_extension(__u8 header)
{
	return header == IPPROTO_HOPOPTS || header == IPPROTO_ROUTING ||
	       header == IPPROTO_FRAGMENT || header == IPPROTO_AH || header == IPPROTO_DSTOPTS;
}

#endif
