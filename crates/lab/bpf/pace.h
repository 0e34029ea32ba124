/* When frames are due; src/generate/pace.rs does the same for ports. */
#pragma once

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

/* Nanoseconds between 1,024 frames; 0 for as fast as possible. */
volatile const __u64 NS_PER_1024 = 0;

/* A generator this late has lost its processor. It continues from now rather than flood to catch
 * up. */
#define FORGIVEN_NS 2000000

/* Whether the next frame is due. Moves the start forward if time was lost. */
static __always_inline int due(__u64 *start_ns, __u64 sent, __u64 now)
{
	__u64 planned;

	if (!*start_ns)
		*start_ns = now;
	planned = *start_ns + ((sent * NS_PER_1024) >> 10);
	if (now < planned)
		return 0;
	if (now - planned > FORGIVEN_NS)
		*start_ns += now - planned;
	return 1;
}
