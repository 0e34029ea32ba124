/* Sends the frames of `tollway lab generate`. The start of each frame (its head) is built in
 * advance; the program writes sequence number and time after it.
 *
 * BPF_PROG_TEST_RUN runs it with live frames, as generator.c: each call receives a page, writes a
 * frame and redirects it. If no frame is due yet, it drops the page, which returns it. A signal
 * ends the program. */
#include "mark.h"
#include "out.h"
#include "pace.h"

/* Number of frames to send; 0 for no limit. */
volatile const __u64 COUNT = 0;
/* Without a rate, the program reads the clock only for frames whose number has none of these bits.
 * A power of two minus one. */
volatile const __u64 CLOCK_MASK = 0;
/* Run and stream, as in a mark. */
volatile const __u64 ORIGIN = 0;
volatile const __u32 FLOWS = 1;
volatile const __u32 SIZES = 1;
/* The sequence of sizes and its length. */
volatile const __u8 ORDER[256] = {};
volatile const __u32 ORDER_LEN = 1;
/* Bytes of the longest frame; every page initially has this length. */
volatile const __u32 LONGEST = 60;
/* Bytes to copy of a head, a multiple of 8. */
volatile const __u32 COPY = 48;
/* Offset of the mark in the frame. */
volatile const __u32 MARK_AT = 42;
/* Whether UDP has a checksum. */
volatile const __u8 CHECKSUM = 0;
/* Whether the heads are complete frames, which get neither number nor time. */
volatile const __u8 PLAIN = 0;

#define HEAD 80

struct head {
	__u8 bytes[HEAD];
	__u32 len;
	__u32 padding;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct head);
} heads SEC(".maps");

struct progress {
	__u64 sent;
	__u64 start_ns; /* moves forward by the time that the generator lost */
	__u64 first_ns;
	__u64 last_ns;
	__u64 bytes;
	__u64 now_ns;
	__u32 flow;
	__u32 position;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct progress);
} progress SEC(".maps");

/* Completes the checksum: adds the two words that change, in memory order, to the sum of the
 * constant part. */
static __always_inline __u16 finish(__u16 constant, __u64 id, __u64 time)
{
	__u64 sum = constant + (id >> 32) + (__u32)id + (time >> 32) + (__u32)time;

	sum = (sum >> 32) + (__u32)sum;
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	return (__u16)~sum ? (__u16)~sum : 0xffff;
}

/* The next frame's head; advances to the one after it. */
static __always_inline struct head *next(struct progress *at)
{
	__u32 key = at->flow;

	if (SIZES > 1) {
		key = key * SIZES + ORDER[at->position & 255];
		at->position = at->position + 1 >= ORDER_LEN ? 0 : at->position + 1;
	}
	if (FLOWS > 1)
		at->flow = at->flow + 1 >= FLOWS ? 0 : at->flow + 1;
	return bpf_map_lookup_elem(&heads, &key);
}

SEC("xdp")
int traffic(struct xdp_md *ctx)
{
	__u32 zero = 0, i, len = LONGEST;
	struct progress *at;
	struct head *head;
	__u64 id, time;
	void *data, *end;

	at = bpf_map_lookup_elem(&progress, &zero);
	if (!at || (COUNT && at->sent >= COUNT))
		return XDP_DROP;
	if (NS_PER_1024 || !(at->sent & CLOCK_MASK))
		at->now_ns = bpf_ktime_get_ns();
	if (NS_PER_1024 && !due(&at->start_ns, at->sent, at->now_ns))
		return XDP_DROP;
	if (!at->sent)
		at->first_ns = at->now_ns;
	at->last_ns = at->now_ns;
	head = next(at);
	if (!head)
		return XDP_DROP;
	if (SIZES > 1) {
		len = head->len;
		if (len < LONGEST && bpf_xdp_adjust_tail(ctx, (int)(len - LONGEST)))
			return XDP_DROP;
	}
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (data + COPY > end || data + MARK_AT + MARK_LEN > end)
		return XDP_DROP;
	/* Copies the whole head, because a page returns as the last hop changed it. */
#pragma unroll
	for (i = 0; i < HEAD; i += 8)
		if (i < COPY)
			WORD(data + i) = WORD(head->bytes + i);
	if (PLAIN) {
		at->sent++;
		at->bytes += len;
		return bpf_redirect_map(&out, 0, 0);
	}
	id = bpf_cpu_to_be64(ORIGIN | (at->sent & SEQ_MASK));
	time = bpf_cpu_to_be64(at->now_ns);
	WORD(data + MARK_AT + 2) = id;
	WORD(data + MARK_AT + 10) = time;
	if (CHECKSUM) {
		__u16 *field = data + MARK_AT - 2;
		*field = finish(*field, id, time);
	}
	at->sent++;
	at->bytes += len;
	return bpf_redirect_map(&out, 0, 0);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
