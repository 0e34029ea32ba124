//! What a flood of SYNs leaves of the goodput of established connections.

use std::time::{Duration, Instant};

use super::Options;
use super::conntrack::{Connections, Protocol, Room, Tracking};
use super::established;
use super::generator::{Flows, Generator, Place, Stream};
use super::rows::Row;
use super::rulesets;
use super::setups::Topologies;
use super::sink::{Expect, Sink, SinkHook};
use super::topology::Topology;
use crate::progress;
use crate::report::Report;
use crate::stats::Summary;
use crate::sys;

/// The part's name.
pub(super) const NAME: &str = "ct-syn-flood";
/// Connections, all of which have traffic.
const CONNECTIONS: Connections =
    Connections { protocol: Protocol::Tcp, tracking: Tracking::Translated, count: 1 << 14 };
/// Their frames per second: the kernel alone carries that many.
const RATE: u32 = 200_000;
/// SYNs per second. The two share one queue of the router's port, and 170,000 are all that the kernel forwards.
const FLOOD: u32 = 100_000;
/// Time from the beginning of a flood to the measurement, and how long that takes.
const BEFORE: Duration = Duration::from_millis(500);
const WINDOW: Duration = Duration::from_secs(2);

/// Frames per second that arrive of the connections, and of the flood.
#[derive(Clone, Copy)]
struct Goodput {
    alone: f64,
    flooded: f64,
    flood: f64,
}

impl Goodput {
    fn percent(&self) -> f64 {
        100.0 * self.flooded / self.alone
    }
}

/// Measures, if the options select it.
pub(super) fn measure(
    topologies: &Topologies,
    options: &Options,
    report: &mut Report<Row>,
) -> Result<(), String> {
    if !options.wants(NAME) {
        return Ok(());
    }
    let &[first, second, ..] = &sys::processors()[..] else {
        return if options.only.is_empty() {
            Ok(())
        } else {
            Err(format!("{NAME}: the flood needs a processor of its own, and there is only one"))
        };
    };
    let _room = Room::make(CONNECTIONS.count)?;
    topologies.tollway.kernel_forwards(true)?;
    let bar = progress::bar(2 * options.repeat as u64);
    let failed = |error| format!("{NAME}: {error}");
    let (mut kernel, mut tollway) = (Vec::new(), Vec::new());
    for _ in 0..options.repeat {
        kernel.push(by_kernel(&topologies.kernel, [first, second]).map_err(failed)?);
        bar.inc(1);
        tollway.push(by_tollway(&topologies.tollway, [first, second]).map_err(failed)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    for (by, goodputs) in [("kernel_", &kernel), ("", &tollway)] {
        let sum = |value: fn(&Goodput) -> f64| {
            Summary::of(&goodputs.iter().map(value).collect::<Vec<_>>()).unwrap_or_default()
        };
        let percent = sum(Goodput::percent);
        for (what, value) in [
            ("percent", percent.median),
            ("percent_min", percent.min),
            ("flood_kpps", sum(|goodput| goodput.flood / 1e3).median),
        ] {
            report.figures.insert(format!("ct_syn_flood_{by}{what}"), value);
        }
    }
    report.figures.insert("ct_syn_flood_connections".to_owned(), f64::from(CONNECTIONS.count));
    report.figures.insert("ct_syn_flood_repeats".to_owned(), tollway.len() as f64);
    Ok(())
}

fn by_kernel(topology: &Topology, processors: [usize; 2]) -> Result<Goodput, String> {
    let sink = prepare(topology)?;
    let goodput = flood(topology, &sink, processors, false)?;
    established::clear(topology)?;
    Ok(goodput)
}

fn by_tollway(topology: &Topology, processors: [usize; 2]) -> Result<Goodput, String> {
    let sink = prepare(topology)?;
    let goodput =
        established::behind_tollway(topology, || flood(topology, &sink, processors, true))?;
    established::clear(topology)?;
    Ok(goodput)
}

/// Starts a sink, loads rules that let connections begin, and makes some known.
fn prepare(topology: &Topology) -> Result<Sink, String> {
    established::prepare(topology, CONNECTIONS, rulesets::OUTBOUND)?;
    Sink::start(
        &topology.b,
        Expect { vid: None, follow: false, hook: SinkHook::Xdp, bridged: None },
    )
}

/// Measures the connections' goodput without a flood and under one, each on a processor of its own.
fn flood(
    topology: &Topology,
    sink: &Sink,
    [own, others]: [usize; 2],
    by_tollway: bool,
) -> Result<Goodput, String> {
    let start = |flows, rate, stream, processor| {
        let place = Place::OneOfTwo { stream, processor };
        Generator::start_at(&topology.a, Stream { flows, vid: None, rate }, place)
    };
    let generator = start(CONNECTIONS.flows(), Some(RATE), 0, own)?;
    std::thread::sleep(BEFORE);
    if by_tollway {
        established::until_carried(topology, sink)?;
    }
    let [alone, _] = rates(sink)?;
    if alone == 0.0 {
        return Err("nothing gets through before the flood".to_owned());
    }
    let flood = start(Flows::Syn, Some(FLOOD), 1, others)?;
    std::thread::sleep(BEFORE);
    let [flooded, flooding] = rates(sink)?;
    flood.stop()?;
    generator.stop()?;
    sink.seen()?.check()?;
    Ok(Goodput { alone, flooded, flood: flooding })
}

/// Frames per second that arrive of both streams.
fn rates(sink: &Sink) -> Result<[f64; 2], String> {
    let (start, before) = (Instant::now(), sink.seen()?);
    std::thread::sleep(WINDOW);
    let (taken, after) = (start.elapsed().as_secs_f64(), sink.seen()?);
    let (all, second) = (after.frames - before.frames, after.second - before.second);
    Ok([all - second, second].map(|frames| frames as f64 / taken))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::tests::turn;

    #[test]
    fn a_kernel_forwards_both_the_connections_and_the_flood() {
        let Some(_turn) = turn() else { return };
        let &[first, second, ..] = &sys::processors()[..] else { return };
        let _room = Room::make(CONNECTIONS.count).unwrap();
        let goodput = by_kernel(&Topology::new().unwrap(), [first, second]).unwrap();
        assert!(goodput.alone > 0.0 && goodput.flooded > 0.0 && goodput.flood > 0.0);
    }
}
