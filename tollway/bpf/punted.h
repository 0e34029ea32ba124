/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How a frame that was handed to the kernel is known again. XDP in the driver never sees it; generic
 * XDP does, for it sits where the frame is put in.
 */
#ifndef TOLLWAY_PUNTED_H
#define TOLLWAY_PUNTED_H

#include "maps.h"

/* After this long, a frame that looks the same is another. */
#define PUNTED_NS 1000000000LL

/* A hash of up to 64 bytes from the start: enough to tell IP headers apart. */
static __always_inline __u64 fingerprint(const void *data, const void *end)
{
	__u64 hash = 0;
	int i;

#pragma unroll
	for (i = 0; i < 8; i++) {
		const __u64 *word = (const __u64 *)data + i;

		if ((const void *)(word + 1) > end)
			break;
		hash = (hash ^ *word) * 0x9e3779b97f4a7c15ULL;
		hash ^= hash >> 29;
	}
	return hash;
}

#endif
