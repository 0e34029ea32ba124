//! The router's reports to the XDP path: which packets it forwarded or dropped, and when earlier reports
//! become void.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use etherparse::IpNumber;
use tollway_dataplane::burst::{Burst, Lanes};
use tollway_dataplane::changes::{Changes, Touched, Version};
use tollway_dataplane::frame::Umem;
use tollway_dataplane::id::{NextHopId, VrfId};
use tollway_dataplane::prefix::{Prefix, RoutePrefix};
use tollway_dataplane::stages::ecmp::{Hash, Member};
use tollway_dataplane::stages::filter::{Condition, Field, Filter, Op, Point, Rule, Rules};
use tollway_dataplane::tables::{ForwardingState, ObjectTarget, Tables};
use tollway_dataplane::verdict::{DropReason, Verdict};
use tollway_dataplane::xdp_path::XdpPath;

use crate::testkit::net::Net;
use crate::testkit::packet::{Packet, ip};
use crate::testkit::wires::{LinkVariant, Special, tables};

/// An event that the router reported.
#[derive(Clone, Debug, PartialEq)]
enum PathEvent {
    /// The version of the tables differs from the last one.
    Change,
    /// Forwarded packets, by lane.
    Forwarded(Vec<usize>),
    /// Dropped packets, by lane, and whether hook forward's rules evaluated them.
    Dropped(Vec<(usize, DropReason, bool)>),
    /// Forwarded packets on which the XDP path must not keep decisions, by lane.
    Bound(Vec<usize>),
}

#[derive(Clone, Default)]
struct Listener {
    events: Arc<Mutex<Vec<PathEvent>>>,
    version: Option<Version>,
}

impl XdpPath for Listener {
    fn begin(&mut self, changes: &Changes, _now_ns: u64) {
        let version = changes.version();
        if self.version.replace(version) != Some(version) {
            self.events.lock().expect("no panic").push(PathEvent::Change);
        }
    }

    fn forwarded(&mut self, burst: &Burst, _umem: &Umem, tables: &ForwardingState, lanes: Lanes) {
        assert_eq!(self.version, Some(tables.version()), "the burst's own, in one thread");
        let list = |lanes: Lanes| lanes.into_iter().collect::<Vec<_>>();
        let mut events = self.events.lock().expect("no panic");
        if !burst.bound.is_empty() {
            events.push(PathEvent::Bound(list(burst.bound)));
        }
        if lanes != burst.bound {
            events.push(PathEvent::Forwarded(list(lanes.without(burst.bound))));
        }
    }

    fn dropped(&mut self, burst: &Burst, _umem: &Umem, _tables: &ForwardingState, lanes: Lanes) {
        let dropped = |lane| match burst.verdict[lane] {
            Verdict::Drop(reason) => Some((lane, reason, burst.routed.has(lane))),
            _ => None,
        };
        let list: Vec<_> = lanes.into_iter().filter_map(dropped).collect();
        if !list.is_empty() {
            self.events.lock().expect("no panic").push(PathEvent::Dropped(list));
        }
    }
}

/// The test network with a listener in place of an XDP path.
fn net() -> (Net, Listener) {
    let mut net = Net::new(64);
    let listener = Listener::default();
    net.worker.xdp_path = Some(Box::new(listener.clone()));
    (net, listener)
}

impl Listener {
    fn take_events(&self) -> Vec<PathEvent> {
        std::mem::take(&mut self.events.lock().expect("no panic"))
    }
}

#[test]
fn forwarded_and_dropped_packets_are_reported() {
    let (mut net, listener) = net();
    for dst in [
        LinkVariant::Plain.host4(1),
        Special::Blackhole.host4(),
        LinkVariant::Red.host6(2),
        Special::Nowhere.host6(),
        Special::Local.host4(),
    ] {
        assert!(net.inject(0, &LinkVariant::Plain.packet(0, dst).build()));
    }
    net.run();
    let forwarded = PathEvent::Forwarded(vec![0, 2]);
    let dropped = PathEvent::Dropped(vec![(1, DropReason::Blackhole, false)]);
    assert_eq!(listener.take_events(), [PathEvent::Change, forwarded, dropped]);
}

/// Rules that drop UDP to a port at a point.
fn dropping(point: Point, port: u16) -> Arc<Filter> {
    let conditions = vec![Condition::new(Field::DestinationPort, [(port.into(), port.into())])];
    let rules = vec![
        Rule { conditions, ops: vec![Op::Drop], next: 1 },
        Rule { ops: vec![Op::Accept], next: 2, ..Rule::default() },
    ];
    let mut filter = Filter::new(0, Vec::new());
    filter.set(point, 4, &Rules { rules, end: 1 }).expect("two rules");
    Arc::new(filter)
}

#[test]
fn drops_at_hook_forward_are_reported_as_routed() {
    for (point, routed) in
        [(Point::Ingress, false), (Point::Prerouting, false), (Point::Forward, true)]
    {
        let (mut net, listener) = net();
        net.worker.set_filter(Some(dropping(point, 53)), &[]);
        let packet =
            |port| LinkVariant::Plain.packet(0, LinkVariant::Plain.host4(1)).ports(9, port);
        for port in [53, 54, 53] {
            assert!(net.inject(0, &packet(port).build()));
        }
        net.run();
        let reason = DropReason::NetfilterDrop;
        let dropped = PathEvent::Dropped(vec![(0, reason, routed), (2, reason, routed)]);
        let events = listener.take_events();
        assert!(events.ends_with(&[PathEvent::Forwarded(vec![1]), dropped]), "{events:?}");
        // Without rules, none is evaluated.
        net.worker.set_filter(None, &[]);
        let blackhole = LinkVariant::Plain.packet(0, Special::Blackhole.host4()).build();
        assert!(net.inject(0, &blackhole));
        net.run();
        let dropped = PathEvent::Dropped(vec![(0, DropReason::Blackhole, false)]);
        let events = listener.take_events();
        assert!(events.ends_with(&[dropped]), "{events:?}");
    }
}

/// A prefix without its family.
const fn bare(prefix: RoutePrefix) -> Prefix {
    match prefix {
        RoutePrefix::V4(prefix) | RoutePrefix::V6(prefix) => prefix,
    }
}

/// Says whether the next turn reports a change to the listener, even without any packet.
fn notices(net: &mut Net, listener: &Listener, change: impl FnOnce(&mut Tables)) -> bool {
    net.run();
    listener.take_events();
    change(&mut net.worker.lock().tables);
    net.run();
    let events = listener.take_events();
    assert!(events.is_empty() || events == [PathEvent::Change], "{events:?}");
    !events.is_empty()
}

#[test]
fn every_change_is_noticed_before_the_next_packet() {
    let (mut net, listener) = net();
    let vrf = LinkVariant::Plain.vrf();
    let link = LinkVariant::Plain.link(1);
    let [near, far] = [ip("10.255.1.1"), ip("10.255.1.77")];
    let group = net.worker.lock().tables.lookup(vrf, Special::Group.host4());
    let next = net.worker.lock().tables.lookup(vrf, LinkVariant::Plain.host4(1));
    let prefix = RoutePrefix::new(ip("203.0.113.0"), 24);
    let root4 = net.worker.lock().tables.routes.vrfs[0].root4;
    let object = |to| net.worker.lock().tables.add_object(to).expect("a next hop");
    let gone = object(ObjectTarget::Drop(DropReason::Blackhole));
    let to_near = ObjectTarget::Neigh { link, via: near, mtu: None, is_ipv4: true };
    type Change = Box<dyn FnOnce(&mut Tables)>;
    let changes: [(&str, Change); 9] = [
        ("a route", Box::new(move |t| t.insert(vrf, prefix, next).unwrap())),
        ("no route", Box::new(move |t| assert!(t.remove(vrf, prefix).unwrap()))),
        ("a route put into the FIB directly", {
            Box::new(move |t| t.routes.fib4.insert(root4, bare(prefix), next).unwrap())
        }),
        ("an IPv6 route", {
            let prefix = RoutePrefix::new(ip("2001:db8:5::"), 48);
            Box::new(move |t| t.insert(vrf, prefix, next).unwrap())
        }),
        ("a neighbour that moved", {
            Box::new(move |t| assert!(t.set_neigh(link, near, Some([4; 6])).is_ok()))
        }),
        ("a neighbour that is forgotten", Box::new(move |t| assert!(t.forget_neigh(link, near)))),
        ("a group's members", {
            Box::new(move |t| t.set_group(group, &[Member { next, weight: 1 }]).unwrap())
        }),
        ("a blackhole that becomes a gateway", {
            Box::new(move |t| t.set_object(gone, to_near).unwrap())
        }),
        ("other tables", Box::new(|t| *t = tables())),
    ];
    for (what, change) in changes {
        assert!(notices(&mut net, &listener, change), "{what}");
    }
    // A change that cannot affect a forwarded or dropped packet does not count.
    let next = net.worker.lock().tables.lookup(vrf, LinkVariant::Plain.host4(1));
    assert!(notices(&mut net, &listener, |t| t.insert(vrf, prefix, next).unwrap()));
    type NoChange = Box<dyn Fn(&mut Tables)>;
    let no_changes: [(&str, NoChange); 6] = [
        ("the same route", Box::new(move |t| t.insert(vrf, prefix, next).unwrap())),
        ("a route that is not there", {
            let prefix = RoutePrefix::new(ip("203.0.112.0"), 24);
            Box::new(move |t| assert!(!t.remove(vrf, prefix).unwrap()))
        }),
        ("a neighbour that is confirmed", {
            let mac = LinkVariant::Plain.peer(1);
            Box::new(move |t| assert!(t.set_neigh(link, near, Some(mac)).is_ok()))
        }),
        ("a neighbour that is learned", {
            Box::new(move |t| assert!(t.learn_neigh(link, far, Some([4; 6])).is_ok()))
        }),
        ("a new next hop", Box::new(move |t| _ = t.add_object(to_near).unwrap())),
        ("a new group", {
            Box::new(move |t| assert!(t.add_group(&[Member { next, weight: 1 }]).is_ok()))
        }),
    ];
    for (what, no_change) in no_changes {
        assert!(!notices(&mut net, &listener, no_change), "{what}");
    }
    assert!(notices(&mut net, &listener, |t| assert!(t.forget_neigh(link, far))), "it was learned");
}

/// The changed routes that the next turn reads; none if more than routes has changed.
fn touched(tables: &mut Tables, change: impl FnOnce(&mut Tables)) -> Option<Vec<Touched>> {
    let then = tables.version();
    change(tables);
    let mut touched = Vec::new();
    let changes = &tables.epochs.changes;
    let only = changes.routes_between(then, changes.version(), |one| touched.push(one));
    only.then_some(touched)
}

#[test]
fn routes_change_for_the_addresses_that_they_cover() {
    let mut tables = tables();
    let next = tables.lookup(VrfId(0), LinkVariant::Plain.host4(1));
    let neigh = ip("10.255.1.99");
    let glean = RoutePrefix::new(ip("10.255.0.0"), 16);
    let connected = tables.glean(LinkVariant::Plain.link(1)).unwrap();
    tables.insert(VrfId(2), glean, connected).unwrap();
    let v4 = RoutePrefix::new(ip("203.0.113.0"), 24);
    let v6 = RoutePrefix::new(ip("2001:db8:5::"), 48);
    let of = |version, bits, len| Touched { version, bits, len };
    for vrf in [VrfId(0), VrfId(1)] {
        let four = of(4, 0xcb00_7100, 24);
        let six = of(6, 0x2001_0db8, 32);
        let insert = |prefix| move |tables: &mut Tables| tables.insert(vrf, prefix, next).unwrap();
        assert_eq!(touched(&mut tables, insert(v4)), Some(vec![four]));
        assert_eq!(touched(&mut tables, insert(v4)), Some(vec![]), "the same");
        assert_eq!(touched(&mut tables, insert(v6)), Some(vec![six]));
        let removed = touched(&mut tables, |tables| assert!(tables.remove(vrf, v4).unwrap()));
        assert_eq!(removed, Some(vec![four]));
    }
    // A new neighbour adds a host route; a lost neighbour was the next hop of some route.
    let link = LinkVariant::Plain.link(1);
    let published = touched(&mut tables, |tables| {
        tables.publish_neigh(link, neigh, [4; 6]).unwrap();
    });
    assert_eq!(published, Some(vec![of(4, 0x0aff_0163, 32)]));
    assert_eq!(touched(&mut tables, |tables| assert!(tables.withdraw_neigh(link, neigh))), None);
    assert_eq!(touched(&mut tables, |tables| tables.set_multipath(Hash::L3, Hash::L4)), None);
}

/// With the layer-3 hash, an ICMP error takes the path of the flow that it is about. Its own
/// addresses do not identify that flow.
#[test]
fn an_icmp_error_to_a_group_does_not_enter_the_xdp_path() {
    let dst = Special::Group.host4();
    let about = &Packet::between(dst, ip("198.51.100.1")).build()[14..];
    let mut error = LinkVariant::Plain.packet(0, dst).v4(|header| header.protocol = IpNumber::ICMP);
    error.body = [&[3, 1, 0, 0, 0, 0, 0, 0], about].concat();
    let echo = Packet { body: vec![8; 16], ..error.clone() };
    for (hash, packet, is_bound) in
        [(Hash::L3, &error, true), (Hash::L3, &echo, false), (Hash::L4, &error, false)]
    {
        let (mut net, listener) = net();
        net.worker.lock().tables.set_multipath(hash, hash);
        assert!(net.inject(0, &packet.build()));
        net.run();
        let expected =
            if is_bound { PathEvent::Bound(vec![0]) } else { PathEvent::Forwarded(vec![0]) };
        assert!(listener.take_events().contains(&expected), "{hash:?}");
    }
}

/// Waits, so that the other thread makes progress.
fn spin(times: u32) {
    for _ in 0..times {
        std::hint::spin_loop();
    }
}

#[test]
fn lookups_under_an_unchanged_version_are_no_older_than_any_change() {
    const ROUNDS: u32 = 100_000;
    let tables = tables();
    let (vrf, host) = (LinkVariant::Plain.vrf(), ip("203.0.113.5"));
    let (root, prefix) = (tables.routes.vrfs[0].root4, bare(RoutePrefix::host(host)));
    tables.routes.fib4.insert(root, prefix, NextHopId(0)).unwrap();
    let done = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 1..=ROUNDS {
                tables.routes.fib4.insert(root, prefix, NextHopId(round)).unwrap();
                done.store(round, Ordering::Release);
                spin(100);
            }
        });
        let mut turn = 0;
        while !writer.is_finished() {
            let version = tables.version();
            let found = tables.lookup(vrf, host);
            turn = (turn + 7) % 300;
            spin(turn);
            let made = done.load(Ordering::Acquire);
            assert!(tables.version() != version || found.0 >= made, "{found:?} after {made}");
        }
    });
    assert_eq!(tables.lookup(vrf, host), NextHopId(ROUNDS));
}
