/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The devices that frames are redirected to, by port. */
#ifndef TOLLWAY_EGRESS_H
#define TOLLWAY_EGRESS_H

#include "maps.h"

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, MOST_PORTS);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} egress SEC(".maps");

#endif
