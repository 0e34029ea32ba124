//! Which packets enter, and when.

use etherparse::IpNumber;
use tollway_dataplane::burst::{Burst, Lanes};
use tollway_dataplane::frame::Umem;
use tollway_dataplane::id::{PortId, RecordId};
use tollway_dataplane::prefix::RoutePrefix;
use tollway_dataplane::stages::ecmp::Member;
use tollway_dataplane::tables::Tables;
use tollway_dataplane::xdp_path::XdpPath;

use super::{Bench, Exit, Flows, Maps, XdpFlows, ports};
use crate::testkit::packet::{DOT1Q, Ip, Packet, ip};
use crate::testkit::wires::{LinkVariant, PORTS, Special, tables};

const MS: u64 = 1_000_000;

fn plain4() -> Packet {
    LinkVariant::Plain.packet(0, LinkVariant::Plain.host4(1))
}

fn plain6() -> Packet {
    LinkVariant::Plain.packet(0, LinkVariant::Plain.host6(1))
}

/// The packet with another protocol number.
fn protocol(mut packet: Packet, number: u8) -> Vec<u8> {
    match &mut packet.ip {
        Ip::V4(header) => header.protocol = IpNumber(number),
        Ip::V6 { header, .. } => header.next_header = IpNumber(number),
    }
    packet.build()
}

#[test]
fn a_flow_enters_with_its_second_packet_and_once() {
    for frame in [plain4().build(), plain6().build()] {
        let mut bench = Bench::new();
        assert_eq!(bench.twice(0, &frame), [0, 1]);
        for _ in 0..10 {
            bench.send(0, &frame);
        }
        assert_eq!(bench.maps.writes(), 1, "they were under way");
        bench.net.now_ns += 20 * MS;
        bench.maps.clear();
        bench.send(0, &frame);
        assert_eq!((bench.maps.len(), bench.maps.writes()), (1, 2), "it was pushed out");
    }
}

#[test]
fn packets_too_long_for_a_device_stay_out() {
    // Port 1 and its links have an MTU of 9000, port 2 has one of 1280.
    let (plain, vlan, qinq) = (LinkVariant::Plain, LinkVariant::Vlan, LinkVariant::Qinq);
    for (mtu, takes_pieces, to, port, enters) in [
        (9000, true, plain, 1, true),
        (9000, true, vlan, 1, true),
        (9000, true, qinq, 1, false),
        (9003, true, qinq, 1, false),
        (9004, true, qinq, 1, true),
        (8996, true, plain, 1, true),
        (8995, true, plain, 1, false),
        (9000, false, plain, 1, false),
        (1280, false, plain, 2, true),
        (1280, true, qinq, 2, false),
    ] {
        for dst in [to.host4(port), to.host6(port)] {
            let mut bench = Bench::new();
            let exit = Exit { mtu, takes_pieces, ..super::exit(port) };
            bench.ports.set_exit(PortId(port.into()), Some(exit));
            bench.twice(0, &plain.packet(0, dst).build());
            assert_eq!(bench.maps.len() == 1, enters, "{exit:?}, {to:?}, {dst}");
        }
    }
}

#[test]
fn a_flow_that_fills_a_burst_enters_once() {
    let mut bench = Bench::new();
    for _ in 0..64 {
        assert!(bench.net.inject(0, &plain4().build()));
    }
    bench.net.run();
    assert_eq!((bench.maps.len(), bench.maps.writes()), (1, 1));
    assert_eq!((bench.entered.entered(), bench.entered.refused()), (1, 0));
}

#[test]
fn a_flood_of_single_packets_enters_nothing() {
    let mut bench = Bench::new();
    for number in 0..20_000_u32 {
        let src = std::net::Ipv4Addr::from_bits(0x0b00_0000 + number).into();
        let packet =
            Packet::between(src, LinkVariant::Plain.host4(1)).to(LinkVariant::Plain.mac(0));
        assert!(bench.net.inject(0, &packet.build()));
        if number % 64 == 63 {
            bench.net.run();
            bench.net.take_all();
        }
    }
    assert_eq!(bench.maps.writes(), 0);
}

#[test]
fn four_protocols_enter_and_no_others() {
    for number in 0..=255 {
        let entered = |packet: Packet| Bench::new().twice(0, &protocol(packet, number))[1];
        assert_eq!(entered(plain4()), usize::from(matches!(number, 1 | 6 | 17)), "IPv4 {number}");
        assert_eq!(entered(plain6()), usize::from(matches!(number, 6 | 17 | 58)), "IPv6 {number}");
    }
}

#[test]
fn packets_that_the_xdp_program_cannot_distinguish_stay_out() {
    let two_tags = [(DOT1Q, 0), (DOT1Q, 10)];
    let stays: [(&str, Packet); 10] = [
        ("a first fragment", plain4().fragment(0, true)),
        ("a later fragment", plain4().fragment(9, true)),
        ("a last fragment", plain4().fragment(9, false)),
        ("an IPv6 fragment", plain6().fragment(9, false)),
        ("IPv4 options", plain4().options(&[1; 4])),
        ("an extension header", plain6().extension(IpNumber::IPV6_DESTINATION_OPTIONS, 8)),
        ("a routing header", plain6().extension(IpNumber::IPV6_ROUTE_HEADER, 8)),
        ("two tags", LinkVariant::Qinq.packet(0, LinkVariant::Plain.host4(1))),
        (
            "a priority tag before another",
            LinkVariant::Plain.packet(0, LinkVariant::Plain.host4(1)).tagged(&two_tags),
        ),
        ("half the ports", plain4().size(22)),
    ];
    for (what, packet) in stays {
        let mut bench = Bench::new();
        assert_eq!(bench.twice(0, &packet.build()), [0, 0], "{what}");
    }
    let mut bench = Bench::new();
    let tagged = plain4().tagged(&[(DOT1Q, 0)]).build();
    assert_eq!(bench.twice(0, &tagged), [0, 1], "a priority tag alone");
}

#[test]
fn packets_that_neither_leave_nor_are_dropped_by_the_route_stay_out() {
    for special in Special::ALL {
        for dst in [special.host4(), special.host6()] {
            let count = usize::from(matches!(special, Special::Group | Special::Blackhole));
            let frame = LinkVariant::Plain.packet(0, dst).build();
            assert_eq!(Bench::new().twice(0, &frame)[1], count, "{special:?}");
        }
    }
    let large = LinkVariant::Plain.packet(0, LinkVariant::Plain.host4(2)).size(1281);
    for packet in [plain4().ttl(1), plain6().ttl(1), large] {
        assert_eq!(Bench::new().twice(0, &packet.build()), [0, 0]);
    }
}

#[test]
fn ports_have_an_xdp_path_or_not() {
    let mut bench = Bench::new();
    bench.ports.set_entrance(PortId(0), false);
    assert_eq!(bench.twice(0, &plain4().build()), [0, 0]);
    bench.ports.set_entrance(PortId(0), true);
    bench.ports.set_exit(PortId(1), None);
    assert_eq!(bench.twice(0, &plain4().build()), [0, 0], "XDP cannot send there");
    bench.ports.set_exit(PortId(1), Some(super::exit(9)));
    bench.send(0, &plain4().build());
    assert_eq!(bench.maps.installed(), 1);
    bench.ports.set_exit(PortId(1), Some(super::exit(1)));
    bench.net.run();
    assert_eq!(bench.maps.installed(), 0, "another device");
}

#[test]
fn packets_that_are_bound_stay_out() {
    let (mut umem, tables) = (Umem::new(4, 2048).unwrap(), tables());
    let maps = Maps::default();
    let mut flows = XdpFlows::new(maps.clone(), ports(), 100);
    let frame = LinkVariant::Plain.forwarded(1, &plain4().build());
    let next = tables.lookup(LinkVariant::Plain.vrf(), LinkVariant::Plain.host4(1));
    let mut burst = Burst::new();
    burst.reset(PortId(0));
    let stored = umem.store(&frame).unwrap();
    assert!(burst.push(stored.addr, stored.len as u16));
    (burst.l3[0], burst.link[0], burst.next[0]) =
        (14, LinkVariant::Plain.link(0), RecordId(next.0));
    flows.begin(&tables.epochs.changes, 0);
    burst.bound = Lanes::first(1);
    for _ in 0..3 {
        flows.forwarded(&burst, &umem, &tables, burst.lanes());
    }
    assert_eq!(maps.len(), 0);
    burst.bound = Lanes::NONE;
    for _ in 0..2 {
        flows.forwarded(&burst, &umem, &tables, burst.lanes());
    }
    assert_eq!(maps.len(), 1);
    burst.reset(PortId(0));
    assert_eq!(burst.bound, Lanes::NONE);
}

#[test]
fn a_change_empties_the_xdp_path_and_the_next_packet_enters_again() {
    type Change = fn(&mut Tables);
    let vrf = LinkVariant::Plain.vrf();
    assert_eq!(vrf.0, 0);
    let changes: [(&str, Change); 5] = [
        ("routes to both", |tables| {
            let next = tables.lookup(LinkVariant::Plain.vrf(), LinkVariant::Plain.host4(2));
            for dst in [LinkVariant::Plain.host4(1), Special::Group.host4()] {
                tables.insert(LinkVariant::Plain.vrf(), RoutePrefix::host(dst), next).unwrap();
            }
        }),
        ("a default route", |tables| {
            let next = tables.lookup(LinkVariant::Plain.vrf(), LinkVariant::Plain.host4(2));
            tables.insert(LinkVariant::Plain.vrf(), RoutePrefix::all(true), next).unwrap();
        }),
        ("a neighbour", |tables| {
            tables.set_neigh(LinkVariant::Plain.link(1), ip("10.255.1.1"), Some([4; 6])).unwrap();
        }),
        ("a group", |tables| {
            let group = tables.lookup(LinkVariant::Plain.vrf(), Special::Group.host4());
            let next = tables.lookup(LinkVariant::Plain.vrf(), LinkVariant::Plain.host4(2));
            tables.set_group(group, &[Member { next, weight: 1 }]).unwrap();
        }),
        ("other tables", |before| *before = tables()),
    ];
    for (what, change) in changes {
        let mut bench = Bench::new();
        let frames =
            [plain4().build(), LinkVariant::Plain.packet(0, Special::Group.host4()).build()];
        frames.iter().for_each(|frame| assert!(bench.twice(0, frame)[1] > 0));
        assert_eq!(bench.maps.installed(), 2);
        change(&mut bench.net.worker.lock().tables);
        // A turn without a packet is enough.
        bench.net.run();
        assert_eq!(bench.maps.installed(), 0, "{what}");
        for frame in &frames {
            let sent = bench.send(0, frame);
            let flows = bench.maps.active_flows();
            let flow = flows.iter().find(|flow| sent[0].1.starts_with(&flow.l2[..14]));
            assert_eq!(flow.map(|flow| flow.egress_port), Some(sent[0].0), "{what}");
        }
        assert_eq!(bench.maps.installed(), 2, "{what}");
    }
}

#[test]
fn lookups_before_a_change_are_void() {
    // Another worker notices the change, or this one in its next turn. Whichever comes first, the
    // entry carries the old generation, or there is no entry.
    let (mut umem, tables) = (Umem::new(4, 2048).unwrap(), tables());
    let (maps, dst) = (Maps::default(), LinkVariant::Plain.host4(1));
    let [mut flows, mut other] = [(); 2].map(|()| XdpFlows::new(maps.clone(), ports(), 100));
    let frame = LinkVariant::Plain.forwarded(1, &plain4().build());
    let next = tables.lookup(LinkVariant::Plain.vrf(), LinkVariant::Plain.host4(1));
    let mut burst = Burst::new();
    burst.reset(PortId(0));
    for _ in 0..2 {
        let stored = umem.store(&frame).unwrap();
        assert!(burst.push(stored.addr, stored.len as u16));
    }
    burst.l3 = [14; 64];
    burst.next = [RecordId(next.0); 64];
    flows.begin(&tables.epochs.changes, 0);
    other.begin(&tables.epochs.changes, 0);
    flows.begin(&tables.epochs.changes, 0);
    // Here the lookup for the burst happens. Then the route changes, and the other worker notices.
    let root = tables.routes.vrfs[0].root4;
    let RoutePrefix::V4(prefix) = RoutePrefix::host(dst) else { panic!("IPv4") };
    let another = tables.lookup(LinkVariant::Plain.vrf(), LinkVariant::Plain.host4(2));
    tables.routes.fib4.insert(root, prefix, another).unwrap();
    other.begin(&tables.epochs.changes, 0);
    flows.forwarded(&burst, &umem, &tables, burst.lanes());
    assert_eq!(maps.installed(), 0);
    flows.begin(&tables.epochs.changes, 20 * MS);
    flows.forwarded(&burst, &umem, &tables, burst.lanes());
    assert_eq!((maps.len(), maps.installed()), (1, 1));
    // Without a change, nothing is invalidated.
    let generation = maps.generation();
    flows.begin(&tables.epochs.changes, 0);
    assert_eq!(maps.generation(), generation);
}

#[test]
fn entries_of_a_predecessor_are_void() {
    let maps = Maps::default();
    let mut bench = Bench::with(maps.clone());
    bench.twice(0, &plain4().build());
    assert_eq!(maps.installed(), 1);
    let _successor = XdpFlows::new(maps.clone(), ports(), 100);
    assert_eq!(maps.installed(), 0);
}

#[test]
fn a_map_without_room_costs_nothing_but_the_xdp_path() {
    let mut bench = Bench::with(Maps { full: true, ..Maps::default() });
    for _ in 0..10 {
        let frame = plain4().build();
        assert_eq!(bench.send(0, &frame), [(1, LinkVariant::Plain.forwarded(1, &frame))]);
        bench.net.now_ns += 5 * MS;
    }
    assert_eq!(bench.entered.entered(), 0);
    assert!((2..=4).contains(&bench.entered.refused()), "{}", bench.entered.refused());
}

#[test]
fn all_links_with_one_tag_or_none_enter_to_everywhere() {
    let mut bench = Bench::new();
    let mut flows = 0;
    for (from, to) in (0..PORTS).flat_map(|from| (0..PORTS).map(move |to| (from, to))) {
        for variant in LinkVariant::ALL.into_iter().filter(|variant| variant.tags().len() < 2) {
            for dst in [LinkVariant::Vlan.host4(to), LinkVariant::Qinq.host6(to)] {
                flows += 1;
                assert_eq!(bench.twice(from, &variant.packet(from, dst).build())[1], flows);
            }
        }
    }
}
