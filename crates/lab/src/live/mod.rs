//! The live bench: forwarding between real interfaces, by the kernel and by Tollway in turn.
//!
//! There are two setups of hosts A and B with a router R between them: in one, R's kernel is the
//! router; in the other, Tollway runs on R. They use network namespaces that end with this process.
//! A BPF program on A, which the kernel runs with live frames, sends; another program on B counts.

mod arrival;
mod conntrack;
pub mod controller;
mod established;
mod fdb_move;
mod flush;
mod generator;
mod host;
mod latency;
mod loss;
mod ping;
mod program;
mod rows;
pub mod rr;
mod rulesets;
mod setups;
mod sink;
mod syn_flood;
#[cfg(test)]
mod tests;
mod text;
mod topology;
mod traffic;
mod workers;

use crate::machine::Machine;
use crate::report::Report;
use crate::sys;
use crate::text::filled;
use rows::KERNEL;
pub use rows::{Rates, Row};
use setups::Setups;
pub use text::render;

/// The measurements besides the rows, by name.
const PARTS: [&str; 8] = [
    "kill",
    "stop",
    "upgrade",
    flush::NAME,
    arrival::NAME,
    syn_flood::NAME,
    fdb_move::NAME,
    "latency",
];

/// The width of a help text.
const HELP_WIDTH: usize = 79;

/// What to measure, and how often.
#[derive(Clone, Debug)]
pub struct Options {
    /// Rows and parts to measure; empty for all.
    pub only: Vec<String>,
    /// Pairs of measurements, kernel and Tollway, for each row.
    pub pairs: usize,
    /// How often Tollway is killed, how often it is stopped, and how often each part about connections is measured.
    pub repeat: usize,
}

impl Options {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }

    /// Whether a row or another part than the workers is to be measured.
    fn needs_topologies(&self) -> bool {
        self.only.is_empty()
            || self.only.iter().any(|only| !workers::NAMES.contains(&only.as_str()))
    }
}

/// The names of rows and parts in sentences, for a help text.
#[must_use]
pub fn row_names() -> String {
    let (extra, usual): (Vec<_>, Vec<_>) = rows::names().partition(|(_, extra)| *extra);
    let list = |rows: Vec<(&'static str, bool)>| {
        rows.into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(" ")
    };
    let (usual, extra) = (list(usual), list(extra));
    let [all, parts @ ..] = workers::NAMES;
    [
        format!("Rows: {KERNEL} {usual}; {extra} only if named."),
        format!("Parts: {} {all}; of the last one alone: {}.", PARTS.join(" "), parts.join(" ")),
    ]
    .map(|sentence| filled(&sentence, HELP_WIDTH))
    .join("\n")
}

/// Measures the selected rows and parts.
///
/// # Errors
/// A message, if a name is unknown, the machine does not allow it, or something fails.
pub fn run(options: &Options) -> Result<Report<Row>, String> {
    let names = std::iter::once(KERNEL)
        .chain(rows::names().map(|(name, _)| name))
        .chain(PARTS)
        .chain(workers::NAMES);
    let names: Vec<_> = names.collect();
    if let Some(unknown) = options.only.iter().find(|name| !names.contains(&&***name)) {
        return Err(format!("nothing is called {unknown}; there are {}", names.join(", ")));
    }
    let mut report = Report::new(Machine::probe(), Vec::new());
    if options.needs_topologies() {
        between_interfaces(options, &mut report)?;
    }
    if workers::NAMES.iter().any(|name| options.wants(name)) {
        workers::measure(options, &mut report)?;
    }
    Ok(report)
}

/// Measures what needs interfaces.
fn between_interfaces(options: &Options, report: &mut Report<Row>) -> Result<(), String> {
    if !sys::is_root() {
        return Err("network namespaces and BPF programs are only root's to make: run it as root"
            .to_owned());
    }
    let setups = Setups::default();
    rows::measure(&setups, options, report)?;
    let topologies = setups.tuned()?;
    loss::measure(topologies, options, report)?;
    flush::measure(topologies, options, report)?;
    arrival::measure(topologies, options, report)?;
    syn_flood::measure(topologies, options, report)?;
    fdb_move::measure(topologies, options, report)?;
    latency::measure(topologies, options, report)
}
