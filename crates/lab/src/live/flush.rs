//! How long packets leave that a router has forwarded by connections which the kernel has deleted.

use std::time::Duration;

use super::Options;
use super::conntrack::{self, Connections, Protocol, Room, Tracking};
use super::established;
use super::generator::{Generator, Stream};
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
pub(super) const NAME: &str = "ct-flush";
/// Connections, all of which have traffic.
const CONNECTIONS: Connections =
    Connections { protocol: Protocol::Udp, tracking: Tracking::Translated, count: 1 << 14 };
/// Frames per second.
const RATE: u32 = 200_000;
/// The least time from the first frame to the deletion.
const WARM_UP: Duration = Duration::from_millis(500);
/// Time from the deletion to the generator's end.
const AFTER: Duration = Duration::from_millis(1000);

/// What the deletion of all connections has let through.
#[derive(Clone, Copy)]
struct Late {
    /// Time that the kernel took to delete them.
    deletion_ms: f64,
    /// Time from then to the last frame that left.
    ms: f64,
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
    let _room = Room::make(CONNECTIONS.count)?;
    topologies.tollway.kernel_forwards(true)?;
    let bar = progress::bar(1 + options.repeat as u64);
    let step = |late| {
        bar.inc(1);
        late
    };
    let failed = |error| format!("{NAME}: {error}");
    let kernel = step(by_kernel(&topologies.kernel).map_err(failed)?);
    let mut lates = Vec::new();
    for _ in 0..options.repeat {
        lates.push(step(behind_tollway(&topologies.tollway).map_err(failed)?));
    }
    bar.finish_and_clear();
    let sum = |value: fn(&Late) -> f64| {
        Summary::of(&lates.iter().map(value).collect::<Vec<_>>()).unwrap_or_default()
    };
    let late = sum(|late| late.ms);
    for (what, value) in [
        ("late_ms", late.max),
        ("late_ms_median", late.median),
        ("late_ms_min", late.min),
        ("kernel_late_ms", kernel.ms),
        ("deletion_ms", sum(|late| late.deletion_ms).max),
        ("connections", f64::from(CONNECTIONS.count)),
        ("repeats", lates.len() as f64),
    ] {
        report.figures.insert(format!("ct_flush_{what}"), value);
    }
    Ok(())
}

/// Deletes the connections of a router without Tollway.
fn by_kernel(topology: &Topology) -> Result<Late, String> {
    let sink = prepare(topology)?;
    flush(topology, &sink, false)
}

/// Starts Tollway, deletes the connections, and ends it.
fn behind_tollway(topology: &Topology) -> Result<Late, String> {
    let sink = prepare(topology)?;
    established::behind_tollway(topology, || flush(topology, &sink, true))
}

/// Starts a sink, loads rules that drop packets of new connections, and makes some known.
fn prepare(topology: &Topology) -> Result<Sink, String> {
    established::prepare(topology, CONNECTIONS, rulesets::ESTABLISHED)?;
    Sink::start(&topology.b, Expect { vid: None, follow: true, hook: SinkHook::Xdp, bridged: None })
}

/// Deletes the connections under traffic on all of them, which Tollway has to carry if there is one.
fn flush(topology: &Topology, sink: &Sink, by_tollway: bool) -> Result<Late, String> {
    let stream = Stream { flows: CONNECTIONS.flows(), vid: None, rate: Some(RATE) };
    let generator = Generator::start(&topology.a, stream)?;
    std::thread::sleep(WARM_UP);
    if by_tollway {
        established::until_carried(topology, sink)?;
    }
    if sink.seen()?.frames == 0 {
        return Err("nothing gets through before the connections are deleted".to_owned());
    }
    let start = sys::monotonic_ns();
    conntrack::disconnect(&topology.r)?;
    let end = sys::monotonic_ns();
    std::thread::sleep(AFTER);
    let last = sink.latest_ns()?;
    generator.stop()?;
    sink.seen()?.check()?;
    rulesets::clear(&topology.r)?;
    let ms = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e6;
    Ok(Late { deletion_ms: ms(start, end), ms: ms(end, last) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::tests::turn;

    #[test]
    fn a_kernel_forwards_nothing_by_connections_that_it_has_deleted() {
        let Some(_turn) = turn() else { return };
        let late = by_kernel(&Topology::new().unwrap()).unwrap();
        assert!(late.deletion_ms > 0.0);
        // A frame may be on its way, and its processor may be away for a while.
        assert!(late.ms < 100.0, "{} ms", late.ms);
    }
}
