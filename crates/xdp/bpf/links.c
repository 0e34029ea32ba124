// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Lists the BPF programs that netfilter calls. An iterator over the links of all namespaces writes
 * a record for each link at one of netfilter's hooks. Few kernels list the hooks themselves, and
 * walking the link ids takes CAP_SYS_ADMIN.
 */
#include <linux/bpf.h>
#include <linux/types.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

/* BPF_LINK_TYPE_NETFILTER, which older headers lack. */
#define NETFILTER 10

/*
 * The fields of the kernel's structures that this program reads; the loader fills in their offsets.
 */
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

/* The context of an iterator over links. */
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
