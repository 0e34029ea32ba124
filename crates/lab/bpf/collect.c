/* Counts the frames of `tollway lab generate` at their destination and drops them; all else goes on
 * to the host. Counts in the same way as src/generate/track.rs. */
#include "mark.h"

/* Number of runs that each stream follows at once; `streams` has room for them. */
volatile const __u32 RUNS = 1;
/* Selects the frames whose latency is measured; a power of two less one. */
volatile const __u64 LATENCY_MASK = 0;

/* Size of the window of remembered numbers: 2^20 for each stream. */
#define WINDOW_BITS 20
#define WORDS (1 << (WINDOW_BITS - 5))
#define MOST_RUNS 4
/* A run without frames for this long makes room for another. */
#define QUIET_NS 100000000ULL
/* `next` has the run in the bits above the sequence number. */
#define RUN_BITS 56
#define NEXT_MASK ((1ULL << RUN_BITS) - 1)
/* Values of `wanted`: count frames with a mark; those of one run (its number plus 1); all frames. */
#define MARKED 0
#define ALL 257
/* Buckets of a histogram: 64 for each power of two, so that none is wider than 1.6% of its values. */
#define BUCKETS 2304

struct counts {
	__u64 frames;
	__u64 bytes;
	__u64 duplicates;
	__u64 reordered;
	__u64 late;
	__u64 expected;
	__u64 unfollowed;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} wanted SEC(".maps");

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
	__u64 used_ns;
	__u64 next; /* the run, and the number behind the largest that came */
	__u64 words[WORDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, STREAMS);
	__type(key, __u32);
	__type(value, struct stream);
} streams SEC(".maps");

/* The mark of a frame; NULL if it has none. */
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
		/* The generator sends no options and no fragments. */
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

/* The state of a run's stream; NULL if too many runs are active. */
static __always_inline struct stream *stream_of(__u64 run, __u32 number, __u64 now)
{
	struct stream *at, *oldest = 0;
	__u32 key, i;
	__u64 old;

#pragma unroll
	for (i = 0; i < MOST_RUNS; i++) {
		if (i >= RUNS)
			break;
		key = i * STREAMS + number;
		at = bpf_map_lookup_elem(&streams, &key);
		if (!at)
			return 0;
		/* A slot that was never used counts as run 0's with no frames received. */
		if (at->next >> RUN_BITS == run) {
			if (RUNS > 1)
				at->used_ns = now;
			return at;
		}
		if (!oldest || at->used_ns < oldest->used_ns)
			oldest = at;
	}
	if (!oldest)
		return 0;
	if (RUNS > 1 && oldest->used_ns && now < oldest->used_ns + QUIET_NS)
		return 0;
	old = oldest->next;
	/* If another processor was first, it may have taken the slot for the same run. */
	if (__sync_val_compare_and_swap(&oldest->next, old, run << RUN_BITS) != old &&
	    oldest->next >> RUN_BITS != run)
		return 0;
	oldest->used_ns = now;
	return oldest;
}

/* Tracks a stream's sequence numbers. */
static __always_inline void follow(struct counts *count, struct stream *stream, __u64 run, __u64 seq)
{
	__u64 epoch = ((seq >> WINDOW_BITS) + 1) | run << 24, bit = 1ULL << (seq & 31), old, new;
	__u64 *word = &stream->words[(seq >> 5) & (WORDS - 1)];
	int i;

	old = *word;
	if (old >> 32 == epoch) {
		if (__sync_fetch_and_or(word, bit) & bit) {
			count->duplicates++;
			return;
		}
	} else if (old >> 56 != run || old >> 32 < epoch) {
		new = epoch << 32 | bit;
		/* If another processor was first, its word stays, and this adds the bit. */
		if (__sync_val_compare_and_swap(word, old, new) != old)
			__sync_fetch_and_or(word, bit);
	} else {
		count->late++;
	}
	/* Raises the largest number, even if receive queues of several processors race for it. */
	old = stream->next;
	for (i = 0; i < 4; i++) {
		if (old >> RUN_BITS != run)
			return;
		if (seq < (old & NEXT_MASK)) {
			count->reordered++;
			return;
		}
		new = __sync_val_compare_and_swap(&stream->next, old, run << RUN_BITS | (seq + 1));
		if (new == old) {
			count->expected += seq + 1 - (old & NEXT_MASK);
			return;
		}
		old = new;
	}
}

SEC("xdp")
int collect(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u8 *mark = mark_of(data, end);
	__u64 name, run, now = 0, *which;
	struct counts *count;
	struct stream *stream;
	__u32 key = 0, sampled;

	which = bpf_map_lookup_elem(&wanted, &key);
	count = bpf_map_lookup_elem(&counts, &key);
	if (!which || !count)
		return XDP_PASS;
	if (*which == ALL) {
		count->frames++;
		count->bytes += end - data;
		return mark ? XDP_DROP : XDP_PASS;
	}
	if (!mark)
		return XDP_PASS;
	name = bpf_be64_to_cpu(WORD(mark + 2));
	run = name >> 56;
	if (*which != MARKED && *which != run + 1)
		return XDP_DROP;
	count->frames++;
	count->bytes += end - data;
	sampled = !((name & SEQ_MASK) & LATENCY_MASK);
	if (RUNS > 1 || sampled)
		now = bpf_ktime_get_ns();
	if (sampled)
		note_latency(now - bpf_be64_to_cpu(WORD(mark + 10)));
	stream = stream_of(run, (name >> SEQ_BITS) & (STREAMS - 1), now);
	if (stream)
		follow(count, stream, run, name & SEQ_MASK);
	else
		count->unfollowed++;
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
