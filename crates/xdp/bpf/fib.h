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
	__u16 bridged_mtu; /* that of ACTION_BRIDGE, which has none in `mtu` */
	__u8 rest[28];
};

/* In `action`. What is not above ACTION_BRIDGE is a unicast route; the kernel sends by the link of ACTION_KERNEL_EXIT. */
#define ACTION_FORWARD 0
#define ACTION_RESOLVE 1
#define ACTION_GLEAN 2
#define ACTION_KERNEL_EXIT 3
#define ACTION_BRIDGE 4
#define ACTION_LOCAL 5
#define ACTION_DROP 6
#define ACTION_PUNT 7

/* Says whether packets leave by a next hop. */
static __always_inline int forwards(const struct next_hop *hop)
{
	return hop->action == ACTION_FORWARD || hop->action == ACTION_BRIDGE;
}

/* The longest of them. */
static __always_inline __u32 mtu_of(const struct next_hop *hop)
{
	return hop->mtu | hop->bridged_mtu;
}

/* In `reason` of a next hop whose action is ACTION_PUNT, as PuntReason in the crate tollway-dataplane. */
#define PUNT_NO_ROUTE 3
#define PUNT_UNREACHABLE 4
#define PUNT_PROHIBIT 5

/* A link (tables/engines.rs). */
struct engine_link {
	/* A root, or the first of the rules that select one (route_rules.h). */
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
#define ENGINE_SOURCE_KIND4 (1U << 6)
#define ENGINE_SOURCE_DROPS4 (1U << 7)

/* The tables, in the order of `Part` in dataplane/src/memory.rs. */
enum part {
	PART_roots4,
	PART_nodes4,
	PART_values4,
	PART_roots6,
	PART_nodes6,
	PART_values6,
	PART_next_hops,
	PART_records,
	PART_groups,
	PART_multipath,
	PART_engine_links,
	PART_rules,
	PART_rule_counts,
	PART_route_rules,
	PART_set_roots,
	PART_set_nodes,
	PART_set_values,
	PART_fdb,
	PART_bridge_ports,
	PARTS,
};

/* By part: the number of elements; 0 without tables. */
const volatile __u32 ELEMENTS[PARTS] = {};

/*
 * User space makes the tables, with the room that they need. A table is the one value of a map, which the program
 * reads by its address: this takes half of the time of a lookup in a map with many values. In the place of the
 * address stands a number, which the loader replaces (src/addresses.rs).
 */
#define UNKNOWN_ADDRESS 0x746f6c6c77617900
#define FIRST(name)                                                                                \
	({                                                                                         \
		void *first;                                                                       \
		asm("%0 = %1 ll" : "=r"(first) : "i"(UNKNOWN_ADDRESS + PART_##name));              \
		first;                                                                             \
	})

/*
 * Returns the address of a thing of this size, NULL if there is none of this number. An element of the table has
 * so many of them.
 */
static __always_inline void *thing_at(enum part part, void *first, __u32 size, __u32 of_element, __u32 number)
{
	__u64 place = number;

	/* The verifier must see that what is compared is what is multiplied, in this order. */
	asm volatile("" : "+r"(place));
	if (place >= (__u64)ELEMENTS[part] * of_element)
		return 0;
	asm volatile("" : "+r"(place));
	return first + place * size;
}

#define TABLE(name, type) typedef type name##_element
#define ELEMENT(name, number)                                                                      \
	((name##_element *)thing_at(PART_##name, FIRST(name), sizeof(name##_element), 1, number))

TABLE(roots4, __u64);
TABLE(nodes4, struct fib_node);
TABLE(values4, struct value_line);
TABLE(roots6, __u64);
TABLE(nodes6, struct fib_node);
TABLE(values6, struct value_line);
TABLE(next_hops, struct value_line);
TABLE(records, struct next_hop);
TABLE(engine_links, struct engine_link);
TABLE(set_roots, __u64);
TABLE(set_nodes, struct fib_node);
TABLE(set_values, struct value_line);

/* The entry that is nowhere: a node that does not exist. */
#define NO_ENTRY (~0U)

/* Returns a value of a table of lines; NO_ENTRY if there is none at this place. */
static __always_inline __u32 entry_at(enum part part, const volatile __u32 *first, __u32 place)
{
	const volatile __u32 *entry =
		thing_at(part, (void *)first, sizeof(*first), VALUES_OF_LINE, place);

	return entry ? *entry : NO_ENTRY;
}

#define ENTRY(name, place) entry_at(PART_##name, FIRST(name), place)

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

/* The place of a key's entry in a FIB's top. */
static __always_inline __u32 place_in_top(const __u64 *root, __u64 key)
{
	__u64 word = *(const volatile __u64 *)root;

	return (__u32)word + (__u32)(key >> (word >> 32 & 63));
}

/* Looks an IPv4 address up; returns a next hop, or an entry that is a node if nothing can be said. */
static __always_inline __u32 look_up4(__u32 root, __be32 address)
{
	__u64 key = (__u64)bpf_ntohl(address) << 32, *top = ELEMENT(roots4, root);
	__u32 entry = top ? ENTRY(values4, place_in_top(top, key)) : NO_ENTRY;

	for (int step = 0; step < MOST_STEPS4 && entry & ENTRY_NODE; step++) {
		struct fib_node *node = ELEMENT(nodes4, entry & ENTRY_NODE_NUMBER);

		if (!node)
			return NO_ENTRY;
		entry = ENTRY(values4, place_in(node, key));
	}
	return entry;
}

/*
 * As look_up4, in the tables of these names, for an address whose halves are two keys. Use it in a global function,
 * which returns NO_ENTRY where a node is missing: the verifier looks at the many steps once, and not once for each
 * caller.
 */
#define LOOK_UP_HALVES(roots, nodes, values, root, upper, lower)                                   \
	({                                                                                         \
		__u64 *top = ELEMENT(roots, root);                                                 \
		__u32 found = top ? ENTRY(values, place_in_top(top, upper)) : NO_ENTRY;            \
		for (int step = 0; step < MOST_STEPS6 && found & ENTRY_NODE; step++) {             \
			struct fib_node *node = ELEMENT(nodes, found & ENTRY_NODE_NUMBER);         \
			if (!node)                                                                 \
				return NO_ENTRY;                                                   \
			found = ENTRY(values,                                                      \
				      place_in(node, node->shape & NODE_IS_LOW ? lower : upper));  \
		}                                                                                  \
		found;                                                                             \
	})

__attribute__((noinline)) __u32 look_up_halves6(__u32 root, __u64 upper, __u64 lower)
{
	return LOOK_UP_HALVES(roots6, nodes6, values6, root, upper, lower);
}

/* Half of an IPv6 address as a number. */
static __always_inline __u64 half_of(const __be32 *words)
{
	return (__u64)bpf_ntohl(words[0]) << 32 | bpf_ntohl(words[1]);
}

/* The active record of the next hop in an entry; NULL for a group, or if nothing can be said. */
static __always_inline const struct next_hop *next_hop_of(__u32 entry)
{
	__u32 number = entry & ENTRY_NEXT_HOP;

	if (entry & ENTRY_NODE || number & NEXT_HOP_GROUP)
		return 0;
	return ELEMENT(records, ENTRY(next_hops, number));
}

#endif
