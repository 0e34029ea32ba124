//! The controller follows the kernel's configuration over rtnetlink, in network namespaces of the
//! tests.

#![allow(clippy::unwrap_used)]

mod audit;
mod bridges;
mod changes;
#[path = "../../../dataplane/src/testkit/dice.rs"]
mod dice;
mod ip;
mod losses;
mod model;
#[path = "../namespaces/mod.rs"]
mod namespaces;
mod random;
mod speed;
mod words;

use std::process::ExitCode;

/// The tests by name; each runs in a network namespace of its own.
const BESIDE: [namespaces::Test; 14] = [
    ("routes_are_read_as_ip_shows_them", words::routes),
    ("devices_addresses_rules_and_objects_are_read", words::small),
    ("changes_are_reported_in_order", changes::order),
    ("siblings_of_ipv6_are_one_route", changes::siblings),
    ("siblings_that_differ_are_one_route_as_listed", changes::different_siblings),
    ("devices_that_go_take_their_objects_along", changes::implicit_deletes),
    ("sysctls_and_traffic_control_are_reported", changes::settings),
    ("random_changes_end_in_what_is_listed", random::changes),
    ("random_changes_of_bridges_end_in_what_is_listed", bridges::changes),
    ("silent_changes_of_bridges_are_no_faults", bridges::silent_changes),
    ("the_spanning_tree_of_a_bridge_is_followed", bridges::spanning_tree),
    ("random_changes_during_lists_end_in_what_is_listed", random::lists),
    ("a_stop_of_five_seconds_ends_in_what_is_listed", losses::stop),
    ("an_audit_names_and_mends_what_is_wrong", audit::drift),
];

/// Tests that measure times, rates or losses.
const ALONE: [namespaces::Test; 4] = [
    // First: after the others, the kernel still removes their routes, under the lock that every change takes.
    ("a_change_is_received_within_milliseconds", speed::latency),
    ("lost_messages_end_in_what_is_listed", losses::buffer),
    ("an_audit_among_changes_finds_nothing", audit::busy),
    ("many_routes_are_read_at_once", speed::list),
];

fn main() -> ExitCode {
    let missing = |_: &str| namespaces::lacks_namespaces();
    let tests = namespaces::Tests { beside: &BESIDE, alone: &ALONE };
    namespaces::main(&tests, "-n", missing, |_| ExitCode::FAILURE)
}
