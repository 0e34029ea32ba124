//! How long the kernel forwards the packets of connections that Tollway may forward.

use std::ops::ControlFlow;
use std::time::Duration;

use tollway_conntrack::{Conntrack, Family};

use super::Options;
use super::conntrack::{Connections, Protocol, Room, Tracking};
use super::established;
use super::generator::{Generator, Stream};
use super::rows::Row;
use super::rulesets;
use super::setups::Topologies;
use super::topology::Topology;
use crate::progress;
use crate::report::Report;
use crate::stats::Summary;

/// The part's name.
pub(super) const NAME: &str = "ct-offload";
/// Connections, which begin at once.
const CONNECTIONS: Connections =
    Connections { protocol: Protocol::Tcp, tracking: Tracking::Translated, count: 256 };
/// Frames per second: one of each connection every 2.56 ms.
const RATE: u32 = 100_000;
const INTERVAL_MS: f64 = 1000.0 * CONNECTIONS.count as f64 / RATE as f64;
/// How long they send.
const TIME: Duration = Duration::from_millis(500);
/// The sysctl by which the kernel counts packets of connections that begin from then on.
const COUNTS: &str = "netfilter/nf_conntrack_acct";

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
    let topology = &topologies.tollway;
    topology.kernel_forwards(true)?;
    let bar = progress::bar(options.repeat as u64);
    let mut times_ms = Vec::new();
    for _ in 0..options.repeat {
        let more = once(topology).map_err(|error| format!("{NAME}: {error}"))?;
        times_ms.extend(more);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let all = Summary::of(&times_ms).unwrap_or_default();
    times_ms.sort_by(f64::total_cmp);
    let p99 = times_ms.get((99 * times_ms.len()).div_ceil(100).saturating_sub(1));
    for (what, value) in [
        ("ms_p99", p99.copied().unwrap_or_default()),
        ("ms_median", all.median),
        ("ms_max", all.max),
        ("connections", times_ms.len() as f64),
        ("interval_ms", INTERVAL_MS),
    ] {
        report.figures.insert(format!("ct_offload_{what}"), value);
    }
    Ok(())
}

/// Starts Tollway and the connections. Returns for how long the kernel has forwarded each one's packets, in milliseconds:
/// it counts those, and no others.
fn once(topology: &Topology) -> Result<Vec<f64>, String> {
    topology.r.sysctl(COUNTS, "1")?;
    established::prepare(topology, CONNECTIONS, rulesets::ESTABLISHED)?;
    let packets = established::behind_tollway(topology, || {
        let stream = Stream { flows: CONNECTIONS.flows(), vid: None, rate: Some(RATE) };
        let generator = Generator::start(&topology.a, stream)?;
        std::thread::sleep(TIME);
        let packets = by_kernel(topology)?;
        generator.stop()?;
        Ok(packets)
    })?;
    established::clear(topology)?;
    topology.r.sysctl(COUNTS, "0")?;
    if packets.len() != CONNECTIONS.count as usize {
        return Err(format!(
            "the kernel has counted packets of {} connections instead of {}",
            packets.len(),
            CONNECTIONS.count
        ));
    }
    Ok(packets.into_iter().map(|packets| packets as f64 * INTERVAL_MS).collect())
}

/// The packets of each connection that the kernel has forwarded.
fn by_kernel(topology: &Topology) -> Result<Vec<u64>, String> {
    let read = || {
        let mut packets = Vec::new();
        Conntrack::open()?.each(Some(Family::Ip), |connection| {
            packets.extend(connection.counters.map(|counters| counters.original.packets));
            ControlFlow::Continue(())
        })?;
        Ok(packets)
    };
    let failed = |error: std::io::Error| format!("cannot read the kernel's connections: {error}");
    topology.r.run(read)?.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::tests::turn;

    #[test]
    fn a_kernel_alone_counts_all_packets_of_its_connections() {
        let Some(_turn) = turn() else { return };
        let topology = Topology::new().unwrap();
        topology.r.sysctl(COUNTS, "1").unwrap();
        established::prepare(&topology, CONNECTIONS, rulesets::ESTABLISHED).unwrap();
        let stream = Stream { flows: CONNECTIONS.flows(), vid: None, rate: Some(RATE) };
        let generator = Generator::start(&topology.a, stream).unwrap();
        std::thread::sleep(TIME);
        let sent = generator.stop().unwrap();
        let packets = by_kernel(&topology).unwrap();
        assert_eq!(packets.len(), CONNECTIONS.count as usize);
        assert_eq!(packets.iter().sum::<u64>(), sent.frames);
        established::clear(&topology).unwrap();
    }
}
