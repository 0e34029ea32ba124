//! The cost of the firewall: forwarding under rules of all numbers and shapes, build time, memory.

mod dpdk;
mod growth;
pub mod plot;
mod rules;
mod scene;
mod sets;
mod testbed;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use indicatif::ProgressBar;
use tollway_dataplane::stages::filter::Filter;
use tollway_dataplane::tables::Tables;

use crate::bench::Bench;
use crate::frames::{Flow4, Source};
use crate::machine::Machine;
use crate::progress;
use crate::report::{Report, Row};
use crate::stats::Summary;
use crate::text;
use rules::Tuple;
use scene::{ROWS, Scene};
use testbed::Trace;

/// Number of measurements of each row.
const REPEATS: usize = 21;

/// Passes of each sort in one measurement.
const PASSES: usize = 256;

/// Path of a real list of rules, from the repository's root.
pub const DATA: &str = "../shared/data/acl1-941.rules";

/// The measurements besides the rows.
pub const PARTS: [&str; 3] = ["build", "growth", "set-changes"];

/// Single figures, by name.
type Figures = BTreeMap<String, f64>;

/// What to measure.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Rows and [`PARTS`] to measure; empty for all.
    pub only: Vec<String>,
    /// The file with a list of rules, in ClassBench format.
    pub data: Option<PathBuf>,
}

/// Measures the selected rows and parts.
///
/// # Errors
/// A message, if a name is unknown, the data cannot be read, or memory is short.
pub fn run(options: &Options) -> Result<Report, String> {
    let names = || ROWS.iter().map(|row| row.name).chain(PARTS);
    if let Some(unknown) = options.only.iter().find(|only| names().all(|name| name != **only)) {
        let names: Vec<_> = names().collect();
        return Err(format!("nothing is called {unknown}; there are {}", names.join(", ")));
    }
    let wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|row| row == name);
    let list = rules::load(options.data.as_deref())?;
    let rows: Vec<_> = ROWS.iter().filter(|row| wanted(row.name)).collect();
    let parts = [("build", BUILDS as u64), ("growth", growth::STEPS), ("set-changes", sets::STEPS)];
    let steps = parts.iter().filter(|(name, _)| wanted(name)).map(|(_, steps)| steps).sum::<u64>();
    let bar = progress::bar(steps + if rows.is_empty() { 0 } else { REPEATS as u64 });
    let mut figures = Figures::new();
    let rows = measure(&list, &rows, &mut figures, &bar)?;
    let mut report = Report::new(Machine::probe(), rows);
    report.figures = figures;
    if wanted("build") {
        build(&list, &mut report.figures, &bar)?;
    }
    if wanted("growth") {
        growth::measure(&list, &mut report.figures, &bar)?;
    }
    if wanted("set-changes") {
        sets::measure(&mut report.figures, &bar)?;
    }
    bar.finish_and_clear();
    Ok(report)
}

/// A row's benches, one for each trace, with their measurements.
struct Measured<'a> {
    row: &'a Scene,
    benches: Vec<(Trace, Bench, Vec<f64>)>,
}

/// Measures the rows in turn.
fn measure(
    list: &[Tuple],
    rows: &[&'static Scene],
    figures: &mut Figures,
    bar: &ProgressBar,
) -> Result<Vec<Row>, String> {
    let machine = Machine::probe();
    let mut measured = Vec::new();
    for row in rows {
        let bench = |trace: &Trace| Ok((*trace, row.bench(list, *trace)?, Vec::new()));
        let benches = row.traces().iter().map(bench).collect::<Result<_, String>>()?;
        measured.push(Measured { row, benches });
    }
    for _ in 0..if measured.is_empty() { 0 } else { REPEATS } {
        for (_, bench, clocks) in measured.iter_mut().flat_map(|row| &mut row.benches) {
            // The other rows have just used the caches, which a router has to itself. So a pass
            // without measurement comes first.
            bench.clocks_per_packet(PASSES);
            clocks.push(bench.clocks_per_packet(PASSES));
        }
        bar.inc(1);
    }
    measured.iter().map(|row| sum_up(row, &machine, figures)).collect()
}

/// A row's figure is that of its most expensive trace. The figures of all traces go beside the
/// rows.
fn sum_up(
    measured: &Measured<'_>,
    machine: &Machine,
    figures: &mut Figures,
) -> Result<Row, String> {
    let mut worst: Option<(Summary, &Bench)> = None;
    for (trace, bench, clocks) in &measured.benches {
        let clocks = Summary::of(clocks).ok_or("no repeats")?;
        figures.insert(format!("clocks_{}_{}", measured.row.name, trace.name()), clocks.median);
        if worst.is_none_or(|(worst, _)| worst.median < clocks.median) {
            worst = Some((clocks, bench));
        }
    }
    let (clocks, bench) = worst.ok_or("no trace")?;
    Ok(Row {
        name: measured.row.name,
        title: measured.row.title,
        clocks_per_packet: clocks,
        ns_per_packet: clocks.scaled(machine.ns_per_clock()),
        stages: bench.stages(),
    })
}

/// Number of builds of the largest list.
const BUILDS: usize = 5;

/// Builds 10,000 rules and measures their memory.
fn build(list: &[Tuple], figures: &mut Figures, bar: &ProgressBar) -> Result<(), String> {
    let tuples = rules::in_the_style_of(list, 10_000);
    let mut seconds = Vec::new();
    for _ in 0..BUILDS {
        let start = Instant::now();
        let filter = testbed::filter(&tuples)?;
        seconds.push(start.elapsed().as_secs_f64());
        figures.insert("memory_bytes_10k".to_owned(), filter.memory_bytes() as f64);
        bar.inc(1);
    }
    let seconds = Summary::of(&seconds).ok_or("no repeats")?;
    figures.insert("build_seconds_10k".to_owned(), seconds.median);
    Ok(())
}

/// Tables, packets and rules: `count` rules of mixed shapes that accept everything, and `flows` flows
/// drawn from them.
pub(crate) fn synthetic(
    count: usize,
    flows: usize,
) -> Result<(Tables, Source, Arc<Filter>), String> {
    let (flows, filter) = drawn(count, flows)?;
    let (tables, source) = testbed::stage(flows, false)?;
    Ok((tables, source, filter))
}

/// The same with rules that only count, as `count` of ipfw does, before one that counts and accepts.
pub(crate) fn counting(
    count: usize,
    flows: usize,
) -> Result<(Tables, Source, Arc<Filter>), String> {
    let tuples = rules::mixed(count);
    let flows = testbed::flows(&tuples, Trace::Random, flows);
    let (tables, source) = testbed::stage(flows, false)?;
    Ok((tables, source, testbed::counting_filter(&tuples)?))
}

/// `flows` flows drawn from `count` rules of mixed shapes, and the rules.
pub(crate) fn drawn(count: usize, flows: usize) -> Result<(Vec<Flow4>, Arc<Filter>), String> {
    let tuples = rules::mixed(count);
    Ok((testbed::flows(&tuples, Trace::Random, flows), testbed::filter(&tuples)?))
}

/// The report as text.
#[must_use]
pub fn render(report: &Report) -> String {
    let figures = &report.figures;
    let mut text = text::render(report);
    text += &growth::render(figures);
    if !text.ends_with("\n\n") {
        text += "\n";
    }
    for (name, figure) in figures.iter().filter(|(name, _)| !name.starts_with("growth_")) {
        let figure =
            if name.contains("seconds") { format!("{figure:.3}") } else { text::figure(*figure) };
        text += &format!("{name:<40} {figure:>14}\n");
    }
    text
}
