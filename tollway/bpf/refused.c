// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Runs where the kernel has handed redirected frames to a device, and counts those that the device did not
 * take. A device that takes none any more leaves the XDP path at once.
 */
#include "state.h"

/* The little of the kernel's types that is read here, wherever in them it is. */
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

/* A full queue takes something sooner, even where its reader waits for a processor. */
#define REFUSES_NS 20000000ULL
#define REFUSES_BULKS 4
/* In `since_ns`: it has yet to show that it takes anything, as in src/steer/refusals.rs. */
#define UNPROVEN 1ULL
/* In `cause`: user space asks it first, by a frame of the router's own; likewise. */
#define UNASKED (~0ULL)

/* What a port's device refused, as in src/steer/refusals.rs. */
struct refusals {
	__u64 packets; /* in all */
	__u64 since_ns; /* it has taken nothing since then; 0: it has; or UNPROVEN */
	__u64 bulks; /* that it has taken nothing of since then */
	__u64 cause; /* 0: it takes frames; 1: it takes none, and does not say why; UNASKED; else: an error, plus 1 */
};

/* One for each port; of the last one, `packets` says if `since_ns` of any is not 0. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MOST_PORTS + 1);
	__type(key, __u32);
	__type(value, struct refusals);
} refusals SEC(".maps");

/* Ports by their device. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MOST_PORTS);
	__type(key, __u32);
	__type(value, __u32);
} port_of SEC(".maps");

static __always_inline __u32 *port_of_device(const struct net_device *device)
{
	__u32 ifindex = device->ifindex;

	if (device->nd_net.net->ns.inum != NAMESPACE)
		return 0;
	return bpf_map_lookup_elem(&port_of, &ifindex);
}

/* Takes a port out of the XDP path: user space sees the cause before it sees the generation. */
static __always_inline void leave(struct refusals *port, __u64 cause)
{
	__u32 first = 0;
	struct state *all = bpf_map_lookup_elem(&state, &first);

	if (!all)
		return;
	port->cause = cause;
	/* 0 is no generation. */
	if (__sync_fetch_and_add(&all->generation, 1) == ~0U)
		__sync_fetch_and_add(&all->generation, 1);
}

/* xdp_devmap_xmit: from, to, frames that were sent, frames that were not, error */
SEC("tp_btf/xdp_devmap_xmit")
int refused(__u64 *args)
{
	const struct net_device *from = (void *)args[0], *to = (void *)args[1];
	__u32 sent = args[2], drops = args[3], last = MOST_PORTS, *port;
	struct refusals *any = bpf_map_lookup_elem(&refusals, &last), *here;
	int error = args[4];
	__u64 now;

	if (!any || (!drops && !any->packets))
		return 0;
	/* Only what comes from one of our devices was sent by our program. */
	port = port_of_device(to);
	if (!port || !port_of_device(from))
		return 0;
	here = bpf_map_lookup_elem(&refusals, port);
	if (!here)
		return 0;
	if (sent) {
		here->since_ns = 0;
		if (!drops)
			return 0;
	}
	/* The router's own question is no packet of anybody's. */
	if (here->cause == UNASKED && from == to) {
		here->cause = 1 - error;
		return 0;
	}
	__sync_fetch_and_add(&here->packets, drops);
	if (sent)
		return 0;
	if (here->since_ns == UNPROVEN) {
		if (!here->cause)
			leave(here, 1 - error);
		return 0;
	}
	now = bpf_ktime_get_ns();
	if (!here->since_ns) {
		here->since_ns = now;
		here->bulks = 0;
	}
	here->bulks++;
	any->packets = 1;
	if (here->cause)
		return 0;
	if (error || (here->bulks >= REFUSES_BULKS && now - here->since_ns >= REFUSES_NS))
		leave(here, 1 - error);
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
