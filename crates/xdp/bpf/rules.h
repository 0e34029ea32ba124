/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The firewall's rules, as user space has written them for the programs
 * (stages/filter/engine/ of the crate tollway-dataplane, word for word as here).
 *
 * A classifier looks up each field of a packet once. This gives a class, and the class a set of rules: a
 * bit for each rule that the field does not exclude. The program executes the rules that all sets have,
 * one after the other. At a rule that it cannot evaluate, it asks user space about the packet.
 *
 * The functions that are not inlined are global, so that the verifier looks at each of them once.
 */
#ifndef TOLLWAY_RULES_H
#define TOLLWAY_RULES_H

#include "addresses.h"
#include "fib.h"
#include "header.h"

/* 32-bit words, in lines of 64 bytes. The line 0 is not used. */
TABLE(rules, struct value_line);

struct rule_count {
	__u64 packets;
	__u64 bytes;
};

/* By processor, and then by counter. */
TABLE(rule_counts, struct rule_count);
#define MOST_COUNTERS 8192

#define WORDS_OF_LINE 16
/* As in engine/mod.rs. */
#define MOST_FIELDS 12
#define MOST_WORDS 64
#define FIRST_COUNTER 6

/* Fields by number (engine/field.rs). */
enum field {
	FIELD_SOURCE,
	FIELD_DESTINATION,
	FIELD_PROTOCOL,
	FIELD_SOURCE_PORT,
	FIELD_DESTINATION_PORT,
	FIELD_TCP_FLAGS,
	FIELD_ICMP_TYPE,
	FIELD_ICMP_CODE,
	FIELD_TRANSPORT_LENGTH,
	FIELD_TRAFFIC_CLASS,
	FIELD_LENGTH,
	FIELD_TTL,
	FIELD_FRAGMENT,
	FIELD_FRAGMENT_OFFSET,
	FIELD_INPUT,
	FIELD_OUTPUT,
	FIELD_NEXT_HEADER,
	FIELDS = 32,
};

#define WITHOUT_TRANSPORT                                                                          \
	(1U << FIELD_SOURCE_PORT | 1U << FIELD_DESTINATION_PORT | 1U << FIELD_TCP_FLAGS |          \
	 1U << FIELD_ICMP_TYPE | 1U << FIELD_ICMP_CODE)

#define BY_PAGE 0 /* by pages of 256 classes */
#define BY_TRIE 1
#define BY_SET 2 /* by a page, which has a class for members and one for others */

/* The lookup of a field (engine/lookup.rs). Lines count from the classifier's first one. */
struct lookup {
	__u8 field;
	__u8 kind; /* how a class is found, BY_... */
	__u8 is_long; /* 128 bits */
	__u8 unused;
	__u32 first; /* the line of the pages' index, or how far to shift a key for the top */
	__u32 nodes; /* or the root of a live set */
	__u32 values;
	__u32 sets;
	__u32 more; /* the line of the words of long sets */
	__u32 absent;
	__u32 pad;
};

#define LOOKUPS_OF_LINE 2

struct lookup_line {
	struct lookup lookup[LOOKUPS_OF_LINE];
};

/* The set of a class. */
struct set {
	__u64 bits; /* up to 64 rules, or else the words of the set that are not 0 */
	__u32 first; /* the number of the first of these words */
	__u32 pad;
};

#define SETS_OF_LINE 4

struct set_line {
	struct set set[SETS_OF_LINE];
};

/* A classifier's first line. */
struct rules_head {
	__u32 fields;
	__u32 lookups;
	__u32 is_narrow; /* sets have 64 bits */
	__u32 ops;
	__u32 starts;
	__u32 end;
};

/* An op of a rule (engine/program.rs). */
enum rule_op {
	OP_ASK,
	OP_ACCEPT,
	OP_DROP,
	OP_KERNEL,
	OP_COUNT,
	OP_MARK,
	OP_CHECK_MARK,
	OP_SKIP,
	OP_CHAIN,
	OP_LEAVE,
	OP_CALL,
	OP_RETURN,
};

struct op {
	__u32 op;
	__u32 a;
	__u32 b;
	__u32 c;
};

#define OPS_OF_LINE 4

struct op_line {
	struct op op[OPS_OF_LINE];
};

/* The most ops and nested calls of a packet at one point, and its counters at all points. */
#define MOST_OPS 96
#define MOST_CALLS 8
#define MOST_TOUCHED 16

/* In `touched`: all bytes of the frame behind its Ethernet header count. */
#define TOUCHED_AT_INGRESS (1U << 31)

/* A packet on its way through the rules. */
struct rules_walk {
	__u32 value[FIELDS];
	__u64 key[4]; /* source and destination, the upper and the lower half */
	__u32 absent; /* a bit for each field that the packet lacks */
	__u32 mark;
	__u32 touched_count;
	__u32 touched[MOST_TOUCHED];
	__u32 call[MOST_CALLS];
	/* Of the classifier. */
	__u32 line;
	__u32 fields;
	__u32 is_narrow;
	__u32 at_ingress;
	/*
	 * The rule to search from, or NO_RULE; the rule that is executed, and its next op; the nested
	 * calls; and where a return without a call leads to. In memory, all of their values are one
	 * to the verifier.
	 */
	__u32 from;
	__u32 at;
	__u32 pc;
	__u32 depth;
	__u32 end;
	struct {
		__u64 bits;
		__u32 first;
		__u32 more;
	} set[MOST_FIELDS];
};

/* A program is not interrupted by another one on its processor. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct rules_walk);
} rules_walk SEC(".maps");

static __always_inline struct rules_walk *walk_of_processor(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&rules_walk, &zero);
}

static __always_inline void *rules_line(__u32 line)
{
	return ELEMENT(rules, line);
}

/* The number of the lowest bit. */
static __always_inline __u32 lowest_bit(__u64 word)
{
	return count_ones((word & -word) - 1);
}

/*
 * The class of an address whose halves are two keys: its entry in a trie, as look_up6. `values` is the place
 * of the trie's first value, and `nodes` the line of its first node. This function, rules_step and others
 * below are global for the verifier's sake, which looks at each of them once, and not once for each caller.
 */
__attribute__((noinline)) __u32 rules_trie(__u64 upper, __u64 lower, __u32 values, __u32 nodes, __u32 shift)
{
	__u32 entry = ENTRY(rules, values + (__u32)(upper >> (shift & 63)));

	for (int step = 0; step < MOST_STEPS6 && entry & ENTRY_NODE; step++) {
		struct fib_node *node = rules_line(nodes + (entry & ENTRY_NODE_NUMBER));

		if (!node)
			return 0;
		entry = ENTRY(rules,
				 values + place_in(node, node->shape & NODE_IS_LOW ? lower : upper));
	}
	return entry & ENTRY_NEXT_HOP;
}

/*
 * Whether a live set has an address whose halves are two keys, as look_up_halves6; NO_ENTRY if nothing can be
 * said. A next hop is the number of elements that have the address.
 */
__attribute__((noinline)) __u32 rules_member(__u32 root, __u64 upper, __u64 lower)
{
	__u32 entry = LOOK_UP_HALVES(set_roots, set_nodes, set_values, root, upper, lower);

	return entry & ENTRY_NODE ? NO_ENTRY : !!(entry & ENTRY_NEXT_HOP);
}

static __always_inline __u32 class_by_trie(const struct rules_walk *walk, const struct lookup *lookup)
{
	__u32 half = lookup->field == FIELD_DESTINATION ? 2 : 0;

	return rules_trie(walk->key[half], walk->key[half + 1],
			  (walk->line + lookup->values) * VALUES_OF_LINE, walk->line + lookup->nodes,
			  lookup->first);
}

/* The class of a value of 16 bits. */
static __always_inline __u32 class_by_page(const struct rules_walk *walk, const struct lookup *lookup,
					   __u32 value)
{
	__u32 page = ENTRY(rules, (walk->line + lookup->first) * WORDS_OF_LINE + (value >> 8 & 0xff));
	__u32 pair = ENTRY(rules, (walk->line + page) * WORDS_OF_LINE + ((value & 0xff) >> 1));

	return pair >> (value & 1) * 16 & 0xffff;
}

static __always_inline __u32 class_by_set(const struct rules_walk *walk, const struct lookup *lookup)
{
	__u32 half = lookup->field == FIELD_DESTINATION ? 2 : 0;
	__u32 value = rules_member(lookup->nodes, walk->key[half], walk->key[half + 1]);

	return value == NO_ENTRY ? NO_ENTRY : class_by_page(walk, lookup, value);
}

/*
 * Looks up one field of a packet for the classifier at `walk->line`. Returns 0 if that fails. Global, so that the
 * verifier does not look at all kinds of lookups for each field.
 */
__attribute__((noinline)) int rules_look_up_field(__u32 lookups, __u32 number)
{
	struct rules_walk *walk = walk_of_processor();
	struct lookup_line *line;
	const struct lookup *lookup;
	struct set_line *sets;
	__u32 class;

	if (!walk || number >= MOST_FIELDS)
		return 0;
	line = rules_line(walk->line + lookups + number / LOOKUPS_OF_LINE);
	if (!line)
		return 0;
	lookup = &line->lookup[number % LOOKUPS_OF_LINE];
	if (walk->absent >> (lookup->field & 31) & 1)
		class = lookup->absent;
	else if (lookup->kind == BY_TRIE)
		class = class_by_trie(walk, lookup);
	else if (lookup->kind == BY_SET)
		class = class_by_set(walk, lookup);
	else
		class = class_by_page(walk, lookup, walk->value[lookup->field % FIELDS]);
	sets = rules_line(walk->line + lookup->sets + class / SETS_OF_LINE);
	if (!sets || class == NO_ENTRY)
		return 0;
	walk->set[number].bits = sets->set[class % SETS_OF_LINE].bits;
	walk->set[number].first = sets->set[class % SETS_OF_LINE].first;
	walk->set[number].more = (walk->line + lookup->more) * WORDS_OF_LINE / 2;
	return 1;
}

/* Looks up the fields of a packet. Returns 0 if that fails. */
__attribute__((noinline)) int rules_look_up(__u32 lookups)
{
	struct rules_walk *walk = walk_of_processor();

	if (!walk)
		return 0;
	for (__u32 i = 0; i < MOST_FIELDS && i < walk->fields; i++)
		if (!rules_look_up_field(lookups, i))
			return 0;
	return 1;
}

/* The word that all long sets have. */
__attribute__((noinline)) __u64 rules_word(__u32 word)
{
	struct rules_walk *walk = walk_of_processor();
	__u64 below = (1ULL << (word & 63)) - 1, common = ~0ULL;

	if (!walk)
		return 0;
	for (__u32 i = 0; i < MOST_FIELDS && i < walk->fields; i++) {
		__u32 place = walk->set[i].more + walk->set[i].first +
			      (__u32)count_ones(walk->set[i].bits & below);
		__u64 *line = rules_line(place / (WORDS_OF_LINE / 2));

		if (!line)
			return 0;
		common &= line[place % (WORDS_OF_LINE / 2)];
	}
	return common;
}

#define NO_RULE (~0U)

/* The first rule from `from` on that a packet matches. */
__attribute__((noinline)) __u32 rules_next(__u32 from)
{
	struct rules_walk *walk = walk_of_processor();
	__u64 common = ~0ULL, mask = ~0ULL << (from & 63);
	__u32 word = from / 64;

	if (!walk)
		return NO_RULE;
	if (!walk->fields)
		return from;
	for (__u32 i = 0; i < MOST_FIELDS && i < walk->fields; i++)
		common &= walk->set[i].bits;
	if (walk->is_narrow) {
		common &= mask;
		return common && !word ? lowest_bit(common) : NO_RULE;
	}
	if (word >= MOST_WORDS)
		return NO_RULE;
	/* Now a bit is a word of 64 rules. */
	common &= ~0ULL << word;
	for (__u32 i = 0; i < MOST_WORDS && common; i++) {
		__u32 first = lowest_bit(common);
		__u64 set = rules_word(first);

		if (first == word)
			set &= mask;
		if (set)
			return first * 64 + lowest_bit(set);
		common &= common - 1;
	}
	return NO_RULE;
}

/* What rules say about a packet. */
#define RULES_ASK 0
#define RULES_ACCEPT 1
#define RULES_DROP 2
#define RULES_KERNEL 3
/* Further ops follow. */
#define RULES_GO_ON 4

/* An op leads to the first rule from here on that matches. */
static __always_inline int goes_to(struct rules_walk *walk, __u32 rule)
{
	walk->from = rule;
	return RULES_GO_ON;
}

/* Executes an op of a rule. */
static __always_inline int rules_op(struct rules_walk *walk, const struct op *op)
{
	__u32 count = walk->touched_count, depth = walk->depth, mark;

	switch (op->op) {
	case OP_ACCEPT:
		return RULES_ACCEPT;
	case OP_DROP:
		return RULES_DROP;
	case OP_KERNEL:
		return RULES_KERNEL;
	case OP_COUNT:
		if (count >= MOST_TOUCHED)
			return RULES_ASK;
		walk->touched[count] = op->a | walk->at_ingress;
		walk->touched_count = count + 1;
		return RULES_GO_ON;
	case OP_MARK:
		walk->mark = (walk->mark & op->a) ^ op->b;
		return RULES_GO_ON;
	case OP_CHECK_MARK:
		mark = walk->mark & op->a;
		return mark >= op->b && mark <= op->c ? RULES_GO_ON : goes_to(walk, walk->at + 1);
	case OP_SKIP:
		return goes_to(walk, op->a);
	case OP_CHAIN:
		walk->depth = 0;
		walk->end = op->b;
		return goes_to(walk, op->a);
	case OP_LEAVE:
		walk->depth = 0;
		return goes_to(walk, walk->end + 1);
	case OP_CALL:
		if (depth >= MOST_CALLS)
			return RULES_ASK;
		walk->call[depth] = op->b;
		walk->depth = depth + 1;
		return goes_to(walk, op->a);
	case OP_RETURN:
		depth--;
		/* In one register, so that the verifier of Linux 6.1 sees the bound. */
		asm volatile("" : "+r"(depth));
		if (depth >= MOST_CALLS)
			return goes_to(walk, walk->end);
		walk->depth = depth;
		return goes_to(walk, walk->call[depth]);
	default:
		return RULES_ASK;
	}
}

/* Executes the next op of the classifier at `walk->line`. */
__attribute__((noinline)) int rules_step(__u32 starts, __u32 ops)
{
	struct rules_walk *walk = walk_of_processor();
	struct op_line *line;
	__u32 pc;

	if (!walk)
		return RULES_ASK;
	if (walk->from != NO_RULE) {
		__u32 at = rules_next(walk->from);

		walk->at = at;
		walk->from = NO_RULE;
		walk->pc = ENTRY(rules, (walk->line + starts) * WORDS_OF_LINE + at);
		if (at == NO_RULE)
			return RULES_ASK;
	}
	pc = walk->pc;
	line = rules_line(walk->line + ops + pc / OPS_OF_LINE);
	if (!line)
		return RULES_ASK;
	walk->pc = pc + 1;
	return rules_op(walk, &line->op[pc % OPS_OF_LINE]);
}

/* Executes the rules of a classifier, whose first line is `line`. */
__attribute__((noinline)) int rules_run(__u32 line)
{
	struct rules_walk *walk = walk_of_processor();
	struct rules_head *head = rules_line(line);
	__u32 starts, ops;

	if (!walk || !head)
		return RULES_ASK;
	walk->line = line;
	walk->fields = head->fields;
	walk->is_narrow = head->is_narrow;
	walk->end = head->end;
	walk->depth = 0;
	walk->from = 0;
	starts = head->starts;
	ops = head->ops;
	if (!rules_look_up(head->lookups))
		return RULES_ASK;
	for (int i = 0; i < MOST_OPS; i++) {
		int report = rules_step(starts, ops);

		if (report != RULES_GO_ON)
			return report;
	}
	return RULES_ASK;
}

/* Bytes behind the IP header that rules look at: up to TCP's flags. */
#define TRANSPORT_BYTES 14

/*
 * Reads the fields of a packet behind its IP header, which has `rest` bytes of it. Returns 0 if that
 * takes more than the packet has in its first buffer, or than a header that is whole.
 */
static __always_inline int read_transport(struct rules_walk *walk, const void *transport,
					  const void *end, __u32 rest)
{
	const __be16 *port = transport;
	const __u8 *byte = transport;

	walk->value[FIELD_TRANSPORT_LENGTH] = rest;
	if (rest < 4 || transport + 4 > end)
		return 0;
	walk->value[FIELD_SOURCE_PORT] = bpf_ntohs(port[0]);
	walk->value[FIELD_DESTINATION_PORT] = bpf_ntohs(port[1]);
	walk->value[FIELD_ICMP_TYPE] = byte[0];
	walk->value[FIELD_ICMP_CODE] = byte[1];
	if (rest < TRANSPORT_BYTES) {
		walk->absent |= 1U << FIELD_TCP_FLAGS;
		return 1;
	}
	if (transport + TRANSPORT_BYTES > end)
		return 0;
	walk->value[FIELD_TCP_FLAGS] = byte[TRANSPORT_BYTES - 1];
	return 1;
}

static __always_inline void begin_walk(struct rules_walk *walk, const struct packet *packet)
{
	walk->mark = mark_of(packet->ctx);
	walk->touched_count = 0;
	walk->value[FIELD_INPUT] = packet->link;
	walk->absent = 1U << FIELD_OUTPUT;
}

/* Reads the fields of an IPv4 packet without options. Returns 0 if user space has to. */
static __always_inline int read_fields4(struct rules_walk *walk, const struct packet *packet,
					const struct iphdr *ip, const void *end)
{
	__u32 length = bpf_ntohs(ip->tot_len), fragment = bpf_ntohs(ip->frag_off) & 0x7fff;

	begin_walk(walk, packet);
	walk->key[0] = (__u64)bpf_ntohl(ip->saddr) << 32;
	walk->key[2] = (__u64)bpf_ntohl(ip->daddr) << 32;
	walk->value[FIELD_PROTOCOL] = ip->protocol;
	walk->value[FIELD_TRAFFIC_CLASS] = ip->tos;
	walk->value[FIELD_LENGTH] = length;
	walk->value[FIELD_TTL] = ip->ttl;
	walk->value[FIELD_FRAGMENT] = fragment;
	walk->value[FIELD_FRAGMENT_OFFSET] = fragment & 0x1fff;
	walk->absent |= 1U << FIELD_NEXT_HEADER;
	if (fragment & 0x1fff) {
		walk->absent |= WITHOUT_TRANSPORT | 1U << FIELD_TRANSPORT_LENGTH;
		return 1;
	}
	return read_transport(walk, ip + 1, end, length - sizeof(*ip));
}

/* As read_fields4, for an IPv6 packet. */
static __always_inline int read_fields6(struct rules_walk *walk, const struct packet *packet,
					const struct ipv6hdr *ip, const void *end)
{
	const __be32 *word = (const __be32 *)ip;
	__u32 rest = bpf_ntohs(ip->payload_len);

	if (is_extension(ip->nexthdr))
		return 0;
	begin_walk(walk, packet);
	walk->key[0] = (__u64)bpf_ntohl(word[2]) << 32 | bpf_ntohl(word[3]);
	walk->key[1] = (__u64)bpf_ntohl(word[4]) << 32 | bpf_ntohl(word[5]);
	walk->key[2] = (__u64)bpf_ntohl(word[6]) << 32 | bpf_ntohl(word[7]);
	walk->key[3] = (__u64)bpf_ntohl(word[8]) << 32 | bpf_ntohl(word[9]);
	walk->value[FIELD_PROTOCOL] = ip->nexthdr;
	walk->value[FIELD_NEXT_HEADER] = ip->nexthdr;
	walk->value[FIELD_TRAFFIC_CLASS] = bpf_ntohl(word[0]) >> 20 & 0xff;
	walk->value[FIELD_LENGTH] = sizeof(*ip) + rest;
	walk->value[FIELD_TTL] = ip->hop_limit;
	walk->value[FIELD_FRAGMENT_OFFSET] = 0;
	walk->absent |= 1U << FIELD_FRAGMENT;
	return read_transport(walk, ip + 1, end, rest);
}

/* Points, in the order of an image's first line; each has IPv4 and IPv6. */
#define POINT_INGRESS 0
#define POINT_PREROUTING 1
#define POINT_FORWARD 2

/* Executes the rules of a point, if there are some. */
static __always_inline int rules_at(__u32 image, __u32 point, int v4)
{
	struct value_line *head = rules_line(image);
	__u32 line;

	if (!head)
		return RULES_ASK;
	line = head->value[2 * point + !v4];
	return line ? rules_run(image + line) : RULES_ACCEPT;
}

/*
 * Adds a packet to the counters that it has matched. Returns 0, since the verifier of Linux 6.1 looks once
 * only at global functions that return something.
 */
__attribute__((noinline)) int count_rules(__u32 image, __u32 l3_len, __u32 frame_l3_len)
{
	struct rules_walk *walk = walk_of_processor();
	struct value_line *head = rules_line(image);
	__u32 first;

	if (!walk || !head || !walk->touched_count)
		return 0;
	first = bpf_get_smp_processor_id() * MOST_COUNTERS + head->value[FIRST_COUNTER];
	for (__u32 i = 0; i < MOST_TOUCHED && i < walk->touched_count; i++) {
		__u32 touched = walk->touched[i];
		struct rule_count *count =
			ELEMENT(rule_counts, first + (touched & ~TOUCHED_AT_INGRESS));

		if (!count)
			continue;
		count->packets++;
		count->bytes += touched & TOUCHED_AT_INGRESS ? frame_l3_len : l3_len;
	}
	return 0;
}

#endif
