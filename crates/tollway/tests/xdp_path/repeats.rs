//! Compares the XDP program with the user path: if it takes a frame, both have the same result.

use tollway_xdp::xdp_path::XdpTotals;

use crate::bench::Bench;
use crate::testkit::dice::Dice;
use crate::testkit::mixed;
use crate::testkit::packet::ip;
use crate::testkit::wires::{LinkVariant, OVERLAP4, OVERLAP6, PORTS, Special};

/// Links whose frames the XDP program takes: untagged or one tag, and the port's address.
const IN: [LinkVariant; 4] =
    [LinkVariant::Plain, LinkVariant::Vlan, LinkVariant::Service, LinkVariant::Outer];

pub fn third() {
    let mut bench = Bench::new();
    let has_flows = |variant: &LinkVariant| variant.tags().len() < 2;
    for variant in IN.into_iter().filter(has_flows) {
        for (to, out) in (0..PORTS).flat_map(|to| LinkVariant::ALL.map(|out| (to, out))) {
            for dst in [out.host4(to), out.host6(to)] {
                let frame = variant.packet(0, dst).size(200).build();
                let lanes = [(); 4].map(|()| bench.both(0, &frame));
                assert_eq!(lanes, [false, false, true, true], "{variant:?} to {out:?} of {to}");
                let by_xdp_path = bench.xdp_path(0, &frame).unwrap();
                assert_eq!(by_xdp_path, out.forwarded(to, &frame), "by another author");
            }
        }
    }
    let two_tags = LinkVariant::Qinq.packet(0, LinkVariant::Plain.host4(1)).build();
    assert_eq!([(); 4].map(|()| bench.both(0, &two_tags)), [false; 4]);
}

pub fn group() {
    let mut bench = Bench::new();
    let mut flows = [0; 3];
    for port in 0..100_u16 {
        for dst in [Special::Group.host4(), Special::Group.host6()] {
            let frame = LinkVariant::Vlan.packet(0, dst).ports(port, 53).build();
            let lanes = [(); 3].map(|()| bench.both(0, &frame));
            assert_eq!(lanes, [false, false, true]);
            let egress = bench.path(0, &frame)[0].0;
            flows[usize::from(egress)] += 1;
        }
    }
    assert!(flows[1] > 0 && flows[2] > flows[1], "{flows:?}");
}

pub fn vrfs() {
    let mut bench = Bench::new();
    for (variant, to) in [(LinkVariant::Plain, 0), (LinkVariant::Red, 1), (LinkVariant::Vlan, 0)] {
        // The XDP program knows one address of a port. The link `Red` has an address of its own.
        bench.set_mac(2, variant.mac(2));
        for dst in [OVERLAP4, OVERLAP6] {
            let frame = variant.packet(2, ip(dst)).build();
            assert_eq!([(); 3].map(|()| bench.both(2, &frame)), [false, false, true]);
            let by_xdp_path = bench.xdp_path(2, &frame).unwrap();
            assert_eq!(by_xdp_path, LinkVariant::Plain.forwarded(to, &frame), "{variant:?}");
        }
    }
    assert_eq!(bench.programs.flows().len(), (3, 3), "each link has its own");
}

pub fn mixture() {
    let mut bench = Bench::new();
    let (mut dice, mut hits) = (Dice(4711), 0);
    for _ in 0..4000 {
        let port = dice.below(PORTS.into()) as u8;
        // Frames repeat, so that their flows enter the XDP path.
        let frame = mixed::frame(port, dice.roll() % 150);
        if frame.len() < 14 {
            continue;
        }
        let Some(by_xdp_path) = bench.xdp_path(port, &frame) else {
            bench.path(port, &frame);
            if bench.net.counters().held > 100 {
                // The neighbours do not answer, so held packets expire and free their memory.
                bench.net.pass(5);
                bench.net.take_all();
            }
            continue;
        };
        hits += 1;
        assert!(bench.both(port, &frame), "{by_xdp_path:02x?}");
    }
    assert!(hits > 300, "{hits} hits");
}

pub fn counts() {
    let mut bench = Bench::new();
    let mut totals = XdpTotals::new(bench.reading());
    let frame = LinkVariant::Plain.packet(0, LinkVariant::Vlan.host4(1)).size(200).build();
    bench.path(0, &frame);
    bench.path(0, &frame);
    for _ in 0..1000 {
        assert!(bench.xdp_path(0, &frame).is_some());
    }
    totals.update(bench.reading());
    let mut counters = bench.net.counters().clone();
    totals.add_to(&mut counters);
    counters.check().unwrap();
    assert_eq!((counters.sent, counters.held), (1002, 0));
    assert_eq!(counters.rx[0].packets, 1002);
    assert_eq!(counters.rx[0].bytes, 1002 * 214);
    assert_eq!(counters.tx[1].packets, 1002);
    assert_eq!(counters.tx[1].bytes, 1002 * 218);
    // A successor counts from zero.
    let totals = XdpTotals::new(bench.reading());
    assert!(totals.sum().rx.iter().all(|traffic| traffic.packets == 0));
}
