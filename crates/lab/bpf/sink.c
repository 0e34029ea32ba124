/* Counts the generator's frames at their destination, checks that they were forwarded correctly,
 * and drops them. All else goes on to the host. */
#include "frame.h"
#include <linux/pkt_cls.h>

/* The destination MAC address and the VLAN tag that the frames must have (0: no tag). */
volatile const __u16 DESTINATION[3] = {};
volatile const __u16 VID = 0;
/* Whether a bridge has forwarded the frames, unchanged, to one of so many hosts less one. */
volatile const __u8 BRIDGED = 0;
volatile const __u32 FLOW_MASK = 0;
/* Whether to track sequence numbers and times. */
volatile const __u8 FOLLOW = 0;
/* Number of sequence numbers that fit into `seen`. */
volatile const __u64 ROOM = 0;

/* Checks the checksums of one frame in 64. A hash selects it, so that all flows have a turn. */
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

/* The tag of a frame, and what follows it. */
struct frame {
	void *data;
	void *ip;
	void *end;
	__u16 vid;
};

/* Says whether a frame is for the host whose turn it was. */
static __always_inline int is_for_host(const void *mac, __u32 number)
{
	return *(const __be16 *)mac == bpf_htons(HOST_MAC) && *(const __be32 *)(mac + 2) == bpf_htonl(RIGHT_HOST(number));
}

/* Counts a frame of the generator. `tcp` is the packet if it is one of TCP. */
static __always_inline void count(const struct frame *frame, const struct payload *payload, __u8 ttl,
				  const struct iphdr *ip, const struct packet_tcp *tcp)
{
	const __u16 *mac = frame->data;
	struct counts *count;
	__u32 zero = 0;
	int i, wrong_mac = 0;

	count = bpf_map_lookup_elem(&counts, &zero);
	if (!count)
		return;
	count->frames++;
	count->bytes += frame->end - frame->data;
	if (payload->stream)
		count->second++;
	if (BRIDGED)
		wrong_mac = !is_for_host(mac, payload->seq & FLOW_MASK);
	else
		for (i = 0; i < 3; i++)
			wrong_mac |= mac[i] ^ DESTINATION[i];
	if (wrong_mac)
		count->wrong_mac++;
	if (frame->vid != VID)
		count->wrong_tag++;
	if (ttl != TTL - !BRIDGED)
		count->wrong_ttl++;
	/* IPv6 has no checksum of its header, and UDP is sent without one. */
	if (ip && SAMPLED(payload->seq) &&
	    (!checksum_is_right(ip) || (tcp && sum_tcp(tcp) != 0xffff)))
		count->wrong_checksum++;
	if (FOLLOW)
		follow(count, payload);
}

static __always_inline int is_ours4(const struct frame *frame)
{
	struct packet *packet = frame->ip;

	if ((void *)(packet + 1) > frame->end || packet->ip.protocol != IPPROTO_UDP ||
	    packet->payload.magic != MAGIC)
		return 0;
	count(frame, &packet->payload, packet->ip.ttl, &packet->ip, 0);
	return 1;
}

static __always_inline int is_ours_tcp(const struct frame *frame)
{
	struct packet_tcp *packet = frame->ip;

	if ((void *)(packet + 1) > frame->end || packet->ip.protocol != IPPROTO_TCP ||
	    packet->payload.magic != MAGIC)
		return 0;
	count(frame, &packet->payload, packet->ip.ttl, &packet->ip, packet);
	return 1;
}

static __always_inline int is_ours6(const struct frame *frame)
{
	struct packet6 *packet = frame->ip;

	if ((void *)(packet + 1) > frame->end || packet->ip.nexthdr != IPPROTO_UDP ||
	    packet->payload.magic != MAGIC)
		return 0;
	count(frame, &packet->payload, packet->ip.hop_limit, 0, 0);
	return 1;
}

/* Counts a frame if the generator sent it, and says whether it did. */
static __always_inline int is_ours(void *data, void *end)
{
	struct ethhdr *eth = data;
	struct tag *tag = (void *)(eth + 1);
	struct frame frame = {data, tag, end, 0};
	__be16 protocol;

	if ((void *)(tag + 1) > end)
		return 0;
	/* The compiler would read a field of the header, which is packed, byte by byte. */
	protocol = *(const __be16 *)(data + 2 * ETH_ALEN);
	if (protocol == bpf_htons(ETH_P_8021Q)) {
		frame.vid = bpf_ntohs(tag->tci) & 0xfff;
		frame.ip = tag + 1;
		protocol = tag->inner;
	}
	if (protocol == bpf_htons(ETH_P_IPV6))
		return is_ours6(&frame);
	return is_ours4(&frame) || is_ours_tcp(&frame);
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
