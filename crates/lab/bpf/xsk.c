/* Passes IP frames to the AF_XDP sockets of a sink, whose thread recognizes the generator's frames;
 * all else goes on to the host. */
#include "mark.h"

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

SEC("xdp")
int xsk(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return XDP_PASS;
	if (eth->h_proto == bpf_htons(ETH_P_IP) || eth->h_proto == bpf_htons(ETH_P_IPV6) ||
	    eth->h_proto == bpf_htons(ETH_P_8021Q) || eth->h_proto == bpf_htons(ETH_P_8021AD))
		return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
