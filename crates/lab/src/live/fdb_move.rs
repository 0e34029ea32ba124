//! How many frames still leave by the old port of a bridge when a host has moved to another one.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::time::Duration;

use tollway_linux::sys::netdevice;

use super::Options;
use super::generator::{Flows, Generator, Stream};
use super::host::Host;
use super::program;
use super::rows::Row;
use super::rows::bridge::{Bridge, HOSTS_SIDE};
use super::setups::Topologies;
use super::sink::{Expect, Sink, SinkHook};
use super::topology::{Mac, Topology, tune};
use crate::progress;
use crate::report::Report;
use crate::stats::Summary;
use crate::sys;

/// The part's name.
pub(super) const NAME: &str = "fdb-move";
/// The ports of the bridge; behind the last one is a second device of host B.
const ARGUMENTS: [&str; 6] = ["run", "r0", "r1", "r2", "--engine", "xdp"];
/// The device to which the host moves.
const NEW: &str = "b2";
/// The host that moves: the only one that the generator sends to (`bpf/frame.h`).
const MOVES: Mac = [2, 0, HOSTS_SIDE, 0, 0, 0];
/// Frames per second.
const RATE: u32 = 200_000;
/// Time from the first frame to the move.
const WARM_UP: Duration = Duration::from_millis(500);
/// Frames that arrive at the old port until so long after the host's first frame at the new one are not late.
const GRACE: Duration = Duration::from_millis(5);
/// Time in which late frames are counted.
const AFTER: Duration = Duration::from_millis(300);
/// Frames that Tollway has to have forwarded before a move, of some 100,000.
const LEAST_CARRIED: u64 = 50_000;

/// Measures, if the options select it.
pub(super) fn measure(
    topologies: &Topologies,
    options: &Options,
    report: &mut Report<Row>,
) -> Result<(), String> {
    if !options.wants(NAME) {
        return Ok(());
    }
    let bar = progress::bar(2 * options.repeat as u64);
    let late = |topology: &Topology, by: By| {
        let one = |_| {
            bar.inc(1);
            once(topology, by).map_err(|error| format!("{NAME}: {error}"))
        };
        (0..options.repeat).map(one).collect::<Result<Vec<_>, _>>()
    };
    let kernel = late(&topologies.kernel, By::Kernel)?;
    let tollway = late(&topologies.tollway, By::Tollway)?;
    bar.finish_and_clear();
    let most = |frames: &[f64]| Summary::of(frames).unwrap_or_default().max;
    for (what, value) in [
        ("late_frames", most(&tollway)),
        ("kernel_late_frames", most(&kernel)),
        ("repeats", tollway.len() as f64),
    ] {
        report.figures.insert(format!("fdb_move_{what}"), value);
    }
    Ok(())
}

/// Who forwards.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Kernel,
    Tollway,
}

/// Moves the host once under traffic to it. Returns the frames that arrive late at the old port.
fn once(topology: &Topology, by: By) -> Result<f64, String> {
    third_port(topology)?;
    let bridge = Bridge::make(topology, &["r0", "r1", "r2"], 1, false)?;
    let measure = || late_frames(topology, by);
    let late = match by {
        By::Kernel => measure()?,
        By::Tollway => program::behind_tollway(topology, &ARGUMENTS, measure)?,
    };
    bridge.end()?;
    topology.r.sh("ip link del r2")?;
    Ok(late as f64)
}

/// Connects a second device of host B to the router.
fn third_port(topology: &Topology) -> Result<(), String> {
    let Topology { r, b, .. } = topology;
    let namespace = b.namespace();
    let namespace = namespace.display();
    r.sh(&format!("ip link add r2 type veth peer name {NEW} netns {namespace}"))?;
    b.sh(&format!("ip link set {NEW} up"))?;
    r.sh("ip link set r2 up")?;
    tune(b, NEW, "tx", 1)?;
    tune(r, "r2", "rx", 1)
}

fn late_frames(topology: &Topology, by: By) -> Result<u64, String> {
    let expect = Expect { vid: None, follow: true, hook: SinkHook::Xdp, bridged: Some(1) };
    let sink = Sink::start(&topology.b, expect)?;
    let stream = Stream { flows: Flows::Bridged(1), vid: None, rate: Some(RATE) };
    let generator = Generator::start(&topology.a, stream)?;
    std::thread::sleep(WARM_UP);
    if by == By::Tollway {
        check_carried(&topology.r)?;
    }
    let (arrived, (moved_ns, _socket)) = (received(&topology.b)?, announce(&topology.b)?);
    let passed = Duration::from_nanos(sys::monotonic_ns().saturating_sub(moved_ns));
    std::thread::sleep(GRACE.saturating_sub(passed));
    let in_time = sink.seen()?.frames;
    std::thread::sleep(AFTER);
    let late = sink.seen()?.frames - in_time;
    // The bench itself may have come later to read what was in time.
    let last_ns = sink.latest_ns()?;
    let is_late = Duration::from_nanos(last_ns.saturating_sub(moved_ns)) > GRACE;
    let arrived = received(&topology.b)? - arrived;
    generator.stop()?;
    sink.seen()?.check()?;
    // The host's frames have to go somewhere, and only the first ones may have gone to the old port.
    let least = f64::from(RATE) * AFTER.as_secs_f64() / 2.0;
    if (arrived as f64) < least {
        return Err(format!("only {arrived} frames arrived at the port to which the host moved"));
    }
    Ok(if is_late { late.max(1) } else { 0 })
}

/// Checks that Tollway forwards.
fn check_carried(r: &Host) -> Result<(), String> {
    let program = std::env::current_exe()
        .map_err(|error| format!("this program cannot find itself: {error}"))?;
    let shown = r.sh(&format!("{} show xdp --json", program.display()))?;
    let shown: serde_json::Value = serde_json::from_str(&shown)
        .map_err(|error| format!("the counts of the XDP path cannot be read: {error}"))?;
    match shown["counts"]["packets"].as_u64() {
        Some(packets) if packets >= LEAST_CARRIED => Ok(()),
        packets => Err(format!(
            "Tollway did not carry the frames for the host before it moved, but {} of them",
            packets.unwrap_or_default()
        )),
    }
}

/// Sends a frame to all from the host at its new port. Returns the time before that, by the monotonic clock, and the socket:
/// to close it takes the kernel a grace period.
fn announce(b: &Host) -> Result<(u64, File), String> {
    // An ethertype for experiments (IEEE 802).
    let mut frame = [&[0xff; 6][..], &MOVES, &[0x88, 0xb5]].concat();
    frame.resize(60, 0);
    let send = move || {
        let socket = netdevice::packet_socket(0)?;
        let interface = sys::ifindex(NEW).map_err(std::io::Error::other)?;
        netdevice::bind(socket.as_fd(), interface.cast_signed(), 0)?;
        let (mut socket, before_ns) = (File::from(socket), sys::monotonic_ns());
        socket.write_all(&frame)?;
        Ok((before_ns, socket))
    };
    let failed = |error: std::io::Error| format!("cannot send a frame by {NEW}: {error}");
    b.run(send)?.map_err(failed)
}

/// The number of frames that have arrived at the new port.
fn received(b: &Host) -> Result<u64, String> {
    let path = format!("/sys/class/net/{NEW}/statistics/rx_packets");
    let text = b.sh(&format!("cat {path}"))?;
    text.trim().parse().map_err(|error| format!("{path} has no number: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::tests::turn;

    #[test]
    fn a_kernel_forwards_nothing_to_the_port_that_a_host_has_left() {
        let Some(_turn) = turn() else { return };
        let topology = Topology::new().unwrap();
        assert_eq!(once(&topology, By::Kernel), Ok(0.0));
        assert_eq!(once(&topology, By::Kernel), Ok(0.0), "once more");
    }
}
