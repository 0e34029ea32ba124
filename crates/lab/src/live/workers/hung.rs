//! What is lost when one of two workers hangs: the kernel takes its queue over, and the other worker forwards on.

use std::time::{Duration, Instant};

use super::super::Options;
use super::super::generator::Generator;
use super::super::program::{self, Tollway};
use super::super::rows::Row;
use super::super::sink::{Expect, Sink, SinkHook};
use super::super::topology::Topology;
use super::streams;
use crate::progress;
use crate::report::Report;
use crate::stopped::StoppedThread;

/// Frames per second of each of two streams.
const RATE: u32 = 20_000;
/// Time from the first frame until the worker may hang.
const BEFORE: Duration = Duration::from_millis(400);
/// How long it hangs.
const HANG: Duration = Duration::from_millis(1000);
/// Time without a frame forwarded by the kernel after which the workers serve all queues, and the limit until then.
const QUIET: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(5);
/// Time for the last frames in flight.
const DRAIN: Duration = Duration::from_millis(50);

/// The names of the workers' threads, and of the figures if it is that one that hangs.
const WORKERS: [(usize, Option<&str>, &str); 2] =
    [(1, Some("worker-1"), "hung_worker"), (0, None, "hung_worker0")];

/// What a worker that hung has cost.
struct Cost {
    /// Frames of its stream that did not arrive while it hung, ms.
    lost_ms: f64,
    /// Frames of the other stream that did not arrive.
    others_lost: u64,
}

/// Measures, and adds the figures.
pub(super) fn measure(
    processors: [usize; 2],
    options: &Options,
    report: &mut Report<Row>,
) -> Result<(), String> {
    // R's kernel forwards, too.
    let topology = Topology::with_queues(2)?;
    let more = ["--workers", "2"];
    let setup = streams::SETUP;
    let tollway = Tollway::start_with(&topology, setup, &more, Some(processors.to_vec()))?;
    let bar = progress::bar((WORKERS.len() * options.repeat) as u64);
    for (worker, thread, name) in WORKERS {
        let mut worst = Cost { lost_ms: 0.0, others_lost: 0 };
        for _ in 0..options.repeat {
            let cost = hang(&topology, &tollway, processors, (worker, thread));
            let cost = cost.map_err(|error| format!("worker {worker} hangs: {error}"))?;
            worst.lost_ms = worst.lost_ms.max(cost.lost_ms);
            worst.others_lost = worst.others_lost.max(cost.others_lost);
            bar.inc(1);
        }
        report.figures.insert(format!("{name}_lost_ms"), worst.lost_ms);
        report.figures.insert(format!("{name}_others_lost"), worst.others_lost as f64);
    }
    report.figures.insert("hung_worker_repeats".to_owned(), options.repeat as f64);
    bar.finish_and_clear();
    tollway.stop()?;
    program::clear(&topology)
}

/// Stops a worker for a while under two streams, and waits until it serves its queue again.
fn hang(
    topology: &Topology,
    tollway: &Tollway,
    processors: [usize; 2],
    (worker, thread): (usize, Option<&str>),
) -> Result<Cost, String> {
    let expect = Expect { vid: None, follow: true, hook: SinkHook::Tc, bridged: None };
    let sink = Sink::start(&topology.b, expect)?;
    let generators = streams::start(topology, &processors, Some(RATE))?;
    std::thread::sleep(BEFORE);
    until_served(topology).map_err(|error| format!("before that, {error}"))?;
    let before = missing(&generators, &sink)?;
    let stopped = match thread {
        Some(name) => StoppedThread::named(tollway.process(), name),
        None => StoppedThread::main(tollway.process()),
    };
    let stopped = stopped.map_err(|error| format!("its thread cannot be stopped: {error}"))?;
    std::thread::sleep(HANG);
    let during = missing(&generators, &sink)?;
    drop(stopped);
    until_served(topology).map_err(|error| format!("after that, {error}"))?;
    let mut rates = Vec::new();
    let mut all = Vec::new();
    for generator in generators {
        let sent = generator.stop()?;
        rates.push(sent.rate);
        all.push(sent.frames);
    }
    std::thread::sleep(DRAIN);
    let after = sink.seen()?;
    after.check()?;
    let arrived = [after.frames - after.second, after.second];
    let lost = during[worker].saturating_sub(before[worker]);
    Ok(Cost {
        lost_ms: lost as f64 * 1000.0 / rates[worker],
        others_lost: all[1 - worker].saturating_sub(arrived[1 - worker]),
    })
}

/// Frames of each stream that have been sent but have not arrived.
fn missing(generators: &[Generator], sink: &Sink) -> Result<[u64; 2], String> {
    let mut missing = [0; 2];
    for (missing, generator) in missing.iter_mut().zip(generators) {
        *missing = generator.sent()?.frames;
    }
    let seen = sink.seen()?;
    for (missing, arrived) in missing.iter_mut().zip([seen.frames - seen.second, seen.second]) {
        *missing = missing.saturating_sub(arrived);
    }
    Ok(missing)
}

/// Waits until the kernel forwards nothing: all workers serve their queues.
fn until_served(topology: &Topology) -> Result<(), String> {
    let start = Instant::now();
    let mut before = topology.kernel_forwarded()?;
    while start.elapsed() < PATIENCE {
        std::thread::sleep(QUIET);
        let now = topology.kernel_forwarded()?;
        if now == before {
            return Ok(());
        }
        before = now;
    }
    Err("the kernel does not cease to forward for a worker that runs".to_owned())
}
