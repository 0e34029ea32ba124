//! A flood: each frame begins a flow.

use super::super::generator::{Flows, Stream};
use super::super::rulesets;
use super::super::sink::SinkHook;
use super::follow::{self, AS_CARDS};
use super::wire::Wire;
use super::{Bench, Outcome};

/// Measures under so many rules.
pub(super) fn measure(bench: &Bench<'_>, rules: usize) -> Result<Outcome, String> {
    let topologies = bench.setups.tuned()?;
    topologies.tollway.kernel_forwards(true)?;
    let both = [&topologies.kernel, &topologies.tollway];
    for topology in both.iter().filter(|_| rules > 0) {
        rulesets::load(&topology.r, &rulesets::drops(rules))?;
    }
    let wire = |topology| {
        let stream = Stream { flows: Flows::Random, vid: None, rate: None };
        Wire::new(topology, stream, SinkHook::Xdp, None)
    };
    let (kernel, side) = (wire(both[0])?, wire(both[1])?);
    let outcome = follow::measure(bench, both[1], AS_CARDS, [&kernel, &side])?;
    for topology in both.iter().filter(|_| rules > 0) {
        rulesets::clear(&topology.r)?;
    }
    Ok(outcome)
}
