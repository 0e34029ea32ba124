/* Counts frames of `tollway lab generate` where they arrive, and drops them; all else goes on to the
 * host. Counts as src/generate/track.rs does.
 */
#include "mark.h"

/* Whether only frames of one run count, and which. */
volatile const __u8 ONE_RUN = 0;
volatile const __u8 RUN = 0;
/* Latency is taken of one frame in so many; a power of two less one. */
volatile const __u64 LATENCY_MASK = 0;

/* Numbers that are remembered: 2^20 of each stream. */
#define WINDOW_BITS 20
#define WORDS (1 << (WINDOW_BITS - 5))
/* A histogram's buckets: 64 for each power of two, so that none is wider than 1.6% of its values. */
#define BUCKETS 2304

struct counts {
	__u64 frames;
	__u64 bytes;
	__u64 duplicates;
	__u64 reordered;
	__u64 late;
	__u64 expected;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counts);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BUCKETS);
	__type(key, __u32);
	__type(value, __u64);
} latency SEC(".maps");

struct stream {
	__u64 run; /* the run, plus one */
	__u64 next;
	__u64 words[WORDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, STREAMS);
	__type(key, __u32);
	__type(value, struct stream);
} streams SEC(".maps");

/* The mark of a frame; NULL where it has none. */
static __always_inline __u8 *mark_of(__u8 *at, __u8 *end)
{
	__u16 type;
	int i;

	at += 12;
#pragma unroll
	for (i = 0; i < 2; i++) {
		if (at + 2 > end)
			return 0;
		type = *(__be16 *)at;
		if (type == bpf_htons(ETH_P_8021Q) || type == bpf_htons(ETH_P_8021AD))
			at += 4;
	}
	if (at + 2 + 20 > end)
		return 0;
	type = *(__be16 *)at;
	at += 2;
	if (type == bpf_htons(ETH_P_IP)) {
		/* Without options and fragments, as it was sent. */
		if (at[0] != 0x45 || at[9] != IPPROTO_UDP || *(__be16 *)(at + 6) & bpf_htons(0x3fff))
			return 0;
		at += 28;
	} else if (type == bpf_htons(ETH_P_IPV6)) {
		if (at[6] != IPPROTO_UDP)
			return 0;
		at += 48;
	} else {
		return 0;
	}
	if (at + MARK_LEN > end || *(__be16 *)at != bpf_htons(MARK_MAGIC))
		return 0;
	return at;
}

static __always_inline __u32 log2_of(__u64 value)
{
	__u32 log = 0;

	if (value >> 32) { value >>= 32; log += 32; }
	if (value >> 16) { value >>= 16; log += 16; }
	if (value >> 8) { value >>= 8; log += 8; }
	if (value >> 4) { value >>= 4; log += 4; }
	if (value >> 2) { value >>= 2; log += 2; }
	return log + (value >> 1);
}

static __always_inline void note_latency(__u64 ns)
{
	__u32 key = ns, log;
	__u64 *bucket;

	if (ns >= 64) {
		log = log2_of(ns);
		key = (log - 5) * 64 + ((ns >> (log - 6)) & 63);
	}
	if (key >= BUCKETS)
		key = BUCKETS - 1;
	bucket = bpf_map_lookup_elem(&latency, &key);
	if (bucket)
		*bucket += 1;
}

/* Follows a stream's numbers. */
static __always_inline void follow(struct counts *count, struct stream *stream, __u64 run, __u64 seq)
{
	__u64 epoch = ((seq >> WINDOW_BITS) + 1) | run << 24, bit = 1ULL << (seq & 31), old, new;
	__u64 *word = &stream->words[(seq >> 5) & (WORDS - 1)];

	if (stream->run != run + 1) {
		stream->run = run + 1;
		stream->next = 0;
	}
	old = *word;
	if (old >> 32 == epoch) {
		if (__sync_fetch_and_or(word, bit) & bit) {
			count->duplicates++;
			return;
		}
	} else if (old >> 56 != run || old >> 32 < epoch) {
		new = epoch << 32 | bit;
		/* Where another processor was first, its word stands and takes the bit. */
		if (__sync_val_compare_and_swap(word, old, new) != old)
			__sync_fetch_and_or(word, bit);
	} else {
		count->late++;
	}
	if (seq < stream->next) {
		count->reordered++;
	} else {
		count->expected += seq + 1 - stream->next;
		stream->next = seq + 1;
	}
}

SEC("xdp")
int collect(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u8 *mark = mark_of(data, end);
	struct counts *count;
	struct stream *stream;
	__u64 name, run;
	__u32 key = 0;

	if (!mark)
		return XDP_PASS;
	count = bpf_map_lookup_elem(&counts, &key);
	if (!count)
		return XDP_DROP;
	name = bpf_be64_to_cpu(WORD(mark + 2));
	run = name >> 56;
	if (ONE_RUN && run != RUN)
		return XDP_DROP;
	count->frames++;
	count->bytes += end - data;
	if (!((name & SEQ_MASK) & LATENCY_MASK))
		note_latency(bpf_ktime_get_ns() - bpf_be64_to_cpu(WORD(mark + 10)));
	key = (name >> SEQ_BITS) & (STREAMS - 1);
	stream = bpf_map_lookup_elem(&streams, &key);
	if (stream)
		follow(count, stream, run, name & SEQ_MASK);
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
