/* The mark that frames of `tollway lab generate` carry after the UDP header; src/generate/mark.rs
 * has the same format. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define MARK_MAGIC 0x7011
#define MARK_LEN 18
#define STREAMS 16
/* Run and stream are in the bits above the sequence number. */
#define SEQ_BITS 48
#define SEQ_MASK ((1ULL << SEQ_BITS) - 1)

/* The widest word that the processor loads and stores at any alignment. */
#define WORD(at) (*(__u64 *)(at))
