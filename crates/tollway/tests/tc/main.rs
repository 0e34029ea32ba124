//! The tc engine: a router whose ports have tc programs, between hosts with default offloads.
//!
//! Only root can attach its programs. Other users see which tests were left out.

#![allow(clippy::unwrap_used)]

#[path = "../machines/mod.rs"]
mod machines;
#[path = "../namespaces/mod.rs"]
mod namespaces;
#[path = "../router/running.rs"]
#[allow(dead_code, reason = "the tests of the router take all of it")]
mod running;
#[path = "../router/leaks/tcx.rs"]
mod tcx;
#[path = "../../../dataplane/src/testkit/mod.rs"]
mod testkit;
#[path = "../router/tracked.rs"]
#[allow(dead_code, reason = "the tests of the router take all of it")]
mod tracked;

mod beside;
mod bridged;
mod changes;
mod connections;
#[path = "../running/mod.rs"]
mod file_router;
mod layer3;
mod machine;
mod others;
mod program;
mod scene;
mod streams;

use std::process::ExitCode;

use namespaces::{Test, Tests, is_root};

const BESIDE: [Test; 32] = [
    ("the_program_forwards_as_the_user_path", program::as_the_user_path),
    ("each_reason_has_its_frame", program::reasons),
    ("segments_must_fit_the_next_hop", program::segments),
    ("programs_of_others_keep_their_place", others::tcx),
    ("filters_of_others_see_the_packets_first", others::filters),
    ("a_filter_takes_the_place_of_tcx", others::clsact),
    ("generic_xdp_at_a_peer_sees_all_packets", others::generic_xdp),
    ("streams_arrive_whole", streams::plain),
    ("streams_into_a_small_mtu_arrive_whole", streams::small_mtu),
    ("streams_by_a_bridge_arrive_whole", streams::bridges),
    ("streams_between_ports_of_a_bridge_arrive_whole", bridged::streams),
    ("streams_of_a_bridge_that_calls_hooks_arrive_whole", bridged::validated),
    ("streams_by_a_macvlan_arrive_whole", streams::macvlans),
    ("streams_of_big_tcp_arrive_whole", streams::big_tcp),
    ("a_queueing_discipline_sees_what_the_program_forwards", streams::queueing_discipline),
    ("streams_by_layer_3_devices_arrive_whole", layer3::tuns),
    ("packets_from_one_layer_3_device_to_another_arrive", layer3::between_tuns),
    ("a_file_selects_the_engine", changes::file),
    ("each_device_has_an_engine", changes::engines),
    ("a_successor_takes_the_programs_over", changes::takeover),
    ("streams_from_a_card_arrive_whole", beside::streams),
    ("streams_from_a_card_take_each_kind_of_route", beside::ways),
    ("packets_from_a_card_count_once", beside::counts),
    ("rules_hold_for_packets_from_a_card", beside::rules),
    ("programs_beside_others_end_with_them", beside::ends),
    ("rules_are_evaluated_by_the_program", changes::rules),
    ("large_sets_are_looked_up_by_the_program", changes::sets),
    ("chains_at_egress_take_the_kernel_path", changes::egress),
    ("a_changed_route_holds_at_once", changes::route),
    ("devices_go_down_and_come_back", changes::devices),
    ("a_stop_detaches_the_programs", changes::stop),
    ("an_older_kernel_and_vlans_do_in_a_virtual_machine", || machines::host("machine")),
];

/// Tests that measure times, rates or losses.
const ALONE: [Test; 1] = [("the_kernel_forwards_after_a_kill", changes::kill)];

fn main() -> ExitCode {
    let missing = |name: &str| {
        if name.ends_with("virtual_machine") {
            return machines::missing();
        }
        (!is_root()).then_some("only root may load BPF programs (CAP_BPF and CAP_NET_ADMIN)")
    };
    // `-m`: mounts and pins disappear with the test.
    let tests = Tests { beside: &BESIDE, alone: &ALONE };
    namespaces::main(&tests, "-nm", missing, |words| match words {
        ["--role", "machine"] => machines::inside("machine", &machine::parts(), None),
        ["--role", "machine", part] => machines::inside("machine", &machine::parts(), Some(part)),
        ["--role", words] => tracked::role(words),
        ["--serve", address] => scene::serve(address),
        ["--client", address] => scene::send(address),
        _ => ExitCode::FAILURE,
    })
}
