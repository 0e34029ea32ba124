//! The toll table: what forwarding costs a packet, and what each feature adds.
//!
//! A pass restores [`IN_FLIGHT`] frames and forwards them from one memory port to another. Passes
//! that only restore run in between, and their time is taken off. Rows take turns, so that a
//! machine that is disturbed for a while disturbs all of them alike.

mod bench;
mod scenario;

use std::collections::BTreeMap;
use std::time::Duration;

use indicatif::ProgressBar;
use tollway_dataplane::path::{Everything, Features, Nothing};

use crate::machine::Machine;
use crate::report::{Report, Row};
use crate::stats::Summary;
use crate::text;
pub use bench::{Bench, IN_FLIGHT};
pub use scenario::{Build, ROWS, Scenario};

/// Times that every row is measured.
const REPEATS: usize = 41;

/// Passes of each sort in one measurement, a multiple of 64 so that a row of 65,536 flows sends
/// each as often.
const PASSES: usize = 256;

/// Measures the rows named in `only`, or all where it is empty.
///
/// # Errors
/// A sentence, where a name is none of [`ROWS`] or memory is short.
pub fn run(only: &[String]) -> Result<Report, String> {
    if let Some(unknown) = only.iter().find(|name| ROWS.iter().all(|row| row.name != **name)) {
        let names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
        return Err(format!("no row is called {unknown}; the rows are {}", names.join(", ")));
    }
    let wanted = |row: &&Scenario| only.is_empty() || only.iter().any(|name| *name == row.name);
    let mut benches = Vec::new();
    for scenario in ROWS.iter().filter(wanted) {
        benches.push((scenario, open(scenario)?));
    }
    // One bench with and without sampling in turn, to know what sampling costs.
    let mut sampling = open(&ROWS[1])?;
    let machine = Machine::probe();
    let bar = progress(REPEATS as u64);
    let mut clocks = vec![Vec::with_capacity(REPEATS); benches.len()];
    let mut overheads = Vec::with_capacity(REPEATS);
    for _ in 0..REPEATS {
        for (index, (_, bench)) in benches.iter_mut().enumerate() {
            clocks[index].push(bench.clocks_per_packet(PASSES));
        }
        let [on, off] = [true, false].map(|on| {
            sampling.sample(on);
            sampling.clocks_per_packet(PASSES)
        });
        overheads.push(100.0 * (on / off - 1.0));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let rows = benches.iter().zip(&clocks);
    let rows = rows.filter_map(|((row, bench), clocks)| sum_up(row, &**bench, clocks, &machine));
    let mut report = Report::new(machine.clone(), rows.collect());
    if let Some(overhead) = Summary::of(&overheads) {
        report.figures.insert("sampling_overhead_percent".to_owned(), overhead.median);
    }
    Ok(report)
}

/// The report as text.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut text = text::render(report);
    if let Some(overhead) = report.figures.get("sampling_overhead_percent") {
        text += &format!("\nsampling the stages costs {overhead:+.2}% of ip4-one-flow\n");
    }
    text
}

/// A bench of either build of the path.
trait Measure {
    fn sample(&mut self, on: bool);
    fn clocks_per_packet(&mut self, passes: usize) -> f64;
    fn stages(&self) -> BTreeMap<&'static str, f64>;
}

impl<F: Features> Measure for Bench<F> {
    fn sample(&mut self, on: bool) {
        Self::sample(self, on);
    }

    fn clocks_per_packet(&mut self, passes: usize) -> f64 {
        Self::clocks_per_packet(self, passes)
    }

    fn stages(&self) -> BTreeMap<&'static str, f64> {
        Self::stages(self)
    }
}

fn open(scenario: &Scenario) -> Result<Box<dyn Measure>, String> {
    Ok(match scenario.build {
        Build::Nothing => Box::new(Bench::<Nothing>::new(scenario)?),
        Build::Everything => Box::new(Bench::<Everything>::new(scenario)?),
    })
}

fn sum_up(
    scenario: &Scenario,
    bench: &dyn Measure,
    clocks: &[f64],
    machine: &Machine,
) -> Option<Row> {
    let clocks_per_packet = Summary::of(clocks)?;
    Some(Row {
        name: scenario.name,
        title: scenario.title,
        clocks_per_packet,
        ns_per_packet: clocks_per_packet.scaled(machine.ns_per_clock()),
        stages: if scenario.floor { BTreeMap::new() } else { bench.stages() },
    })
}

/// A progress bar on standard error, where that is a terminal.
pub(crate) fn progress(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps).with_message("measuring");
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
