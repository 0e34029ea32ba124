//! The toll table: what forwarding costs per packet, and what each feature adds.
//!
//! A pass restores [`IN_FLIGHT`](crate::bench::IN_FLIGHT) frames and forwards them from one memory port to another. Passes
//! that only restore run in between, and their time is subtracted. Rows take turns, so that a
//! temporary disturbance of the machine affects all of them alike. The difference between two rows
//! comes from the rounds in which both took turns.

pub mod against;
mod bridge;
mod cost;
pub mod html;
pub mod record;
mod scenario;
mod scene;
mod table;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::machine::Machine;
use crate::progress;
use crate::report::{self, Report};
use crate::stats::Summary;
use against::Against;
pub use scenario::{Build, Group, ROWS, Scenario};
pub use table::render;

/// Rounds in which every row is measured; fewer on a slow machine, see [`TIME`].
const REPEATS: usize = 41;

/// Time after which no further round starts, unless there are fewer than [`LEAST`].
const TIME: Duration = Duration::from_secs(28);

/// The fewest rounds.
const LEAST: usize = 7;

/// Passes of each sort in one measurement. A multiple of 64, so that a row of 65,536 flows sends
/// each flow equally often.
const PASSES: usize = 256;

/// A run of the table. As JSON it is one object in the common form of reports.
#[derive(Clone, Debug, Serialize)]
pub struct Tolls {
    /// Machine, compiler, commit, rows, and single figures.
    #[serde(flatten)]
    pub report: Report<Row>,
    /// The changes since a recorded run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<Against>,
}

/// A row of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name, figures and stages.
    #[serde(flatten)]
    pub row: report::Row,
    /// The 95% interval of the time per packet, ns, as far as the rounds of this run determine it.
    pub interval_ns: [f64; 2],
    /// The additional cost over another row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// The result of every round, ns per packet.
    pub rounds_ns: Vec<f64>,
    #[serde(skip)]
    pub(super) scenario: &'static Scenario,
}

/// The additional cost of a row over another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// The other row.
    pub over: &'static str,
    /// The difference, ns per packet.
    pub ns: f64,
    /// The 95% interval of the difference.
    pub interval_ns: [f64; 2],
}

/// Measures the rows named in `only`; empty for all.
///
/// # Errors
/// A message, if a name is not in [`ROWS`] or memory is short.
pub fn run(only: &[String]) -> Result<Tolls, String> {
    only.iter().try_for_each(|name| scenario(name).map(|_| ()))?;
    let wanted = |row: &&Scenario| only.is_empty() || only.iter().any(|name| *name == row.name);
    let rows: Vec<&'static Scenario> = ROWS.iter().filter(wanted).collect();
    let bar = progress::bar((rows.len() + REPEATS) as u64);
    bar.set_message("building tables");
    let mut benches = Vec::new();
    for scenario in &rows {
        benches.push(scenario.bench()?);
        bar.inc(1);
    }
    // One bench, with and without sampling in turn, determines the cost of sampling.
    let mut sampling = ROWS[1].bench()?;
    let machine = Machine::probe();
    let load = load_average();
    let mut clocks = vec![Vec::with_capacity(REPEATS); benches.len()];
    let mut overheads = Vec::with_capacity(REPEATS);
    bar.set_message("measuring");
    let start = Instant::now();
    for round in 0..REPEATS {
        if round >= LEAST && start.elapsed() >= TIME {
            break;
        }
        for ((scenario, bench), clocks) in rows.iter().zip(&mut benches).zip(&mut clocks) {
            if scenario.is_large() {
                // The other rows have just used the caches, which a router has to itself. So a pass
                // without measurement comes first.
                bench.clocks_per_packet(PASSES);
            }
            clocks.push(bench.clocks_per_packet(PASSES));
        }
        let [on, off] = [true, false].map(|on| {
            sampling.sample(on);
            sampling.clocks_per_packet(PASSES)
        });
        overheads.push(100.0 * (on / off - 1.0));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let stages = benches.iter().map(|bench| bench.stages());
    let rows: Vec<_> = rows.into_iter().zip(stages).zip(clocks).collect();
    let mut report = Report::new(machine.clone(), sum_up(&rows, machine.ns_per_clock()));
    if let Some(overhead) = Summary::of(&overheads) {
        report.figures.insert("sampling_overhead_percent".to_owned(), overhead.median);
    }
    report.figures.extend(load.map(|load| (LOAD.to_owned(), load)));
    Ok(Tolls { report, against: None })
}

/// The name of the figure for other load on the machine.
const LOAD: &str = "load_average";

/// Average number of runnable processes in the last minute.
fn load_average() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split(' ').next()?.parse().ok()
}

/// The row of a name.
///
/// # Errors
/// A message, if the name is not in [`ROWS`].
pub fn scenario(name: &str) -> Result<&'static Scenario, String> {
    ROWS.iter().find(|row| row.name == name).ok_or_else(|| {
        let names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
        format!("no row is called {name}; the rows are {}", names.join(", "))
    })
}

/// The measurements of a row: stages and rounds, clocks per packet.
type Measured = ((&'static Scenario, BTreeMap<&'static str, f64>), Vec<f64>);

/// The rows of a report.
fn sum_up(measured: &[Measured], ns_per_clock: f64) -> Vec<Row> {
    let ns = |clocks: &[f64]| clocks.iter().map(|clocks| clocks * ns_per_clock).collect::<Vec<_>>();
    let of = |name: &str| {
        let row = measured.iter().find(|((scenario, _), _)| scenario.name == name)?;
        Some(ns(&row.1))
    };
    let row = |((scenario, stages), clocks): &Measured| {
        let clocks_per_packet = Summary::of(clocks)?;
        let rounds_ns = ns(clocks);
        let cost = |over: &'static str| {
            let (ns, interval_ns) = cost::between(&of(over)?, &rounds_ns)?;
            Some(Cost { over, ns, interval_ns })
        };
        Some(Row {
            row: report::Row {
                name: scenario.name,
                title: scenario.title,
                clocks_per_packet,
                ns_per_packet: clocks_per_packet.scaled(ns_per_clock),
                stages: if scenario.is_floor() { BTreeMap::new() } else { stages.clone() },
            },
            interval_ns: cost::middle(&rounds_ns)?.1,
            cost: scenario.over.and_then(cost),
            rounds_ns,
            scenario,
        })
    };
    measured.iter().filter_map(row).collect()
}

#[cfg(test)]
mod tests;
