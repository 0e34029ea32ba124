/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The kernel's own entry of a connection, by its functions for BPF (net/netfilter/nf_conntrack_bpf.c). The
 * loader knows no calls of such functions, so src/kfuncs.rs writes them into the compiled object, or "there is
 * no entry" where the kernel has no such functions.
 */
#ifndef TOLLWAY_CONNTRACK_H
#define TOLLWAY_CONNTRACK_H

#include <linux/in.h>

#include "header.h"
#include "packet.h"

/* As in src/kfuncs.rs: what stands for the number of a function. */
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define KFUNC(number) ".byte 0x85, 0x20, 0, 0, " #number ", 0x6c, 0x6c, 0x74\n"
#else
#define KFUNC(number) ".byte 0x85, 0x02, 0, 0, 0x74, 0x6c, 0x6c, " #number "\n"
#endif
#define KFUNC_LOOKUP KFUNC(1)
#define KFUNC_RELEASE KFUNC(2)
#define KFUNC_CHANGE_TIMEOUT KFUNC(3)

#define RELOCATED __attribute__((preserve_access_index))

/* What is read of the kernel's structures; the loader finds where it lies. */
union nf_inet_addr {
	__be32 ip;
	__be32 ip6[4];
} RELOCATED;

union nf_conntrack_man_proto {
	__be16 all;
} RELOCATED;

struct nf_conntrack_man {
	union nf_inet_addr u3;
	union nf_conntrack_man_proto u;
} RELOCATED;

struct nf_conntrack_tuple {
	struct nf_conntrack_man src;
	struct {
		union nf_inet_addr u3;
		union {
			__be16 all;
		} u;
	} dst;
} RELOCATED;

struct nf_conntrack_tuple_hash {
	struct nf_conntrack_tuple tuple;
} RELOCATED;

struct ip_ct_tcp_state {
	__u32 td_end, td_maxend, td_maxwin, td_maxack;
	__u8 td_scale, flags;
} RELOCATED;

struct ip_ct_tcp {
	struct ip_ct_tcp_state seen[2];
	__u8 state;
} RELOCATED;

union nf_conntrack_proto {
	struct ip_ct_tcp tcp;
} RELOCATED;

struct nf_conn {
	struct nf_conntrack_tuple_hash tuplehash[2];
	unsigned long status;
	__u32 mark;
	union nf_conntrack_proto proto;
} RELOCATED;

/* `struct bpf_ct_opts`, as the first kernels that have the functions know it. */
struct ct_options {
	__s32 netns_id; /* -1: that of the device */
	__s32 error;
	__u8 protocol;
	__u8 direction;
	__u8 reserved[2];
};

/* Bits of `status` (`enum ip_conntrack_status`) that an entry must have, and must not have. */
#define CT_ASSURED (1 << 2)
#define CT_CONFIRMED (1 << 3)
#define CT_SEQ_ADJUST (1 << 6)
#define CT_DYING (1 << 9)
#define CT_FIXED_TIMEOUT (1 << 10)
#define CT_TEMPLATE (1 << 11)
#define CT_NAT_CLASH (1 << 12)
#define CT_HELPER (1 << 13)
#define CT_OFFLOAD (1 << 14)
#define CT_NEEDED (CT_ASSURED | CT_CONFIRMED)
#define CT_REFUSED                                                                                 \
	(CT_SEQ_ADJUST | CT_DYING | CT_FIXED_TIMEOUT | CT_TEMPLATE | CT_NAT_CLASH | CT_HELPER |    \
	 CT_OFFLOAD)

/* `TCP_CONNTRACK_ESTABLISHED`. */
#define CT_ESTABLISHED 3

/* Bits of the flags of one side (`IP_CT_TCP_FLAG_*`). */
#define SIDE_SACK 0x02 /* takes selective acknowledgements */
#define SIDE_LIBERAL 0x08 /* its packets are never out of window */
#define SIDE_UNACKNOWLEDGED 0x10 /* has sent data that is not acknowledged */
#define SIDE_MAX_ACK 0x20 /* `maxack` is known */
#define SIDE_OF_KERNEL 0x3f

/* Numbers of one side of a connection of TCP (`struct ip_ct_tcp_state`). */
struct tcp_side {
	__u32 end; /* what follows the last byte that it has sent */
	__u32 maxend; /* what it may send at most */
	__u32 maxwin; /* its largest window; 0 if nothing is known of it */
	__u32 maxack; /* the last byte that it has acknowledged */
};

/* What the kernel knows of a connection of TCP. */
struct tcp_windows {
	struct tcp_side sides[2]; /* as `enum ip_conntrack_dir` */
	__u8 scales[2];
	__u8 flags[2];
};

/* What the kernel's entry has to be, and becomes. */
struct ct_terms {
	__u32 mark;
	__u32 timeout_ms; /* it has so long to live after this packet */
	__u32 protocol;
};

/* An IPv4 packet's tuple as it arrives and as it leaves. */
struct ct_expected4 {
	__be32 src, dst, ports;
	__be32 new_src, new_dst, new_ports;
	struct ct_terms terms;
};

/* Looks an entry up by a tuple of `len` bytes, by which the kernel knows the family. */
static __always_inline struct nf_conn *ct_lookup(context *ctx, struct bpf_sock_tuple *tuple, const int len,
						 struct ct_options *options)
{
	struct nf_conn *ct;

	asm volatile("r1 = %[ctx]\n"
		     "r2 = %[tuple]\n"
		     "r3 = %[len]\n"
		     "r4 = %[options]\n"
		     "r5 = 12\n" KFUNC_LOOKUP "%[ct] = r0\n"
		     : [ct] "=r"(ct)
		     : [ctx] "r"(ctx), [tuple] "r"(tuple), [len] "i"(len), [options] "r"(options)
		     : "r0", "r1", "r2", "r3", "r4", "r5", "memory");
	return ct;
}

static __always_inline void ct_release(struct nf_conn *ct)
{
	asm volatile("r1 = %[ct]\n" KFUNC_RELEASE
		     :
		     : [ct] "r"(ct)
		     : "r0", "r1", "r2", "r3", "r4", "r5", "memory");
}

static __always_inline void ct_change_timeout(struct nf_conn *ct, __u32 timeout_ms)
{
	asm volatile("r1 = %[ct]\n"
		     "r2 = %[timeout]\n" KFUNC_CHANGE_TIMEOUT
		     :
		     : [ct] "r"(ct), [timeout] "r"((__u64)timeout_ms)
		     : "r0", "r1", "r2", "r3", "r4", "r5", "memory");
}

/* The ports of a packet that a tuple's packets answer, as in its header. */
static __always_inline __be32 ct_answered_ports(const struct nf_conntrack_tuple *other)
{
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
	return (__u32)other->dst.u.all << 16 | other->src.u.all;
#endif
	return (__u32)other->dst.u.all | (__u32)other->src.u.all << 16;
}

/* Says whether the other direction's tuple answers packets that leave with these addresses and ports. */
static __always_inline int ct_answers4(const struct nf_conntrack_tuple *other, const struct ct_expected4 *expected)
{
	return other->src.u3.ip == expected->new_dst && other->dst.u3.ip == expected->new_src &&
	       ct_answered_ports(other) == expected->new_ports;
}

/* The compiler must see which word of the kernel's it is. */
#define DIFFERENCE6(address, other)                                                                \
	(((address).ip6[0] ^ (other)[0]) | ((address).ip6[1] ^ (other)[1]) |                       \
	 ((address).ip6[2] ^ (other)[2]) | ((address).ip6[3] ^ (other)[3]))

/* The same of IPv6. */
static __always_inline int ct_answers6(const struct nf_conntrack_tuple *other, const struct translation6 *leaves)
{
	return !(DIFFERENCE6(other->src.u3, leaves->dst) | DIFFERENCE6(other->dst.u3, leaves->src)) &&
	       ct_answered_ports(other) == leaves->ports;
}

static __always_inline int ct_qualifies(const struct nf_conn *ct)
{
	__u32 status = ct->status;

	return (status & CT_NEEDED) == CT_NEEDED && !(status & CT_REFUSED);
}

static __always_inline int ct_has_mark(const struct nf_conn *ct, __u32 mark)
{
	/* A kernel may have no marks (`BPF_FIELD_EXISTS`). */
	return __builtin_preserve_field_info(ct->mark, 2) ? ct->mark == mark : !mark;
}

/* What the kernel has of a connection. */
enum ct_answer {
	CT_GONE, /* nothing, or another one, or one that is not to be forwarded any more */
	CT_ALIVE,
	CT_MARKED, /* the same, with another mark */
};

/* `struct ip_ct_tcp_state` as all kernels have it. */
struct raw_side {
	struct tcp_side numbers;
	__u8 scale, flags;
	__u8 pad[2];
};

/* Where a field lies in the kernel's structure (`BPF_FIELD_BYTE_OFFSET`). */
#define OFFSET(field) __builtin_preserve_field_info(field, 0)

/* Copies one side's numbers. Returns 0 if they are not what they were in all kernels. */
static __always_inline int read_side(const struct ip_ct_tcp_state *from, struct tcp_windows *windows, __u32 way)
{
	struct raw_side side;

	if (OFFSET(from->flags) - OFFSET(from->td_end) != __builtin_offsetof(struct raw_side, flags) ||
	    bpf_probe_read_kernel(&side, sizeof(side), from))
		return 0;
	windows->sides[way] = side.numbers;
	windows->scales[way] = side.scale;
	windows->flags[way] = side.flags;
	return 1;
}

/*
 * Reads the windows of an established connection of TCP; returns 0 for one in another state. What is of a protocol lies in
 * a union, of which verifiers permit the members of the first protocol only, and copies.
 */
static __always_inline int read_windows(const struct nf_conn *ct, struct tcp_windows *windows)
{
	__u8 state = 0;

	return !bpf_probe_read_kernel(&state, sizeof(state), &ct->proto.tcp.state) && state == CT_ESTABLISHED &&
	       read_side(&ct->proto.tcp.seen[0], windows, 0) && read_side(&ct->proto.tcp.seen[1], windows, 1);
}

/*
 * Says whether an entry that was found is still as it was (`enum ct_answer`), if its packets are answered as expected
 * (`answers`); refreshes its timeout if so, and reads the windows of TCP.
 */
static __always_inline int ct_confirm(struct nf_conn *ct, int answers, const struct ct_terms *terms,
				      struct tcp_windows *windows)
{
	int answer = answers && ct_qualifies(ct) ? CT_ALIVE : CT_GONE;

	if (answer && terms->protocol == IPPROTO_TCP)
		answer = read_windows(ct, windows) ? CT_ALIVE : CT_GONE;
	if (answer && !ct_has_mark(ct, terms->mark))
		answer = CT_MARKED;
	if (answer == CT_ALIVE)
		ct_change_timeout(ct, terms->timeout_ms);
	ct_release(ct);
	return answer;
}

/*
 * Says what the kernel still has of an IPv4 packet's connection (`enum ct_answer`); refreshes its timeout if it is as it was,
 * and reads the windows of TCP. Global, so that the verifier looks at it once.
 */
__attribute__((noinline)) int is_alive4(context *ctx, const struct ct_expected4 *expected, struct tcp_windows *windows)
{
	struct ct_options options = { .netns_id = -1 };
	struct bpf_sock_tuple tuple = {};
	struct nf_conn *ct;
	int answers;

	if (!expected || !windows)
		return CT_GONE;
	options.protocol = expected->terms.protocol;
	tuple.ipv4.saddr = expected->src;
	tuple.ipv4.daddr = expected->dst;
	__builtin_memcpy(&tuple.ipv4.sport, &expected->ports, sizeof(expected->ports));
	ct = ct_lookup(ctx, &tuple, sizeof(tuple.ipv4), &options);
	if (!ct)
		return CT_GONE;
	answers = options.direction ? ct_answers4(&ct->tuplehash[0].tuple, expected) :
				      ct_answers4(&ct->tuplehash[1].tuple, expected);
	return ct_confirm(ct, answers, &expected->terms, windows);
}

/* As is_alive4, for an IPv6 packet with this key, which leaves so. */
__attribute__((noinline)) int is_alive6(context *ctx, const struct flow6_key *key, const struct translation6 *leaves,
					const struct ct_terms *terms, struct tcp_windows *windows)
{
	struct ct_options options = { .netns_id = -1 };
	struct bpf_sock_tuple tuple = {};
	struct nf_conn *ct;
	int answers;

	if (!key || !leaves || !terms || !windows)
		return CT_GONE;
	options.protocol = terms->protocol;
	__builtin_memcpy(tuple.ipv6.saddr, key->src, sizeof(key->src));
	__builtin_memcpy(tuple.ipv6.daddr, key->dst, sizeof(key->dst));
	__builtin_memcpy(&tuple.ipv6.sport, &key->ports, sizeof(key->ports));
	ct = ct_lookup(ctx, &tuple, sizeof(tuple.ipv6), &options);
	if (!ct)
		return CT_GONE;
	answers = options.direction ? ct_answers6(&ct->tuplehash[0].tuple, leaves) :
				      ct_answers6(&ct->tuplehash[1].tuple, leaves);
	return ct_confirm(ct, answers, terms, windows);
}

#endif
