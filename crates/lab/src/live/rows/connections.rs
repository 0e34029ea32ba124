//! Flows of connections that the kernel tracks: established ones, with and without translation.

use super::super::conntrack::{self, Connections, Protocol, Room, Tracking};
use super::super::generator::Stream;
use super::super::rulesets;
use super::super::sink::SinkHook;
use super::follow::{self, AS_CARDS, Launch};
use super::wire::Wire;
use super::{Bench, Outcome};

/// Measures connections, and the kernel in turn.
pub(super) fn measure(bench: &Bench<'_>, connections: Connections) -> Result<Outcome, String> {
    let topologies = bench.setups.tuned()?;
    topologies.tollway.kernel_forwards(true)?;
    let both = [&topologies.kernel, &topologies.tollway];
    let _room = Room::make(connections.count)?;
    for topology in both {
        rulesets::load(&topology.r, rulesets::ESTABLISHED)?;
        if connections.tracking == Tracking::Translated {
            rulesets::load(&topology.r, rulesets::MASQUERADE)?;
        }
        connections.connect(&topology.r)?;
    }
    let wire = |topology| {
        let stream = Stream { flows: connections.flows(), vid: None, rate: None };
        Wire::new(topology, stream, SinkHook::Xdp, None)
    };
    let (kernel, side) = (wire(both[0])?, wire(both[1])?);
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
