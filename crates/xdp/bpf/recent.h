/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * IPv6 routes that this processor has looked up. With few destinations, finding one here takes less time than the
 * steps through a full table. It would take more if most were not found, so then this rests for a while.
 *
 * A route counts only while its FIB has the generation that it had before the lookup: each change begins another
 * one (dataplane/src/fib/mod.rs).
 *
 * The programs of all ports share these routes; whether they look for them, each decides by its own packets.
 */
#ifndef TOLLWAY_RECENT_H
#define TOLLWAY_RECENT_H

#include "fib.h"

/* The generation of a table of roots lies in the place of its last root. */
#define GENERATION(name) ((const volatile __u64 *)ELEMENT(name, ELEMENTS[PART_##name] - 1))

struct recent6 {
	__u64 upper, lower; /* the address */
	__u64 generation;
	__u32 root;
	__u32 entry;
};

#define RECENT_BITS 11

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1 << RECENT_BITS);
	__type(key, __u32);
	__type(value, struct recent6);
} recent6 SEC(".maps");

/* Of a processor. */
struct recent_state {
	__u32 debt; /* what is not found here costs 2, what is found pays back 1 */
	__u32 rest; /* lookups until the rest ends that MOST_DEBT began */
};

#define MOST_DEBT 4096
#define REST (1 << 20)

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct recent_state);
} recent_state SEC(".maps");

/* Says whether it is of use to look for recent routes now. */
static __always_inline int recent_pays_off(struct recent_state *state)
{
	if (!state)
		return 0;
	if (!state->rest)
		return 1;
	state->rest--;
	return 0;
}

static __always_inline void recent_missed(struct recent_state *state)
{
	state->debt += 2;
	if (state->debt > MOST_DEBT) {
		state->debt = 0;
		state->rest = REST;
	}
}

/* The place of an address. */
static __always_inline __u32 recent_place(__u64 upper, __u64 lower)
{
	const __u64 odd = 0x9e3779b97f4a7c15ULL; /* 2^64 by the golden ratio, for Fibonacci hashing */

	return (upper ^ lower * odd) * odd >> (64 - RECENT_BITS);
}

/* Looks an IPv6 address up; as look_up4. */
static __always_inline __u32 look_up6(__u32 root, const __be32 *address)
{
	__u64 upper = half_of(address), lower = half_of(address + 2), generation;
	__u32 zero = 0, place = recent_place(upper, lower), entry;
	struct recent_state *state = bpf_map_lookup_elem(&recent_state, &zero);
	const volatile __u64 *current = GENERATION(roots6);
	struct recent6 *recent;

	if (!current || !recent_pays_off(state))
		return look_up_halves6(root, upper, lower);
	recent = bpf_map_lookup_elem(&recent6, &place);
	if (!recent)
		return look_up_halves6(root, upper, lower);
	generation = *current;
	if (recent->generation == generation && recent->upper == upper && recent->lower == lower &&
	    recent->root == root) {
		state->debt -= state->debt > 0;
		return recent->entry;
	}
	recent_missed(state);
	/* What is found may be newer than the generation, and not older. */
	read_fence();
	entry = look_up_halves6(root, upper, lower);
	if (entry & ENTRY_NODE)
		return entry;
	/* A packet that interrupts a program's test run must not take half of it. */
	*(volatile __u64 *)&recent->generation = ~generation;
	recent->upper = upper;
	recent->lower = lower;
	recent->root = root;
	recent->entry = entry;
	asm volatile("" ::: "memory");
	*(volatile __u64 *)&recent->generation = generation;
	return entry;
}

#endif
