//! What rows between sockets have in common: devices as the kernel makes them, and rules.

use super::super::rulesets;
use super::super::topology::Topology;
use super::follow::{self, BY_DEFAULT};
use super::pairs::Side;
use super::table::SocketRules;
use super::{Bench, Outcome};

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
    let (kernel, tollway) = (side(both[0])?, side(both[1])?);
    let outcome = follow::measure(bench, both[1], BY_DEFAULT, [&kernel, &tollway])?;
    for topology in both {
        rulesets::clear(&topology.r)?;
    }
    Ok(outcome)
}

fn text(rules: SocketRules) -> Option<String> {
    match rules {
        SocketRules::None => None,
        SocketRules::Drops(count) => Some(rulesets::drops(count)),
        SocketRules::Masquerade => Some(rulesets::MASQUERADE.to_owned()),
        SocketRules::Firewall => Some([rulesets::OUTBOUND, rulesets::MASQUERADE].concat()),
    }
}
