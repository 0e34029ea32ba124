//! The whole XDP path: the XDP program decides by the tables of user space, and repeats the user path's decisions
//! on flows. The kernel runs it on frames in memory (BPF_PROG_TEST_RUN).
//!
//! Only root can load the program. Other users see which tests were left out.

#![allow(clippy::unwrap_used)]

#[path = "../namespaces/mod.rs"]
mod namespaces;
#[path = "../../../dataplane/src/testkit/mod.rs"]
mod testkit;

mod bench;
mod compared;
mod decides;
mod drawn;
mod drops;
mod engines;
mod follows;
mod lookups;
mod noted;
mod renewed;
mod repeats;
mod replaced;
mod ruled;
mod rules;
mod seen;
mod tcp_segments;
mod tcp_windows;
mod tracked;
mod translated;
mod untracked;

use std::process::ExitCode;

use namespaces::{Test, Tests, is_root};

const BESIDE: [Test; 34] = [
    ("the_third_packet_goes_by_the_xdp_path_as_by_the_user_path", repeats::third),
    ("a_group_keeps_each_flow_on_its_member", repeats::group),
    ("vrfs_with_the_same_addresses_are_apart", repeats::vrfs),
    ("the_xdp_path_never_differs_from_the_user_path", repeats::mixture),
    ("both_paths_are_in_all_counts", repeats::counts),
    ("a_change_is_active_with_the_next_packet", follows::changes),
    ("rules_count_packets_of_the_xdp_path", rules::counted),
    ("a_rule_drops_flows_of_the_xdp_path_at_once", rules::dropped),
    ("the_first_packet_goes_by_the_tables", decides::first),
    ("the_kernel_gets_what_is_its_own_by_the_tables", decides::kernels),
    ("flows_to_groups_go_by_the_tables", decides::groups),
    ("padding_is_no_part_of_a_flow_to_a_group", decides::short),
    ("the_tables_decide_as_the_user_path", decides::mixture),
    ("the_tables_decide_captures_as_the_user_path", decides::captures),
    ("the_tables_decide_fragments_where_they_are_not_the_kernels", decides::fragments),
    ("the_tables_decide_what_the_device_takes", decides::exits),
    ("the_tables_decide_sources_as_the_user_path", decides::sources),
    ("drawn_tables_decide_as_the_user_path", drawn::tables),
    ("the_first_packet_goes_by_the_rules", ruled::first),
    ("programs_look_into_live_sets", ruled::members),
    ("drawn_rules_decide_as_the_user_path", ruled::drawn),
    ("a_connections_packets_go_by_its_entry", tracked::entries),
    ("packets_that_are_not_tracked_go_by_their_entry", untracked::forwarded),
    ("packets_are_translated_as_by_the_kernel", translated::as_by_the_kernel),
    ("the_kernel_gets_what_is_out_of_window_and_for_itself", translated::invalid),
    ("windows_of_tcp_are_followed_as_by_the_kernel", tcp_windows::drawn),
    ("a_connection_of_tcp_is_asked_about_once_it_is_old", tcp_windows::newcomers),
    ("programs_look_up_as_user_space_does", lookups::small),
    ("memory_waits_for_the_programs", renewed::grace),
    ("a_changed_route_holds_for_the_next_packet", renewed::at_once),
    ("all_tables_lie_in_maps_or_none", renewed::unmapped),
    ("dropped_packets_are_in_all_counts", drops::counted),
    ("a_flood_that_a_rule_drops_is_dropped_in_xdp", drops::flood),
    ("the_xdp_path_drops_what_the_user_path_drops", drops::mixture),
];

/// Tests that measure times, rates or losses.
const ALONE: [Test; 4] = [
    ("a_change_is_active_within_ten_milliseconds", follows::soon),
    ("programs_look_up_in_a_full_table_as_user_space_does", lookups::full),
    ("each_packet_goes_as_tables_of_that_time_say", renewed::stress),
    ("each_packet_meets_whole_rules", replaced::stress),
];

fn main() -> ExitCode {
    let missing = |_: &str| {
        (!is_root()).then_some("only root may load BPF programs (CAP_BPF and CAP_NET_ADMIN)")
    };
    // `-m`: mounts and pins disappear with the test.
    let tests = Tests { beside: &BESIDE, alone: &ALONE };
    namespaces::main(&tests, "-nm", missing, |_| ExitCode::FAILURE)
}
