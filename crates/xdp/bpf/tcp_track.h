/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Follows the windows of TCP connections whose packets the kernel does not see, as connection tracking does
 * (`tcp_in_window` and `nf_conntrack_tcp_packet` of net/netfilter/nf_conntrack_proto_tcp.c, Linux 6.18).
 *
 * A connection has one track for both directions. It begins with the kernel's own numbers, which a packet makes the
 * program read (conntrack.h). From then on the kernel's numbers stand still, so user space makes the kernel's entry
 * liberal: it takes whatever comes back to it. What is out of window, only the track knows.
 */
#ifndef TOLLWAY_TCP_TRACK_H
#define TOLLWAY_TCP_TRACK_H

#include "conntrack.h"

/* Of the flags of a side, beside the kernel's: a packet of it came here. */
#define SIDE_FOLLOWED 0x80

/* Values of `phase`; below these, for how many ticks the kernel's numbers are still merged. */
#define TRACK_UNREAD 255
#define TRACK_CLOSED 254
/*
 * Packets that were in the kernel when the track began have changed the kernel's numbers afterwards. Not for longer than
 * a quarter of a second: numbers that stand still look newer once the connection has sent 2 GB.
 */
#define TRACK_MERGES 4

/* A cache line, as in src/connections/tracks.rs. */
struct tcp_track {
	__u32 lock; /* TRACK_LOCKED while somebody changes the track, or else 0 */
	struct tcp_side sides[2];
	__u8 scales; /* four bits for each direction */
	__u8 has_missed; /* a packet went past, as it got no lock */
	__u8 flags[2];
	/* The last packet without SYN, FIN and RST. */
	__u32 last_seq, last_ack, last_end;
	__u16 last_win;
	__u8 last_way;
	__u8 retrans;
	__u32 tick; /* of the last packet */
	__u16 version; /* changes when another connection gets the track */
	__u8 phase;
	__u8 strays; /* packets in a row that were invalid, four bits for each direction */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tcp_track);
} tcp_tracks SEC(".maps");

/* An entry's reference to a track: its index, its version, and the highest bit for replies. */
#define TRACK_INDEX_BITS 22
#define TRACK_VERSIONS 511

/*
 * A lock of our own, which user space takes as well: that of the kernel (bpf_spin_lock) is two calls, and keeps interrupts
 * away. A packet looks so often at a lock that somebody else has, for some microseconds, and then goes past.
 */
#define TRACK_LOCKED 1
#define LOCK_TURNS 256

/* After so many invalid packets of a direction in a row, the track has missed something, and starts over. */
#define MOST_STRAYS 3

/* A packet of TCP, in host byte order. */
struct segment {
	__u32 track; /* the entry's reference */
	__u32 way; /* 0 for the direction of the first packet, 1 for replies */
	__u32 seq, end, ack, sack;
	__u32 tick, unserved; /* now, and when packets were last not looked at */
	__u16 win;
	__u8 bits; /* TCP_*, without PSH, ECE and CWR */
	__u8 settings; /* as in `struct state` */
	__u16 check; /* its checksum, as it is there */
	/* What follow_segment() finds. */
	__u32 room; /* the window, scaled */
	__u8 is_old, is_late, is_taken;
};

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10
#define TCP_URG 0x20

/* What becomes of a packet of TCP. */
enum tcp_verdict {
	TCP_STALE, /* there is no track of this connection */
	TCP_MISSED, /* nobody has looked at the packet; the kernel forwards it */
	TCP_GOES_ON,
	TCP_ENDS, /* the kernel's, with everything that follows */
	TCP_NEAR_RESET, /* goes on; the connection has little time left unless packets follow */
	TCP_INVALID,
};

static __always_inline int is_before(__u32 seq, __u32 other)
{
	return (__s32)(seq - other) < 0;
}

static __always_inline int is_after(__u32 seq, __u32 other)
{
	return is_before(other, seq);
}

static __always_inline void raise(__u32 *number, __u32 other)
{
	if (is_after(other, *number))
		*number = other;
}

/*
 * Says whether the kernel's entry takes whatever comes back to it, and judges no RST, and no timeout, by what it knew.
 */
static __always_inline int is_handed_over(const struct tcp_windows *windows)
{
	__u8 both = windows->flags[0] & windows->flags[1], any = windows->flags[0] | windows->flags[1];

	return both & SIDE_LIBERAL && !(any & (SIDE_MAX_ACK | SIDE_UNACKNOWLEDGED));
}

/* Begins a track with the kernel's numbers. */
static __always_inline void begin_side(struct tcp_track *track, const struct tcp_windows *windows, __u32 way)
{
	struct tcp_side *side = &track->sides[way];
	const struct tcp_side *known = &windows->sides[way];
	__u8 liberal = track->flags[way] & SIDE_LIBERAL, flags = windows->flags[way] & SIDE_OF_KERNEL;

	side->end = known->end;
	side->maxend = known->maxend;
	side->maxwin = known->maxwin;
	side->maxack = known->maxack;
	track->scales = (track->scales & 0xf0 >> 4 * way) | (windows->scales[way] & 15) << 4 * way;
	/* User space may have taken the flag away already. */
	if (!liberal && known->maxack)
		flags |= SIDE_MAX_ACK;
	track->flags[way] = (flags & ~SIDE_LIBERAL) | liberal;
}

static __always_inline void merge_side(struct tcp_track *track, const struct tcp_windows *windows, __u32 way)
{
	struct tcp_side *side = &track->sides[way];
	const struct tcp_side *known = &windows->sides[way];

	raise(&side->end, known->end);
	raise(&side->maxend, known->maxend);
	if (side->maxwin < known->maxwin)
		side->maxwin = known->maxwin;
	if (windows->flags[way] & SIDE_MAX_ACK)
		raise(&side->maxack, known->maxack);
}

static __always_inline void merge(struct tcp_track *track, const struct tcp_windows *windows)
{
	if (track->phase == TRACK_UNREAD) {
		begin_side(track, windows, 0);
		begin_side(track, windows, 1);
		track->phase = TRACK_MERGES;
	} else if (track->phase && track->phase <= TRACK_MERGES) {
		merge_side(track, windows, 0);
		merge_side(track, windows, 1);
	}
}

/* Takes note of the time of a packet. */
static __always_inline void note_time(struct tcp_track *track, __u32 tick)
{
	__u32 passed = tick - track->tick;

	if (track->phase <= TRACK_MERGES)
		track->phase = track->phase > passed ? track->phase - passed : 0;
	track->tick = tick;
}

/* Learns the windows from the next packets, as of a connection that the kernel picks up. */
static __always_inline void learn(struct tcp_track *track)
{
	track->sides[0].maxwin = 0;
	track->sides[1].maxwin = 0;
	track->phase = 0;
}

/* Packets went past the program: learns again, and judges when it has seen both sides. */
static __always_inline void restart(struct tcp_track *track)
{
	learn(track);
	track->flags[0] &= ~SIDE_FOLLOWED;
	track->flags[1] &= ~SIDE_FOLLOWED;
	track->strays = 0;
	track->has_missed = 0;
}

/* Nobody knows why packets are missing, nor whether more will be: nothing is out of window any more. */
static __always_inline void forget(struct tcp_track *track)
{
	restart(track);
	track->flags[0] = (track->flags[0] | SIDE_LIBERAL) & ~SIDE_MAX_ACK;
	track->flags[1] = (track->flags[1] | SIDE_LIBERAL) & ~SIDE_MAX_ACK;
}

/*
 * What the windows say about a packet: TCP_INVALID if it is out of them. `is_taken` if it counts. Numbers stay in the
 * segment, and not on the stack, which has no room for them.
 */
static __always_inline int in_window(struct tcp_track *track, struct segment *segment)
{
	__u32 way = segment->way & 1, back = way ^ 1;
	struct tcp_side *sender = &track->sides[way], *receiver = &track->sides[back];

	if (!(track->flags[back] & SIDE_SACK))
		segment->sack = segment->ack;
	segment->room = segment->win << (track->scales >> 4 * way & 15);
	if (!sender->maxwin) {
		sender->end = segment->end;
		sender->maxwin = segment->room + !segment->room;
		sender->maxend = segment->end + sender->maxwin;
		if (!receiver->maxwin)
			receiver->end = receiver->maxend = segment->sack;
		else if (segment->sack == receiver->end + 1)
			receiver->end++;
	}
	if (!(segment->bits & TCP_ACK) || (segment->bits & TCP_RST && !segment->ack))
		segment->ack = segment->sack = receiver->end;
	segment->is_late = !is_after(segment->sack,
				     receiver->end - (sender->maxwin > 66000 ? sender->maxwin : 66000) - 1);
	segment->is_old = !is_after(segment->end, sender->end - receiver->maxwin - 1);
	if (!is_before(segment->seq, sender->maxend + 1)) {
		if (!receiver->maxwin || segment->is_old || segment->is_late ||
		    segment->end - sender->maxend + 1 > receiver->maxwin ||
		    !is_before(segment->sack, receiver->end + 1))
			return TCP_INVALID;
		/* More than the receiver allowed, by not too much. */
		sender->end = segment->end;
		track->flags[way] |= SIDE_UNACKNOWLEDGED;
		return TCP_GOES_ON;
	}
	if (!is_before(segment->sack, receiver->end + 1))
		return TCP_INVALID;
	/* Sent again, or late. */
	if ((receiver->maxwin && segment->is_old) || segment->is_late)
		return TCP_GOES_ON;
	segment->is_taken = 1;
	if (sender->maxwin < segment->room + (segment->sack - segment->ack))
		sender->maxwin = segment->room + (segment->sack - segment->ack);
	if (is_after(segment->end, sender->end)) {
		sender->end = segment->end;
		track->flags[way] |= SIDE_UNACKNOWLEDGED;
	}
	if (segment->bits & TCP_ACK) {
		if (!(track->flags[way] & SIDE_MAX_ACK) || is_after(segment->ack, sender->maxack))
			sender->maxack = segment->ack;
		track->flags[way] |= SIDE_MAX_ACK;
	}
	if (receiver->maxwin && is_after(segment->end, sender->maxend))
		receiver->maxwin += segment->end - sender->maxend;
	if (is_after(segment->sack + segment->room, receiver->maxend - 1))
		receiver->maxend = segment->sack + segment->room + !segment->room;
	if (segment->ack == receiver->end)
		track->flags[back] &= ~SIDE_UNACKNOWLEDGED;
	return TCP_GOES_ON;
}

/* Notes a packet without SYN, FIN and RST that counts, and whether it comes again. */
static __always_inline void note_last(struct tcp_track *track, const struct segment *segment)
{
	if (track->last_way == segment->way && track->last_seq == segment->seq && track->last_ack == segment->ack &&
	    track->last_end == segment->end && track->last_win == segment->win) {
		track->retrans += track->retrans < 255;
		return;
	}
	track->last_way = segment->way;
	track->last_seq = segment->seq;
	track->last_ack = segment->ack;
	track->last_end = segment->end;
	track->last_win = segment->win;
	track->retrans = 0;
}

/* What an RST is by its number alone: TCP_ENDS, TCP_NEAR_RESET or TCP_INVALID (RFC 5961, section 3.2). */
static __always_inline int judge_reset(const struct tcp_track *track, const struct segment *segment)
{
	__u32 way = segment->way & 1, back = way ^ 1, maxack = track->sides[back].maxack;

	if (!(track->flags[back] & SIDE_MAX_ACK))
		return TCP_ENDS;
	if (is_before(segment->seq, maxack) && !(segment->settings & TCP_IGNORES_INVALID_RESETS))
		return TCP_INVALID;
	if (segment->seq == maxack || (track->last_way == way && segment->seq == track->last_end))
		return TCP_ENDS;
	return TCP_NEAR_RESET;
}

/* Says whether both sides have been followed: packets of one may come another way. */
static __always_inline int sees_both(const struct tcp_track *track)
{
	return track->flags[0] & track->flags[1] & SIDE_FOLLOWED;
}

static __always_inline int is_strict(const struct tcp_track *track, const struct segment *segment)
{
	return !(segment->settings & TCP_IS_LIBERAL) && !(track->flags[segment->way & 1] & SIDE_LIBERAL);
}

/* Counts an invalid packet. Returns what becomes of it: too many in a row make the track start over. */
static __always_inline int stray(struct tcp_track *track, const struct segment *segment)
{
	__u32 shift = segment->way & 1 ? 4 : 0;

	if (segment->bits & TCP_RST)
		return TCP_INVALID;
	if ((track->strays >> shift & 15) >= MOST_STRAYS) {
		forget(track);
		return TCP_GOES_ON;
	}
	track->strays += 1 << shift;
	return TCP_INVALID;
}

/* What becomes of a packet that the windows say is in, or that nobody finds out of them. */
static __always_inline int accept(struct tcp_track *track, struct segment *segment, int of_reset, int verdict)
{
	track->strays &= segment->way & 1 ? 0x0f : 0xf0;
	if (segment->is_taken && !(segment->bits & (TCP_FIN | TCP_RST)))
		note_last(track, segment);
	/* Liberal: it counts, and changes no number. */
	if (!segment->is_taken && verdict != TCP_INVALID)
		return TCP_GOES_ON;
	if (segment->bits & TCP_FIN)
		of_reset = TCP_ENDS;
	if (of_reset == TCP_ENDS)
		track->phase = TRACK_CLOSED;
	return of_reset;
}

static __always_inline int judge(struct tcp_track *track, struct segment *segment)
{
	int of_reset = TCP_GOES_ON, verdict;

	if (track->has_missed || (__s32)(segment->unserved - track->tick) >= 0)
		restart(track);
	note_time(track, segment->tick);
	track->flags[segment->way & 1] |= SIDE_FOLLOWED;
	segment->is_taken = 0;
	if (segment->bits & TCP_RST)
		of_reset = judge_reset(track, segment);
	verdict = of_reset == TCP_INVALID ? TCP_INVALID : in_window(track, segment);
	if (verdict == TCP_INVALID) {
		if (sees_both(track) && (of_reset == TCP_INVALID || is_strict(track, segment)))
			return stray(track, segment);
		if (!sees_both(track))
			learn(track);
	}
	return accept(track, segment, of_reset, verdict);
}

static __always_inline struct tcp_track *track_of(__u32 reference)
{
	__u32 index = reference & ((1U << TRACK_INDEX_BITS) - 1);

	return bpf_map_lookup_elem(&tcp_tracks, &index);
}

/* Begins to fetch a track from memory: its lock would wait for that, and nothing else could be done meanwhile. */
static __always_inline void fetch_track(__u32 reference)
{
	const struct tcp_track *track = track_of(reference);

	if (track)
		*(volatile const __u16 *)&track->version;
}

/*
 * The track that a connection has if no other one was there first, and as many were in use when it began: by the hash of
 * its original tuple (`home` of src/connections/tracks.rs).
 */
static __always_inline __u32 home_of(__u64 hash, __u32 tracks)
{
	return (hash >> 32) * tracks >> 32;
}

static __always_inline int takes_lock(struct tcp_track *track)
{
	return __sync_val_compare_and_swap(&track->lock, 0, TRACK_LOCKED) == 0;
}

/* Takes the lock of a track that somebody else has just had. Returns 0 if that takes too long. */
__attribute__((noinline)) int waits_for_lock(__u32 reference)
{
	struct tcp_track *track = track_of(reference);

	if (!track)
		return 0;
	for (int i = 0; i < LOCK_TURNS; i++)
		if (!*(volatile __u32 *)&track->lock && takes_lock(track))
			return 1;
	track->has_missed = 1;
	return 0;
}

static __always_inline void unlock(struct tcp_track *track)
{
	/* All that was stored before is seen by who takes the lock next. */
	if (WEAKLY_ORDERED)
		__sync_lock_test_and_set(&track->lock, 0);
	asm volatile("" ::: "memory");
	*(volatile __u32 *)&track->lock = 0;
}

/*
 * Follows a packet; `windows` is what the kernel knows, if it was asked just now (`is_known`). Global, so that the
 * verifier looks at it once.
 */
__attribute__((noinline)) int follow_segment(struct segment *segment, const struct tcp_windows *windows,
					     int is_known)
{
	struct tcp_track *track;
	int verdict = TCP_STALE;

	if (!segment || !windows)
		return TCP_STALE;
	track = track_of(segment->track);
	if (!track)
		return TCP_STALE;
	if (!takes_lock(track) && !waits_for_lock(segment->track))
		return TCP_MISSED;
	asm volatile("" ::: "memory");
	/* No track that was begun has version 0. */
	if (track->version && track->version == (segment->track >> TRACK_INDEX_BITS & TRACK_VERSIONS) &&
	    track->phase != TRACK_CLOSED) {
		if (is_known)
			merge(track, windows);
		if (track->phase == TRACK_UNREAD)
			verdict = TCP_GOES_ON;
		else if (segment->bits & TCP_SYN) {
			track->phase = TRACK_CLOSED;
			verdict = TCP_ENDS;
		} else
			verdict = judge(track, segment);
	}
	unlock(track);
	return verdict;
}

#endif
