/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Which FIBs decide a packet's route: that of its link, or those that policy rules and fallbacks say, as
 * user space has written them (dataplane/src/tables/engines/route_rules.rs, byte for byte as here).
 */
#ifndef TOLLWAY_ROUTE_RULES_H
#define TOLLWAY_ROUTE_RULES_H

#include "fib.h"
#include "recent.h"

/*
 * A rule: the FIB to look up for packets between some addresses that have a mark, or their next hop. If that FIB has
 * no route, the rules behind it decide.
 */
struct route_rule {
	__u64 source[2]; /* the upper and the lower half; an IPv4 address is the upper half of the first */
	__u64 destination[2];
	__u8 source_len;
	__u8 destination_len;
	__u8 is_next_hop;
	__u8 more; /* another rule follows */
	__u32 mark;
	__u32 mask;
	__u32 number; /* of the FIB's root, or of the next hop */
	__u64 unused[2];
};

TABLE(route_rules, struct route_rule);

/* In the root of a link: it is the number of its first rule. */
#define ROOT_RULES (1U << 31)
/* The most rules of a link, as in engines/route_rules.rs. */
#define MOST_RULES_OF_LINK 64
/* The entry of a FIB for addresses without a route. */
#define NO_ROUTE 0

/* What a packet's route depends on. */
struct route_query {
	__u64 source[2];
	__u64 destination[2];
	__u32 root;
	__u32 mark;
};

/* Says whether an address has the first `len` bits of another. */
static __always_inline int has_prefix(const __u64 *address, const __u64 *prefix, __u32 len)
{
	__u64 upper = address[0] ^ prefix[0], lower = address[1] ^ prefix[1];

	if (len <= 64)
		return !len || !(upper >> (64 - len));
	return !upper && !(lower >> (128 - len & 63));
}

static __always_inline int rule_matches(const struct route_rule *rule, const struct route_query *query)
{
	return !((query->mark ^ rule->mark) & rule->mask) &&
	       has_prefix(query->source, rule->source, rule->source_len) &&
	       has_prefix(query->destination, rule->destination, rule->destination_len);
}

/* Beside an entry in the result of a rule: it decides, or it is the last one. */
#define RULE_DECIDES (1ULL << 32)
#define RULE_IS_LAST (1ULL << 33)

/* What a rule says about a packet. */
static __always_inline __u64 apply_rule(const struct route_query *query, __u32 number, int v4)
{
	const struct route_rule *rule = ELEMENT(route_rules, number);
	__u32 entry;

	if (!rule || !query)
		return NO_ENTRY | RULE_DECIDES;
	if (rule_matches(rule, query)) {
		if (rule->is_next_hop)
			return rule->number | RULE_DECIDES;
		entry = v4 ? look_up4(rule->number, bpf_htonl(query->destination[0] >> 32)) :
			     look_up_halves6(rule->number, query->destination[0], query->destination[1]);
		if (entry & ENTRY_NODE || (entry & ENTRY_NEXT_HOP) != NO_ROUTE)
			return entry | RULE_DECIDES;
	}
	return rule->more ? 0 : RULE_IS_LAST;
}

/* Functions of their own, which the verifier looks at once, and not once for each rule. */
__attribute__((noinline)) __u64 apply_rule4(const struct route_query *query, __u32 number)
{
	return apply_rule(query, number, 1);
}

__attribute__((noinline)) __u64 apply_rule6(const struct route_query *query, __u32 number)
{
	return apply_rule(query, number, 0);
}

/* The entry that the rules from `query->root` on find; NO_ENTRY if nothing can be said. */
static __always_inline __u32 look_up_by_rules(const struct route_query *query, int v4)
{
	__u32 first = query->root & ~ROOT_RULES;

	for (__u32 i = 0; i < MOST_RULES_OF_LINK; i++) {
		__u64 result = v4 ? apply_rule4(query, first + i) : apply_rule6(query, first + i);

		if (result & RULE_DECIDES)
			return (__u32)result;
		if (result & RULE_IS_LAST)
			return NO_ROUTE;
	}
	return NO_ENTRY;
}

__attribute__((noinline)) __u32 look_up_by_rules4(const struct route_query *query)
{
	return query ? look_up_by_rules(query, 1) : NO_ENTRY;
}

__attribute__((noinline)) __u32 look_up_by_rules6(const struct route_query *query)
{
	return query ? look_up_by_rules(query, 0) : NO_ENTRY;
}

/* The entry for an IPv4 packet that arrives on a link with this root. */
static __always_inline __u32 route4(__u32 root, __be32 source, __be32 destination, __u32 mark)
{
	struct route_query query = {
		.source = { (__u64)bpf_ntohl(source) << 32 },
		.destination = { (__u64)bpf_ntohl(destination) << 32 },
		.root = root,
		.mark = mark,
	};

	return root & ROOT_RULES ? look_up_by_rules4(&query) : look_up4(root, destination);
}

/* As route4, for an IPv6 packet. */
static __always_inline __u32 route6(__u32 root, const __be32 *source, const __be32 *destination,
				    __u32 mark)
{
	struct route_query query = { .root = root, .mark = mark };

	if (!(root & ROOT_RULES))
		return look_up6(root, destination);
	query.source[0] = half_of(source);
	query.source[1] = half_of(source + 2);
	query.destination[0] = half_of(destination);
	query.destination[1] = half_of(destination + 2);
	return look_up_by_rules6(&query);
}

#endif
