//! Offload against real objects of the kernel: how each changes the paths, and what `tollway check`
//! reports about it. If packets can show what the kernel does, they decide.
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

use namespaces::{Test, Tests, is_root};

const TESTS: [Test; 18] = [
    ("a_plain_router_is_all_fast", reasons::plain),
    ("queueing_disciplines_that_are_configured", reasons::qdiscs),
    ("filters_of_tc", reasons::filters),
    ("tags_beside_the_frames", reasons::tags),
    ("unfinished_checksums_take_the_kernel_path", reasons::checksums),
    ("programs_of_bpf", reasons::programs),
    ("programs_of_netfilter", netfilter::programs),
    ("devices_above", reasons::uppers),
    ("devices_above_in_other_namespaces", reasons::elsewhere),
    ("ipsec_policies", reasons::ipsec),
    ("tables_of_iptables_legacy", reasons::legacy),
    ("rules_of_nftables", reasons::nftables),
    ("routes_and_rules", reasons::routes),
    ("captures_are_noted", reasons::captures),
    ("forwarding_follows_the_sysctls", sysctls::forwarding),
    ("routes_without_carrier_follow_the_sysctls", sysctls::carrier),
    ("the_command_prints_the_reasons", words::command),
    ("traffic_is_counted_by_its_packets", words::traffic),
];

fn main() -> ExitCode {
    let missing =
        |_: &str| (!is_root()).then_some("only root may query BPF programs (CAP_NET_ADMIN)");
    // `-m`: mounts and pinned objects vanish with the test.
    let tests = Tests { beside: &TESTS, alone: &[] };
    namespaces::main(&tests, "-nm", missing, |_| ExitCode::FAILURE)
}
