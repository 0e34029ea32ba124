/* Sends frames of N flows at a fixed rate, or as fast as it can.
 *
 * BPF_PROG_TEST_RUN runs it with live frames: each call receives a page, writes a frame and
 * redirects it. If no frame is due yet, it drops the page instead. This returns the page, and the
 * kernel meanwhile forwards what was sent. A signal ends the program. */
#include "frame.h"
#include "out.h"
#include "pace.h"

/* How packets get their addresses and ports: in turn those of flows that differ in all of them, in turn
 * the destinations in a map, or new ones for every packet; or like the first, but of TCP; or new ones for
 * every SYN; or like the first, between hosts of a bridge. */
#define IN_TURN 0
#define TO_IPV4 1
#define TO_IPV6 2
#define RANDOM 3
#define TCP_IN_TURN 4
#define SYN 5
/* As in turn, from one of 256 hosts behind a bridge's port to one of the hosts behind another. */
#define BRIDGED 6
volatile const __u8 ADDRESSES = IN_TURN;
/* Number of flows less one; a power of two less one. */
volatile const __u32 FLOW_MASK = 0;
/* The bits of that mask. */
volatile const __u32 FLOW_BITS = 0;
/* The sequence number of the first segment of each TCP flow. */
volatile const __u32 FIRST_SEQ = 0;
/* Where the random numbers start, so that no stream repeats the flows of another. */
volatile const __u64 SEED = 0;
/* The VLAN that frames are tagged with; 0 for none. */
volatile const __u16 VID = 0;
/* The Ethernet addresses of the frames, as in their header: destination, then source. */
volatile const __u32 ETHERNET[3] = {};
/* Which of two streams this is, 0 or 1. They have no flow in common. */
volatile const __u32 STREAM = 0;

struct progress {
	__u64 sent;
	__u64 start_ns;
	__u64 last_ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct progress);
} progress SEC(".maps");

/* An address in network byte order; an IPv4 address is in the first word. */
struct address {
	__be32 words[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct address);
} destinations SEC(".maps");

/* What makes a flow of IPv4, in host byte order. */
struct flow {
	__u32 source;
	__u32 destination;
	__u16 source_port;
	__u16 destination_port;
};

/* splitmix64: different numbers for different numbers. */
static __always_inline __u64 mix(__u64 x)
{
	x += 0x9e3779b97f4a7c15ULL;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
	return x ^ x >> 31;
}

/* 198.18.0.0/15 is the network for benchmarks (RFC 2544). */
static __always_inline struct flow flow_in_turn(__u64 seq)
{
	__u32 flow = seq & FLOW_MASK;

	return (struct flow){
		.source = 0xc6120000 + (flow & 0xff),
		.destination = 0xc6130000 + (STREAM << 8) + (flow >> 8 & 0xff),
		.source_port = 1024 + (flow >> 16),
		.destination_port = PORT,
	};
}

/* A flow from 16.0.0.0/4 to 198.19.0.0/16, of any ports: 2^28 by 2^16 by 2^32. */
static __always_inline struct flow random_flow(__u64 seq)
{
	__u64 first = mix(SEED + seq), second = mix(first);

	return (struct flow){
		.source = 0x10000000 + (first & 0x0fffffff),
		.destination = 0xc6130000 + (first >> 32 & 0xffff),
		.source_port = second,
		.destination_port = second >> 16,
	};
}

/* Stores a word of a frame. Words take half of the time that the fields take one by one. */
static __always_inline void store(void *at, int word, __be32 value)
{
	((__be32 *)at)[word] = value;
}

static __always_inline void write_hosts(struct ethhdr *eth, __u32 number)
{
	__u32 to = RIGHT_HOST(number), from = LEFT_HOST(number & 0xff);

	store(eth, 0, bpf_htonl(HOST_MAC << 16 | to >> 16));
	store(eth, 1, bpf_htonl(to << 16 | HOST_MAC));
	store(eth, 2, bpf_htonl(from));
}

static __always_inline void write_payload(struct payload *payload, __u64 seq, __u64 now)
{
	payload->magic = MAGIC;
	payload->seq = seq;
	payload->sent_ns = now;
	payload->stream = STREAM;
}

static __always_inline void write_udp(struct udphdr *udp, struct payload *payload, __u16 source, __u16 destination,
				      __u16 len, __u64 seq, __u64 now)
{
	store(udp, 0, bpf_htonl((__u32)source << 16 | destination));
	store(udp, 1, bpf_htonl((__u32)len << 16));
	write_payload(payload, seq, now);
}

/* Writes every byte each time: a page returns in the state in which the last hop left it. */
static __always_inline void write_ipv4(struct iphdr *ip, __u8 protocol, __u16 len, struct flow flow)
{
	__u32 source = flow.source, destination = flow.destination;
	__u32 sum = 0x4500 + len + 0x4000 + (TTL << 8 | protocol);

	sum += (source >> 16) + (source & 0xffff) + (destination >> 16) + (destination & 0xffff);
	store(ip, 0, bpf_htonl(0x45000000 | len));
	store(ip, 1, bpf_htonl(0x4000));
	store(ip, 2, bpf_htonl((__u32)TTL << 24 | (__u32)protocol << 16 | (__u16)~fold(sum)));
	store(ip, 3, bpf_htonl(source));
	store(ip, 4, bpf_htonl(destination));
}

static __always_inline void write_packet(struct packet *packet, struct flow flow, __u64 seq,
					 __u64 now)
{
	write_ipv4(&packet->ip, IPPROTO_UDP, LENGTH, flow);
	write_udp(&packet->udp, &packet->payload, flow.source_port, flow.destination_port,
		  LENGTH - sizeof(packet->ip), seq, now);
}

/* A SYN, or the next segment of a flow that pushes its data, and has the widest window. The segments that a flow has
 * sent stay within that window for a quarter of an hour: it is 1 GiB wide with the highest scale. */
static __always_inline void write_packet_tcp(struct packet_tcp *packet, struct flow flow, __u64 seq,
					     __u64 now)
{
	__u32 round = seq >> FLOW_BITS;
	int is_syn = ADDRESSES == SYN;

	write_ipv4(&packet->ip, IPPROTO_TCP, sizeof(*packet), flow);
	store(&packet->tcp, 0, bpf_htonl((__u32)flow.source_port << 16 | flow.destination_port));
	store(&packet->tcp, 1, bpf_htonl(FIRST_SEQ + round * sizeof(packet->payload)));
	store(&packet->tcp, 2, bpf_htonl(!is_syn));
	store(&packet->tcp, 3, bpf_htonl((is_syn ? 0x50020000 : 0x50180000) | 0xffff));
	store(&packet->tcp, 4, 0);
	write_payload(&packet->payload, seq, now);
	packet->tcp.check = ~sum_tcp(packet);
}

/* UDP over IPv6 has a checksum; no router looks at it. */
static __always_inline void write_packet6(struct packet6 *packet, const struct address *to,
					  __u64 seq, __u64 now)
{
	__u32 *source = packet->ip.saddr.in6_u.u6_addr32, *destination = packet->ip.daddr.in6_u.u6_addr32;
	__u16 len = sizeof(*packet) - sizeof(packet->ip);
	int i;

	*(__be32 *)&packet->ip = bpf_htonl(0x60000000);
	packet->ip.payload_len = bpf_htons(len);
	packet->ip.nexthdr = IPPROTO_UDP;
	packet->ip.hop_limit = TTL;
	/* 2001:2::/48 is the network for benchmarks (RFC 5180). */
	source[0] = bpf_htonl(0x20010002);
	source[1] = 0;
	source[2] = 0;
	source[3] = bpf_htonl(1);
	for (i = 0; i < 4; i++)
		destination[i] = to->words[i];
	write_udp(&packet->udp, &packet->payload, 1024, PORT, len, seq, now);
}

/* Writes what follows the Ethernet header and its tag. Returns whether it fits. */
static __always_inline int write_ip(void *at, void *end, __u64 seq, __u64 now)
{
	__u32 number = seq & FLOW_MASK;
	struct address *to = 0;
	struct flow flow;

	if (ADDRESSES == TO_IPV4 || ADDRESSES == TO_IPV6) {
		to = bpf_map_lookup_elem(&destinations, &number);
		if (!to)
			return 0;
	}
	if (ADDRESSES == TO_IPV6) {
		if (at + sizeof(struct packet6) > end || !to)
			return 0;
		write_packet6(at, to, seq, now);
		return 1;
	}
	if (ADDRESSES == TCP_IN_TURN || ADDRESSES == SYN) {
		if (at + sizeof(struct packet_tcp) > end)
			return 0;
		write_packet_tcp(at, ADDRESSES == SYN ? random_flow(seq) : flow_in_turn(seq), seq, now);
		return 1;
	}
	if (at + sizeof(struct packet) > end)
		return 0;
	flow = ADDRESSES == RANDOM ? random_flow(seq) : flow_in_turn(seq);
	if (to)
		flow = (struct flow){0xc6120000, bpf_ntohl(to->words[0]), 1024, PORT};
	write_packet(at, flow, seq, now);
	return 1;
}

SEC("xdp")
int generator(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct tag *tag = (void *)(eth + 1);
	__be16 protocol = bpf_htons(ADDRESSES == TO_IPV6 ? ETH_P_IPV6 : ETH_P_IP);
	struct progress *at;
	__u32 zero = 0;
	__u64 now = 0;
	int i;

	at = bpf_map_lookup_elem(&progress, &zero);
	if (!at)
		return XDP_DROP;
	if (NS_PER_1024) {
		now = bpf_ktime_get_ns();
		if (!due(&at->start_ns, at->sent, now))
			return XDP_DROP;
		at->last_ns = now;
	}
	if ((void *)(tag + 1) > end)
		return XDP_DROP;
	if (ADDRESSES == BRIDGED)
		write_hosts(eth, at->sent & FLOW_MASK);
	else
		for (i = 0; i < 3; i++)
			store(eth, i, ETHERNET[i]);
	eth->h_proto = protocol;
	if (VID) {
		eth->h_proto = bpf_htons(ETH_P_8021Q);
		tag->tci = bpf_htons(VID);
		tag->inner = protocol;
	}
	if (!write_ip(VID ? (void *)(tag + 1) : (void *)tag, end, at->sent, now))
		return XDP_DROP;
	at->sent++;
	return bpf_redirect_map(&out, 0, 0);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
