/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A packet on a link whose connections the kernel tracks: its key and its entry, and whether the kernel still has the
 * connection. take_tracked.h decides about it.
 *
 * The compiler knows of each program whether it is that of IPv4 (`v4`) or of IPv6, and makes no code for the other.
 */
#ifndef TOLLWAY_TRACKED_H
#define TOLLWAY_TRACKED_H

#include "connections.h"
#include "decide.h"
#include "tcp.h"

/* A packet on a tracked link, and what it is looked up by. */
struct tracked {
	struct passage passage;
	struct found_connection found;
	struct tracking *tracking; /* has the key, in `query4` or `query6` */
	__u32 generation; /* of the XDP path, read before all that it stands for */
};

static __always_inline __u8 protocol_of(const struct tracked *tracked, int v4)
{
	return v4 ? tracked->tracking->query4.key.protocol : tracked->tracking->query6.key.protocol;
}

static __always_inline __u32 header_len_of(int v4)
{
	return v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
}

/* How long the kernel keeps a connection of this protocol after each packet, in ms from 1 on; 0 if it forwards all. */
static __always_inline __u32 timeout_of(const struct packet *packet, __u8 protocol)
{
	return protocol == IPPROTO_TCP ? packet->state->tcp_timeout_ms : packet->state->udp_timeout_ms;
}

/*
 * As udp_error() in net/netfilter/nf_conntrack_proto_udp.c, for a packet with `rest` bytes behind its IP header. Where that
 * has more bytes than its own length says, the kernel sums these, too (nf_checksum); no sender does so.
 */
static __always_inline int is_whole_udp(const struct udphdr *udp, __u32 rest)
{
	return rest >= sizeof(*udp) && bpf_ntohs(udp->len) == rest;
}

/* Says whether a packet of TCP is the first one of its direction. */
static __always_inline int is_first(const struct tracked *tracked, const void *ip, const void *end, int v4)
{
	const __u8 *tcp = ip + header_len_of(v4);

	return protocol_of(tracked, v4) == IPPROTO_TCP && (const void *)(tcp + TCP_FLAGS_AT + 1) <= end &&
	       tcp[TCP_FLAGS_AT] & TCP_SYN;
}

/*
 * Reads the ports. Returns 0 for what only the kernel tracks: other protocols, headers that are not whole. Those of IPv6
 * other than UDP and TCP include all extensions, and so fragments.
 */
static __always_inline int read_ports(__u8 protocol, __u32 rest, const struct udphdr *udp, const void *end,
				      __be32 *ports)
{
	if (!has_ports(protocol) || rest < sizeof(*udp) || (const void *)(udp + 1) > end)
		return 0;
	if (protocol == IPPROTO_UDP && !is_whole_udp(udp, rest))
		return 0;
	*ports = *(const __be32 *)udp;
	return 1;
}

/* Reads the key of an IPv4 packet, as read_ports(); returns 0 for fragments, too. */
static __always_inline int read_key4(const struct packet *packet, const struct iphdr *ip, const void *end,
				     const struct tracked *tracked, struct key_words *key)
{
	__u64 *query = (__u64 *)&tracked->tracking->query4.key;
	__u32 rest = tracked->passage.l3_len - sizeof(*ip);
	__be32 ports;

	if (ip->frag_off & bpf_htons(0x3fff) || !read_ports(ip->protocol, rest, (const void *)(ip + 1), end, &ports))
		return 0;
	query[0] = key->words[0] = word_of(ip->saddr, ip->daddr);
	query[1] = key->words[1] = last_word_of(ports, ip->protocol, packet->link);
	return 1;
}

static __always_inline int read_key6(const struct packet *packet, const struct ipv6hdr *ip, const void *end,
				     const struct tracked *tracked, struct key_words *key)
{
	__u64 *query = (__u64 *)&tracked->tracking->query6.key;
	const __u64 *addresses = (const __u64 *)&ip->saddr;
	__u32 rest = tracked->passage.l3_len - sizeof(*ip);
	__be32 ports;

	if (!read_ports(ip->nexthdr, rest, (const void *)(ip + 1), end, &ports))
		return 0;
	for (__u32 i = 0; i < KEY6_WORDS - 1; i++)
		query[i] = key->words[i] = addresses[i];
	query[KEY6_WORDS - 1] = key->words[KEY6_WORDS - 1] = last_word_of(ports, ip->nexthdr, packet->link);
	return 1;
}

/* The connection's mark. What has a next hop has none. */
static __always_inline __u32 mark_of_connection(const struct tracked *tracked)
{
	union connection_route route = tracked->found.route;

	return route.entry & ENTRY_NODE ? route.generation : 0;
}

/* What the kernel still has of the connection (`enum ct_answer`); it has so long to live then. */
static __always_inline int is_alive(struct packet *packet, struct tracked *tracked, __u32 timeout_ms, int v4)
{
	struct tracking *tracking = tracked->tracking;
	struct ct_expected4 *expected = &tracking->expected4;
	struct ct_terms *terms = v4 ? &expected->terms : &tracking->terms6;
	const struct flow4_key *key = &tracking->query4.key;

	/* Each where it belongs: the stack has no room for a copy of them all. */
	terms->mark = mark_of_connection(tracked);
	terms->timeout_ms = timeout_ms;
	terms->protocol = protocol_of(tracked, v4);
	if (!v4)
		return is_alive6(packet->ctx, &tracking->query6.key, &tracking->translation.v6, &tracking->terms6,
				 &tracking->windows);
	expected->src = key->src;
	expected->dst = key->dst;
	expected->ports = key->ports;
	expected->new_src = tracking->translation.v4.src;
	expected->new_dst = tracking->translation.v4.dst;
	expected->new_ports = tracking->translation.v4.ports;
	return is_alive4(packet->ctx, &tracking->expected4, &tracking->windows);
}

/*
 * Asks the kernel about the connection, and sets how long it has to live. Ends the entry, and returns 0, if the kernel
 * has it no longer as it was.
 */
static __always_inline int ask(struct packet *packet, struct tracked *tracked, __u32 timeout_ms, int v4)
{
	struct connection *connection = tracked->found.connection;
	__u64 tick = tick_of(packet), begin_ns = bpf_ktime_get_ns();
	int alive = is_alive(packet, tracked, timeout_ms, v4);

	tracked->tracking->asking_ns += bpf_ktime_get_ns() - begin_ns;
	if (alive != CT_ALIVE) {
		end_connection(&tracked->found, alive == CT_MARKED);
		return 0;
	}
	/* Another connection may have the slot by now. */
	if (read_connection_head(connection) == tracked->found.head.word)
		*(volatile __u64 *)&connection->bytes =
			(*(volatile __u64 *)&connection->bytes & FLOW_PACKETS) | tick << 48;
	return 1;
}

/* Whether a packet's connection is current. */
enum currency {
	NOT_CURRENT, /* the kernel has it no longer, or has to see the packet */
	CURRENT,
	ASKED_NOW,
	TO_BE_ASKED,
};

/*
 * Says whether the kernel still has the connection; a program that `asks` asks it once a tick. A pause leaves the packet to
 * the kernel, so that it is the kernel that ends connections.
 */
static __always_inline enum currency is_current(struct packet *packet, struct tracked *tracked, int asks, int v4)
{
	struct connection *connection = tracked->found.connection;
	__u64 tick = tick_of(packet);
	__u64 used = *(volatile __u64 *)&connection->used;
	__u64 asked = *(volatile __u64 *)&connection->bytes;
	__u32 timeout_ms = timeout_of(packet, protocol_of(tracked, v4));

	if ((__u16)((__u16)tick - (__u16)(used >> 48)) > MOST_PAUSE) {
		*(volatile __u64 *)&connection->used = (used & FLOW_PACKETS) | tick << 48;
		return NOT_CURRENT;
	}
	if (!may_ask(tracked->tracking, tick, (__u16)tick - (__u16)(asked >> 48), timeout_ms))
		return CURRENT;
	if (!asks)
		return TO_BE_ASKED;
	return ask(packet, tracked, timeout_ms, v4) ? ASKED_NOW : NOT_CURRENT;
}

/* Counts as the kernel does (nf_ct_acct_add): bytes from the IP header on, and what GSO has put together once. */
static __always_inline void count_connection(const struct packet *packet, struct connection *connection, __u32 l3_len)
{
	__u64 used = connection->used & FLOW_PACKETS;

	connection->used = ((used + 1) & FLOW_PACKETS) | tick_of(packet) << 48;
	/* The kernel may have been asked meanwhile. */
	*(volatile __u64 *)&connection->bytes += l3_len;
	packet->counts->connection_packets++;
	packet->counts->connection_bytes += l3_len;
}

/* Added to the generation of what holds only while the route back does: a sum without that route never equals it. */
#define NOTED_BY_SOURCE (1U << 30)

/*
 * The sum of generations that grows with every change of what a packet to this address leaves by, as of a flow; and with
 * those of the route back, if that says whether the source is valid. What the other engine has noted is none of this one's:
 * another program sends it, or another device does.
 */
static __always_inline __u32 route_generation(const struct tracked *tracked, __u32 flags, int v4)
{
	const union translation *translation = &tracked->tracking->translation;
	__u32 sum = tracked->generation + NOTES_OF_ENGINE;

	if (!v4)
		return sum + generation6(translation->v6.dst);
	if (flags & ENGINE_SOURCE_ROUTE4)
		sum += NOTED_BY_SOURCE + generation4(tracked->tracking->query4.key.src);
	return sum + generation4(translation->v4.dst);
}

/*
 * Notes the next hop of a connection, unless somebody has changed the slot or noted one, or the connection has a mark. It
 * has one only if all has been looked at that depends on nothing but the key, the entry and what user space keeps: a
 * packet with a noted next hop needs none of this again.
 */
static __always_inline void note_route(const struct tracked *tracked)
{
	union connection_route before = tracked->found.route, now = tracked->tracking->to_note;

	if (!(now.entry & ENTRY_NODE) && !mark_of_connection(tracked))
		__sync_val_compare_and_swap(&tracked->found.connection->route.word, before.word, now.word);
}

/*
 * The next hop that a connection has noted, if nothing has changed since. A next hop changes before its generation does, so
 * the rules must still be those of its link.
 */
static __always_inline const struct next_hop *noted_next_hop(const struct packet *packet, struct tracked *tracked,
							     __u32 flags, int v4)
{
	union connection_route route = tracked->found.route;
	__u32 generation = route_generation(tracked, flags, v4);
	const struct next_hop *hop;

	tracked->tracking->to_note = (union connection_route){ .entry = ENTRY_NODE, .generation = generation };
	if (route.entry & ENTRY_NODE || route.generation != generation)
		return 0;
	hop = next_hop_of(route.entry);
	return hop && hop->link == tracked->found.head.output && hop->link != packet->link ? hop : 0;
}

/*
 * The next hop of a connection's packet in the tables, by its source as it arrives and its destination as it leaves. The
 * generation has been read before, so a next hop of tables from before a change never counts behind it.
 */
static __always_inline const struct next_hop *next_hop_in_tables(const struct engine_link *link,
								 struct tracked *tracked, const void *ip,
								 const void *end, int v4)
{
	const struct tracking *tracking = tracked->tracking;
	const union translation *translation = &tracking->translation;
	__u32 entry;

	read_fence();
	entry = v4 ? route4(link->root4, tracking->query4.key.src, translation->v4.dst, 0) :
		     route6(link->root6, tracking->query6.key.src, translation->v6.dst, 0);
	if (entry & ENTRY_NODE)
		return 0;
	if (!(entry & NEXT_HOP_GROUP)) {
		tracked->tracking->to_note.entry = entry;
		return next_hop_of(entry);
	}
	/* Which member of a group it is depends on more than these addresses. */
	return is_translated(translation, v4) ? 0 : next_hop_of(member_of(entry, ip, end, v4));
}

/* Says whether an entry has a track in the place of the time when to ask again. */
static __always_inline int has_track(const struct tracked *tracked, int v4)
{
	__u8 kind = tracked->found.head.kind;

	return protocol_of(tracked, v4) == IPPROTO_TCP && kind > CONNECTION_KERNEL && kind != CONNECTION_UNTRACKED;
}

/* Says whether to ask user space about a connection that has no entry, or whose entry does not answer. */
static __always_inline int is_due_now(const struct tracked *tracked, int begins, int v4)
{
	if (!tracked->found.connection || has_track(tracked, v4))
		return is_due_newcomer(tracked->found.hash, begins);
	return is_due(tracked->found.connection, v4);
}

#endif
