//! FRR from Debian's packages as the control plane: routes that come and go by BGP, speakers and routers that die.
//!
//! The router's kernel is fed by zebra and bgpd, host B is the peer that announces; what host A sends goes
//! through the router. Only root can attach Tollway's programs. Whoever is not, is told what was left
//! out.

#![allow(clippy::unwrap_used)]

#[path = "../namespaces/mod.rs"]
mod namespaces;
#[path = "../router/running.rs"]
#[allow(dead_code)]
mod running;

mod arrival;
mod guide;
mod outages;
mod scene;
mod speakers;
mod traffic;
#[path = "../guide/mod.rs"]
mod typed;

use std::process::ExitCode;

use namespaces::{Test, is_root};

const TESTS: [Test; 4] = [
    ("the_guides_configuration_brings_routes", guide::brings_routes),
    ("routes_that_arrive_by_bgp_are_active", arrival::routes),
    ("traffic_is_lost_no_longer_than_by_the_kernel_alone", outages::plain),
    ("a_graceful_restart_is_as_graceful", outages::graceful),
];

fn main() -> ExitCode {
    let missing = |_: &str| {
        if !is_root() {
            return Some("only root may load BPF programs (CAP_BPF and CAP_NET_ADMIN)");
        }
        (!speakers::are_installed()).then_some("FRR is not installed: apt-get install frr")
    };
    // `-m`: what is mounted and pinned is gone with the test.
    namespaces::main(&TESTS, "-nm", missing, traffic::role)
}
