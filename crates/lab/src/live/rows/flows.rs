//! Flows through a small table, Tollway by a configuration file.

use super::super::generator::{Flows, Stream};
use super::super::program::{self, Tollway};
use super::super::topology::VIDS;
use super::pairs::{Side as _, in_turn};
use super::table::FlowCase;
use super::wire::Wire;
use super::{Bench, Outcome};

/// Measures a case and the kernel in turn.
pub(super) fn measure(bench: &Bench<'_>, case: &FlowCase) -> Result<Outcome, String> {
    let topologies = bench.setups.tuned()?;
    // Frames that the kernel forwards must not count as Tollway's.
    topologies.tollway.kernel_forwards(false)?;
    let vids = case.setup.features.then_some(VIDS);
    let stream = |vid| Stream { flows: Flows::InTurn(case.flows), vid, rate: None };
    let kernel = Wire::new(&topologies.kernel, stream(None), case.sink, None)?;
    let [left, right] = [0, 1].map(|side| vids.map(|vids| vids[side]));
    let side = Wire::new(&topologies.tollway, stream(left), case.sink, right)?;
    let tollway = Tollway::start(&topologies.tollway, case.setup, false)?;
    side.warm_up()?;
    let pairs = in_turn(&kernel, &side, bench.pairs, bench.step)?;
    tollway.stop()?;
    program::clear(&topologies.tollway)?;
    Ok(Outcome::Measured { pairs, note: None })
}
