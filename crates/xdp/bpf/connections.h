/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Connections that the kernel tracks and that these programs forward: one entry for each direction, which
 * user space writes (src/connections.rs, byte for byte as here) when the kernel's own entry qualifies.
 *
 * Packets that rules keep out of connection tracking have entries here, too, without a connection of the kernel's.
 *
 * A packet without an entry is the kernel's at once. The second one of a flow leaves its key in a ring
 * buffer, for user space to ask the kernel about. Once a tick, a packet of a connection makes the program
 * ask the kernel for its entry again (`is_alive`), which also refreshes the entry's timeout.
 */
#ifndef TOLLWAY_CONNECTIONS_H
#define TOLLWAY_CONNECTIONS_H

#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include "checksum.h"
#include "conntrack.h"
#include "flows.h"
#include "header.h"
#include "tcp_track.h"

enum connection_kind {
	/* The kernel forwards it; ask again after `retry`. */
	CONNECTION_KERNEL = 1,
	/* Only the addresses are known yet, and not what the rules say. */
	CONNECTION_UNRULED,
	CONNECTION_FORWARDED,
	CONNECTION_DROPPED,
	/* Forwarded, and so are packets of TCP that are invalid: as they arrive, since the kernel translates none. */
	CONNECTION_FORWARDED_INVALID,
	/* Rules keep the packets out of connection tracking: the programs forward them, and neither ask nor follow windows. */
	CONNECTION_UNTRACKED,
};

/* What a program reads at once; 0 if the slot was never used. */
union connection_head {
	__u64 word;
	struct {
		__u32 generation; /* active while it equals that of the state; never 0 while active */
		__u16 output; /* the link that the rules were evaluated for */
		__u8 kind;
		__u8 version; /* changes with every change of the slot */
	};
};

/*
 * The next hop of a connection's packets, which the program that found it in the tables has noted, or else the
 * connection's mark. A connection has either: those with a mark are few, and looked up for each packet. It is read and
 * written at once.
 */
union connection_route {
	__u64 word;
	struct {
		/* An entry of the FIB. ENTRY_NODE: none is noted, and the bits below differ from each change of the slot to the next. */
		__u32 entry;
		__u32 generation; /* the entry counts while this equals `route_generation`; where none is noted, the mark */
	};
};

/* What is the same in both families, between the key and what differs. It is read as in a flow's slot. */
struct connection {
	union connection_head head;
	union connection_route route;
	__u64 used; /* as in a flow's slot */
	__u64 bytes; /* and above these the tick in which the kernel was asked last, as in `used` */
};

/*
 * The addresses and ports that packets leave with. `retry` is the time by `retry_clock` before which nobody asks again; of
 * TCP that is not the kernel's, its track.
 */
struct leaves4 {
	__be32 src;
	__be32 dst;
	__be32 ports;
	__u32 retry;
};

/* The same of IPv6, where there is room for the sums. */
struct leaves6 {
	struct translation6 translation;
	__u32 retry;
};

/* A cache line. */
struct connection4 {
	struct flow4_key key;
	struct connection connection;
	struct leaves4 leaves;
};

/* Two of them. */
struct connection6 {
	struct flow6_key key;
	struct connection connection;
	struct leaves6 leaves;
	__u64 pad;
};

_Static_assert(sizeof(struct connection4) == 64, "as in src/connections/key.rs");
_Static_assert(sizeof(struct connection6) == 128, "as in src/connections/key.rs");

struct connection4_bucket {
	struct connection4 slots[FLOW_WAYS];
};

struct connection6_bucket {
	struct connection6 slots[FLOW_WAYS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct connection4_bucket);
} connections4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct connection6_bucket);
} connections6 SEC(".maps");

/* What the program wants to know about a packet's connection. */
struct connection4_query {
	struct flow4_key key;
	__u16 output; /* the link that it would leave by with the addresses of its entry, or else with its own; or NO_LINK */
	__u16 pad[3];
};

struct connection6_query {
	struct flow6_key key;
	__u16 output;
	__u16 pad[3];
};

#define NO_LINK 0xffff

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} connection_queries SEC(".maps");

/* Flows without an entry that have the same place: fingerprint, then the time before which nobody asks. */
#define NEWCOMER_WAYS 4
struct newcomers {
	__u64 flows[NEWCOMER_WAYS];
};

/* The flows without an entry that were seen last, by their hash. Which processor writes last does not matter. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct newcomers);
} newcomers SEC(".maps");

/* Units of 1.05 ms, as in src/connections.rs. */
#define RETRY_SHIFT 20
/* Nobody asks about a flow twice within this. */
#define RETRY_SOON 10
/* Nobody asks about a connection before this after its first packet. */
#define LEAST_AGE 8

static __always_inline __u32 retry_clock(void)
{
	return bpf_ktime_get_coarse_ns() >> RETRY_SHIFT;
}

/* The ticks after which the kernel is asked whatever that costs: 17 s. */
#define MOST_UNASKED 254
/*
 * How long a processor asks the kernel in a tick, at most: 5% of its time. With more connections than this suffices for,
 * some ten thousand, each is asked about in some later tick.
 */
#define MOST_ASKING_NS 3355443

/* A packet on a tracked link, before the program for such links has read it. */
struct arrival {
	__u32 l3; /* bytes before the layer-3 header */
	__u32 len; /* of the frame */
	__u32 link;
	__u32 kernel_path;
	__u32 inner_len;
	__u32 sender;
};

/* A processor's packet, what it has asked in a tick, and room for what the stack has none for. */
struct tracking {
	__u32 tick;
	__u32 asking_ns;
	struct arrival arrival;
	union translation translation;
	union connection_route to_note; /* of the packet's way; ENTRY_NODE if there is nothing to note */
	struct ct_expected4 expected4;
	struct ct_terms terms6;
	struct connection4_query query4; /* with the key of the packet, if that is of IPv4 */
	struct connection6_query query6; /* the same of IPv6 */
	struct segment segment;
	struct tcp_windows windows;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tracking);
} tracking SEC(".maps");

/*
 * Says whether to ask the kernel about an entry that it was asked about so many ticks ago. It keeps the connection for so
 * long after that, of which no more than a quarter may pass: a tick is 67 ms.
 */
static __always_inline int may_ask(struct tracking *now, __u64 tick, __u16 ago, __u32 timeout_ms)
{
	if (!ago)
		return 0;
	if (ago > MOST_UNASKED || (__u32)ago << 8 > timeout_ms)
		return 1;
	if (now->tick != (__u32)tick) {
		now->tick = tick;
		now->asking_ns = 0;
	}
	return now->asking_ns < MOST_ASKING_NS;
}

/* The ticks after which a connection's next packet is the kernel's, so that expiry stays its own: 25 s. */
#define MOST_PAUSE 372

/* Asks user space about a packet's connection, whose key the query has. If the ring is full, a later packet asks again. */
static __always_inline void ask_user(struct tracking *now, __u32 output, int v4)
{
	if (v4) {
		now->query4.output = output;
		bpf_ringbuf_output(&connection_queries, &now->query4, sizeof(now->query4), 0);
	} else {
		now->query6.output = output;
		bpf_ringbuf_output(&connection_queries, &now->query6, sizeof(now->query6), 0);
	}
}

/*
 * Says whether to ask about a flow that has no entry: from its second packet on, and not twice at once. Most connections
 * are short, and gain nothing: nobody asks about them before `LEAST_AGE`, when the kernel has forwarded a packet by the
 * route of today. A packet that begins one of TCP (`begins`) is not of the connection before it, which had the same
 * ports. Global, so that the verifier looks at it once.
 */
__attribute__((noinline)) int is_due_newcomer(__u64 hash, __u32 begins)
{
	__u32 place = hash >> 32 & NEWCOMERS_MASK, now = retry_clock(), oldest = 0, age = 0;
	__u32 fingerprint = (__u32)hash ^ (__u32)(hash >> 32);
	struct newcomers *there = bpf_map_lookup_elem(&newcomers, &place);

	if (!there)
		return 0;
	for (__u32 i = 0; i < NEWCOMER_WAYS; i++) {
		volatile __u64 *flow = &there->flows[i];
		__u64 before = *flow;
		__s32 passed = now - (__u32)before;

		if ((__u32)(before >> 32) == fingerprint) {
			if (!begins && passed < 0)
				return 0;
			*flow = (__u64)fingerprint << 32 | (__u32)(now + (begins ? LEAST_AGE : RETRY_SOON));
			return !begins;
		}
		/* Times lie a little ahead. */
		if ((__u32)passed + LEAST_AGE + RETRY_SOON >= age) {
			age = (__u32)passed + LEAST_AGE + RETRY_SOON;
			oldest = i;
		}
	}
	*(volatile __u64 *)&there->flows[oldest & (NEWCOMER_WAYS - 1)] =
		(__u64)fingerprint << 32 | (__u32)(now + LEAST_AGE);
	return 0;
}

/* When to ask again about a connection, or its track. */
static __always_inline volatile __u32 *retry_of(struct connection *connection, int v4)
{
	void *leaves = connection + 1;

	return v4 ? &((struct leaves4 *)leaves)->retry : &((struct leaves6 *)leaves)->retry;
}

/* Says whether to ask about a connection whose entry does not answer: if nobody has just done so. */
static __always_inline int is_due(struct connection *connection, int v4)
{
	volatile __u32 *retry = retry_of(connection, v4);
	__u32 now = retry_clock();

	if ((__s32)(now - *retry) < 0)
		return 0;
	*retry = now + RETRY_SOON;
	return 1;
}

struct found_connection {
	struct connection *connection;
	union connection_head head;
	union connection_route route; /* read with the translation */
	__u64 hash;
};

static __always_inline __u64 read_connection_head(const struct connection *connection)
{
	return *(const volatile __u64 *)&connection->head.word;
}

/* The words of a key. They stay in registers: a word that is read where its parts have just been stored waits for these. */
struct key_words {
	__u64 words[sizeof(struct flow6_key) / 8];
};

#define KEY4_WORDS (sizeof(struct flow4_key) / 8)
#define KEY6_WORDS (sizeof(struct flow6_key) / 8)

/* Two numbers as they lie one behind the other. */
static __always_inline __u64 word_of(__u32 first, __u32 second)
{
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
	return (__u64)first << 32 | second;
#endif
	return (__u64)second << 32 | first;
}

/* The first of them. */
static __always_inline __u32 first_of(__u64 word)
{
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
	return word >> 32;
#endif
	return word;
}

/* The last word of a key. */
static __always_inline __u64 last_word_of(__be32 ports, __u8 protocol, __u16 link)
{
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
	return word_of(ports, (__u32)protocol << 24 | link);
#endif
	return word_of(ports, (__u32)link << 16 | protocol);
}

/*
 * Begins to fetch the track that a packet of TCP has if it is of the connection's original direction: it takes as long as
 * the entry, in which alone is which track it is.
 */
static __always_inline void fetch_home(const struct state *state, const __u64 *words, int v4)
{
	const int last = (v4 ? KEY4_WORDS : KEY6_WORDS) - 1;
	__u64 hash = pair(last_word_of(first_of(words[last]), IPPROTO_TCP, 0), last);

	for (int i = 0; i < last; i++)
		hash += pair(words[i], i);
	fetch_track(home_of(hash, state->tracks));
}

/* Looks up a connection by the words of its key; `connection` is NULL if there is none. As find4 and find6. */
static __always_inline struct found_connection find_connection(const struct state *state, const __u64 *words, int v4)
{
	const int key_words = v4 ? KEY4_WORDS : KEY6_WORDS;
	const int size = v4 ? sizeof(struct connection4) : sizeof(struct connection6);
	struct found_connection found = {};
	__u32 number, first;
	__u64 used;
	void *bucket;

	for (int i = 0; i < key_words; i++)
		found.hash += pair(words[i], i);
	/* Both at once: user space may change them. */
	used = *(const volatile __u64 *)(v4 ? &state->connections4 : &state->connections6);
	number = (found.hash >> 32 & (__u32)used) + (used >> 32);
	first = found.hash >> 60;
	bucket = v4 ? bpf_map_lookup_elem(&connections4, &number) : bpf_map_lookup_elem(&connections6, &number);
	if (!bucket)
		return found;
	for (__u32 i = 0; i < FLOW_WAYS; i++) {
		const __u64 *key = bucket + (first + i) % FLOW_WAYS * size;
		struct connection *slot = (void *)(key + key_words);

		found.head.word = read_connection_head(slot);
		read_fence();
		if (is_same(words, key, key_words)) {
			found.connection = slot;
			return found;
		}
		if (!found.head.word)
			break;
	}
	return found;
}

/*
 * Says how packets with a key leave, by words as in `struct leaves4`. User space has added up the sums of IPv6
 * (src/connections/translation.rs); here is no room for them.
 */
static __always_inline void translate_key4(const __u64 *key, __u64 addresses, __be32 ports, struct translation4 *copy)
{
	__be32 old_ports = first_of(key[1]);
	__u64 old = ~key[0], sum;

	*(__u64 *)copy = addresses;
	copy->ports = ports;
	copy->address_sum = copy->l4_sum = 0;
	if (key[0] == addresses && old_ports == ports)
		return;
	/* The other form of 0 is a part of it, so that it says that something changes. */
	sum = (__u32)old + (old >> 32) + (__u32)addresses + (addresses >> 32) + 0xffff;
	copy->address_sum = fold(sum);
	copy->l4_sum = fold(sum + (__u32)~old_ports + ports);
}

/* Copies how an entry that was found changes packets with this key. Returns 0 if it has changed since. */
static __always_inline int copy_translation(struct found_connection *found, const __u64 *key, union translation *copy,
					    int v4)
{
	/* They lie behind what is the same in both families. */
	const volatile __u64 *from = (const volatile __u64 *)(found->connection + 1);
	__u64 *to = (__u64 *)copy;

	found->route.word = *(const volatile __u64 *)&found->connection->route.word;
	if (v4)
		translate_key4(key, from[0], *(const volatile __u32 *)&from[1], &copy->v4);
	else
		for (__u32 i = 0; i < sizeof(copy->v6) / 8; i++)
			to[i] = from[i];
	read_fence();
	return read_connection_head(found->connection) == found->head.word;
}

/*
 * Ends an entry with this head, unless it has changed since that was read. If the connection itself `goes_on`, the entry is
 * only void, as behind a change of rules: what it has counted belongs to that connection. A call of its own: programs
 * have no stack to spare.
 */
static __attribute__((noinline)) void end_with(struct connection *connection, __u64 word, int goes_on)
{
	union connection_head ended = { .word = word };

	ended.generation = goes_on ? ~ended.generation : 0;
	__sync_val_compare_and_swap(&connection->head.word, word, ended.word);
}

static __always_inline void end_connection(const struct found_connection *found, int goes_on)
{
	end_with(found->connection, found->head.word, goes_on);
}

#endif
