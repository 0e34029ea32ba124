/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The tables of user space that decide a packet's route, read where they lie. User space changes
 * them by single stores while programs read (dataplane/src/fib/, next_hops.rs, tables/engines.rs,
 * all byte for byte as here), and uses memory again only after a grace period (src/grace.rs).
 *
 * Each load depends on the one before, so no fences are needed. An index that is out of range finds
 * nothing, and the packet then is not decided.
 */
#ifndef TOLLWAY_FIB_H
#define TOLLWAY_FIB_H

#include "maps.h"

/* 32-bit values in a cache line, the elements of the maps `values4` and `values6`. */
#define VALUES_OF_LINE 16

struct value_line {
	__u32 value[VALUES_OF_LINE];
};

/* A node of 256 slots (fib/node.rs). */
struct fib_node {
	__u64 changes[4]; /* slots that differ from the one before */
	__u32 places[4]; /* of the value before each word's first change */
	__u64 expected; /* the bits of a key above the node */
	__u32 shape; /* how far to shift a key down; the bit that the node begins at */
	__u32 unused;
};

/* An entry of a FIB (fib/entry.rs): a node, or a next hop. */
#define ENTRY_NODE (1U << 31)
#define ENTRY_NODE_NUMBER ((1U << 30) - 1)
#define ENTRY_NEXT_HOP ((1U << 23) - 1)
/* In a next hop: it is the number of a group. */
#define NEXT_HOP_GROUP (1U << 22)

/* In `shape`: the node is in the lower half of an IPv6 address. */
#define NODE_IS_LOW (64U << 8)

/*
 * The most steps below a FIB's top: nodes begin at bits that are multiples of 8, and a top has 8 bits
 * at least.
 */
#define MOST_STEPS4 3
#define MOST_STEPS6 15

/* A next hop (next_hops.rs). */
struct next_hop {
	__u64 header[HEADER_ROOM / 8]; /* the Ethernet header, right-aligned */
	__u16 mtu;
	__u16 port;
	__u8 header_len;
	__u8 action;
	__u8 reason;
	__u8 unused;
	__u16 link;
	__u8 rest[30];
};

/* In `action`. */
#define ACTION_FORWARD 0
#define ACTION_RESOLVE 1
#define ACTION_GLEAN 2
#define ACTION_LOCAL 3
#define ACTION_DROP 4
#define ACTION_PUNT 5

/* A link (tables/engines.rs). */
struct engine_link {
	__u32 root4;
	__u32 root6;
	/* Flags, and in the upper half the first line of the rules (rules.h): 0 if there are none. */
	__u64 decision;
};

#define ENGINE_DECIDES4 (1U << 0)
#define ENGINE_DECIDES6 (1U << 1)
#define ENGINE_SOURCE_ROUTE4 (1U << 2)
#define ENGINE_SOURCE_LINK4 (1U << 3)
#define ENGINE_SOURCE_NOT_TO_VRF4 (1U << 4)
#define ENGINE_IN_VRF (1U << 5)

/* User space makes the maps, with room for its tables. */
#define TABLE(name, type_of_value)                                                                 \
	struct {                                                                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY);                                                  \
		__uint(map_flags, BPF_F_MMAPABLE);                                                 \
		__uint(max_entries, 1);                                                            \
		__type(key, __u32);                                                                \
		__type(value, type_of_value);                                                      \
	} name SEC(".maps")

TABLE(roots4, __u64);
TABLE(nodes4, struct fib_node);
TABLE(values4, struct value_line);
TABLE(roots6, __u64);
TABLE(nodes6, struct fib_node);
TABLE(values6, struct value_line);
TABLE(next_hops, struct value_line);
TABLE(records, struct next_hop);
TABLE(engine_links, struct engine_link);

/* The entry that is nowhere: a node that does not exist. */
#define NO_ENTRY (~0U)

static __always_inline __u32 entry_at(void *values, __u32 place)
{
	__u32 number = place / VALUES_OF_LINE;
	struct value_line *line = bpf_map_lookup_elem(values, &number);

	return line ? *(volatile __u32 *)&line->value[place % VALUES_OF_LINE] : NO_ENTRY;
}

/* Hacker's Delight, figure 5-2: the processor's instruction is not at hand. */
static __always_inline __u32 count_ones(__u64 word)
{
	word -= word >> 1 & 0x5555555555555555ULL;
	word = (word & 0x3333333333333333ULL) + (word >> 2 & 0x3333333333333333ULL);
	word = (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0fULL;
	return word * 0x0101010101010101ULL >> 56;
}

/* The place of the value for a key, as `Node::place`. */
static __always_inline __u32 place_in(const struct fib_node *node, __u64 key)
{
	__u64 bits = (key ^ node->expected) >> (node->shape & 63);
	__u32 slot = bits & 0xff, word = slot >> 6;

	if (bits > 0xff)
		return node->places[0];
	return node->places[word] + count_ones(node->changes[word] << (~slot & 63));
}

/* The entry in a FIB's top for a key. */
static __always_inline __u32 top_entry(void *roots, void *values, __u32 root, __u64 key)
{
	__u64 *top = bpf_map_lookup_elem(roots, &root), word;

	if (!top)
		return NO_ENTRY;
	word = *(volatile __u64 *)top;
	return entry_at(values, (__u32)word + (__u32)(key >> (word >> 32 & 63)));
}

/* Looks an IPv4 address up; returns a next hop, or an entry that is a node if nothing can be said. */
static __always_inline __u32 look_up4(__u32 root, __be32 address)
{
	__u64 key = (__u64)bpf_ntohl(address) << 32;
	__u32 entry = top_entry(&roots4, &values4, root, key);

	for (int step = 0; step < MOST_STEPS4 && entry & ENTRY_NODE; step++) {
		__u32 number = entry & ENTRY_NODE_NUMBER;
		struct fib_node *node = bpf_map_lookup_elem(&nodes4, &number);

		if (!node)
			return NO_ENTRY;
		entry = entry_at(&values4, place_in(node, key));
	}
	return entry;
}

/*
 * As look_up4, for an IPv6 address, whose halves are two keys. The function is global for the verifier's sake,
 * which looks at its many steps once, and not once for each caller.
 */
__attribute__((noinline)) __u32 look_up_halves6(__u32 root, __u64 upper, __u64 lower)
{
	__u32 entry = top_entry(&roots6, &values6, root, upper);

	for (int step = 0; step < MOST_STEPS6 && entry & ENTRY_NODE; step++) {
		__u32 number = entry & ENTRY_NODE_NUMBER;
		struct fib_node *node = bpf_map_lookup_elem(&nodes6, &number);

		if (!node)
			return NO_ENTRY;
		entry = entry_at(&values6, place_in(node, node->shape & NODE_IS_LOW ? lower : upper));
	}
	return entry;
}

static __always_inline __u32 look_up6(__u32 root, const __be32 *address)
{
	return look_up_halves6(root, (__u64)bpf_ntohl(address[0]) << 32 | bpf_ntohl(address[1]),
			       (__u64)bpf_ntohl(address[2]) << 32 | bpf_ntohl(address[3]));
}

/* The active record of the next hop in an entry; NULL for a group, or if nothing can be said. */
static __always_inline const struct next_hop *next_hop_of(__u32 entry)
{
	__u32 number = entry & ENTRY_NEXT_HOP, record;

	if (entry & ENTRY_NODE || number & NEXT_HOP_GROUP)
		return 0;
	record = entry_at(&next_hops, number);
	return bpf_map_lookup_elem(&records, &record);
}

#endif
