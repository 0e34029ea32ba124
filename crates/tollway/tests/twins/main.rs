//! Two kernels, one script: the same conversations through two routers with the same rules, one of which is the kernel
//! alone, and the other one the kernel with Tollway.
//!
//! `TOLLWAY_TWINS_SEED` runs one seed; `TOLLWAY_TWINS_SEEDS` so many, from `TOLLWAY_TWINS_FIRST` on. The test prints each
//! seed that differs.
//!
//! Only root can attach the programs. Other users see which tests were left out.

#![allow(clippy::unwrap_used)]

#[path = "../namespaces/mod.rs"]
mod namespaces;
#[path = "../router/running.rs"]
#[allow(dead_code, reason = "the tests of the router take all of it")]
mod running;
#[path = "../oracle/socket.rs"]
mod socket;
#[path = "../../../dataplane/src/testkit/mod.rs"]
mod testkit;

mod compared;
mod crafted;
mod datagrams;
mod errors;
#[path = "../oracle/icmp.rs"]
#[allow(dead_code, reason = "the tests of the router take all of it")]
mod icmp;
mod kernels;
mod live;
mod packets;
mod rules;
mod scene;
mod script;
mod segments;
mod sockets;
mod talks;
#[path = "../xdp_path/tcp_segments.rs"]
mod tcp_segments;

use std::process::ExitCode;

use namespaces::{Test, Tests, is_root};

/// All of them need both processors.
const ALONE: [Test; 2] = [
    (compared::NAME, compared::seeds),
    ("a_thousand_connections_go_on_whatever_happens", live::go_on),
];

fn main() -> ExitCode {
    let missing = |_: &str| {
        (!is_root()).then_some("only root may load BPF programs (CAP_BPF and CAP_NET_ADMIN)")
    };
    // `-m`: mounts and pins disappear with the test.
    let tests = Tests { beside: &[], alone: &ALONE };
    namespaces::main(&tests, "-nm", missing, |_| ExitCode::FAILURE)
}
