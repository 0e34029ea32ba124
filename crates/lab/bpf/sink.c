/* Counts the generator's frames at their destination, checks that they were forwarded correctly,
 * and drops them. All else goes on to the host. */
#include "frame.h"
#include <linux/pkt_cls.h>

/* The destination MAC address and the VLAN tag that the frames must have (0: no tag). */
volatile const __u16 DESTINATION[3] = {};
volatile const __u16 VID = 0;
/* Whether to track sequence numbers and times. */
volatile const __u8 FOLLOW = 0;
/* Number of sequence numbers that fit into `seen`. */
volatile const __u64 ROOM = 0;

/* Checks the header checksum of one frame in 64. A hash selects it, so that all flows have a turn. */
#define SAMPLED(seq) ((seq) * 0x9e3779b1U >> 26 == 0)

struct counts {
	__u64 frames;
	__u64 bytes;
	__u64 wrong_mac;
	__u64 wrong_tag;
	__u64 wrong_ttl;
	__u64 wrong_checksum;
	__u64 duplicates;
	__u64 reordered;
	__u64 gap_ns;   /* the longest time without a frame */
	__u64 delay_ns; /* the longest way */
	__u64 second;   /* frames of the second stream */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counts);
} counts SEC(".maps");

/* One bit for each sequence number; the second stream has the upper half. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} seen SEC(".maps");

struct latest {
	__u64 ns;
	__u64 seq;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct latest);
} latest SEC(".maps");

static __always_inline void follow(struct counts *count, const struct payload *payload)
{
	__u64 seq = payload->seq + (payload->stream ? ROOM / 2 : 0);
	__u64 now = bpf_ktime_get_ns(), before, bit = 1ULL << (seq & 63);
	__u32 zero = 0, index = seq >> 6, delay = (__u32)now - payload->sent_ns;
	struct latest *last = bpf_map_lookup_elem(&latest, &zero);
	__u64 *word = bpf_map_lookup_elem(&seen, &index);

	if (!last || !word || seq >= ROOM)
		return;
	if (__sync_fetch_and_or(word, bit) & bit)
		count->duplicates++;
	if (seq < last->seq)
		count->reordered++;
	else
		last->seq = seq;
	before = __sync_lock_test_and_set(&last->ns, now);
	if (before && now > before && now - before > count->gap_ns)
		count->gap_ns = now - before;
	if (delay > count->delay_ns)
		count->delay_ns = delay;
}

static __always_inline int checksum_is_right(const struct iphdr *ip)
{
	const __u16 *words = (const void *)ip;
	__u32 sum = 0;
	int i;

	for (i = 0; i < 10; i++)
		sum += words[i];
	return fold(sum) == 0xffff;
}

/* Counts a frame if the generator sent it, and says whether it did. */
static __always_inline int is_ours(void *data, void *end)
{
	struct ethhdr *eth = data;
	struct packet *packet = (void *)(eth + 1);
	struct tag *tag = (void *)(eth + 1);
	struct counts *count;
	__u32 zero = 0;
	__u16 vid = 0;
	int i, wrong_mac = 0;

	if ((void *)(tag + 1) > end)
		return 0;
	if (eth->h_proto == bpf_htons(ETH_P_8021Q)) {
		vid = bpf_ntohs(tag->tci) & 0xfff;
		packet = (void *)(tag + 1);
	}
	if ((void *)(packet + 1) > end || packet->ip.protocol != IPPROTO_UDP ||
	    packet->udp.dest != bpf_htons(PORT) || packet->payload.magic != MAGIC)
		return 0;
	count = bpf_map_lookup_elem(&counts, &zero);
	if (!count)
		return 1;
	count->frames++;
	count->bytes += end - (void *)eth;
	if (packet->payload.stream)
		count->second++;
	for (i = 0; i < 3; i++)
		wrong_mac |= ((__u16 *)eth->h_dest)[i] ^ DESTINATION[i];
	if (wrong_mac)
		count->wrong_mac++;
	if (vid != VID)
		count->wrong_tag++;
	if (packet->ip.ttl != TTL - 1)
		count->wrong_ttl++;
	if (SAMPLED(packet->payload.seq) && !checksum_is_right(&packet->ip))
		count->wrong_checksum++;
	if (FOLLOW)
		follow(count, &packet->payload);
	return 1;
}

/* Counts before the host processes the frame. */
SEC("xdp")
int sink(struct xdp_md *ctx)
{
	return is_ours((void *)(long)ctx->data, (void *)(long)ctx->data_end) ? XDP_DROP : XDP_PASS;
}

/* Counts as the host receives the frame: a receiver without XDP. */
SEC("classifier")
int sink_tc(struct __sk_buff *skb)
{
	return is_ours((void *)(long)skb->data, (void *)(long)skb->data_end) ? TC_ACT_SHOT : TC_ACT_OK;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
