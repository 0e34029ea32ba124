/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the devices of ports have refused: refused.h writes it, decide.h reads it. */
#ifndef TOLLWAY_REFUSALS_H
#define TOLLWAY_REFUSALS_H

#include "maps.h"

/* Frames that a port's device refused, as in src/refusals.rs. */
struct refusals {
	__u64 packets; /* in total */
	__u64 since_ns; /* no frame accepted since then; 0: accepts frames; or UNPROVEN */
	__u64 bulks; /* bulks refused since then */
	__u64 cause; /* 0: accepts frames; 1: accepts none, no error; UNPROBED; else error plus 1 */
};

/*
 * One entry per port. In the entry after those, `packets` says whether any `since_ns` is not 0, and `since_ns` is the ifindex
 * of a device that accepts frames, or 0.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MOST_PORTS + 1);
	__type(key, __u32);
	__type(value, struct refusals);
} refusals SEC(".maps");

#endif
