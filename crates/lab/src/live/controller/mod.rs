//! The controller bench: speed, memory and correctness of a Tollway that follows the kernel's
//! configuration.
//!
//! The router's kernel has a whole Internet table. ip(8) makes the changes, so every time includes
//! what ip(8) and the kernel take.

mod audit;
mod begin;
mod changes;
mod losses;
pub(super) mod router;
pub(super) mod table;
mod text;

use std::path::PathBuf;

use indicatif::ProgressBar;
use serde::Serialize;

use crate::fib::{GENERATED, Internet};
use crate::machine::Machine;
use crate::progress;
use crate::report::Report;
use crate::stats::Summary;
use crate::sys;
use router::Router;
use table::Table;
pub use text::render;

/// The measurements, by name.
const PARTS: [&str; 4] = ["begin", "changes", "losses", "audit"];

/// What to measure, and how often.
#[derive(Clone, Debug)]
pub struct Options {
    /// Parts to measure; empty for all.
    pub only: Vec<String>,
    /// Number of routes in the kernel.
    pub routes: usize,
    /// Changes of each kind per round.
    pub changes: usize,
    /// Number of measurements of each part.
    pub repeat: usize,
    /// Pairs of measurements, with and without an audit.
    pub pairs: usize,
    /// The file with a table, or [`GENERATED`].
    pub data: Option<PathBuf>,
}

/// One measured item.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name, the same in every report.
    pub name: &'static str,
    /// A description in words.
    pub title: String,
    /// The unit of the values.
    pub unit: &'static str,
    /// The measured values.
    pub value: Summary,
    /// The highest acceptable value.
    pub bar: f64,
}

impl Row {
    fn new(
        name: &'static str,
        title: impl Into<String>,
        unit: &'static str,
        values: &[f64],
        bar: f64,
    ) -> Self {
        Self {
            name,
            title: title.into(),
            unit,
            value: Summary::of(values).unwrap_or_default(),
            bar,
        }
    }
}

/// What a part needs, and where it stores its results.
struct Bench<'a> {
    options: &'a Options,
    table: &'a Table,
    router: &'a Router,
    report: &'a mut Report<Row>,
    bar: &'a ProgressBar,
}

/// Measures the selected parts.
///
/// # Errors
/// A message, if a name is unknown, the machine does not allow it, something fails, or a route
/// differs from the kernel's.
pub fn run(options: &Options) -> Result<Report<Row>, String> {
    if let Some(unknown) = options.only.iter().find(|name| !PARTS.contains(&&***name)) {
        return Err(format!("nothing is called {unknown}; there are {}", PARTS.join(", ")));
    }
    if !sys::is_root() {
        return Err("network namespaces and BPF programs are only root's to make: run it as root"
            .to_owned());
    }
    let table = Table::new(&internet(options)?, options.routes);
    let bar = progress::bar(steps(options));
    bar.set_message("filling the kernel");
    let router = Router::new(&table)?;
    let mut report = Report::new(Machine::probe(), Vec::new());
    report.figures.insert("routes".to_owned(), table.len() as f64);
    let mut bench =
        Bench { options, table: &table, router: &router, report: &mut report, bar: &bar };
    type Part = fn(&mut Bench<'_>) -> Result<(), String>;
    let parts: [Part; PARTS.len()] =
        [begin::measure, changes::measure, losses::measure, audit::measure];
    for (name, part) in PARTS.into_iter().zip(parts).filter(|(name, _)| wants(options, name)) {
        bar.set_message(name);
        part(&mut bench).map_err(|error| format!("{name}: {error}"))?;
    }
    bar.finish_and_clear();
    Ok(report)
}

fn wants(options: &Options, name: &str) -> bool {
    options.only.is_empty() || options.only.iter().any(|only| only == name)
}

/// Number of steps of all selected parts.
fn steps(options: &Options) -> u64 {
    let repeat = options.repeat as u64;
    let steps = [repeat, repeat * (3 * options.changes) as u64, 2 * repeat, options.pairs as u64];
    let wanted = PARTS.into_iter().zip(steps).filter(|(name, _)| wants(options, name));
    wanted.map(|(_, steps)| steps).sum()
}

fn internet(options: &Options) -> Result<Internet, String> {
    match &options.data {
        None => Internet::at_hand(),
        Some(path) if path.as_os_str() == GENERATED => Ok(Internet::generate()),
        Some(path) => Internet::load(path),
    }
}
