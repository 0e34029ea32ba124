//! Router and ports together: the counters, the sent frames, and the chunks returned to memory.

use tollway_dataplane::counters::Traffic;
use tollway_dataplane::port::MemoryPort;
use tollway_dataplane::verdict::DropReason;

use crate::testkit::mixed;
use crate::testkit::net::Net;
use crate::testkit::packet::ip;
use crate::testkit::wires::{LinkVariant, OVERLAP4, OVERLAP6, PORTS, Special, WEIGHTS};

#[test]
fn from_every_port_to_every_port_over_every_link() {
    let mut net = Net::new(256);
    let mut packets = 0;
    for port in 0..PORTS {
        for (to, from) in (0..PORTS).flat_map(|to| LinkVariant::ALL.map(|from| (to, from))) {
            for out in LinkVariant::ALL {
                for dst in [out.host4(to), out.host6(to)] {
                    let frame = from.packet(port, dst).build();
                    assert_eq!(net.send(port, &frame), [(to, out.forwarded(to, &frame))]);
                    packets += 1;
                }
            }
            if cfg!(miri) {
                break;
            }
        }
    }
    assert_eq!(net.counters().sent, packets);
    assert_eq!(net.counters().received_packets(), packets);
}

#[test]
fn each_vrf_has_its_own_route_to_an_overlapping_prefix() {
    let mut net = Net::new(16);
    for (variant, dst) in
        LinkVariant::ALL.iter().flat_map(|variant| [OVERLAP4, OVERLAP6].map(|dst| (variant, dst)))
    {
        let frame = variant.packet(0, ip(dst)).build();
        let port = variant.vrf().0 as u8;
        assert_eq!(
            net.send(0, &frame),
            [(port, LinkVariant::Plain.forwarded(port, &frame))],
            "{variant:?}"
        );
    }
}

#[test]
fn bytes_and_packets_are_counted_by_port() {
    let mut net = Net::new(16);
    let frame =
        LinkVariant::Plain.packet(0, LinkVariant::Qinq.host4(2)).size(100).padded(7).build();
    for _ in 0..3 {
        net.send(0, &frame);
    }
    let none = Traffic::default();
    assert_eq!(net.counters().rx, [Traffic { packets: 3, bytes: 3 * 121 }, none, none]);
    assert_eq!(net.counters().tx, [none, none, Traffic { packets: 3, bytes: 3 * 122 }]);
}

#[test]
fn a_full_port_costs_packets_but_no_memory() {
    let mut net = Net::new(64);
    net.ports[1].limit_tx(5);
    let frame = LinkVariant::Plain.packet(0, LinkVariant::Plain.host4(1)).build();
    for _ in 0..20 {
        assert!(net.inject(0, &frame));
    }
    net.run();
    net.check();
    assert_eq!(net.take_all().len(), 5);
    assert_eq!(net.counters().drops[DropReason::DevTxFailed as usize], 15);
    net.check();
}

#[test]
fn a_burst_comes_out_in_order_by_port() {
    let mut net = Net::new(64);
    let frames = (0..60_u16).map(|n| {
        let to = (n % 3) as u8;
        (to, LinkVariant::Plain.packet(0, LinkVariant::Plain.host4(to)).ports(n, n).build())
    });
    let frames = frames.collect::<Vec<_>>();
    for (_, frame) in &frames {
        assert!(net.inject(0, frame));
    }
    net.run();
    net.check();
    for port in 0..PORTS {
        let mine = frames.iter().filter(|(to, _)| *to == port);
        let expected = mine.map(|(_, frame)| LinkVariant::Plain.forwarded(port, frame));
        assert_eq!(net.take_sent(port), expected.collect::<Vec<_>>());
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn a_group_uses_all_its_members() {
    let mut net = Net::new(256);
    let flows = 4000;
    let mut seen = [0_u32; 2];
    for flow in 0..flows {
        let frame = LinkVariant::Plain.packet(0, Special::Group.host6()).ports(flow, 443).build();
        let sent = net.send(0, &frame);
        let [(port, bytes)] = &sent[..] else { panic!("{} frames for one", sent.len()) };
        assert_eq!(*bytes, LinkVariant::Plain.forwarded(*port, &frame));
        seen[usize::from(*port) - 1] += 1;
    }
    let share = f64::from(seen[0]) / f64::from(flows);
    let expected = f64::from(WEIGHTS[0]) / f64::from(WEIGHTS[0] + WEIGHTS[1]);
    assert!((share - expected).abs() < 0.05, "{share}");
}

/// Sends frames of every kind, in bursts of every size, into all ports at once.
#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn no_packet_and_no_memory_is_lost() {
    for burst in [1, 2, 7, 63, 64] {
        let mut net = Net::with_memory(512, 16_384);
        net.ports = net.ports.iter().map(|_| MemoryPort::new(burst)).collect();
        for round in 0..200 {
            for n in 0..90 {
                let port = (n % u64::from(PORTS)) as u8;
                let frame = mixed::frame(port, round << 32 | n);
                // Held packets occupy memory.
                if !net.inject(port, &frame) {
                    break;
                }
            }
            net.run();
            net.check();
            net.take_all();
            net.pass(1);
            net.check();
            net.take_all();
        }
        assert!(net.counters().sent > 0);
    }
}
