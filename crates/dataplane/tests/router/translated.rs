//! Ports with a kernel behind them that does not know the rules by which the router translates addresses.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use tollway_dataplane::id::{LinkId, PortId};
use tollway_dataplane::router::Resolver;
use tollway_dataplane::stages::filter::{
    Filter, NatRange, NatTarget, Op, Point, Rule, Rules, Tracker,
};
use tollway_dataplane::verdict::{DropReason, PuntReason};

use super::kernel::Kernel;
use crate::testkit::net::Net;
use crate::testkit::packet::{Packet, layer3};
use crate::testkit::wires::{LinkVariant, PORTS, Special};

/// Keeps what is to be resolved.
#[derive(Clone, Debug, Default)]
struct Asked(Arc<Mutex<Vec<(LinkId, IpAddr)>>>);

impl Resolver for Asked {
    fn resolve(&self, neighs: &[(LinkId, IpAddr)]) {
        self.0.lock().expect("no panic").extend_from_slice(neighs);
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// A filter that translates all connections of IPv4 at a point.
fn translating(point: Point, target: NatTarget) -> Filter {
    let ops = vec![Op::Nat(NatRange::new(target)), Op::Accept];
    let rules = Rules { rules: vec![Rule { ops, next: 1, ..Rule::default() }], end: 0 };
    let mut filter = Filter::new(3, Vec::new());
    filter.track(Tracker::new((0, 1), [false; 2]).translating([true, false], 2));
    filter.set(point, 4, &rules).expect("it compiles");
    filter
}

/// Rules that give all connections this source.
fn to_source() -> Filter {
    let public = Some((0xc633_6407, 0xc633_6407));
    translating(Point::SourceNat, NatTarget::Source(public))
}

/// Rules that give all connections this destination.
pub(super) fn to_destination(address: IpAddr) -> Filter {
    let only = Some((number(address), number(address)));
    translating(Point::DestinationNat, NatTarget::Destination(only))
}

struct Bench {
    net: Net,
    ports: Vec<Kernel>,
    asked: Asked,
}

impl Bench {
    fn new(filter: Filter) -> Self {
        let mut net = Net::new(128);
        net.worker.set_filter(Some(Arc::new(filter)), &[]);
        let asked = Asked::default();
        net.worker.router().set_resolver(Box::new(asked.clone()));
        let ports = (0..PORTS).map(|_| Kernel::new()).collect();
        Self { net, ports, asked }
    }

    fn send(&mut self, packet: &Packet) {
        let stored = self.net.worker.umem.store(&packet.build()).expect("memory");
        self.ports[0].port.inject(stored);
        self.net.worker.turn(PortId(0), &mut self.ports, self.net.now_ns);
        self.net.worker.counters.check().expect("packets add up");
    }

    /// The frames that a port has sent.
    fn sent(&mut self, port: usize) -> Vec<Vec<u8>> {
        let umem = &mut self.net.worker.umem;
        let frames = self.ports[port].port.take_sent().into_iter().map(|frame| {
            let bytes = umem.whole(frame).into_owned();
            umem.free(frame.addr);
            bytes
        });
        frames.collect()
    }
}

fn to(address: IpAddr) -> Packet {
    LinkVariant::Plain.packet(0, address)
}

#[test]
fn the_kernel_gets_packets_for_the_router_unless_they_are_translated() {
    let own = to(Special::Local.host4());
    // Chains of nat see it, and translate the source of what is forwarded only.
    let mut bench = Bench::new(to_source());
    bench.send(&own.clone().ttl(1));
    assert_eq!(bench.ports[0].punted, [own.clone().ttl(1).build()]);
    assert_eq!(bench.net.counters().delivered, 1);

    let mut bench = Bench::new(to_destination(Special::Local.host4()));
    bench.send(&to(LinkVariant::Plain.host4(1)));
    assert_eq!(bench.net.counters().drops[DropReason::NoSocket as usize], 1);
    assert!(bench.ports[0].punted.is_empty());
    bench.send(&own);
    assert_eq!(bench.ports[0].punted, [own.build()], "it comes as it goes");
}

#[test]
fn senders_learn_of_their_own_packets() {
    let [sender, goes] = [2, 1].map(|port| LinkVariant::Plain.host4(port));
    let asked = Special::Nowhere.host4();
    let asks = Packet::between(sender, asked).to(LinkVariant::Plain.mac(0));
    let mut bench = Bench::new(to_destination(goes));
    // The first packet of a connection, which is not in the table then, and one of a connection that is.
    for is_known in [false, true] {
        if is_known {
            bench.send(&asks);
            assert_eq!(bench.sent(1).len(), 1);
        }
        bench.send(&asks.clone().ttl(1));
        assert!(bench.ports[0].punted.is_empty());
        let sent = bench.sent(2);
        let [error] = &sent[..] else { panic!("{sent:?}") };
        let (_, packet) = layer3(error);
        assert_eq!(packet[20], 11, "time exceeded");
        let quoted = &packet[28..];
        assert_eq!(quoted[16..20], number(asked).to_be_bytes()[12..], "{is_known}");
    }
    assert_eq!(bench.net.counters().punts[PuntReason::TtlExpired as usize], 2);
    // What no rule has translated yet, the kernel answers.
    let mut bench = Bench::new(to_source());
    bench.send(&to(goes).ttl(1));
    assert_eq!(bench.ports[0].punted, [to(goes).ttl(1).build()]);
}

#[test]
fn packets_wait_for_a_neighbour_that_the_kernel_resolves() {
    let mut bench = Bench::new(to_source());
    {
        let mut locked = bench.net.worker.lock();
        // More than there are.
        (0..100).map(LinkId).for_each(|link| locked.host.have_kernel_resolve(link));
    }
    for held in 1..=2 {
        bench.send(&to(Special::Glean.host4()));
        assert_eq!(bench.net.counters().held, held);
    }
    // Of a packet that is too long, fragments wait.
    let long = to(Special::Glean.host4()).size(1600).v4(|header| header.dont_fragment = false);
    bench.send(&long);
    assert_eq!(bench.net.counters().punts[PuntReason::MtuExceeded as usize], 1);
    let asked = bench.asked.0.lock().expect("no panic").clone();
    let [(link, address)] = asked[..] else { panic!("{asked:?}") };
    assert_eq!(address, Special::Glean.host4());
    let port = usize::from(bench.net.worker.lock().tables.link(link).port.0);
    bench.net.worker.release_waiting(&mut bench.ports);
    assert!(bench.sent(port).is_empty(), "the kernel has not found it yet");

    let mac = [2, 0, 0, 0, 0, 9];
    bench.net.worker.lock().tables.publish_neigh(link, address, mac).expect("room");
    bench.net.worker.release_waiting(&mut bench.ports);
    let sent = bench.sent(port);
    assert_eq!(sent.len(), 4);
    for frame in sent {
        assert_eq!(frame[..6], mac);
        assert_eq!(layer3(&frame).1[12..16], [198, 51, 100, 7], "the new source");
    }
    assert_eq!((bench.net.counters().held, bench.net.counters().sent), (0, 2));
    bench.net.worker.counters.check().expect("packets add up");
    assert!(bench.ports.iter().all(|port| port.punted.is_empty()));
    // The kernel keeps the neighbour, and no longer has to resolve it.
    assert!(!bench.net.worker.lock().host.waits_for(link, address));
}

#[test]
fn the_kernel_is_not_asked_for_more_neighbours_than_it_can_keep() {
    let mut bench = Bench::new(to_source());
    (0..100).map(LinkId).for_each(|link| bench.net.worker.lock().host.have_kernel_resolve(link));
    let IpAddr::V4(first) = Special::Glean.host4() else { panic!("of IPv4") };
    for number in 0..200 {
        bench.send(&to(IpAddr::V4((first.to_bits() + number).into())));
    }
    let asked = bench.asked.0.lock().expect("no panic").len();
    assert_eq!(asked, 64, "at once");
}
