//! FRR from Debian's packages as the control plane: BGP routes come and go, daemons and routers
//! die.
//!
//! zebra and bgpd configure the router's kernel, and host B is the peer that announces. Packets
//! from host A go through the router. Only root can attach Tollway's programs. Without root, the
//! program prints what it left out.

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

use namespaces::{Test, Tests, is_root};

const BESIDE: [Test; 1] = [("the_guides_configuration_brings_routes", guide::brings_routes)];

/// Tests that measure times, rates or losses.
const ALONE: [Test; 3] = [
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
    // `-m`: mounts and pinned objects vanish with the test.
    let tests = Tests { beside: &BESIDE, alone: &ALONE };
    namespaces::main(&tests, "-nm", missing, traffic::role)
}
