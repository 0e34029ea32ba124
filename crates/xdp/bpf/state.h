/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The few words that user space and all programs share. */
#ifndef TOLLWAY_STATE_H
#define TOLLWAY_STATE_H

#include "maps.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct state);
} state SEC(".maps");

#endif
