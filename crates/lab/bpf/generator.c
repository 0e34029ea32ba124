/* Sends frames of N flows at a fixed rate, or as fast as it can.
 *
 * BPF_PROG_TEST_RUN runs it with live frames: each call receives a page, writes a frame and
 * redirects it. If no frame is due yet, it drops the page instead. This returns the page, and the
 * kernel meanwhile forwards what was sent. A signal ends the program. */
#include "frame.h"
#include "pace.h"

volatile const __u32 OUT_IFINDEX = 0;
/* Number of flows less one; a power of two less one. */
volatile const __u32 FLOW_MASK = 0;
/* The VLAN that frames are tagged with; 0 for none. */
volatile const __u16 VID = 0;
volatile const __u16 SOURCE[3] = {};
volatile const __u16 DESTINATION[3] = {};
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

/* Writes every byte each time: a page returns in the state in which the last hop left it. */
static __always_inline void write_packet(struct packet *packet, __u64 seq, __u64 now)
{
	__u32 flow = seq & FLOW_MASK;
	/* 198.18.0.0/15 is the network for benchmarks (RFC 2544). */
	__u32 source = 0xc6120000 + (flow & 0xff);
	__u32 destination = 0xc6130000 + (STREAM << 8) + (flow >> 8 & 0xff);
	__u32 sum = 0x4500 + LENGTH + 0x4000 + (TTL << 8 | IPPROTO_UDP);

	sum += (source >> 16) + (source & 0xffff) + (destination >> 16) + (destination & 0xffff);
	packet->ip.version = 4;
	packet->ip.ihl = 5;
	packet->ip.tos = 0;
	packet->ip.tot_len = bpf_htons(LENGTH);
	packet->ip.id = 0;
	packet->ip.frag_off = bpf_htons(0x4000);
	packet->ip.ttl = TTL;
	packet->ip.protocol = IPPROTO_UDP;
	packet->ip.check = bpf_htons(~fold(sum));
	packet->ip.saddr = bpf_htonl(source);
	packet->ip.daddr = bpf_htonl(destination);
	packet->udp.source = bpf_htons(1024 + (flow >> 16));
	packet->udp.dest = bpf_htons(PORT);
	packet->udp.len = bpf_htons(LENGTH - sizeof(packet->ip));
	packet->udp.check = 0;
	packet->payload.magic = MAGIC;
	packet->payload.seq = seq;
	packet->payload.sent_ns = now;
	packet->payload.stream = STREAM;
}

SEC("xdp")
int generator(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct packet *packet = (void *)(eth + 1);
	struct tag *tag = (void *)(eth + 1);
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
	if (VID)
		packet = (void *)(tag + 1);
	if ((void *)(tag + 1) > end || (void *)(packet + 1) > end)
		return XDP_DROP;
	for (i = 0; i < 3; i++) {
		((__u16 *)eth->h_dest)[i] = DESTINATION[i];
		((__u16 *)eth->h_source)[i] = SOURCE[i];
	}
	eth->h_proto = bpf_htons(ETH_P_IP);
	if (VID) {
		eth->h_proto = bpf_htons(ETH_P_8021Q);
		tag->tci = bpf_htons(VID);
		tag->inner = bpf_htons(ETH_P_IP);
	}
	write_packet(packet, at->sent, now);
	at->sent++;
	return bpf_redirect(OUT_IFINDEX, 0);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
