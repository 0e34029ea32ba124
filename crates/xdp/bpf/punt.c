// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Runs on frames that are written to a port's TAP device, and hands them to the kernel as if the
 * port itself had just received them.
 */
#include <linux/pkt_cls.h>

#include "maps.h"
#include "punted.h"

SEC("classifier")
int punt(struct __sk_buff *skb)
{
	if (GENERIC) {
		/* Without the mark, the frame would come back to user space for ever. */
		if (bpf_skb_change_head(skb, MARK_BYTES, 0) ||
		    !put_mark((void *)(long)skb->data, (void *)(long)skb->data_end))
			return TC_ACT_SHOT;
	}
	return bpf_redirect(IFINDEX, BPF_F_INGRESS);
}
