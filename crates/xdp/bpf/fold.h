/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Sums of one's complement (RFC 1071), which are added up in words of 32 bits. */
#ifndef TOLLWAY_FOLD_H
#define TOLLWAY_FOLD_H

#include <linux/types.h>

/* Adds the parts of a sum of at most 65,536 words of 32 bits up to one of 18 bits. */
static __always_inline __u32 fold_once(__u64 sum)
{
	return (__u32)(sum & 0xffff) + (__u32)(sum >> 16 & 0xffff) + (__u32)(sum >> 32);
}

/* The same to one of 16 bits. */
static __always_inline __u16 fold(__u64 sum)
{
	__u32 folded = fold_once(sum);

	folded = (folded & 0xffff) + (folded >> 16);
	return (folded & 0xffff) + (folded >> 16);
}

/* Says whether a sum becomes 0xffff. One of 18 bits does so when it is folded once, or never. */
static __always_inline int is_all_ones(__u64 sum)
{
	__u32 folded = fold_once(sum);

	return (folded & 0xffff) + (folded >> 16) == 0xffff;
}

#endif
