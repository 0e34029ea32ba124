//! Tests what the XDP program does with each frame: on frames in memory, on which the kernel runs
//! it (BPF_PROG_TEST_RUN), and on devices in network namespaces.
//!
//! Only root can load the program. Other users see which tests were left out.

#![allow(clippy::unwrap_used)]

#[path = "../namespaces/mod.rs"]
mod namespaces;

mod bridge_routes;
mod bridges;
mod devices;
mod directory;
mod dispatcher;
mod drops;
mod echo;
mod frames;
mod installs;
mod partial_checksums;
mod regions;
#[path = "../oracle/socket.rs"]
mod socket;
mod workers;
mod xdp_path;

use std::process::ExitCode;

use namespaces::{Test, Tests, is_root};
use tollway_xdp::Mode;

const TESTS: [Test; 64] = [
    ("each_reason_to_pass_has_its_frame", dispatcher::reasons),
    ("workers_evaluate_rules_for_packets_with_options", dispatcher::ruled),
    ("a_bridge_forwards_from_known_hosts_to_known_hosts", || bridges::addresses(Mode::Native)),
    ("a_bridge_knows_many_hosts", || bridges::many(Mode::Native)),
    ("a_bridge_keeps_hosts_that_go_on", || bridges::refreshes(Mode::Native)),
    ("ports_of_bridges_have_settings", || bridges::settings(Mode::Native)),
    ("frames_that_bridges_look_into_are_the_kernels", || bridges::content(Mode::Native)),
    ("a_bridge_forwards_from_known_hosts_to_known_hosts_by_tc", || bridges::addresses(Mode::Tcx)),
    ("a_bridge_knows_many_hosts_by_tc", || bridges::many(Mode::Tcx)),
    ("a_bridge_keeps_hosts_that_go_on_by_tc", || bridges::refreshes(Mode::Tcx)),
    ("ports_of_bridges_have_settings_by_tc", || bridges::settings(Mode::Tcx)),
    ("frames_that_bridges_look_into_are_the_kernels_by_tc", || bridges::content(Mode::Tcx)),
    ("a_bridge_forwards_super_frames", bridges::super_frames),
    ("packets_for_a_bridge_are_routed", || bridge_routes::links(Mode::Native)),
    ("tracks_learn_what_a_bridge_keeps_from_them", || bridge_routes::unseen(Mode::Native)),
    ("senders_to_a_bridge_are_known", || bridge_routes::sources(Mode::Native)),
    ("packets_leave_by_the_port_of_a_bridge_behind_which_a_host_is", || {
        bridge_routes::exits(Mode::Native)
    }),
    ("packets_for_a_bridge_are_routed_by_tc", || bridge_routes::links(Mode::Tcx)),
    ("senders_to_a_bridge_are_known_by_tc", || bridge_routes::sources(Mode::Tcx)),
    ("packets_leave_by_the_port_of_a_bridge_behind_which_a_host_is_by_tc", || {
        bridge_routes::exits(Mode::Tcx)
    }),
    ("frames_of_a_bridge_from_xdp_to_tc_are_the_kernels", bridges::between_engines),
    ("a_family_can_take_the_kernel_path", xdp_path::kernel_path),
    ("packets_pass_without_a_heartbeat", dispatcher::no_heartbeat),
    ("a_port_closes_while_no_worker_evaluates_rules", dispatcher::closed),
    ("workers_get_what_their_rules_translate", dispatcher::translated),
    ("packets_without_a_flow_pass_at_a_crowded_port", dispatcher::crowded),
    ("a_worker_that_hangs_loses_its_queues_only", workers::queues),
    ("one_worker_serves_all_queues", workers::one),
    ("the_queues_of_a_worker_that_hangs_fail_closed", workers::closed),
    ("packets_with_unfinished_checksums_pass", partial_checksums::checksums),
    ("a_socket_gets_the_packets_of_its_queue", dispatcher::sockets),
    ("links_addresses_and_ports_can_change", dispatcher::changes),
    ("a_flow_is_repeated_byte_for_byte", xdp_path::rewrites),
    ("all_checksums_are_verified_and_updated", xdp_path::checksums),
    ("packets_unlike_their_flow_are_not_taken", xdp_path::conditions),
    ("flows_are_kept_in_batches_and_counted", xdp_path::batches),
    ("flows_in_use_keep_their_places", xdp_path::room),
    ("dropped_packets_are_counted_by_reason", drops::counted),
    ("packets_unlike_a_dropped_flow_are_not_dropped", drops::conditions),
    ("dropped_flows_give_way_to_others", drops::room),
    ("a_region_invalidates_its_flows", regions::regions),
    ("flows_of_a_region_that_changed_make_room", regions::room_of_regions),
    ("a_next_hop_that_changes_keeps_connections", regions::connections),
    ("a_flow_that_changes_is_never_half_the_old_one", xdp_path::torn),
    ("the_xdp_path_joins_two_hosts", devices::xdp_path),
    ("the_xdp_path_joins_vlans", devices::vlans),
    ("a_device_that_refuses_leaves_the_xdp_path", devices::refusals::total),
    ("a_device_that_refuses_is_noticed_without_btf", devices::refusals::by_record),
    ("a_router_runs_without_reports_of_refusals", devices::refusals::unnoticed),
    ("a_device_that_takes_some_stays_in_the_xdp_path", devices::refusals::partial),
    ("the_kernel_forwards_without_a_heartbeat", devices::fail_open),
    ("generic_mode_is_a_step_down", devices::generic),
    ("a_successor_takes_over_and_the_predecessor_lets_go", devices::owners::takeover),
    ("a_process_lives_while_one_of_its_workers_does", devices::owners::one_of_two_workers),
    ("a_device_with_another_program_is_refused", devices::owners::refusal),
    ("pins_of_dead_routers_are_taken_over_or_removed", devices::owners::the_dead),
    ("a_device_that_is_gone_costs_no_other_port_its_tables", devices::tables::gone),
    ("programs_for_other_tables_are_loaded_beside_those_that_run", devices::tables::renewed),
    ("memory_of_tables_waits_only_for_programs_that_read_them", devices::tables::unread),
    ("programs_keep_the_active_tables_if_others_cannot_be_installed", installs::failed),
    ("tables_lie_in_maps_only_if_programs_may_read_them", installs::lent),
    ("the_kernel_answers_punted_packets", devices::punts::answered),
    ("packets_from_outside_are_never_taken_for_punted_ones", devices::punts::lookalikes),
    ("a_directory_of_pins_that_others_made_is_refused", directory::intruders),
];

fn main() -> ExitCode {
    let missing = |_: &str| {
        (!is_root()).then_some("only root may load BPF programs (CAP_BPF and CAP_NET_ADMIN)")
    };
    // `-m`: mounts and pins disappear with the test.
    let tests = Tests { beside: &[], alone: &TESTS };
    namespaces::main(&tests, "-nm", missing, |words| match words {
        ["--serve", way] => devices::owners::serve(way),
        _ => ExitCode::FAILURE,
    })
}
