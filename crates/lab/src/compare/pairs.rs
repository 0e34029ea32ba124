//! Pairs of processes, one of each side, that measure in turn.
//!
//! Every process has its memory at other addresses, which is the main reason why processes of one
//! build differ. So a pair of processes is one observation, however many slices it measures. Both
//! processes of a pair run at the same time and take turns by the millisecond, ABBA and BAAB, so
//! that disturbances of the machine affect both alike.

use std::time::{Duration, Instant};

use super::child::Probe;
use super::side::Side;
use crate::stats::median;
use crate::verdict::Pair;

/// The fewest blocks of four slices in a pair.
const LEAST_BLOCKS: usize = 3;

/// Measures a row with a new process of each side, in clocks per packet, until `until`. If
/// `swapped`, the head side starts first and measures first.
///
/// # Errors
/// A message, if a process cannot be started or does not answer.
pub(super) fn by_probes(
    sides: &[Side; 2],
    row: &str,
    swapped: bool,
    until: Instant,
) -> Result<Pair, String> {
    let mut probes = if swapped {
        let head = Probe::start(&sides[1], row)?;
        [Probe::start(&sides[0], row)?, head]
    } else {
        [Probe::start(&sides[0], row)?, Probe::start(&sides[1], row)?]
    };
    for probe in &mut probes {
        probe.slice()?;
    }
    let mut slices = [Vec::new(), Vec::new()];
    let mut differences = Vec::new();
    while differences.len() < LEAST_BLOCKS || Instant::now() < until {
        let first = usize::from(swapped) ^ (differences.len() % 2);
        let mut sums = [0.0; 2];
        for side in [first, 1 - first, 1 - first, first] {
            let clocks = probes[side].slice()?;
            slices[side].push(clocks);
            sums[side] += clocks / 2.0;
        }
        differences.push(sums[1] - sums[0]);
    }
    let [base, head] = slices.map(|slices| median(&slices));
    Ok(Pair { base, head, difference: median(&differences) })
}

/// Like [`by_probes`], with one whole run of `lab tolls` per side, for builds without a probe.
///
/// # Errors
/// A message, if a run fails.
pub(super) fn by_tolls(sides: &[Side; 2], row: &str, swapped: bool) -> Result<Pair, String> {
    let mut clocks = [0.0; 2];
    for side in if swapped { [1, 0] } else { [0, 1] } {
        clocks[side] = super::child::tolls(&sides[side], row)?;
    }
    let [base, head] = clocks;
    Ok(Pair { base, head, difference: head - base })
}

/// The next pair's share of the remaining time, with `pairs` still to come.
pub(super) fn share(left: Duration, pairs: usize) -> Duration {
    left / u32::try_from(pairs.max(1)).unwrap_or(u32::MAX)
}
