/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The reaction to a device's result for redirected frames, whichever tracepoint reports it. The
 * program counts the frames that the device did not accept. It takes a device that accepts none
 * any more out of the XDP path at once.
 */
#ifndef TOLLWAY_REFUSED_H
#define TOLLWAY_REFUSED_H

#include "refusals.h"
#include "state.h"

/* A full queue accepts a frame sooner than this, even if its reader waits for a processor. */
#define REFUSES_NS 20000000ULL
#define REFUSES_BULKS 4
/* In `since_ns`: the device has yet to prove that it accepts frames, as in src/refusals.rs. */
#define UNPROVEN 1ULL
/*
 * In `cause`: user space probes the device first with a frame of the router's own; as in
 * src/refusals.rs.
 */
#define UNPROBED (~0ULL)

/* Ports by their device's ifindex. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MOST_PORTS);
	__type(key, __u32);
	__type(value, __u32);
} port_of SEC(".maps");

/* Takes a port out of the XDP path. User space sees the cause before it sees the new generation. */
static __always_inline void leave(struct refusals *port, __u64 cause)
{
	__u32 first = 0;
	struct state *all = bpf_map_lookup_elem(&state, &first);

	if (!all)
		return;
	port->cause = cause;
	/* 0 is not a valid generation. */
	if (__sync_fetch_and_add(&all->generation, 1) == ~0U)
		__sync_fetch_and_add(&all->generation, 1);
}

/*
 * Says whether to look at a bulk that went to a device of this ifindex: some of it was refused, or some device has yet to
 * accept frames, and this one is not that which has just done so.
 */
static __always_inline int matters(__u32 drops, __u32 ifindex)
{
	__u32 last = MOST_PORTS;
	struct refusals *any = bpf_map_lookup_elem(&refusals, &last);

	return any && (drops || (any->packets && any->since_ns != ifindex));
}

/*
 * Notes the ifindex of a port's device that has accepted a whole bulk: while other devices have yet to do so, its next
 * bulks need no look. User space takes the note away behind `since_ns`, so that is looked at once more.
 */
static __always_inline void note_accepting(struct refusals *any, const struct refusals *here, __u32 ifindex)
{
	__sync_lock_test_and_set(&any->since_ns, ifindex);
	if (*(const volatile __u64 *)&here->since_ns)
		any->since_ns = 0;
}

/*
 * Evaluates a bulk that a port's device, which has this ifindex, accepted or not; `is_own` says whether the frames came in
 * by the same port.
 */
static __always_inline void evaluate(const __u32 *port, __u32 ifindex, int is_own, __u32 sent, __u32 drops, int error)
{
	struct refusals *here = bpf_map_lookup_elem(&refusals, port), *any;
	__u32 last = MOST_PORTS;
	__u64 now;

	any = bpf_map_lookup_elem(&refusals, &last);
	if (!here || !any)
		return;
	if (sent) {
		here->since_ns = 0;
		if (!drops) {
			note_accepting(any, here, ifindex);
			return;
		}
	}
	/* The router's own probe is not a user's packet. */
	if (here->cause == UNPROBED && is_own) {
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
		__sync_lock_test_and_set(&any->since_ns, 0);
	}
	here->bulks++;
	any->packets = 1;
	if (here->cause)
		return;
	if (error || (here->bulks >= REFUSES_BULKS && now - here->since_ns >= REFUSES_NS))
		leave(here, 1 - error);
}

#endif
