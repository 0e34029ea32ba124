//! What rows between sockets have in common: devices as the kernel makes them, and rules.

use super::super::topology::Topology;
use super::follow::Follower;
use super::pairs::{Side, in_turn};
use super::table::SocketRules;
use super::{Bench, Outcome, rulesets};

/// Measures what `side` makes of a topology, without and with Tollway.
pub(super) fn measure<'a, S: Side>(
    bench: &Bench<'a>,
    rules: SocketRules,
    side: impl Fn(&'a Topology) -> Result<S, String>,
) -> Result<Outcome, String> {
    let topologies = bench.setups.plain()?;
    let both = [&topologies.kernel, &topologies.tollway];
    if let Some(text) = text(rules) {
        for topology in both {
            rulesets::load(&topology.r, &text)?;
        }
    }
    let tollway = Follower::start(both[1], &[], false)?;
    let sides = (side(both[0])?, side(both[1])?);
    sides.1.rate()?;
    let pairs = in_turn(&sides.0, &sides.1, bench.pairs, bench.step)?;
    let note = tollway.note();
    tollway.stop()?;
    for topology in both {
        rulesets::clear(&topology.r)?;
    }
    Ok(Outcome::Measured { pairs, note })
}

fn text(rules: SocketRules) -> Option<String> {
    match rules {
        SocketRules::None => None,
        SocketRules::Drops(count) => Some(rulesets::drops(count)),
        SocketRules::Masquerade => Some(rulesets::MASQUERADE.to_owned()),
    }
}
