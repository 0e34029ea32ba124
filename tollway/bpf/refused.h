/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What follows from what a device did with redirected frames, whichever way that was heard of: frames that it did not
 * take are counted, and one that takes none any more leaves the XDP path at once.
 */
#ifndef TOLLWAY_REFUSED_H
#define TOLLWAY_REFUSED_H

#include "state.h"

/* A full queue takes something sooner, even where its reader waits for a processor. */
#define REFUSES_NS 20000000ULL
#define REFUSES_BULKS 4
/* In `since_ns`: it has yet to show that it takes anything, as in src/steer/refusals.rs. */
#define UNPROVEN 1ULL
/* In `cause`: user space asks it first, by a frame of the router's own; likewise. */
#define UNASKED (~0ULL)

/* What a port's device refused, as in src/steer/refusals.rs. */
struct refusals {
	__u64 packets; /* in all */
	__u64 since_ns; /* it has taken nothing since then; 0: it has; or UNPROVEN */
	__u64 bulks; /* that it has taken nothing of since then */
	__u64 cause; /* 0: it takes frames; 1: it takes none, and does not say why; UNASKED; else: an error, plus 1 */
};

/* One for each port; of the last one, `packets` says if `since_ns` of any is not 0. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MOST_PORTS + 1);
	__type(key, __u32);
	__type(value, struct refusals);
} refusals SEC(".maps");

/* Ports by their device. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MOST_PORTS);
	__type(key, __u32);
	__type(value, __u32);
} port_of SEC(".maps");

/* Takes a port out of the XDP path: user space sees the cause before it sees the generation. */
static __always_inline void leave(struct refusals *port, __u64 cause)
{
	__u32 first = 0;
	struct state *all = bpf_map_lookup_elem(&state, &first);

	if (!all)
		return;
	port->cause = cause;
	/* 0 is no generation. */
	if (__sync_fetch_and_add(&all->generation, 1) == ~0U)
		__sync_fetch_and_add(&all->generation, 1);
}

/* Says if a bulk is to be looked at: it was refused in part, or somebody waits to see that a device takes frames. */
static __always_inline int matters(__u32 drops)
{
	__u32 last = MOST_PORTS;
	struct refusals *any = bpf_map_lookup_elem(&refusals, &last);

	return any && (drops || any->packets);
}

/* A port's device has taken some frames of a bulk, and others not; `is_own` where they came by the same one. */
static __always_inline void judge(const __u32 *port, int is_own, __u32 sent, __u32 drops, int error)
{
	struct refusals *here = bpf_map_lookup_elem(&refusals, port), *any;
	__u32 last = MOST_PORTS;
	__u64 now;

	any = bpf_map_lookup_elem(&refusals, &last);
	if (!here || !any)
		return;
	if (sent) {
		here->since_ns = 0;
		if (!drops)
			return;
	}
	/* The router's own question is no packet of anybody's. */
	if (here->cause == UNASKED && is_own) {
		if (!sent)
			here->cause = 1 - error;
		return;
	}
	__sync_fetch_and_add(&here->packets, drops);
	if (sent)
		return;
	if (here->since_ns == UNPROVEN) {
		if (!here->cause)
			leave(here, 1 - error);
		return;
	}
	now = bpf_ktime_get_ns();
	if (!here->since_ns) {
		here->since_ns = now;
		here->bulks = 0;
	}
	here->bulks++;
	any->packets = 1;
	if (here->cause)
		return;
	if (error || (here->bulks >= REFUSES_BULKS && now - here->since_ns >= REFUSES_NS))
		leave(here, 1 - error);
}

#endif
