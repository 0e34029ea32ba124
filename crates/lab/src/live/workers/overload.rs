//! What a router forwards of twice as much as it can, and whether it counts the rest.

use std::time::Duration;

use serde_json::Value;

use super::super::generator::{Flows, Generator, Sent, Stream};
use super::super::host::Host;
use super::super::ping::{self, Pings, Plan};
use super::super::program::{self, Tollway};
use super::super::rows::Row;
use super::super::sink::{Expect, Sink, SinkHook};
use super::super::topology::{LEFT, Topology};
use super::streams;
use crate::progress;
use crate::report::Report;
use crate::stats::Summary;

/// The part of the frames that may be lost at the best rate: one in so many.
const LOST: u64 = 1000;
/// Steps to find the best rate, and the tries of each: another program may disturb one.
const STEPS: u64 = 9;
const TRIES: usize = 3;
/// Time after the generator's start that does not count.
const WARM_UP: Duration = Duration::from_millis(150);
/// Duration of a try.
const TRY: Duration = Duration::from_millis(300);
/// Time for the last frames in flight.
const DRAIN: Duration = Duration::from_millis(100);
/// Overloads that count, those that are tried, and the duration of each.
const ROUNDS: usize = 5;
const MOST: usize = 20;
const WINDOW: Duration = Duration::from_millis(1000);
/// An overload does not count if the worker waits for its processor for this time of it: others took the processor.
const DISTURBED: Duration = Duration::from_millis(50);
/// Pings of the router's own address during each.
const PINGS: Plan = Plan { count: 500, interval: Duration::from_millis(2), exact: false };

/// Measures, and adds the figures. The generator has the first processor, and so does the kernel's part of receiving its
/// frames; Tollway has the given one, whose frames come to another queue. The pings take that queue: one that they share
/// with the flood would move to the processor of whoever has pinged last.
pub(super) fn measure(processor: usize, report: &mut Report<Row>) -> Result<(), String> {
    let topology = Topology::with_queues(2)?;
    topology.kernel_forwards(false)?;
    send_by_own_queue(&topology.a, processor)?;
    let tollway = Tollway::start_with(&topology, streams::SETUP, &[], Some(vec![processor]))?;
    let expect = Expect { vid: None, follow: false, hook: SinkHook::Tc, bridged: None };
    let bench = Bench { sink: Sink::start(&topology.b, expect)?, topology, tollway, processor };
    let bar = progress::bar(STEPS + ROUNDS as u64);
    let best = bench.best(&|| bar.inc(1))?;
    let mut overloads = Vec::new();
    for _ in 0..MOST {
        if overloads.len() == ROUNDS {
            break;
        }
        let overload = bench.overload(best.saturating_mul(2))?;
        if overload.waited < DISTURBED {
            overloads.push(overload);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    bench.tollway.stop()?;
    program::clear(&bench.topology)?;
    if overloads.len() < ROUNDS {
        return Err(format!(
            "other programs took the worker's processor away in {} of {MOST} rounds; try again when the machine is idle",
            MOST - overloads.len()
        ));
    }
    let best = f64::from(best) / 1e6;
    let of = |value: &dyn Fn(&Overload) -> f64| {
        let values: Vec<_> = overloads.iter().map(value).collect();
        Summary::of(&values).unwrap_or_default()
    };
    let goodput = of(&|overload| overload.arrived_mpps / best * 100.0);
    for (name, value) in [
        ("overload_best_mpps", best),
        ("overload_offered_mpps", of(&|overload| overload.offered_mpps).median),
        ("overload_goodput_percent", goodput.median),
        ("overload_goodput_percent_min", goodput.min),
        ("overload_goodput_percent_max", goodput.max),
        ("overload_uncounted", of(&|overload| overload.uncounted as f64).max),
        ("overload_pings_lost", of(&|overload| overload.pings_lost as f64).max),
        ("overload_pings", f64::from(PINGS.count)),
        ("overload_rounds", ROUNDS as f64),
    ] {
        report.figures.insert(name.to_owned(), value);
    }
    Ok(())
}

/// One overload.
struct Overload {
    offered_mpps: f64,
    arrived_mpps: f64,
    /// Frames that did not arrive and that nobody has counted, or that were counted but did arrive.
    uncounted: u64,
    pings_lost: usize,
    /// How long the worker waited for its processor in the window.
    waited: Duration,
}

/// A router between a generator and a sink.
struct Bench {
    topology: Topology,
    sink: Sink,
    tollway: Tollway,
    /// Tollway's.
    processor: usize,
}

impl Bench {
    fn send(&self, rate: Option<u32>) -> Result<Generator, String> {
        Generator::start(&self.topology.a, Stream { flows: Flows::InTurn(256), vid: None, rate })
    }

    /// The highest rate that the router forwards with next to no loss, frames per second.
    fn best(&self, step: &dyn Fn()) -> Result<u32, String> {
        let generator = self.send(None)?;
        std::thread::sleep(WARM_UP);
        let most = self.sink.mpps(TRY)? * 1e6 * 1.5;
        generator.stop()?;
        let [mut lossless, mut lossy] = [0, most as u32];
        for _ in 0..STEPS {
            let rate = u32::midpoint(lossless, lossy);
            if self.is_lossless(rate)? {
                lossless = rate
            } else {
                lossy = rate
            }
            step();
        }
        if lossless == 0 {
            return Err("the router loses frames at every rate".to_owned());
        }
        Ok(lossless)
    }

    fn is_lossless(&self, rate: u32) -> Result<bool, String> {
        for _ in 0..TRIES {
            let before = self.sink.seen()?.frames;
            let generator = self.send(Some(rate))?;
            std::thread::sleep(TRY);
            let Sent { frames, rate: sent } = generator.stop()?;
            std::thread::sleep(DRAIN);
            let lost = frames.saturating_sub(self.sink.seen()?.frames - before);
            // A generator that cannot keep the rate has not tried it.
            if lost < frames / LOST && sent > f64::from(rate) * 0.98 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Offers more than the router can forward, and pings the router meanwhile.
    fn overload(&self, rate: u32) -> Result<Overload, String> {
        let (counted, seen) = (self.counted()?, self.sink.seen()?.frames);
        let generator = self.send(Some(rate))?;
        std::thread::sleep(WARM_UP);
        let pings = Pings::start_to(&self.topology.a, PINGS, LEFT[1], Some(self.processor))?;
        let waited = self.waited()?;
        let arrived_mpps = self.sink.mpps(WINDOW)?;
        let waited = self.waited()?.saturating_sub(waited);
        let answers = pings.answers()?;
        let sent = generator.stop()?;
        std::thread::sleep(DRAIN);
        let lost = sent.frames.saturating_sub(self.sink.seen()?.frames - seen);
        Ok(Overload {
            offered_mpps: sent.rate / 1e6,
            arrived_mpps,
            uncounted: lost.abs_diff(self.counted()? - counted),
            pings_lost: ping::lost(&answers),
            waited,
        })
    }

    /// How long the worker, which is the main thread, has been ready to run without a processor.
    fn waited(&self) -> Result<Duration, String> {
        let path = format!("/proc/{0}/task/{0}/schedstat", self.tollway.process());
        let text = std::fs::read_to_string(&path)
            .map_err(|error| format!("cannot read {path}: {error}"))?;
        let ns = text.split(' ').nth(1).and_then(|ns| ns.parse().ok());
        ns.map(Duration::from_nanos).ok_or_else(|| format!("{path} has no waiting time"))
    }

    /// Frames that did not get through, by whoever dropped them: Tollway, the kernel before Tollway could read them, or
    /// a full queue of an interface.
    fn counted(&self) -> Result<u64, String> {
        let program = std::env::current_exe()
            .map_err(|error| format!("this program cannot find itself: {error}"))?;
        let ports = self.topology.r.sh(&format!("{} show ports --json", program.display()))?;
        let ports: Value = serde_json::from_str(&ports)
            .map_err(|error| format!("`show ports --json` is no JSON: {error}"))?;
        let missed = ports["ports"].as_array().into_iter().flatten();
        let missed: u64 = missed.filter_map(|port| port["missed"].as_u64()).sum();
        let dropped = ports["totals"]["dropped"].as_u64().unwrap_or(0);
        Ok(missed
            + dropped
            + queues_full(&self.topology.a, "a0")?
            + queues_full(&self.topology.r, "r1")?)
    }
}

/// Makes this processor send by the queue that comes to the router's queue of the same number. By default, a hash of the
/// flow decides.
fn send_by_own_queue(host: &Host, processor: usize) -> Result<(), String> {
    let path = format!("/sys/class/net/a0/queues/tx-{}/xps_cpus", processor % 2);
    let mask = format!("{:x}{}", 1_u32 << (processor % 32), ",00000000".repeat(processor / 32));
    let (file, failed) = (path.clone(), |error| format!("cannot write {path}: {error}"));
    host.run(move || std::fs::write(file, mask))?.map_err(failed)
}

/// Frames that an interface could not hand to its peer, since the peer's queue was full.
fn queues_full(host: &Host, interface: &str) -> Result<u64, String> {
    let counts = host.sh(&format!("ethtool -S {interface}"))?;
    let counts = counts.lines().filter_map(|line| line.trim().split_once(": "));
    let errors = counts.filter(|(name, _)| name.ends_with("xdp_xmit_errors"));
    Ok(errors.filter_map(|(_, count)| count.parse::<u64>().ok()).sum())
}
