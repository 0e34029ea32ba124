//! The whole system as its hosts see it. What traceroute, tracepath, ping and TCP find with the
//! kernel alone, they must find with Tollway, with the XDP path and without.
//!
//! The kernel has the same configuration, and Tollway gets its neighbours from it.

#![allow(clippy::unwrap_used)]

mod cards;
mod changes;
mod datagrams;
mod drops;
mod kinds;
#[path = "../namespaces/mod.rs"]
mod namespaces;
mod numbered;
mod pmtu;
mod refusals;
#[allow(dead_code)]
#[path = "../af_xdp/router.rs"]
mod router;
#[path = "../running/mod.rs"]
mod running;
mod trace;
mod transfer;
mod translated;
mod variants;

use std::process::{Command, ExitCode};

const BESIDE: [namespaces::Test; 8] = [
    ("traceroute_finds_the_same_hops", trace::hops),
    ("traceroute_is_refused_alike", trace::refusals),
    ("the_same_path_mtu_is_found_by_ipv4", pmtu::ipv4),
    ("the_same_path_mtu_is_found_by_ipv6", pmtu::ipv6),
    ("rules_of_nft_translate_in_front_of_a_kernel", translated::by_nft),
    ("rules_of_ipfw_translate_in_front_of_a_kernel", translated::by_ipfw),
    ("pings_of_all_kinds_are_answered_alike", kinds::pings),
    ("cards_without_copies_forward_whole_in_a_virtual_machine", cards::in_machine),
];

/// Tests that measure times, rates or losses.
const ALONE: [namespaces::Test; 3] = [
    ("streams_go_on_while_their_route_changes", changes::routes),
    ("a_flow_of_the_xdp_path_is_dropped_within_ten_milliseconds", drops::soon),
    ("refused_flows_leave_the_xdp_path_at_once", refusals::refused),
];

fn main() -> ExitCode {
    let tests = namespaces::Tests { beside: &BESIDE, alone: &ALONE };
    namespaces::main(&tests, "-nm", missing, |words| match words {
        ["--role", "cards", model, suite, extent] => {
            cards::inside(model, suite, *extent == "thorough")
        }
        ["--serve", address] => transfer::serve(address.parse().unwrap()),
        ["--serve", address, "datagrams"] => datagrams::serve(address.parse().unwrap()),
        ["--serve", address, "times"] => drops::serve(address.parse().unwrap()),
        ["--client", address, "times"] => drops::run_client(address.parse().unwrap()),
        ["--client", own, other, "numbered"] => {
            numbered::end(own.parse().unwrap(), other.parse().unwrap())
        }
        ["--client", address, amount, kind] => {
            let (address, amount) = (address.parse().unwrap(), amount.parse().unwrap());
            match kind {
                &"datagrams" => datagrams::run_client(address, amount),
                kind => transfer::run_client(address, amount, kind),
            }
        }
        _ => ExitCode::FAILURE,
    })
}

fn missing(name: &str) -> Option<&'static str> {
    if name.ends_with("virtual_machine") {
        return cards::missing();
    }
    let is_there = |program| Command::new(program).arg("-V").output().is_ok();
    if !namespaces::is_root() {
        Some("only root may load XDP programs")
    } else if !["traceroute", "tracepath", "ping", "ethtool"].into_iter().all(is_there) {
        Some("traceroute, tracepath, ping and ethtool are needed (scripts/setup.sh)")
    } else {
        None
    }
}
