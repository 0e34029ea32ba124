//! The whole XDP path: the XDP program repeats the user path's decisions on flows. The kernel runs
//! it on frames in memory (BPF_PROG_TEST_RUN).
//!
//! Only root can load the program. Other users see which tests were left out.

#![allow(clippy::unwrap_used)]

#[path = "../namespaces/mod.rs"]
mod namespaces;
#[path = "../../../dataplane/src/testkit/mod.rs"]
mod testkit;

mod bench;
mod follows;
mod repeats;
mod rules;

use std::process::ExitCode;

use namespaces::{Test, Tests, is_root};

const BESIDE: [Test; 8] = [
    ("the_third_packet_goes_by_the_xdp_path_as_by_the_user_path", repeats::third),
    ("a_group_keeps_each_flow_on_its_member", repeats::group),
    ("vrfs_with_the_same_addresses_are_apart", repeats::vrfs),
    ("the_xdp_path_never_differs_from_the_user_path", repeats::mixture),
    ("both_paths_are_in_all_counts", repeats::counts),
    ("a_change_is_active_with_the_next_packet", follows::changes),
    ("rules_count_packets_of_the_xdp_path", rules::counted),
    ("a_rule_drops_flows_of_the_xdp_path_at_once", rules::dropped),
];

/// Tests that measure times, rates or losses.
const ALONE: [Test; 1] = [("a_change_is_active_within_ten_milliseconds", follows::soon)];

fn main() -> ExitCode {
    let missing = |_: &str| {
        (!is_root()).then_some("only root may load BPF programs (CAP_BPF and CAP_NET_ADMIN)")
    };
    // `-m`: mounts and pins disappear with the test.
    let tests = Tests { beside: &BESIDE, alone: &ALONE };
    namespaces::main(&tests, "-nm", missing, |_| ExitCode::FAILURE)
}
