//! The cost of routes: forwarding over tables of all sizes, memory, build time, and updates while
//! forwarding.

mod data;
mod growth;
mod level;
mod lookups;
mod ours;
pub mod plot;
mod rival;
mod scene;
mod size;
mod updates;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;

use indicatif::ProgressBar;

use crate::bench::Bench;
use crate::machine::Machine;
use crate::progress;
use crate::report::{Report, Row};
use crate::stats::Summary;
use crate::text;
pub use data::Internet;
pub(crate) use scene::{Family, below, frames, tables};
use tollway_dataplane::prefix::Prefix;

/// Number of measurements of each row.
const REPEATS: usize = 21;

/// Passes of each sort in one measurement.
const PASSES: usize = 256;

/// Path of a real table, from the repository's root.
pub const DATA: &str = "../shared/data/bgp-prefixes.txt.gz";

/// Selects a generated table in place of a file.
pub const GENERATED: &str = "generated";

/// The measurements besides the rows.
pub const PARTS: [&str; 5] = ["build", "vrfs", "lookups", "updates", "growth"];

/// Single figures, by name.
type Figures = BTreeMap<String, f64>;

/// What to measure.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Rows and [`PARTS`] to measure; empty for all.
    pub only: Vec<String>,
    /// The file with a table, or [`GENERATED`].
    pub data: Option<PathBuf>,
}

/// A row: a family, and a number of prefixes of the table.
struct Size {
    name: &'static str,
    title: &'static str,
    family: Family,
    prefixes: usize,
}

const SIZES: [Size; 4] = [
    Size { name: "ip4-10k", title: "IPv4, 10,000 prefixes", family: Family::V4, prefixes: 10_000 },
    Size { name: "ip4-full", title: "IPv4, full table", family: Family::V4, prefixes: usize::MAX },
    Size { name: "ip6-10k", title: "IPv6, 10,000 prefixes", family: Family::V6, prefixes: 10_000 },
    Size { name: "ip6-full", title: "IPv6, full table", family: Family::V6, prefixes: usize::MAX },
];

/// Measures the selected rows and parts.
///
/// # Errors
/// A message, if a name is unknown, the data cannot be read, or memory is short.
pub fn run(options: &Options) -> Result<Report, String> {
    let names = || SIZES.iter().map(|size| size.name).chain(PARTS);
    if let Some(unknown) = options.only.iter().find(|only| names().all(|name| name != **only)) {
        let names: Vec<_> = names().collect();
        return Err(format!("nothing is called {unknown}; there are {}", names.join(", ")));
    }
    let wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|row| row == name);
    let table = match &options.data {
        None => Internet::at_hand()?,
        Some(path) if path.as_os_str() == GENERATED => Internet::generate(),
        Some(path) => Internet::load(path)?,
    };
    if table.v4.is_empty() || table.v6.is_empty() {
        return Err(format!("{}: a table of both families is needed", table.source));
    }
    type Part = fn(&Internet, &mut Figures, &ProgressBar) -> Result<(), String>;
    let parts: [(&str, u64, Part); PARTS.len()] = [
        ("build", size::STEPS, size::build),
        ("vrfs", size::VRF_STEPS, size::vrfs),
        ("lookups", lookups::STEPS, lookups::measure),
        ("updates", updates::STEPS, updates::measure),
        ("growth", growth::STEPS, growth::measure),
    ];
    let parts: Vec<_> = parts.into_iter().filter(|(name, ..)| wanted(name)).collect();
    let sizes: Vec<_> = SIZES.iter().filter(|size| wanted(size.name)).collect();
    let row_steps = if sizes.is_empty() { 0 } else { REPEATS as u64 };
    let bar = progress::bar(row_steps + parts.iter().map(|(_, steps, _)| steps).sum::<u64>());
    let machine = Machine::probe();
    let rows = rows(&table, &sizes, &machine, &bar)?;
    let mut report = Report::new(machine, rows);
    for (name, _, part) in parts {
        bar.set_message(name);
        part(&table, &mut report.figures, &bar)?;
    }
    bar.finish_and_clear();
    Ok(report)
}

/// Measures the rows in turn.
fn rows(
    table: &Internet,
    sizes: &[&Size],
    machine: &Machine,
    bar: &ProgressBar,
) -> Result<Vec<Row>, String> {
    let mut benches = Vec::new();
    for size in sizes {
        let prefixes = scene::sample(size.family.of(table), size.prefixes);
        let tables = tables(size.family, &prefixes)?;
        let frames = frames(size.family, &prefixes);
        benches.push((size, Bench::over(tables, frames, 64)?));
    }
    if benches.is_empty() {
        return Ok(Vec::new());
    }
    let mut clocks = vec![Vec::new(); benches.len()];
    for _ in 0..REPEATS {
        for (index, (_, bench)) in benches.iter_mut().enumerate() {
            // The other rows have just used the caches, which a router has to itself. So a pass
            // without measurement comes first.
            bench.clocks_per_packet(PASSES);
            clocks[index].push(bench.clocks_per_packet(PASSES));
        }
        bar.inc(1);
    }
    let mut rows = Vec::new();
    for ((size, bench), clocks) in benches.iter().zip(&clocks) {
        let clocks = Summary::of(clocks).ok_or("no repeats")?;
        rows.push(Row {
            name: size.name,
            title: size.title,
            clocks_per_packet: clocks,
            ns_per_packet: clocks.scaled(machine.ns_per_clock()),
            stages: bench.stages(),
        });
    }
    Ok(rows)
}

/// `count` prefixes of a family, drawn from the generated table, and random beyond its size. Every
/// call returns the same prefixes.
pub(crate) fn synthetic(family: Family, count: usize) -> Vec<Prefix> {
    static TABLE: OnceLock<Internet> = OnceLock::new();
    let table = TABLE.get_or_init(Internet::generate);
    data::more(scene::sample(family.of(table), count), count, family == Family::V4)
}

/// The report as text.
#[must_use]
pub fn render(report: &Report) -> String {
    let figures = &report.figures;
    let mut text = text::render(report);
    text += &lookups::render(figures);
    text += &growth::render(figures);
    if !text.ends_with("\n\n") {
        text += "\n";
    }
    let apart = ["lookup_", "rival_", "growth_"];
    for (name, figure) in figures {
        if !apart.iter().any(|apart| name.starts_with(apart)) {
            text += &format!("{name:<32} {:>14}\n", text::figure(*figure));
        }
    }
    if let Some(control) = figures.get("update_slowdown_control_percent") {
        text += &format!(
            "\nChanges of tables that are not in use slow forwarding by {} percent: the other thread takes\n\
             caches and clock of a shared machine. Only what update_slowdown_percent has beyond that\n\
             comes from changes of tables in use.\n",
            text::figure(*control)
        );
    }
    let throttled = figures.get("updates_per_second_throttled");
    if let Some(rate) = throttled.filter(|rate| **rate < 0.98 * updates::RATE as f64) {
        text += &format!(
            "\nupdates came at {} a second instead of {}: this machine has no processor to spare\n",
            text::figure(*rate),
            text::figure(updates::RATE as f64)
        );
    }
    text
}
