//! The common form of all benchmark results.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::machine::{COMMIT, COMPILER, Machine};
use crate::stats::Summary;

/// The whole result of a benchmark. As JSON it is one object.
#[derive(Clone, Debug, Serialize)]
pub struct Report<R = Row> {
    /// The machine it ran on.
    pub machine: Machine,
    /// The compiler of this build.
    pub compiler: &'static str,
    /// The commit of this build.
    pub commit: &'static str,
    /// The rows, one for each measured item.
    pub rows: Vec<R>,
    /// Single figures, by name.
    #[serde(flatten)]
    pub figures: BTreeMap<String, f64>,
}

impl<R> Report<R> {
    /// A report for this build and this machine.
    #[must_use]
    pub fn new(machine: Machine, rows: Vec<R>) -> Self {
        Self { machine, compiler: COMPILER, commit: COMMIT, rows, figures: BTreeMap::new() }
    }
}

/// One measured item.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name, the same in every report.
    pub name: &'static str,
    /// A description in words.
    pub title: &'static str,
    /// TSC clocks per packet.
    pub clocks_per_packet: Summary,
    /// Nanoseconds per packet.
    pub ns_per_packet: Summary,
    /// TSC clocks per packet in each stage, from samples taken during the run.
    pub stages: BTreeMap<&'static str, f64>,
}
