/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the programs share with user space, byte for byte as in src/counts.rs, src/page.rs and
 * src/flows.rs, and the constants that are set when the program is loaded for a port.
 */
#ifndef TOLLWAY_MAPS_H
#define TOLLWAY_MAPS_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define HEADER_ROOM 24

/* If nobody has confirmed the tables for longer than this, nobody makes the kernel's changes in them. */
#define UNCONFIRMED_NS 80000000
/* With a heartbeat older than this, its worker counts as absent. */
#define STALE_NS 30000000LL

/* Nanoseconds of a tick of flows and connections, as a power of two: 67 ms. */
#define FLOW_TICK_SHIFT 26

/* As in src/port.rs and src/flows.rs. */
#define MOST_PORTS 64
#define MOST_QUEUES 128
/* As in src/page.rs; a power of two. */
#define MOST_WORKERS 64
#define WORKER_BITS 6
#define LINKS_PER_PORT (2 * 4096)
#define MOST_TALLIES 4096
/* Words of a bit for each 16-bit hash. */
#define LOCALS4_WORDS 1024

/* Two for each word of the longer key. */
#define FLOW_SEED_COUNT 10

/* A link that exists; its number is in the lower 16 bits. */
#define LINK_EXISTS (1U << 31)
/* IPv4, or IPv6, that arrives on the link takes the kernel path. */
#define LINK_KERNEL4 (1U << 30)
#define LINK_KERNEL6 (1U << 29)
/* IPv4 fragments, or IPv6 packets with extension headers, take the kernel path. */
#define LINK_FRAGMENTS4 (1U << 28)
#define LINK_FRAGMENTS6 (1U << 27)
/* What would leave by a port with a tc program takes the kernel path. */
#define LINK_KERNEL_EXITS (1U << 26)
/* The kernel tracks the connections of IPv4 packets that arrive on the link. */
#define LINK_TRACKED4 (1U << 25)
/* The same of IPv6 packets. */
#define LINK_TRACKED6 (1U << 24)

enum pass_reason {
	PASS_BYPASS,
	PASS_STALE,
	PASS_GROUP_MAC,
	PASS_NOT_OURS_MAC,
	PASS_ETHERTYPE,
	PASS_VLAN_UNKNOWN,
	PASS_MALFORMED,
	PASS_SPECIAL,
	PASS_LINK_LOCAL,
	PASS_LOCAL,
	PASS_OPTIONS,
	PASS_TTL,
	PASS_NO_SOCKET,
	PASS_PUNTED,
	PASS_OFFLOAD,
	PASS_KERNEL_FLOW,
	PASS_CROWDED,
	PASS_MTU,
	PASS_CHECKSUM,
	PASS_KERNEL_ROUTE,
	PASS_NEIGH,
	PASS_UNDECIDED,
	PASS_KERNEL_RULE,
	PASS_KERNEL_EXIT,
	PASS_CONNECTION,
	PASS_BRIDGE_PORT,
	PASS_BRIDGE_SOURCE,
	PASS_BRIDGE_REFRESH,
	PASS_BRIDGE_DESTINATION,
	PASS_REASONS,
};

/* The last heartbeat of a worker. It has a cache line to itself, because its worker writes it often, or who beats
 * for a worker that sleeps. */
struct heartbeat {
	__u64 ns;
	__u64 unused[7];
};

struct state {
	/*
	 * First, and a page long, so that another version finds the heartbeats of a program that it
	 * is to replace (src/page.rs).
	 */
	struct heartbeat heartbeats[MOST_WORKERS];
	__u32 bypass;
	__u32 generation;
	__u32 ruled; /* flags: RULED, FAIL_CLOSED */
	__u32 region_changes; /* user space only */
	/*
	 * A bit per port for IPv4, and for IPv6: packets without a flow take the kernel path,
	 * because user space would only hand them over.
	 */
	__u64 crowded4;
	__u64 crowded6;
	__u64 confirmed_ns; /* when user space last confirmed that it keeps the tables */
	__u32 workers; /* queue `q` of each port is served by worker `q % workers`; 0 means 1 */
	__u32 workers_late; /* some worker may work by older tables, so none gets packets */
	/*
	 * By port: the longest frame, in bytes, that its device takes from the XDP path; 0 if none, or
	 * EXIT_OF_KERNEL. A next hop is used if its longest frame fits.
	 */
	__u32 exit_limits[MOST_PORTS];
	/* By port: the ifindex of its device, to which the tc program sends; 0 if it is not up. */
	__u32 exit_devices[MOST_PORTS];
	/* How long the kernel keeps a connection of UDP after each packet; 0 if no entries of connections count. */
	__u32 udp_timeout_ms;
	__u32 verifies_sums; /* the kernel does not track packets with wrong checksums */
	/* The same of an established connection of TCP, and of one behind an RST; 0 if the kernel forwards all TCP. */
	__u32 tcp_timeout_ms;
	__u32 tcp_close_timeout_ms;
	__u32 tcp_settings; /* flags: TCP_IS_LIBERAL, TCP_IGNORES_INVALID_RESETS */
	__u32 unserved_tick; /* the last tick in which a program left all packets to the kernel, without looking at them */
	__u32 connections_generation; /* that of entries of connections, as `generation` of flows */
	__u32 tracks; /* so many of the tracks are in use */
	/* The buckets of entries that are in use: their number, a power of two, minus one; in the upper half, the first one. */
	__u64 connections4;
	__u64 connections6;
};

/* In `tcp_settings`: net.netfilter.nf_conntrack_tcp_be_liberal and nf_conntrack_tcp_ignore_invalid_rst. */
#define TCP_IS_LIBERAL 1
#define TCP_IGNORES_INVALID_RESETS 2

/* In `exit_limits`: the kernel sends what the XDP program would send by the port. */
#define EXIT_OF_KERNEL (~0U)

/* In `ruled`: a firewall that the kernel does not know filters every forwarded packet. */
#define RULED 1
/*
 * In `ruled`: packets are dropped, rather than forwarded by the kernel, while that firewall cannot
 * be evaluated.
 */
#define FAIL_CLOSED 2

/* As DropReason in the crate tollway-dataplane. */
#define DROP_REASONS 28

/* Of these, those for which programs drop packets themselves. */
enum drop_reason {
	DROP_RPFILTER = 10,
	DROP_BLACKHOLE = 12,
	DROP_NETFILTER = 18,
};

/* Packets, and bytes from the Ethernet header on, that flows dropped for a reason. */
struct drop_counts {
	__u64 packets;
	__u64 bytes;
};

struct port_counts {
	__u64 xdp_rx_packets;
	__u64 xdp_rx_bytes;
	__u64 xdp_tx_packets;
	__u64 xdp_tx_bytes;
	__u64 to_user;
	__u64 closed_packets; /* dropped because the rules could not be evaluated */
	__u64 closed_bytes;
	__u64 marked; /* by the XDP program, for the tc program beside it (beside.h) */
	__u64 taken; /* of these, the packets that the tc program got */
	__u64 connection_packets; /* forwarded or dropped by entries of connections, counted as the kernel counts them */
	__u64 connection_bytes;
	struct drop_counts drops[DROP_REASONS];
	__u64 pass[PASS_REASONS];
	__u64 confirmed_tick; /* the tick in which the tables were last found confirmed */
	__u64 alive_tick; /* the tick in which a heartbeat was last found fresh, and its worker */
};

/* Keys are compared in words of 8 bytes. */
struct flow4_key {
	__be32 src;
	__be32 dst;
	__be32 ports; /* source, then destination, as in the packet */
	__u8 protocol;
	__u8 pad;
	__u16 link;
} __attribute__((aligned(8)));

struct flow6_key {
	__be32 src[4];
	__be32 dst[4];
	__be32 ports;
	__u8 protocol;
	__u8 pad;
	__u16 link;
} __attribute__((aligned(8)));

/*
 * Constants of the port that the program is loaded for. The verifier knows their values, and
 * removes the code that they disable.
 */
const volatile __u32 PORT = 0;
const volatile __u32 IFINDEX = 0;
const volatile __u32 MAC_FIRST = 0; /* the first four bytes, as read from the frame */
const volatile __u32 MAC_LAST = 0; /* the last two */
const volatile __u32 LAYER3 = 0; /* the device's packets have no Ethernet header */
const volatile __u32 QUEUES = 0;
const volatile __u32 XDP_PATH = 0;
const volatile __u32 TABLES = 0; /* the maps of fib.h are there */
const volatile __u32 GENERIC = 0;
const volatile __u32 BESIDE = 0; /* the port has an XDP program and a tc program (beside.h) */
const volatile __u32 UNFINISHED = 0; /* senders leave checksums to a card that does not exist */
const volatile __u32 WEAKLY_ORDERED = 0; /* the processor reorders loads */
const volatile __u32 FLOWS4_MASK = 0; /* the number of buckets, a power of two, minus one */
const volatile __u32 FLOWS6_MASK = 0;
const volatile __u32 NEWCOMERS_MASK = 0;
const volatile __u64 FLOW_SEEDS[FLOW_SEED_COUNT] = {};
const volatile __u64 PUNT_MARK[2] = {}; /* see punted.h */

/* Orders the reads before it ahead of the reads after it. */
static __always_inline void read_fence(void)
{
	if (WEAKLY_ORDERED) {
		__u32 word = 0;

		__sync_lock_test_and_set(&word, 1);
	}
	asm volatile("" ::: "memory");
}

#endif
