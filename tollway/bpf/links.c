// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Which BPF programs netfilter calls: an iterator over the links of all namespaces, which writes a record for
 * each that hangs at one of netfilter's hooks. Few kernels list the hooks themselves, and to walk the numbers
 * of links takes CAP_SYS_ADMIN.
 */
#include <linux/bpf.h>
#include <linux/types.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

/* BPF_LINK_TYPE_NETFILTER, which older headers do not have. */
#define NETFILTER 10

/* What is looked at of the kernel's structures; the loader puts its offsets in. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

struct nf_hook_ops {
	__u8 pf;
	unsigned int hooknum;
};

struct bpf_link {
	__u32 id;
	enum bpf_link_type type;
};

struct bpf_nf_link {
	struct bpf_link link;
	struct nf_hook_ops hook_ops;
	struct net *net;
};
#pragma clang attribute pop

struct seq_file;

struct meta {
	struct seq_file *seq;
};

/* What an iterator over links is called with. */
struct step {
	struct meta *meta;
	struct bpf_link *link;
};

struct record {
	__u32 family;
	__u32 hook;
	__u32 namespace;
};

SEC("iter/bpf_link")
int links(struct step *step)
{
	struct seq_file *seq = step->meta->seq;
	struct bpf_link *link = step->link;
	struct bpf_nf_link *own = (struct bpf_nf_link *)link;
	struct record record = {};

	if (!link || BPF_CORE_READ(link, type) != NETFILTER)
		return 0;
	record.family = BPF_CORE_READ(own, hook_ops.pf);
	record.hook = BPF_CORE_READ(own, hook_ops.hooknum);
	record.namespace = BPF_CORE_READ(own, net, ns.inum);
	bpf_seq_write(seq, &record, sizeof(record));
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
