// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Runs after the kernel has handed redirected frames to a device. It needs the kernel's BTF, to
 * identify devices by namespace and ifindex.
 */
#include "refused.h"

/* The few fields of kernel types that this program reads; the loader relocates them. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
};
#pragma clang attribute pop

/* The network namespace of the ports. */
const volatile __u32 NAMESPACE = 0;

static __always_inline __u32 *port_of_device(const struct net_device *device)
{
	__u32 ifindex = device->ifindex;

	if (device->nd_net.net->ns.inum != NAMESPACE)
		return 0;
	return bpf_map_lookup_elem(&port_of, &ifindex);
}

/* xdp_devmap_xmit: from, to, frames that were sent, frames that were not, error */
SEC("tp_btf/xdp_devmap_xmit")
int refused(__u64 *args)
{
	const struct net_device *from = (void *)args[0], *to = (void *)args[1];
	__u32 sent = args[2], drops = args[3], *port;

	if (!matters(drops, to->ifindex))
		return 0;
	/* The router's program redirects only frames that arrive on the router's devices. */
	port = port_of_device(to);
	if (port && port_of_device(from))
		evaluate(port, to->ifindex, from == to, sent, drops, (int)args[4]);
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
