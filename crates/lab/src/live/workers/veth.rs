//! How much faster two workers are than one between interfaces, each on its processor with a generator of its own.
//!
//! A processor runs a whole pipeline: the generator, the kernel's part at both ports, and the worker. So the ratio shows
//! what workers and queues cost each other, not how fast a worker is.

use std::time::Duration;

use super::super::program::{self, Tollway};
use super::super::rows::Row;
use super::super::sink::{Expect, Sink, SinkHook};
use super::super::topology::Topology;
use super::streams;
use crate::progress;
use crate::report::Report;
use crate::stats::Summary;

/// Rounds; each measures one worker and two.
const ROUNDS: usize = 11;
/// Time after the generators' start that does not count.
const WARM_UP: Duration = Duration::from_millis(150);
/// Duration of a measurement.
const WINDOW: Duration = Duration::from_millis(500);

/// Measures, and adds the figures.
pub(super) fn measure(processors: [usize; 2], report: &mut Report<Row>) -> Result<(), String> {
    let pipelines = [Pipelines::start(&processors[..1])?, Pipelines::start(&processors)?];
    let bar = progress::bar(ROUNDS as u64);
    let (mut rates, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
    for round in 0..ROUNDS {
        let mut now = [0.0; 2];
        // Each comes first equally often, so that disturbances of the machine favour neither.
        for turn in [round % 2, 1 - round % 2] {
            now[turn] = pipelines[turn].mpps()?;
            rates[turn].push(now[turn]);
        }
        ratios.push(now[1] / now[0]);
        bar.inc(1);
    }
    bar.finish_and_clear();
    for pipelines in pipelines {
        pipelines.stop()?;
    }
    let sum = |values: &[f64]| Summary::of(values).unwrap_or_default();
    let Summary { median, min, max, repeats } = sum(&ratios);
    for (name, value) in [
        ("workers_two_veth_ratio", median),
        ("workers_two_veth_ratio_min", min),
        ("workers_two_veth_ratio_max", max),
        ("workers_one_veth_mpps", sum(&rates[0]).median),
        ("workers_two_veth_mpps", sum(&rates[1]).median),
        ("workers_veth_rounds", repeats as f64),
    ] {
        report.figures.insert(name.to_owned(), value);
    }
    Ok(())
}

/// A router with a worker on each of some processors.
struct Pipelines {
    topology: Topology,
    sink: Sink,
    tollway: Tollway,
    processors: Vec<usize>,
}

impl Pipelines {
    fn start(processors: &[usize]) -> Result<Self, String> {
        let topology = Topology::with_queues(2)?;
        // Frames that the kernel forwards must not count as the workers'.
        topology.kernel_forwards(false)?;
        let workers = processors.len().to_string();
        // A real-time worker on the processor of its generator would be taken for one that is always busy.
        let more = ["--workers", &workers, "--priority", "normal"];
        let setup = streams::SETUP;
        let tollway = Tollway::start_with(&topology, setup, &more, Some(processors.to_vec()))?;
        // Workers send kernel packets (`sk_buff`), which an XDP sink would copy.
        let expect = Expect { vid: None, follow: false, hook: SinkHook::Tc, bridged: None };
        let sink = Sink::start(&topology.b, expect)?;
        Ok(Self { topology, sink, tollway, processors: processors.to_vec() })
    }

    /// Measures once: million frames that arrive per second.
    fn mpps(&self) -> Result<f64, String> {
        let generators = streams::start(&self.topology, &self.processors, None)?;
        std::thread::sleep(WARM_UP);
        let before = self.sink.seen()?;
        let rate = self.sink.mpps(WINDOW)?;
        let after = self.sink.seen()?;
        for generator in generators {
            generator.stop()?;
        }
        let second = after.second - before.second;
        let first = after.frames - before.frames - second;
        if first == 0 || (self.processors.len() > 1 && second == 0) {
            return Err(format!(
                "of two streams, {first} and {second} frames arrived: a worker does not forward"
            ));
        }
        Ok(rate)
    }

    fn stop(self) -> Result<(), String> {
        self.tollway.stop()?;
        program::clear(&self.topology)
    }
}
