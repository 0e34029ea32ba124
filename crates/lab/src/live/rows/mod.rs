//! What gets through the kernel and through Tollway, measured in turn. [`table`] has the rows.

mod between_sockets;
pub(super) mod bridge;
mod connections;
mod drops;
mod features;
mod flood;
mod flows;
mod follow;
mod full_table;
mod kernel_rule;
mod pairs;
mod processor;
mod sockets;
mod streams;
mod table;
#[cfg(test)]
mod tests;
mod text;
mod transactions;
mod wire;

use serde::Serialize;

use super::Options;
use super::generator::{Flows, Stream};
use super::setups::Setups;
use super::sink::SinkHook;
use crate::progress;
use crate::report::Report;
use crate::stats::Summary;
pub use pairs::Rates;
use pairs::{Pairs, ProcessorTimes, Side as _};
use table::{CASES, Case, Kind};
pub(super) use text::render;
use wire::Wire;

/// The row with the kernel alone.
pub(super) const KERNEL: &str = "kernel";

/// One measured configuration.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name, the same in every report.
    pub name: &'static str,
    /// A description in words.
    pub title: &'static str,
    /// The unit of the rates.
    pub unit: &'static str,
    /// The unit of the ratio: "%", or nothing.
    pub ratio_unit: &'static str,
    /// What was measured; nothing if the row is left out.
    #[serde(flatten)]
    pub rates: Option<Rates>,
    /// What else there is to know, for example why the row is left out.
    pub note: Option<String>,
}

/// What rows are measured with.
struct Bench<'a> {
    setups: &'a Setups,
    pairs: usize,
    /// Called after each pair.
    step: &'a dyn Fn(),
}

/// The outcome of a row.
enum Outcome {
    /// Both routers were measured.
    Measured { pairs: Pairs, note: Option<String> },
    /// The machine lacks what the row needs.
    LeftOut(String),
}

/// The names of all rows but [`KERNEL`], and whether each is measured only on request.
pub(super) fn names() -> impl Iterator<Item = (&'static str, bool)> {
    CASES.iter().map(|case| (case.name, case.extra))
}

/// Measures the selected rows.
pub(super) fn measure(
    setups: &Setups,
    options: &Options,
    report: &mut Report<Row>,
) -> Result<(), String> {
    let wanted =
        |case: &&Case| options.wants(case.name) && !(case.extra && options.only.is_empty());
    let cases: Vec<_> = CASES.iter().filter(wanted).collect();
    if cases.is_empty() && !options.wants(KERNEL) {
        return Ok(());
    }
    let bar = progress::bar((cases.len().max(1) * options.pairs) as u64);
    let bench = Bench { setups, pairs: options.pairs, step: &|| bar.inc(1) };
    let mut kernel_alone = Vec::new();
    for case in &cases {
        bar.set_message(case.name);
        let failed = |error| format!("row {}: {error}", case.name);
        let outcome = one(&bench, case).map_err(failed)?;
        if let (Outcome::Measured { pairs, .. }, true) = (&outcome, is_plain(case, cases.len())) {
            kernel_alone.extend(&pairs.kernel);
        }
        let processor = processor_times(&outcome);
        report.figures.extend(processor.map(|times| (case.processor_figure(), times.ratio())));
        let row = row(case, outcome);
        report.figures.extend(row.rates.map(|rates| (case.figure(), rates.ratio.median)));
        report.rows.push(row);
    }
    if kernel_alone.is_empty() && options.wants(KERNEL) {
        kernel_alone = kernel(&bench)?;
    }
    bar.finish_and_clear();
    if let Some(kernel) = Summary::of(&kernel_alone) {
        report.figures.insert("kernel_mpps".to_owned(), kernel.median);
        report.figures.insert("kernel_mpps_min".to_owned(), kernel.min);
        report.figures.insert("kernel_mpps_max".to_owned(), kernel.max);
    }
    Ok(())
}

/// Measures one row.
fn one(bench: &Bench<'_>, case: &Case) -> Result<Outcome, String> {
    match case.kind {
        Kind::Flows(ref flows) => flows::measure(bench, flows),
        Kind::FullTable { v6, flows } => full_table::measure(bench, v6, flows),
        Kind::Flood { rules } => flood::measure(bench, rules),
        Kind::Connections(connections) => connections::measure(bench, connections),
        Kind::BesideFlowtable(connections) => connections::beside_flowtable(bench, connections),
        Kind::Drops { flood } => drops::measure(bench, flood),
        Kind::Features => features::measure(bench),
        Kind::KernelRule => kernel_rule::measure(bench),
        Kind::Bridged { hosts, calls } => bridge::measure(bench, hosts, calls),
        Kind::BridgeRouted => bridge::measure_routed(bench),
        Kind::Streams { count, rules } => {
            let side = |topology| streams::Streams::new(topology, count);
            between_sockets::measure(bench, rules, side)
        }
        Kind::Sockets { rules } => between_sockets::measure(bench, rules, sockets::Sockets::new),
        Kind::Transactions { rules } => {
            between_sockets::measure(bench, rules, transactions::Transactions::new)
        }
    }
}

/// Whether the kernel's rate in a row is that of a small table without rules. An `af-xdp` row counts only alone,
/// since the kernel's rate to its sink is lower.
fn is_plain(case: &Case, cases: usize) -> bool {
    matches!(case.kind, Kind::Flows(flows) if flows.sink == SinkHook::Xdp || cases == 1)
}

/// Measures the kernel alone, million frames per second.
fn kernel(bench: &Bench<'_>) -> Result<Vec<f64>, String> {
    let stream = Stream { flows: Flows::InTurn(256), vid: None, rate: None };
    let wire = Wire::new(&bench.setups.tuned()?.kernel, stream, SinkHook::Xdp, None)?;
    let measure = |_| {
        let rate = wire.rate();
        (bench.step)();
        rate
    };
    (0..bench.pairs).map(measure).collect()
}

/// The processor times for a byte, where they were measured.
fn processor_times(outcome: &Outcome) -> Option<ProcessorTimes> {
    match outcome {
        Outcome::Measured { pairs, .. } => ProcessorTimes::median(&pairs.processor),
        Outcome::LeftOut(_) => None,
    }
}

fn processor_note(pairs: &Pairs) -> Option<String> {
    let times = ProcessorTimes::median(&pairs.processor)?;
    let ProcessorTimes { kernel, tollway, direct } = times;
    Some(format!(
        "a byte takes {kernel:.3} ns of processor time by the kernel, {tollway:.3} by Tollway and {direct:.3} without a \
         router: of the router alone, {:.2} times as much",
        times.ratio()
    ))
}

/// The row of an outcome.
fn row(case: &Case, outcome: Outcome) -> Row {
    let &Case { name, title, .. } = case;
    let (rates, note) = match outcome {
        Outcome::LeftOut(reason) => (None, Some(format!("left out: {reason}"))),
        Outcome::Measured { pairs, note } => {
            let rates = pairs.rates(if case.is_percent() { 100.0 } else { 1.0 });
            let nothing = rates.tollway.median <= 0.0;
            let note = note.or_else(|| processor_note(&pairs));
            (Some(rates), nothing.then(|| "nothing gets through Tollway".to_owned()).or(note))
        }
    };
    let ratio_unit = if case.is_percent() { "%" } else { "" };
    Row { name, title, unit: case.unit(), ratio_unit, rates, note }
}
