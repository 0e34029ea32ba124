/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A tc program beside the XDP program of the same port, for what leaves by devices whose frames the kernel
 * makes. There, super-frames cost a fraction: the XDP program leaves such packets to the kernel, which puts them
 * together (GRO), and the tc program forwards the result.
 *
 * The XDP program marks them, in bytes that stay beside the packet. So the tc program has no work with
 * packets that take the kernel path for other reasons, and counts nothing twice. Where a driver loses the
 * mark, the kernel forwards.
 */
#ifndef TOLLWAY_BESIDE_H
#define TOLLWAY_BESIDE_H

#include "packet.h"

/* Drawn once; other programs that leave bytes there have other ones, with luck. */
#define MARK_FOR_TC 0x9a3c71e5U

#endif
