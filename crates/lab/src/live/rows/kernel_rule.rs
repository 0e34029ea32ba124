//! What Tollway delivers where a rule leaves all forwarded packets to the kernel.

use super::super::generator::{Flows, Stream};
use super::super::rulesets;
use super::super::sink::SinkHook;
use super::follow::{self, AS_CARDS};
use super::pairs::Side as _;
use super::wire::Wire;
use super::{Bench, Outcome};

/// The offered rate, million frames per second, if the kernel alone delivers as much.
const OFFERED_MPPS: f64 = 1.0;

/// Measures.
pub(super) fn measure(bench: &Bench<'_>) -> Result<Outcome, String> {
    let topologies = bench.setups.tuned()?;
    topologies.tollway.kernel_forwards(true)?;
    let both = [&topologies.kernel, &topologies.tollway];
    for topology in both {
        rulesets::load(&topology.r, rulesets::KERNEL_ONLY)?;
    }
    let wire = |topology| {
        let stream = Stream { flows: Flows::InTurn(256), vid: None, rate: None };
        // Both kernels send kernel packets.
        Wire::new(topology, stream, SinkHook::Tc, None)
    };
    let (kernel, side) = (wire(both[0])?, wire(both[1])?);
    let rate = (kernel.rate()?.min(OFFERED_MPPS) * 1e6) as u32;
    let (kernel, side) = (kernel.paced(rate), side.paced(rate));
    let outcome = follow::measure(bench, both[1], AS_CARDS, [&kernel, &side])?;
    for topology in both {
        rulesets::clear(&topology.r)?;
    }
    Ok(outcome)
}
