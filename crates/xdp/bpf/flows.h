/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The flows of the XDP path, in tables of our own, byte for byte as in src/flows.rs, which
 * writes them. A lookup costs one cache line (IPv6: two); the kernel's LRU hash costs three and a
 * call.
 */
#ifndef TOLLWAY_FLOWS_H
#define TOLLWAY_FLOWS_H

#include "maps.h"

/* Slots of a bucket. */
#define FLOW_WAYS 16

/* In `used`: the bits that count packets. The bits above hold the tick of the last packet. */
#define FLOW_PACKETS ((1ULL << 48) - 1)

/* In `egress_port`: the decision also used the route to the source. */
#define FLOW_BY_SOURCE 0x80
/* In `egress_port`: there is none; the flow's packets take the kernel path. */
#define FLOW_TO_KERNEL 0x40
/*
 * In `egress_port`: there is none; the flow's packets are dropped. The first byte of l2 is the
 * reason. The second one says whether its tally counts all bytes of a frame after the Ethernet
 * header, rather than those of the packet.
 */
#define FLOW_DROP 0x60

/* Regions of each family, IPv4 first, then IPv6; and the number of regions in a cache line. */
#define REGION_BITS 16
#define REGIONS_OF_FAMILY (1U << REGION_BITS)
#define REGIONS_OF_LINE 16

struct flow {
	/*
	 * The program reads these four as one word, which is 0 if the slot has never held a flow.
	 */
	__u32 generation; /* active while it equals `active_generation`; never 0 while active */
	__u16 mtu;
	__u8 egress_port;
	__u8 version; /* changes with every change of the slot */
	__u8 l2[22];
	__u16 tally_tags; /* tally of the rules that it matched, 0: none; low two bits: tags in l2 */
	__u64 used;
	__u64 bytes;
};

/* The flow label that an IPv6 flow requires, and the bits of it to compare. */
struct flow_label {
	__be32 value;
	__be32 mask;
};

struct flow4_slot {
	struct flow4_key key;
	struct flow flow;
};

struct flow6_slot {
	struct flow6_key key;
	struct flow flow;
	struct flow_label label;
	__u64 pad[4];
};

struct flow4_bucket {
	struct flow4_slot slots[FLOW_WAYS];
};

struct flow6_bucket {
	struct flow6_slot slots[FLOW_WAYS];
};

/*
 * Generations of regions: a region's generation grows when a route that may cover an address in it
 * changes.
 */
struct region_line {
	__u32 generation[REGIONS_OF_LINE];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2 * REGIONS_OF_FAMILY / REGIONS_OF_LINE);
	__type(key, __u32);
	__type(value, struct region_line);
} regions SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow4_bucket);
} flows4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow6_bucket);
} flows6 SEC(".maps");

/* A slot with a packet's key, and the first word of its flow, read before the key. */
struct found {
	struct flow *flow;
	__u64 head;
};

static __always_inline __u64 read_head(const struct flow *flow)
{
	return *(const volatile __u64 *)flow;
}

static __always_inline __u32 region_generation(__u32 region)
{
	__u32 number = region / REGIONS_OF_LINE;
	struct region_line *line = bpf_map_lookup_elem(&regions, &number);

	return line ? *(volatile __u32 *)&line->generation[region % REGIONS_OF_LINE] : 0;
}

static __always_inline __u32 generation4(__be32 address)
{
	return region_generation(bpf_ntohl(address) >> 16);
}

static __always_inline __u32 generation6(const __be32 *address)
{
	/* As in src/regions.rs. */
	__u32 hash = bpf_ntohl(address[0]) * 0x9e3779b1U;

	return region_generation(REGIONS_OF_FAMILY | hash >> (32 - REGION_BITS));
}

/*
 * Pair-multiply-shift (Thorup, "High speed hashing for integers and strings", 2015, section 3.5);
 * the upper half is the hash. It is strongly universal: without the seeds, an attacker cannot
 * choose flows that share a bucket.
 */
static __always_inline __u64 pair(__u64 word, int index)
{
	return (FLOW_SEEDS[2 * index] + (__u32)word) *
	       (FLOW_SEEDS[2 * index + 1] + (word >> 32));
}

static __always_inline int is_same(const __u64 *key, const __u64 *other, int words)
{
	__u64 difference = 0;

	for (int i = 0; i < words; i++)
		difference |= key[i] ^ other[i];
	return difference == 0;
}

/* Looks up a flow; `flow` is NULL if there is none. */
static __always_inline struct found find4(const struct flow4_key *key)
{
	const __u64 *words = (const __u64 *)key;
	__u64 hash = pair(words[0], 0) + pair(words[1], 1);
	__u32 number = hash >> 32 & FLOWS4_MASK, first = hash >> 60;
	struct flow4_bucket *bucket = bpf_map_lookup_elem(&flows4, &number);
	struct found none = {};

	if (!bucket)
		return none;
	for (__u32 i = 0; i < FLOW_WAYS; i++) {
		struct flow4_slot *slot = &bucket->slots[(first + i) % FLOW_WAYS];
		struct found found = { &slot->flow, read_head(&slot->flow) };

		read_fence();
		if (is_same(words, (const __u64 *)&slot->key, 2))
			return found;
		if (!found.head)
			break;
	}
	return none;
}

static __always_inline struct found find6(const struct flow6_key *key)
{
	const __u64 *words = (const __u64 *)key;
	__u64 hash = pair(words[0], 0) + pair(words[1], 1) + pair(words[2], 2) +
		     pair(words[3], 3) + pair(words[4], 4);
	__u32 number = hash >> 32 & FLOWS6_MASK, first = hash >> 60;
	struct flow6_bucket *bucket = bpf_map_lookup_elem(&flows6, &number);
	struct found none = {};

	if (!bucket)
		return none;
	for (__u32 i = 0; i < FLOW_WAYS; i++) {
		struct flow6_slot *slot = &bucket->slots[(first + i) % FLOW_WAYS];
		struct found found = { &slot->flow, read_head(&slot->flow) };

		read_fence();
		if (is_same(words, (const __u64 *)&slot->key, 5))
			return found;
		if (!found.head)
			break;
	}
	return none;
}

#endif
