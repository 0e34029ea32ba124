//! The generator and the sink, between real interfaces. Only root can run these; on the machine that
//! tests every change it must.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::generator::{Generator, Sent, Stream};
use super::ping::{Pings, Plan};
use super::sink::{Expect, Place, Seen, Sink};
use super::topology::Topology;
use super::{ping, sys};

/// One at a time: all generators want the same processor.
static TURN: Mutex<()> = Mutex::new(());

/// Two hosts and a router, where this user may make them.
fn topology() -> Option<(Topology, MutexGuard<'static, ()>)> {
    if !sys::is_root() && std::env::var_os("CI").is_none() {
        eprintln!("left out: only root can make namespaces and load BPF programs");
        return None;
    }
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    Some((Topology::new().unwrap(), turn))
}

/// Sends for a while; what was sent and what arrived.
fn send(topology: &Topology, stream: Stream, expect: Expect) -> (Sent, Seen) {
    let sink = Sink::start(&topology.b, expect).unwrap();
    let generator = Generator::start(&topology.a, stream).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let sent = generator.stop().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    (sent, sink.seen().unwrap())
}

#[test]
fn frames_are_paced_and_each_is_seen_once_and_in_order() {
    let Some((topology, _turn)) = topology() else { return };
    for flows in [1, 256, 1 << 20] {
        let stream = Stream { flows, vid: None, rate: Some(200_000) };
        let before = topology.kernel_forwarded().unwrap();
        let (sent, seen) =
            send(&topology, stream, Expect { vid: None, follow: true, place: Place::Xdp });
        assert!((sent.rate - 200_000.0).abs() < 2000.0, "{} frames a second", sent.rate);
        assert!(sent.frames > 10_000);
        assert_eq!(seen.frames, sent.frames);
        assert_eq!(seen.bytes, sent.frames * 60);
        assert_eq!((seen.duplicates, seen.reordered), (0, 0));
        assert_eq!(seen.check(), Ok(()));
        assert_eq!(topology.kernel_forwarded().unwrap() - before, sent.frames);
    }
}

#[test]
fn what_is_forwarded_wrongly_is_seen() {
    let Some((topology, _turn)) = topology() else { return };
    let stream = Stream { flows: 256, vid: None, rate: Some(100_000) };
    let (_, seen) =
        send(&topology, stream, Expect { vid: Some(7), follow: true, place: Place::Xdp });
    assert_eq!(seen.wrong, [0, seen.frames, 0, 0]);
    assert!(seen.check().unwrap_err().contains("a wrong VLAN tag"));
    // What the kernel has no VLAN device for goes nowhere.
    let stream = Stream { vid: Some(7), ..stream };
    let (sent, seen) =
        send(&topology, stream, Expect { vid: None, follow: true, place: Place::Xdp });
    assert!(sent.frames > 1000);
    assert_eq!(seen.frames, 0);
}

#[test]
fn what_is_lost_is_counted() {
    let Some((topology, _turn)) = topology() else { return };
    topology.kernel_forwards(false).unwrap();
    let stream = Stream { flows: 256, vid: None, rate: Some(100_000) };
    let (sent, seen) =
        send(&topology, stream, Expect { vid: None, follow: true, place: Place::Xdp });
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
