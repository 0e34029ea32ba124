//! Losses when Tollway is killed, stopped or replaced.

use std::time::Duration;

use super::Options;
use super::generator::{Flows, Generator, Stream};
use super::ping::{self, Pings, Plan};
use super::program::{self, Setup, Tollway};
use super::rows::Row;
use super::setups::Topologies;
use super::sink::{Expect, Sink, SinkHook};
use super::topology::Topology;
use crate::progress;
use crate::report::Report;
use crate::stats::Summary;

/// Frames per second while Tollway dies.
const RATE: u32 = 200_000;
/// Time from the first frame until Tollway dies; the second value is the part that is evaluated.
const BEFORE: [Duration; 2] = [Duration::from_millis(600), Duration::from_millis(200)];
/// Time from its death to the last frame.
const AFTER: Duration = Duration::from_millis(1000);
/// Time for the last frames in flight.
const DRAIN: Duration = Duration::from_millis(50);
/// Time between two pings.
const PING_INTERVAL: Duration = Duration::from_millis(2);
/// Number of pings during a replacement, and the time before it starts.
const UPGRADE_PINGS: u16 = 2000;
const UPGRADE_AFTER: Duration = Duration::from_millis(1000);

/// Both paths; only the one through user space dies with Tollway.
const SETUPS: [(&str, Setup); 2] = [
    (
        "af_xdp",
        Setup {
            kind: "af_xdp",
            xdp_path: false,
            features: false,
            own_processors: true,
            xdp_flows: None,
        },
    ),
    (
        "xdp",
        Setup {
            kind: "af_xdp",
            xdp_path: true,
            features: false,
            own_processors: true,
            xdp_flows: None,
        },
    ),
];

/// The cost of a death.
struct Loss {
    lost_ms: f64,
    gap_ms: f64,
    pings: f64,
}

/// Measures the selected parts.
pub(super) fn measure(
    topologies: &Topologies,
    options: &Options,
    report: &mut Report<Row>,
) -> Result<(), String> {
    let topology = &topologies.tollway;
    // The kernel has to take over.
    topology.kernel_forwards(true)?;
    for (name, signal) in [("kill", libc::SIGKILL), ("stop", libc::SIGSTOP)] {
        if !options.wants(name) {
            continue;
        }
        let bar = progress::bar((SETUPS.len() * options.repeat) as u64);
        let mut losses = Vec::new();
        for (path, setup) in SETUPS {
            let mut here = Vec::new();
            for _ in 0..options.repeat {
                let loss = die(topology, setup, signal);
                here.push(loss.map_err(|error| format!("{name}, {path}: {error}"))?);
                bar.inc(1);
            }
            note(report, &format!("{name}_{path}"), &here);
            losses.extend(here);
        }
        bar.finish_and_clear();
        note(report, name, &losses);
    }
    if options.wants("upgrade") {
        let lost = upgrade(topology).map_err(|error| format!("upgrade: {error}"))?;
        report.figures.insert("upgrade_lost_pings".to_owned(), lost as f64);
        report.figures.insert("upgrade_pings".to_owned(), f64::from(UPGRADE_PINGS));
    }
    Ok(())
}

/// Stores the maximum and the averages.
fn note(report: &mut Report<Row>, name: &str, losses: &[Loss]) {
    let sum = |values: fn(&Loss) -> f64| {
        Summary::of(&losses.iter().map(values).collect::<Vec<_>>()).unwrap_or_default()
    };
    let lost = sum(|loss| loss.lost_ms);
    for (what, value) in [
        ("lost_ms", lost.max),
        ("lost_ms_median", lost.median),
        ("lost_ms_min", lost.min),
        ("gap_ms", sum(|loss| loss.gap_ms).max),
        ("lost_pings", sum(|loss| loss.pings).max),
        ("repeats", losses.len() as f64),
    ] {
        report.figures.insert(format!("{name}_{what}"), value);
    }
}

/// Kills or stops Tollway with a signal while frames and pings flow.
fn die(topology: &Topology, setup: Setup, signal: i32) -> Result<Loss, String> {
    let tollway = Tollway::start(topology, setup, false)?;
    let sink = Sink::start(
        &topology.b,
        Expect { vid: None, follow: true, hook: SinkHook::Xdp, bridged: None },
    )?;
    let stream = Stream { flows: Flows::InTurn(256), vid: None, rate: Some(RATE) };
    let generator = Generator::start(&topology.a, stream)?;
    let time = BEFORE.iter().sum::<Duration>() + AFTER;
    let count = u16::try_from(time.as_millis() / PING_INTERVAL.as_millis()).unwrap_or(u16::MAX);
    let plan = Plan { count, interval: PING_INTERVAL, exact: false };
    let pings = Pings::start(&topology.a, plan)?;
    std::thread::sleep(BEFORE[0]);
    check_carried(topology, &sink, BEFORE[1], 1)?;
    let (sent, before) = (generator.sent()?, sink.seen()?);
    tollway.signal(signal)?;
    std::thread::sleep(AFTER);
    let all = generator.stop()?;
    std::thread::sleep(DRAIN);
    let after = sink.seen()?;
    let answers = pings.answers()?;
    drop(tollway);
    program::clear(topology)?;
    after.check()?;
    let lost = (all.frames - sent.frames).saturating_sub(after.frames - before.frames);
    Ok(Loss {
        lost_ms: lost as f64 * 1000.0 / all.rate,
        gap_ms: after.gap_ns as f64 / 1e6,
        pings: ping::lost(&answers) as f64,
    })
}

/// Fails with a message unless Tollway carries the traffic that arrives during `time`, but for a share in percent.
pub(super) fn check_carried(
    topology: &Topology,
    sink: &Sink,
    time: Duration,
    share: u64,
) -> Result<(), String> {
    let (kernel, seen) = (topology.kernel_forwarded()?, sink.seen()?);
    std::thread::sleep(time);
    let (kernel, through) =
        (topology.kernel_forwarded()? - kernel, sink.seen()?.frames - seen.frames);
    if through == 0 || kernel * 100 > share * through {
        return Err(format!(
            "Tollway did not carry the traffic that was to be interrupted: the kernel forwarded {kernel} \
             of {through} frames"
        ));
    }
    Ok(())
}

/// Replaces a running Tollway while pings flow. Returns the number of lost pings.
fn upgrade(topology: &Topology) -> Result<usize, String> {
    // Use the user path: only there something can be lost.
    let (_, setup) = SETUPS[0];
    let mut old = Tollway::start(topology, setup, false)?;
    let plan = Plan { count: UPGRADE_PINGS, interval: PING_INTERVAL, exact: false };
    let pings = Pings::start(&topology.a, plan)?;
    std::thread::sleep(UPGRADE_AFTER);
    let new = Tollway::start(topology, setup, true)?;
    old.until_ended()?;
    let answers = pings.answers()?;
    new.stop()?;
    program::clear(topology)?;
    Ok(ping::lost(&answers))
}
