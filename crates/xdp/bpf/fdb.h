/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The forwarding database of bridges, which user space keeps as the kernel has it (dataplane/src/stages/bridge/fdb.rs,
 * byte for byte as here). It changes while programs read; what they do not find, the kernel forwards.
 */
#ifndef TOLLWAY_FDB_H
#define TOLLWAY_FDB_H

#include "fib.h"

/* An address in a domain: a bridge, or one of its VLANs. */
struct fdb_slot {
	__u64 key; /* the address, and above it the domain; FDB_EMPTY, or 1, if it has none */
	__u32 word;
	__u32 tick; /* in which the kernel has last seen a frame from the address; programs write it */
};

/* Where a search ends: a slot that is free, and that no search has to cross. */
#define FDB_EMPTY 0

/* Slots in a bucket, which is a cache line. */
#define FDB_WAYS 4
/* An entry is in its home bucket or in one of those that follow. */
#define FDB_SEARCHED 4

struct fdb_line {
	struct fdb_slot slots[FDB_WAYS];
};

TABLE(fdb, struct fdb_line);

/* In a word. Above lies the version: it changes with each change of the word. */
#define FDB_PORT 0xffffU
#define FDB_KIND 0xff0000U
#define FDB_HOST 0 /* the address is that of a host behind the port */
#define FDB_LOCAL 0x10000U /* it is the bridge's own */

/* The word where there is no entry: no port has this number. */
#define FDB_NONE FDB_PORT
#define NO_FDB_SLOT (~0U)

#define MAC_BITS 48

/* A key's address, which an Ethernet header has here. At least eight bytes of it follow. */
static __always_inline __u64 mac_at(const void *at)
{
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
	return __builtin_bswap64(*(const __u64 *)at) & ((1ULL << MAC_BITS) - 1);
#endif
	return *(const __u64 *)at & ((1ULL << MAC_BITS) - 1);
}

static __always_inline struct fdb_slot *fdb_slot(__u32 number)
{
	return thing_at(PART_fdb, FIRST(fdb), sizeof(struct fdb_slot), FDB_WAYS, number);
}

/* The home of a key (`Head::home`). */
static __always_inline __u32 fdb_home(const struct fdb_line *head, __u64 key)
{
	__u64 seed = (__u64)head->slots[0].tick << 32 | head->slots[0].word, product = key * seed;

	return (product ^ product >> 32) * seed >> 32;
}

/* The number of the slot that has a key. Global, so that the verifier looks at it once. */
__attribute__((noinline)) __u32 find_in_fdb(__u64 key)
{
	const struct fdb_line *head = ELEMENT(fdb, 0);
	__u32 mask, first, home;
	__u64 used;

	if (!head)
		return NO_FDB_SLOT;
	/* Both at once: user space may change them. Where they are 0, line 0 has no such key. */
	used = *(const volatile __u64 *)&head->slots[0].key;
	mask = used;
	first = used >> 32;
	home = fdb_home(head, key);
	for (__u32 step = 0; step < FDB_SEARCHED; step++) {
		__u32 number = first + ((home + step) & mask), is_end = 0;
		const struct fdb_line *line = ELEMENT(fdb, number);

		if (!line)
			return NO_FDB_SLOT;
		for (__u32 way = 0; way < FDB_WAYS; way++) {
			__u64 there = *(const volatile __u64 *)&line->slots[way].key;

			if (there == key)
				return number * FDB_WAYS + way;
			is_end |= there == FDB_EMPTY;
		}
		if (is_end)
			return NO_FDB_SLOT;
	}
	return NO_FDB_SLOT;
}

/* An entry that was found. */
struct fdb_entry {
	struct fdb_slot *slot; /* NULL if there is none */
	__u32 word; /* FDB_NONE if there is none */
};

/*
 * Looks up a key. Another one may take the slot meanwhile: the word is that of the key if both are as before when it was
 * read.
 */
static __always_inline struct fdb_entry look_up_fdb(__u64 key)
{
	struct fdb_slot *slot = fdb_slot(find_in_fdb(key));
	struct fdb_entry found = { .word = FDB_NONE };
	__u32 word;

	if (!slot)
		return found;
	word = *(const volatile __u32 *)&slot->word;
	read_fence();
	if (*(const volatile __u64 *)&slot->key != key)
		return found;
	read_fence();
	if (*(const volatile __u32 *)&slot->word != word)
		return found;
	return (struct fdb_entry){ .slot = slot, .word = word };
}

#endif
