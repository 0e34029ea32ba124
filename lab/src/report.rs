//! The form that every benchmark's result has.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::machine::{COMMIT, COMPILER, Machine};
use crate::stats::Summary;

/// A benchmark's whole result; as JSON one object.
#[derive(Clone, Debug, Serialize)]
pub struct Report<R = Row> {
    /// What it ran on.
    pub machine: Machine,
    /// What built it.
    pub compiler: &'static str,
    /// What it was built from.
    pub commit: &'static str,
    /// One for each thing measured.
    pub rows: Vec<R>,
    /// Single figures, by name.
    #[serde(flatten)]
    pub figures: BTreeMap<String, f64>,
}

impl<R> Report<R> {
    /// A report on this build and this machine.
    #[must_use]
    pub fn new(machine: Machine, rows: Vec<R>) -> Self {
        Self { machine, compiler: COMPILER, commit: COMMIT, rows, figures: BTreeMap::new() }
    }
}

/// One thing measured.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name, the same in every report.
    pub name: &'static str,
    /// What it is, in words.
    pub title: &'static str,
    /// TSC clocks a packet.
    pub clocks_per_packet: Summary,
    /// Nanoseconds a packet.
    pub ns_per_packet: Summary,
    /// TSC clocks a packet in each stage, as sampled while it ran.
    pub stages: BTreeMap<&'static str, f64>,
}
