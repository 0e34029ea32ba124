// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The same as refused.c for kernels without BTF, from the record of the tracepoint. The record has
 * the ifindexes of devices but not their namespaces. So devices in another namespace are mistaken
 * for two ports, if they have the ports' ifindexes and redirect from one to the other.
 */
#include "refused.h"

/* events/xdp/xdp_devmap_xmit/format; src/refusals.rs verifies this layout. */
struct xdp_devmap_xmit {
	__u64 common;
	__s32 from_ifindex;
	__u32 act;
	__s32 to_ifindex;
	__s32 drops;
	__s32 sent;
	__s32 err;
};

static __always_inline __u32 *port_of_number(__u32 ifindex)
{
	return bpf_map_lookup_elem(&port_of, &ifindex);
}

SEC("tracepoint/xdp/xdp_devmap_xmit")
int refused(const struct xdp_devmap_xmit *bulk)
{
	__u32 from = bulk->from_ifindex, to = bulk->to_ifindex, *port;

	if (!matters(bulk->drops, to))
		return 0;
	port = port_of_number(to);
	if (port && port_of_number(from))
		evaluate(port, to, from == to, bulk->sent, bulk->drops, bulk->err);
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
