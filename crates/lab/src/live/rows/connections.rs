//! Flows of connections that the kernel tracks: established ones, with and without translation.

use super::super::conntrack::{self, Connections, Protocol, Room, Tracking};
use super::super::generator::Stream;
use super::super::rulesets;
use super::super::setups::Topologies;
use super::super::sink::SinkHook;
use super::super::topology::Topology;
use super::follow::{self, AS_CARDS, Launch};
use super::pairs::Side as _;
use super::wire::Wire;
use super::{Bench, Outcome};

/// Measures connections, and the kernel in turn.
pub(super) fn measure(bench: &Bench<'_>, connections: Connections) -> Result<Outcome, String> {
    let topologies = bench.setups.tuned()?;
    rulesets::load(&topologies.kernel.r, rulesets::ESTABLISHED)?;
    in_turn(bench, topologies, connections, |_| Ok(()))
}

/// The same, where the kernel alone forwards by its flowtable.
pub(super) fn beside_flowtable(
    bench: &Bench<'_>,
    connections: Connections,
) -> Result<Outcome, String> {
    let topologies = bench.setups.tuned()?;
    let kernel = &topologies.kernel.r;
    if let Err(error) = rulesets::load(kernel, rulesets::FLOWTABLE) {
        let reason = error.lines().next().unwrap_or_default();
        return Ok(Outcome::LeftOut(format!("this kernel takes no flowtable: {reason}")));
    }
    in_turn(bench, topologies, connections, |wire| {
        // The first packets bring the connections into the flowtable.
        wire.rate()?;
        match conntrack::by_flowtable(kernel)? {
            all if all == connections.count as usize => Ok(()),
            some => {
                Err(format!("the kernel's flowtable has taken {some} of {}", connections.count))
            }
        }
    })
}

/// Measures where the kernel alone has its rules; `look` says whether it is ready.
fn in_turn(
    bench: &Bench<'_>,
    topologies: &Topologies,
    connections: Connections,
    look: impl FnOnce(&Wire<'_>) -> Result<(), String>,
) -> Result<Outcome, String> {
    topologies.tollway.kernel_forwards(true)?;
    let both = [&topologies.kernel, &topologies.tollway];
    let _room = Room::make(connections.count)?;
    rulesets::load(&topologies.tollway.r, rulesets::ESTABLISHED)?;
    for topology in both {
        if connections.tracking == Tracking::Translated {
            rulesets::load(&topology.r, rulesets::MASQUERADE)?;
        }
        connections.connect(&topology.r)?;
    }
    let [kernel, side] = [wire(both[0], connections)?, wire(both[1], connections)?];
    look(&kernel)?;
    // Room for twice as many. Those of TCP have entries for both directions.
    let directions = if connections.protocol == Protocol::Tcp { 2 } else { 1 };
    let room = (2 * directions * connections.count).max(1 << 17).to_string();
    let arguments = [AS_CARDS.arguments, &["--xdp-flows", &room]].concat();
    let launch = Launch { arguments: &arguments, ..AS_CARDS };
    let outcome = follow::measure(bench, both[1], launch, [&kernel, &side])?;
    for topology in both {
        rulesets::clear(&topology.r)?;
        conntrack::disconnect(&topology.r)?;
    }
    Ok(outcome)
}

fn wire(topology: &Topology, connections: Connections) -> Result<Wire<'_>, String> {
    let stream = Stream { flows: connections.flows(), vid: None, rate: None };
    Wire::new(topology, stream, SinkHook::Xdp, None)
}
