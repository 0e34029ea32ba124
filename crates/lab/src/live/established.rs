//! A router with established connections, for the parts that measure what becomes of them.

use std::time::Duration;

use super::conntrack::{self, Connections};
use super::loss;
use super::program;
use super::rulesets;
use super::sink::Sink;
use super::topology::Topology;

/// As for the rows of connections: devices stand in for network cards, and there is room for all connections.
const ARGUMENTS: [&str; 7] = ["run", "r0", "r1", "--engine", "xdp", "--xdp-flows", "131072"];
/// Time in which Tollway has to carry all traffic, and how often it may fail to.
const LOOK: Duration = Duration::from_millis(250);
const ATTEMPTS: usize = 60;
/// The share that may be the kernel's meanwhile, in percent: a change of the machine's load voids entries.
const SHARE: u64 = 5;

/// Loads rules and those that translate, and makes connections known.
pub(super) fn prepare(
    topology: &Topology,
    connections: Connections,
    rules: &str,
) -> Result<(), String> {
    rulesets::load(&topology.r, rules)?;
    rulesets::load(&topology.r, rulesets::MASQUERADE)?;
    connections.connect(&topology.r)
}

/// Undoes what [`prepare`] has done.
pub(super) fn clear(topology: &Topology) -> Result<(), String> {
    rulesets::clear(&topology.r)?;
    conntrack::disconnect(&topology.r)
}

/// Starts Tollway, measures, and ends it.
pub(super) fn behind_tollway<T>(
    topology: &Topology,
    measure: impl FnOnce() -> Result<T, String>,
) -> Result<T, String> {
    program::behind_tollway(topology, &ARGUMENTS, measure)
}

/// Waits until Tollway carries all traffic: it gets to know of one connection after the other.
pub(super) fn until_carried(topology: &Topology, sink: &Sink) -> Result<(), String> {
    let mut carried = Ok(());
    for _ in 0..ATTEMPTS {
        carried = loss::check_carried(topology, sink, LOOK, SHARE);
        if carried.is_ok() {
            break;
        }
    }
    carried
}
