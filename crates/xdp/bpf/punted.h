/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How the XDP program recognizes a frame that user space handed to the kernel. XDP in the driver
 * never sees such a frame, but generic XDP does, as it runs where the frame is inserted. So
 * bpf/punt.c puts a mark of 16 bytes before the frame, and generic XDP removes it. The mark is
 * secret, and no frame from a wire carries it.
 */
#ifndef TOLLWAY_PUNTED_H
#define TOLLWAY_PUNTED_H

#include "maps.h"

#define MARK_BYTES 16

/* Writes the mark at the start of a frame; returns false if it does not fit. */
static __always_inline int put_mark(void *data, const void *end)
{
	__u64 *words = data;

	if ((const void *)(words + 2) > end)
		return 0;
	words[0] = PUNT_MARK[0];
	words[1] = PUNT_MARK[1];
	return 1;
}

static __always_inline int has_mark(const void *data, const void *end)
{
	const __u64 *words = data;

	return (const void *)(words + 2) <= end && words[0] == PUNT_MARK[0] &&
	       words[1] == PUNT_MARK[1];
}

#endif
