//! Tollway follows the kernel's neighbours, bridges and changed configurations, in network namespaces of the
//! tests.

#![allow(clippy::unwrap_used)]

mod connections;
mod contents;
#[path = "../../../dataplane/src/testkit/dice.rs"]
mod dice;
mod elements;
mod fdb;
mod follow;
mod ipsets;
mod listed;
#[path = "../namespaces/mod.rs"]
mod namespaces;
mod raw;
mod reload;
mod rules;
#[path = "../running/mod.rs"]
mod running;
mod wire;
mod worker;

use std::process::ExitCode;

/// The tests by name; each runs in a network namespace of its own.
const BESIDE: [namespaces::Test; 31] = [
    ("only_neighbours_that_can_be_sent_to_are_known", follow::states),
    ("devices_come_go_and_change", follow::devices),
    ("what_bridges_learn_is_no_neighbour", follow::of_bridges),
    ("stale_neighbours_are_confirmed", follow::confirmation),
    ("neighbours_go_over_to_new_tables", follow::handover),
    ("a_reload_that_is_given_up_loses_no_neighbour", follow::given_up),
    ("fdb_entries_come_move_and_go", fdb::changes),
    ("fdb_entries_age", fdb::ageing),
    ("fdb_entries_of_other_devices_are_ignored", fdb::tunnels),
    ("fdb_entries_of_hosts_not_yet_admitted_are_locked", fdb::locked),
    ("fdb_entries_go_over_to_new_tables", fdb::switches),
    ("fdb_readers_find_nothing_old_after_a_pause", fdb::pauses),
    ("rules_are_read_whenever_they_change", rules::changes),
    ("elements_change_without_a_reading", elements::changes),
    ("sets_have_what_nft_lists", contents::same),
    ("elements_end_as_the_kernel_has_them", elements::random),
    ("rules_for_the_host_alone_hold_nothing_up", rules::apart),
    ("unreadable_rules_are_reported", rules::broken),
    ("a_follower_ends_while_nft_hangs", rules::hanging),
    ("tables_that_go_without_an_event_are_noticed", rules::owned),
    ("unknown_modules_of_iptables_take_the_kernel_path", rules::iptables),
    ("rules_are_compiled_as_the_kernel_has_them", listed::whole),
    ("rules_that_nft_does_not_list_are_read", listed::apart),
    ("comments_are_no_rules", listed::comments),
    ("modules_of_iptables_are_read", listed::modules),
    ("rules_about_connections_decide_about_flows", connections::decided),
    ("what_differs_from_packet_to_packet_takes_the_kernel_path", connections::undecided),
    ("modules_of_iptables_about_connections_are_read", connections::modules),
    ("unsupported_ipsets_take_the_kernel_path", ipsets::kernel_path),
    ("mistakes_leave_the_configuration_active", reload::mistakes),
    ("a_reload_applies_all_changes", reload::effects),
];

/// Tests that measure times, rates or losses.
const ALONE: [namespaces::Test; 12] = [
    ("neighbours_are_active_within_milliseconds", follow::latency),
    ("lost_messages_end_in_what_the_kernel_has", follow::losses),
    ("fdb_moves_are_followed_within_milliseconds", fdb::latency),
    ("fdb_has_twenty_thousand_entries", fdb::many),
    ("fdb_losses_end_in_what_the_kernel_has", fdb::losses),
    ("a_backlog_of_elements_is_reported", elements::behind),
    ("rules_that_change_all_the_time_end_as_the_kernels", rules::storm),
    ("lost_messages_end_in_the_kernels_rules", elements::losses),
    ("ten_thousand_rules_are_read_in_time", rules::many),
    ("elements_of_ipsets_are_followed", ipsets::follow),
    ("ipsets_can_be_swapped_while_they_are_followed", ipsets::swaps),
    ("reloads_under_traffic_lose_nothing", reload::traffic),
];

fn main() -> ExitCode {
    let missing = |_: &str| namespaces::lacks_namespaces();
    let tests = namespaces::Tests { beside: &BESIDE, alone: &ALONE };
    namespaces::main(&tests, "-n", missing, |role| match role {
        ["--serve", role] if role.parse::<std::net::SocketAddr>().is_err() => {
            rules::role(role);
            ExitCode::SUCCESS
        }
        ["--serve", address] => reload::serve(address.parse().unwrap()),
        ["--client", address] => reload::run_client(address.parse().unwrap()),
        _ => ExitCode::FAILURE,
    })
}
