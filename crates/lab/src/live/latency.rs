//! Latency of pings on the kernel path, the user path and the XDP path.

use std::time::Duration;

use super::Options;
use super::ping::{Answers, Pings, Plan};
use super::program::{self, Setup, Tollway};
use super::rows::Row;
use super::setups::Topologies;
use super::topology::Topology;
use crate::progress;
use crate::report::Report;

/// Rounds in which the kernel and Tollway take turns.
const ROUNDS: u64 = 5;
/// Two kinds of pings: in quick succession, and so far apart that all threads sleep in between.
const PINGS: [(&str, Plan); 2] = [
    ("ping", Plan { count: 400, interval: Duration::from_millis(2), exact: true }),
    ("lone_ping", Plan { count: 20, interval: Duration::from_millis(50), exact: true }),
];
/// Tollway's paths by name, and whether each is the XDP path.
const PATHS: [(&str, bool); 2] = [("af_xdp", false), ("xdp", true)];

/// Measures, if the options select it.
pub(super) fn measure(
    topologies: &Topologies,
    options: &Options,
    report: &mut Report<Row>,
) -> Result<(), String> {
    if !options.wants("latency") {
        return Ok(());
    }
    let bar = progress::bar(ROUNDS * PATHS.len() as u64);
    topologies.tollway.kernel_forwards(false)?;
    for (path, xdp_path) in PATHS {
        let setup = Setup {
            kind: "af_xdp",
            xdp_path,
            features: false,
            own_processors: false,
            xdp_flows: None,
        };
        let tollway = Tollway::start(&topologies.tollway, setup, false)?;
        let mut times = [const { [const { Vec::new() }; 2] }; PINGS.len()];
        for _ in 0..ROUNDS {
            for ((_, plan), [kernel, ours]) in PINGS.into_iter().zip(&mut times) {
                kernel.extend(ping(&topologies.kernel, plan)?);
                ours.extend(ping(&topologies.tollway, plan)?);
            }
            bar.inc(1);
        }
        tollway.stop()?;
        program::clear(&topologies.tollway)?;
        for ((pings, _), [kernel, ours]) in PINGS.into_iter().zip(times) {
            note(report, pings, path, kernel, ours);
        }
    }
    bar.finish_and_clear();
    Ok(())
}

fn ping(topology: &Topology, plan: Plan) -> Result<Answers, String> {
    Pings::start(&topology.a, plan)?.answers()
}

fn note(report: &mut Report<Row>, pings: &str, path: &str, kernel: Answers, ours: Answers) {
    let lost = ours.iter().filter(|answer| answer.is_none()).count();
    report.figures.insert(format!("{pings}_{path}_lost"), lost as f64);
    let [kernel, ours] = [kernel, ours].map(|answers| {
        let mut times: Vec<_> = answers.into_iter().flatten().collect();
        times.sort_unstable();
        times
    });
    for percent in [50, 99] {
        let [kernel, ours] = [&kernel, &ours].map(|times| percentile_us(times, percent));
        for (who, value) in [("kernel", kernel), ("tollway", ours), ("added", ours - kernel)] {
            report.figures.insert(format!("{pings}_{path}_{who}_p{percent}_us"), value);
        }
    }
}

/// A percentile of sorted times; NaN if there are none.
fn percentile_us(times: &[Duration], percent: usize) -> f64 {
    let index = (times.len() * percent / 100).min(times.len().saturating_sub(1));
    times.get(index).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let times: Vec<_> = (1..=200).map(Duration::from_micros).collect();
        assert!((percentile_us(&times, 50) - 101.0).abs() < 1e-9);
        assert!((percentile_us(&times, 99) - 199.0).abs() < 1e-9);
        assert!((percentile_us(&times[..1], 99) - 1.0).abs() < 1e-9);
        assert!(percentile_us(&[], 50).is_nan());
    }
}
