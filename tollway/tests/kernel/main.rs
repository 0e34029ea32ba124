//! The kernel's neighbours and changed configurations followed, in network namespaces of their own.

#![allow(clippy::unwrap_used)]

mod follow;
#[path = "../namespaces/mod.rs"]
mod namespaces;
mod reload;
#[path = "../running/mod.rs"]
mod running;
mod worker;

use std::process::{Command, ExitCode};

/// The tests by name; each runs in a network namespace of its own.
const TESTS: [namespaces::Test; 10] = [
    ("neighbours_are_in_force_within_milliseconds", follow::latency),
    ("only_neighbours_that_can_be_sent_to_are_known", follow::states),
    ("lost_messages_end_in_what_the_kernel_has", follow::losses),
    ("devices_come_go_and_change", follow::devices),
    ("stale_neighbours_are_confirmed", follow::confirmation),
    ("neighbours_go_over_to_new_tables", follow::handover),
    ("a_reload_that_is_given_up_loses_no_neighbour", follow::given_up),
    ("reloads_under_traffic_lose_nothing", reload::traffic),
    ("mistakes_leave_the_configuration_in_force", reload::mistakes),
    ("a_reload_changes_what_it_says", reload::effects),
];

fn main() -> ExitCode {
    namespaces::main(&TESTS, "-n", missing, |role| match role {
        ["--serve", address] => reload::serve(address.parse().unwrap()),
        ["--ask", address] => reload::ask(address.parse().unwrap()),
        _ => ExitCode::FAILURE,
    })
}

/// What an ordinary user's kernel does not allow that a test needs.
fn missing(_: &str) -> Option<&'static str> {
    let namespaces = Command::new("unshare").args(["-Urn", "true"]).status();
    (!namespaces::is_root() && !namespaces.is_ok_and(|status| status.success()))
        .then_some("this user may not make network namespaces (user.max_net_namespaces)")
}
