/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A packet in a program, and the maps that all programs use for it. Include an engine first
 * (engine_xdp.h, engine_tc.h).
 */
#ifndef TOLLWAY_PACKET_H
#define TOLLWAY_PACKET_H

#include "state.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MOST_PORTS);
	__type(key, __u32);
	__type(value, struct port_counts);
} counts SEC(".maps");

/*
 * Links by port, kind of tag and VLAN. This is an array, because a hash costs ten times as much.
 * VLAN 0 holds untagged and priority-tagged frames.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MOST_PORTS *LINKS_PER_PORT);
	__type(key, __u32);
	__type(value, __u32);
} links SEC(".maps");

/* Links on top of VLAN links, by port and both tags, all 32 bits of the key (`find_inner_link`). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, __u32);
} inner_links SEC(".maps");

/* The value of an own address whose packets may be for others: user space translates them. */
#define LOCAL_TRANSLATED 2

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __be32);
	__type(value, __u32);
} locals4 SEC(".maps");

/* A bit for each hash of an address in `locals4` (src/locals.rs): without the bit, it is not there. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LOCALS4_WORDS);
	__type(key, __u32);
	__type(value, __u64);
} locals4_bits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __be32[4]);
	__type(value, __u32);
} locals6 SEC(".maps");

/* What is known about a packet before its IP header is read. */
struct packet {
	context *ctx;
	const struct state *state;
	struct port_counts *counts;
	__u32 link;
	__u32 kernel_path; /* the link's flags: what takes the kernel path */
	__u32 inner_len; /* tc: bytes of the tag that lies in the frame */
	__u16 exit; /* the port that it leaves by (find_exit) */
	__u16 sender; /* of the frame that a bridge has handed up: enum sender */
	/* Of one for an own address that may be for others (own.h): the bytes before layer 3, by family; 0 for all others. */
	__u32 own4;
	__u32 own6;
};

/* Passes a packet to the kernel, and counts the reason. */
static __always_inline int pass(struct packet *packet, enum pass_reason reason)
{
	packet->counts->pass[reason] += packets_of(packet->ctx);
	return TO_KERNEL;
}

/* The tick of flows and connections. */
static __always_inline __u64 tick_of(const struct packet *packet)
{
	return packet->state->confirmed_ns >> FLOW_TICK_SHIFT;
}

/* Passes a packet to the kernel because of its connection. */
static __always_inline int pass_connection(struct packet *packet)
{
	return pass(packet, PASS_CONNECTION);
}

/* Drops a packet, since nobody is there to evaluate the rules. */
static __always_inline int drop_closed(struct packet *packet)
{
	packet->counts->closed_packets++;
	packet->counts->closed_bytes += whole_len(packet->ctx);
	return DROPPED;
}

/* Counts a packet that is dropped. */
static __always_inline void count_drop(struct packet *packet, enum drop_reason reason, __u32 len)
{
	packet->counts->drops[reason].packets += packets_of(packet->ctx);
	packet->counts->drops[reason].bytes += len;
}

/*
 * Says whether a time of the coarse clock is longer ago than this. Signed: it may come from another
 * processor, and be newer than the clock that is read here.
 */
static __always_inline int is_older(__u64 then_ns, __s64 limit_ns)
{
	return (__s64)(bpf_ktime_get_coarse_ns() - then_ns) > limit_ns;
}

static __always_inline int fails_closed(const struct packet *packet)
{
	return (packet->state->ruled & FAIL_CLOSED) != 0;
}

#endif
