//! Tests of the generator and the sink between real interfaces. They need root, and CI must run
//! them.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::generator::{Flows, Generator, Sent, Stream};
use super::ping;
use super::ping::{Pings, Plan};
use super::sink::{Expect, Sink, SinkHook, SinkStats};
use super::topology::Topology;
use crate::sys;

/// Only one test at a time: all generators use the same processor.
static TURN: Mutex<()> = Mutex::new(());

/// Two hosts and a router, if this user may create them.
fn topology() -> Option<(Topology, MutexGuard<'static, ()>)> {
    let turn = turn()?;
    Some((Topology::new().unwrap(), turn))
}

/// The turn to use the generator, if this user may make topologies.
pub(super) fn turn() -> Option<MutexGuard<'static, ()>> {
    if !sys::is_root() && std::env::var_os("CI").is_none() {
        eprintln!("left out: only root can make namespaces and load BPF programs");
        return None;
    }
    Some(TURN.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Sends for a while. Returns what was sent, and the sink.
fn send_to(topology: &Topology, stream: Stream, expect: Expect) -> (Sent, Sink) {
    let sink = Sink::start(&topology.b, expect).unwrap();
    let generator = Generator::start(&topology.a, stream).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    (generator.stop().unwrap(), sink)
}

/// Like [`send_to`], for frames that must arrive within two seconds. Returns what was sent and
/// received.
pub(super) fn send(topology: &Topology, stream: Stream, expect: Expect) -> (Sent, SinkStats) {
    let (sent, sink) = send_to(topology, stream, expect);
    let start = Instant::now();
    while sink.seen().unwrap().frames < sent.frames && start.elapsed() < Duration::from_secs(2) {
        std::thread::sleep(Duration::from_millis(1));
    }
    (sent, sink.seen().unwrap())
}

/// Like [`send_to`], for frames that must not arrive.
pub(super) fn send_in_vain(
    topology: &Topology,
    stream: Stream,
    expect: Expect,
) -> (Sent, SinkStats) {
    let (sent, sink) = send_to(topology, stream, expect);
    std::thread::sleep(Duration::from_millis(50));
    (sent, sink.seen().unwrap())
}

/// Sends 200,000 frames per second, which must all arrive correctly. Returns the rate.
fn paced(topology: &Topology, flows: u32) -> f64 {
    let stream = Stream { flows: Flows::InTurn(flows), vid: None, rate: Some(200_000) };
    let before = topology.kernel_forwarded().unwrap();
    let expect = Expect { vid: None, follow: true, hook: SinkHook::Xdp, bridged: None };
    let (sent, seen) = send(topology, stream, expect);
    assert!(sent.frames > 10_000);
    assert_eq!(seen.frames, sent.frames);
    assert_eq!(seen.bytes, sent.frames * 60);
    assert_eq!((seen.duplicates, seen.reordered), (0, 0));
    assert_eq!(seen.check(), Ok(()));
    assert_eq!(topology.kernel_forwarded().unwrap() - before, sent.frames);
    sent.rate
}

#[test]
fn frames_are_paced_and_each_is_seen_once_and_in_order() {
    let Some((topology, _turn)) = topology() else { return };
    for flows in [1, 256, 1 << 20] {
        // A generator that loses its processor for long sends less, never more.
        let is_kept = (0..10).any(|_| {
            let rate = paced(&topology, flows);
            assert!(rate < 202_000.0, "{rate} frames a second");
            rate > 198_000.0
        });
        assert!(is_kept, "{flows} flows were never sent at their rate");
    }
}

#[test]
fn wrongly_forwarded_frames_are_seen() {
    let Some((topology, _turn)) = topology() else { return };
    let stream = Stream { flows: Flows::InTurn(256), vid: None, rate: Some(100_000) };
    let (_, seen) = send(
        &topology,
        stream.clone(),
        Expect { vid: Some(7), follow: true, hook: SinkHook::Xdp, bridged: None },
    );
    assert_eq!(seen.wrong, [0, seen.frames, 0, 0]);
    assert!(seen.check().unwrap_err().contains("a wrong VLAN tag"));
    // The kernel drops frames of a VLAN without a device.
    let stream = Stream { vid: Some(7), ..stream };
    let (sent, seen) = send_in_vain(
        &topology,
        stream,
        Expect { vid: None, follow: true, hook: SinkHook::Xdp, bridged: None },
    );
    assert!(sent.frames > 1000);
    assert_eq!(seen.frames, 0);
}

#[test]
fn lost_frames_are_counted() {
    let Some((topology, _turn)) = topology() else { return };
    topology.kernel_forwards(false).unwrap();
    let stream = Stream { flows: Flows::InTurn(256), vid: None, rate: Some(100_000) };
    let (sent, seen) = send_in_vain(
        &topology,
        stream,
        Expect { vid: None, follow: true, hook: SinkHook::Xdp, bridged: None },
    );
    assert!(sent.frames > 1000);
    assert_eq!(seen.frames, 0);
    let plan = Plan { count: 20, interval: Duration::from_millis(2), exact: false };
    let lost = |topology: &Topology| {
        ping::lost(&Pings::start(&topology.a, plan).unwrap().answers().unwrap())
    };
    assert_eq!(lost(&topology), 20);
    topology.kernel_forwards(true).unwrap();
    assert_eq!(lost(&topology), 0);
}
