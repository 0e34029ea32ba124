// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The two programs of a port, in one object: whoever loads an object parses the types of the whole
 * kernel.
 */
#include "dispatcher.c"
#include "punt.c"

char _license[] SEC("license") = "Dual MIT/GPL";
