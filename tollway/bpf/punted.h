/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How a frame that was handed to the kernel is known again. XDP in the driver never sees it; generic
 * XDP does, for it sits where the frame is put in. So a mark of 16 bytes is put before it, which nobody
 * outside knows and no frame of a wire bears, and taken off there.
 */
#ifndef TOLLWAY_PUNTED_H
#define TOLLWAY_PUNTED_H

#include "maps.h"

#define MARK_BYTES 16

/* Puts the mark where a frame begins; false where it does not fit. */
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
