//! A flood: each frame begins a flow.

use super::super::generator::{Flows, Stream};
use super::super::sink::SinkHook;
use super::follow::{AS_CARDS, Follower};
use super::pairs::in_turn;
use super::wire::Wire;
use super::{Bench, Outcome, rulesets};

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
    let tollway = Follower::start(both[1], &AS_CARDS, true)?;
    side.send_until_stable()?;
    let pairs = in_turn(&kernel, &side, bench.pairs, bench.step)?;
    let note = tollway.note();
    tollway.stop()?;
    for topology in both.iter().filter(|_| rules > 0) {
        rulesets::clear(&topology.r)?;
    }
    Ok(Outcome::Measured { pairs, note })
}
