//! Offload against real objects of the kernel: how each changes the paths, and what `tollway check`
//! reports about it. Where packets can show what the kernel does, they decide.
//!
//! Only root can run all of these tests. Without root, the program prints what it left out.

#![allow(clippy::unwrap_used)]

#[path = "../namespaces/mod.rs"]
mod namespaces;

mod netfilter;
mod reasons;
mod scene;
#[path = "../oracle/socket.rs"]
mod socket;
mod sysctls;
mod words;

use std::process::ExitCode;

use namespaces::{Test, is_root};

const TESTS: [Test; 18] = [
    ("a_plain_router_is_all_fast", reasons::plain),
    ("queueing_disciplines_that_somebody_chose", reasons::qdiscs),
    ("filters_of_tc", reasons::filters),
    ("tags_beside_the_frames", reasons::tags),
    ("checksums_that_are_not_finished_are_the_kernels", reasons::checksums),
    ("programs_of_bpf", reasons::programs),
    ("programs_of_netfilter", netfilter::programs),
    ("devices_above", reasons::uppers),
    ("devices_above_in_other_namespaces", reasons::elsewhere),
    ("ipsec_policies", reasons::ipsec),
    ("tables_of_iptables_legacy", reasons::legacy),
    ("rules_of_nftables", reasons::nftables),
    ("routes_and_rules", reasons::routes),
    ("who_captures", reasons::captures),
    ("the_kernel_forwards_as_sysctls_say", sysctls::forwarding),
    ("routes_without_carrier_count_as_sysctls_say", sysctls::carrier),
    ("the_command_says_it_in_words", words::command),
    ("traffic_is_counted_by_its_packets", words::traffic),
];

fn main() -> ExitCode {
    let missing =
        |_: &str| (!is_root()).then_some("only root may ask for BPF programs (CAP_NET_ADMIN)");
    // `-m`: mounts and pinned objects vanish with the test.
    namespaces::main(&TESTS, "-nm", missing, |_| ExitCode::FAILURE)
}
