//! Tests how the XDP path follows changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tollway_dataplane::id::{NextHopId, PortId};
use tollway_dataplane::prefix::RoutePrefix;
use tollway_dataplane::stages::ecmp::Member;
use tollway_dataplane::tables::{ForwardingState, Tables};

use crate::bench::Bench;
use crate::testkit::packet::ip;
use crate::testkit::wires::{LinkVariant, PORTS, Special};

fn way_to(tables: &ForwardingState, port: u8) -> NextHopId {
    tables.lookup(LinkVariant::Plain.vrf(), LinkVariant::Plain.host4(port))
}

pub fn changes() {
    let mut bench = Bench::new();
    let alone = LinkVariant::Plain.packet(0, LinkVariant::Plain.host4(1)).build();
    let grouped = LinkVariant::Plain.packet(0, Special::Group.host4()).build();
    type Change = fn(&mut Tables);
    /// Which flows stay: the one to a host, and the one on the group. A route affects only what it
    /// covers.
    type Stay = [bool; 2];
    let changes: [(&str, Stay, Change); 6] = [
        ("a route", [false, true], |tables| {
            let next = way_to(tables, 2);
            let host = RoutePrefix::host(LinkVariant::Plain.host4(1));
            tables.insert(LinkVariant::Plain.vrf(), host, next).unwrap();
        }),
        ("a route less", [false, true], |tables| {
            let host = RoutePrefix::host(LinkVariant::Plain.host4(1));
            assert!(tables.remove(LinkVariant::Plain.vrf(), host).unwrap());
        }),
        ("a neighbour that moved", [false; 2], |tables| {
            let gateway = ip("10.255.1.1");
            tables
                .set_neigh(LinkVariant::Plain.link(1), gateway, Some([4, 0, 0, 0, 0, 1]))
                .unwrap();
        }),
        ("a group's members", [false; 2], |tables| {
            let group = tables.lookup(LinkVariant::Plain.vrf(), Special::Group.host4());
            let next = way_to(tables, 0);
            tables.set_group(group, &[Member { next, weight: 1 }]).unwrap();
        }),
        ("another route", [true; 2], |tables| {
            let next = way_to(tables, 1);
            let other = RoutePrefix::new(ip("203.0.113.0"), 24);
            tables.insert(LinkVariant::Plain.vrf(), other, next).unwrap();
        }),
        ("a default route", [false; 2], |tables| {
            let next = way_to(tables, 1);
            tables.insert(LinkVariant::Plain.vrf(), RoutePrefix::all(true), next).unwrap();
        }),
    ];
    for frame in [&alone, &grouped] {
        assert_eq!([(); 3].map(|()| bench.both(0, frame)), [false, false, true]);
    }
    for (what, stays, change) in changes {
        change(&mut bench.net.worker.lock().tables);
        // The worker does this in each turn, with packets or without.
        bench.net.run();
        for (frame, stays) in [&alone, &grouped].into_iter().zip(stays) {
            // The first packet finds its flow void, takes the user path, and enters the flow again.
            let lanes = [(); 3].map(|()| bench.both(0, frame));
            assert_eq!(lanes, [stays, true, true], "{what}");
        }
    }
    let gone = ip("10.255.1.1");
    bench.net.worker.lock().tables.forget_neigh(LinkVariant::Plain.link(1), gone);
    bench.net.run();
    assert_eq!(bench.xdp_path(0, &alone), None, "a neighbour forgotten");
}

pub fn soon() {
    let mut bench = Bench::new();
    let frame = LinkVariant::Plain.packet(0, LinkVariant::Plain.host4(1)).build();
    let tables = bench.net.worker.state();
    let (fib, root) = (Arc::clone(&tables.routes.fib4), tables.routes.vrfs[0].root4);
    let next = way_to(tables, 1);
    let RoutePrefix::V4(beside) = RoutePrefix::new(ip("10.1.77.0"), 24) else {
        panic!("an IPv4 prefix")
    };
    let mut times = Vec::new();
    for round in 0..20 {
        while !bench.both(0, &frame) {}
        let stop = AtomicBool::new(false);
        let Bench { net, programs, loaded, .. } = &mut bench;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // An idle worker sleeps like this.
                while !stop.load(Ordering::Relaxed) {
                    for port in 0..PORTS {
                        net.worker.turn(PortId(port.into()), &mut net.ports, net.now_ns);
                    }
                    std::thread::sleep(Duration::from_millis(8));
                }
            });
            std::thread::sleep(Duration::from_millis(3));
            let start = Instant::now();
            if round % 2 == 0 {
                fib.insert(root, beside, next).unwrap();
            } else {
                assert!(fib.remove(root, beside).unwrap());
            }
            let state = programs.state();
            let on_xdp_path = || {
                state.beat(0);
                let (action, _) = loaded[0].probe(&frame).unwrap();
                action == tollway_xdp::Action::Redirect
            };
            while on_xdp_path() {
                assert!(start.elapsed() < Duration::from_secs(10), "the XDP path does not follow");
            }
            times.push(start.elapsed());
            stop.store(true, Ordering::Relaxed);
        });
    }
    // Other work keeps this machine busy too, so the test takes one of the faster results.
    times.sort();
    assert!(times[5] < Duration::from_millis(10), "{times:?}");
}
