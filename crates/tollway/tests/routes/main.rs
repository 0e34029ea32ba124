//! Compares rules, routes and next hops in the router's tables with the kernel's own answers, in
//! network namespaces.

#![allow(clippy::unwrap_used)]

mod chance;
mod compare;
#[path = "../../../dataplane/src/testkit/dice.rs"]
mod dice;
#[path = "../controller/ip.rs"]
#[allow(dead_code)]
mod ip;
#[path = "../namespaces/mod.rs"]
mod namespaces;
mod tables;

use std::process::ExitCode;

/// The tests by name; each runs in a network namespace of its own.
const TESTS: [namespaces::Test; 4] = [
    ("tables_answer_as_the_kernel_does", compare::at_random),
    ("objects_and_devices_change_in_place", compare::in_place),
    ("ipv6_next_hops_stay_dead_without_carrier", compare::without_carrier),
    ("a_changed_route_is_active_within_milliseconds", compare::latency),
];

fn main() -> ExitCode {
    let missing = |_: &str| namespaces::lacks_namespaces();
    let tests = namespaces::Tests { beside: &[], alone: &TESTS };
    namespaces::main(&tests, "-n", missing, |_| ExitCode::FAILURE)
}
