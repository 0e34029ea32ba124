/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The member of a next-hop group for a packet, as the stage `ecmp` of user space selects it
 * (dataplane/src/stages/ecmp/): SipHash-2-4 over the flow, then the first member whose bound is not
 * below the hash.
 */
#ifndef TOLLWAY_ECMP_H
#define TOLLWAY_ECMP_H

#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>

#include "fib.h"

/* Members in a cache line, and lines of a group. */
#define MEMBERS_OF_LINE 8
#define LINES_OF_GROUP 32

struct member_line {
	__u64 member[MEMBERS_OF_LINE]; /* the bound above the next hop */
};

/* The state of a hash. */
struct sip {
	__u64 a, b, c, d;
};

/* In `struct multipath`: `fib_multipath_hash_policy`. */
#define HASH_L3 0
#define HASH_L4 1

/* The hash policies and the states from which hashes begin (stages/ecmp/hash.rs). */
struct multipath {
	__u32 v4;
	__u32 v6;
	struct sip start;
	struct sip zero; /* after the words before the ports, which are zero; or have the protocol */
	struct sip tcp;
	struct sip udp;
};

TABLE(groups, struct member_line);
TABLE(multipath, struct multipath);

/* The ports of a packet that has none, or whose policy leaves them out. */
#define NO_PORTS 0

/* What is hashed cannot be told here. */
#define NO_HASH (~0U)

#define ROTATE(word, bits) ((word) << (bits) | (word) >> (64 - (bits)))

static __always_inline void sip_round(struct sip *sip)
{
	sip->a += sip->b;
	sip->b = ROTATE(sip->b, 13) ^ sip->a;
	sip->a = ROTATE(sip->a, 32);
	sip->c += sip->d;
	sip->d = ROTATE(sip->d, 16) ^ sip->c;
	sip->a += sip->d;
	sip->d = ROTATE(sip->d, 21) ^ sip->a;
	sip->c += sip->b;
	sip->b = ROTATE(sip->b, 17) ^ sip->c;
	sip->c = ROTATE(sip->c, 32);
}

static __always_inline void sip_word(struct sip *sip, __u64 word)
{
	sip->d ^= word;
	sip_round(sip);
	sip_round(sip);
	sip->a ^= word;
}

/* The 31 bits that select a member. */
static __always_inline __u32 sip_finish(struct sip *sip, __u64 bytes)
{
	sip_word(sip, bytes << 56);
	sip->c ^= 0xff;
	sip_round(sip);
	sip_round(sip);
	sip_round(sip);
	sip_round(sip);
	return (__u32)(sip->a ^ sip->b ^ sip->c ^ sip->d) >> 1;
}

static __always_inline struct sip sip_of(const struct multipath *multipath, __u8 protocol)
{
	return protocol == IPPROTO_TCP ? multipath->tcp : multipath->udp;
}

/*
 * The ports behind a header, which has so many bytes of the packet behind it, in the kernel's order. A packet that is
 * too short has none, whatever a small frame's padding is. NO_HASH if they are out of reach.
 */
static __always_inline __u32 sorted_ports(const __u16 *ports, __u32 len, const void *end)
{
	if (len < 2 * sizeof(*ports))
		return NO_PORTS;
	if ((const void *)(ports + 2) > end)
		return NO_HASH;
	return ports[0] < ports[1] ? ports[0] | (__u32)ports[1] << 16 : ports[1] | (__u32)ports[0] << 16;
}

static __always_inline int is_tcp_or_udp(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP;
}

/* The protocol, where the policy leaves it out. */
#define NO_PROTOCOL 0

/*
 * The hash of a flow's protocol and sorted ports, unless the policy leaves them out, and of the lower and the
 * higher address. This is a function for the verifier's sake, which looks at it once.
 */
__attribute__((noinline)) __u32 hash_words4(__u32 protocol, __u64 ports, __u64 lower, __u64 higher)
{
	const struct multipath *how = ELEMENT(multipath, 0);
	struct sip sip;

	if (!how)
		return NO_HASH;
	sip = protocol == NO_PROTOCOL ? how->zero : sip_of(how, protocol);
	sip_word(&sip, ports << 32);
	sip_word(&sip, lower << 32);
	sip_word(&sip, higher);
	return sip_finish(&sip, 48);
}

/* The hash of an IPv4 packet without options; NO_HASH for rare kinds of packets. */
static __always_inline __u32 hash4(const struct multipath *multipath, const struct iphdr *ip,
				   const void *end)
{
	__u64 source = ip->saddr, destination = ip->daddr, ports = NO_PORTS;
	__u32 protocol = NO_PROTOCOL;

	/* An error of ICMP has the hash of the packet that it is about. */
	if (!is_tcp_or_udp(ip->protocol))
		return NO_HASH;
	if (multipath->v4 != HASH_L3) {
		protocol = ip->protocol;
		if (!(ip->frag_off & bpf_htons(0x3fff)))
			ports = sorted_ports((const __u16 *)(ip + 1),
					     bpf_ntohs(ip->tot_len) - sizeof(*ip), end);
		if (ports == NO_HASH)
			return NO_HASH;
	}
	return hash_words4(protocol, ports, source < destination ? source : destination,
			   source < destination ? destination : source);
}

/* Says whether one address is below another as a number. */
static __always_inline int is_below(const __be32 *one, const __be32 *other)
{
	for (int i = 0; i < 4; i++)
		if (one[i] != other[i])
			return bpf_ntohl(one[i]) < bpf_ntohl(other[i]);
	return 0;
}

/* What is hashed of an IPv6 flow. */
struct flow_words {
	__u64 address[5]; /* both addresses, the lower one first, behind 32 bits that are 0 */
	__u64 ports; /* in the upper half */
	__u32 protocol;
	__be32 label; /* 0, or hashed with the protocol */
};

/* As hash_words4, for an IPv6 packet. */
__attribute__((noinline)) __u32 hash_words6(const struct flow_words *words)
{
	const struct multipath *how = ELEMENT(multipath, 0);
	struct sip sip;

	if (!how || !words)
		return NO_HASH;
	if (words->label) {
		sip = how->start;
		sip_word(&sip, (__u64)words->protocol << 16 | (__u64)words->label << 32);
		sip_word(&sip, 0);
		sip_word(&sip, 0);
	} else {
		sip = sip_of(how, words->protocol);
	}
	sip_word(&sip, words->ports);
	for (int i = 0; i < 5; i++)
		sip_word(&sip, words->address[i]);
	return sip_finish(&sip, 72);
}

/* As hash4, for an IPv6 packet. */
static __always_inline __u32 hash6(const struct multipath *multipath, const struct ipv6hdr *ip,
				   const void *end)
{
	const __u32 *source = (const __u32 *)&ip->saddr, *destination = (const __u32 *)&ip->daddr;
	int is_sorted = is_below(source, destination);
	const __u32 *first = is_sorted ? source : destination, *second = is_sorted ? destination : source;
	__u64 ports = NO_PORTS;
	struct flow_words words = { .protocol = ip->nexthdr };

	if (!is_tcp_or_udp(ip->nexthdr))
		return NO_HASH;
	if (multipath->v6 != HASH_L3) {
		ports = sorted_ports((const __u16 *)(ip + 1), bpf_ntohs(ip->payload_len), end);
		if (ports == NO_HASH)
			return NO_HASH;
	} else {
		words.label = *(const __u32 *)ip & bpf_htonl(0xfffff);
	}
	words.ports = ports << 32;
	words.address[0] = (__u64)first[0] << 32;
	words.address[1] = first[1] | (__u64)first[2] << 32;
	words.address[2] = first[3] | (__u64)second[0] << 32;
	words.address[3] = second[1] | (__u64)second[2] << 32;
	words.address[4] = second[3];
	return hash_words6(&words);
}

/* The next hop of a group's member for a hash, as `Groups::select`; NO_ENTRY if there is no such group. */
__attribute__((noinline)) __u32 select_member(__u32 group, __u32 hash)
{
	for (__u32 i = 0; i < LINES_OF_GROUP; i++) {
		struct member_line *line = ELEMENT(groups, group * LINES_OF_GROUP + i);

		if (!line)
			return NO_ENTRY;
		for (int at = 0; at < MEMBERS_OF_LINE; at++) {
			__u64 member = *(volatile __u64 *)&line->member[at];

			if (member >> 32 >= hash)
				return (__u32)member;
		}
	}
	return NO_ENTRY;
}

/* An entry that is a group becomes that of its member. */
static __always_inline __u32 member_of(__u32 entry, const void *ip, const void *end, int v4)
{
	struct multipath *how;
	__u32 hash;

	if (entry & ENTRY_NODE || !(entry & NEXT_HOP_GROUP))
		return entry;
	how = ELEMENT(multipath, 0);
	if (!how)
		return NO_ENTRY;
	hash = v4 ? hash4(how, ip, end) : hash6(how, ip, end);
	return hash == NO_HASH ? NO_ENTRY : select_member(entry & (NEXT_HOP_GROUP - 1), hash);
}

#endif
