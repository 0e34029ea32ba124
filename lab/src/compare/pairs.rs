//! Pairs of processes, one of each side, that measure in turn.
//!
//! The memory of every process lies elsewhere, and it is by that more than by anything else that processes
//! of one build differ: so a pair of processes is one observation, however many slices they measure. Both
//! of a pair live at the same time and take turns by the millisecond, ABBA and BAAB, so that what the machine
//! does meanwhile meets both alike.

use std::time::{Duration, Instant};

use super::child::Probe;
use super::side::Side;
use crate::stats::median;

/// Blocks of four slices that a pair takes at least.
const LEAST_BLOCKS: usize = 3;

/// What a pair of processes measured: TSC clocks or ns a packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// The middle of the first side's slices.
    pub base: f64,
    /// The middle of the second's.
    pub head: f64,
    /// The middle of what the second side took longer, block by block.
    pub difference: f64,
}

impl Pair {
    /// The same in another unit.
    pub(super) fn scaled(self, factor: f64) -> Self {
        Self {
            base: self.base * factor,
            head: self.head * factor,
            difference: self.difference * factor,
        }
    }
}

/// Measures a row by a new process of each side, for so long, clocks a packet. The second side is the first
/// to start, and to measure, where `swapped`.
///
/// # Errors
/// A sentence, where a process can not be started or does not answer.
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

/// The same by one whole run of `lab tolls` for each side, for builds that have no probe.
///
/// # Errors
/// A sentence, where a run fails.
pub(super) fn by_tolls(sides: &[Side; 2], row: &str, swapped: bool) -> Result<Pair, String> {
    let mut clocks = [0.0; 2];
    for side in if swapped { [1, 0] } else { [0, 1] } {
        clocks[side] = super::child::tolls(&sides[side], row)?;
    }
    let [base, head] = clocks;
    Ok(Pair { base, head, difference: head - base })
}

/// The part of what is left that the next pair may take, of so many that are to come.
pub(super) fn share(left: Duration, pairs: usize) -> Duration {
    left / u32::try_from(pairs.max(1)).unwrap_or(u32::MAX)
}
