// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Runs on what is written to a port's TAP device: hands it to the kernel as if it had just come in by
 * the port itself.
 */
#include "maps.h"
#include "punted.h"

SEC("classifier")
int punt(struct __sk_buff *skb)
{
	if (GENERIC) {
		struct punted_key key = { .ifindex = IFINDEX };
		__u64 now = bpf_ktime_get_coarse_ns();

		key.hash = fingerprint((void *)(long)skb->data, (void *)(long)skb->data_end);
		bpf_map_update_elem(&punted, &key, &now, BPF_ANY);
	}
	return bpf_redirect(IFINDEX, BPF_F_INGRESS);
}

char _license[] SEC("license") = "Dual MIT/GPL";
