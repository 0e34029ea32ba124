//! Tests of implicit deletes and of the order of routes.

use std::net::IpAddr;

use super::{Choice, Dest, Ignoring, Rib};
use crate::event::{Change, Event, Place, Presence};
use crate::kernel::{
    Address, Family, Hop, Hops, Ifindex, Netdev, Nexthop, Route, RouteKey, RouteKind,
};
use tollway_dataplane::prefix::RoutePrefix;

fn hop(ifindex: Ifindex) -> Hop {
    Hop { via: Some([10, 0, 0, 9].into()), ifindex, weight: 1, flags: 0, encap: false }
}

fn route(hops: Hops) -> Route {
    let kind = RouteKind::Unicast;
    Route { kind, hops, protocol: 4, prefsrc: None, mtu: 0, unsupported: false }
}

fn key(priority: u32) -> RouteKey {
    RouteKey { table: 254, dst: "192.0.2.0/24".parse().unwrap(), tos: 0, priority }
}

fn dest() -> Dest {
    let address: IpAddr = [192, 0, 2, 0].into();
    Dest { table: 254, prefix: RoutePrefix::new(address, 24) }
}

fn link(rib: &mut Rib, index: Ifindex, flags: u32) {
    rib.apply(&Event::Link(index, Some(Box::new(Netdev { flags, ..Netdev::default() }))));
}

fn address(ifindex: Ifindex) -> Address {
    let address = "10.0.0.1/24".parse().unwrap();
    Address { ifindex, address, peer: None, broadcast: None, flags: 0 }
}

#[test]
fn the_last_addresses_of_all_its_devices_take_a_route_with_them() {
    let mut rib = Rib::new();
    for index in [2, 4] {
        link(&mut rib, index, 65);
        rib.apply(&Event::Address(address(index), Presence::Here));
    }
    let both = route(Hops::Many([hop(4), hop(2)].into()));
    rib.apply(&Event::Route(key(1), both, Change::Add(Place::Only)));
    rib.apply(&Event::Address(address(2), Presence::Gone));
    assert!(matches!(rib.choice(dest()), Choice::Is(_)));
    rib.apply(&Event::Address(address(4), Presence::Gone));
    assert_eq!(rib.choice(dest()), Choice::Nothing);
    assert!(rib.is_empty() && rib.doubts());
}

#[test]
fn an_address_takes_along_routes_without_notification() {
    let prefsrc = Some([10, 0, 0, 1].into());
    let connected = Hops::One(Hop { via: None, ..hop(2) });
    for (protocol, hops, goes) in
        [(2, connected.clone(), false), (4, connected, true), (2, Hops::One(hop(2)), true)]
    {
        let mut rib = Rib::new();
        link(&mut rib, 2, 65);
        let other = Address { address: "10.0.1.1/24".parse().unwrap(), ..address(2) };
        rib.apply(&Event::Address(address(2), Presence::Here));
        rib.apply(&Event::Address(other, Presence::Here));
        let route = Route { protocol, prefsrc, ..route(hops) };
        rib.apply(&Event::Route(key(1), route, Change::Add(Place::Only)));
        rib.apply(&Event::Address(address(2), Presence::Gone));
        assert_eq!((rib.is_empty(), rib.doubts()), (goes, goes), "{protocol}");
    }
}

#[test]
fn a_route_for_some_sources_lets_others_be() {
    let mut rib = Rib::new();
    for index in [2, 4] {
        link(&mut rib, index, 65);
        rib.apply(&Event::Address(address(index), Presence::Here));
    }
    let key =
        |tos, priority| RouteKey { dst: "2001:db8::/32".parse().unwrap(), tos, ..key(priority) };
    let plain = |by| route(Hops::One(hop(by)));
    let of_sources = Route { unsupported: true, ..plain(4) };
    let address: IpAddr = "2001:db8::".parse().unwrap();
    let dest = Dest { table: 254, prefix: RoutePrefix::new(address, 32) };
    let choice = |rib: &Rib| rib.choice(dest);
    for place in [Place::Only, Place::Instead, Place::First, Place::Last] {
        rib.apply(&Event::Route(key(0, 1), plain(2), Change::Add(Place::Only)));
        assert!(matches!(choice(&rib), Choice::Is(_)));
        // It applies regardless of its metric.
        let of = key(RouteKey::OF_SOURCES, 9);
        rib.apply(&Event::Route(of, of_sources.clone(), Change::Add(place)));
        assert_eq!(choice(&rib), Choice::Kernel);
        rib.apply(&Event::Route(key(0, 1), plain(4), Change::Add(Place::Instead)));
        assert_eq!(choice(&rib), Choice::Kernel);
        rib.apply(&Event::Route(of, of_sources.clone(), Change::Del));
        assert!(matches!(choice(&rib), Choice::Is(_)), "{place:?}");
        rib.apply(&Event::Route(key(0, 1), plain(4), Change::Del));
        assert_eq!(choice(&rib), Choice::Nothing);
    }
}

#[test]
fn one_address_may_have_several_other_ends() {
    let mut rib = Rib::new();
    link(&mut rib, 2, 65);
    let to = |last: u8| Address { peer: Some([198, 51, 100, last].into()), ..address(2) };
    rib.apply(&Event::Address(to(2), Presence::Here));
    rib.apply(&Event::Address(to(3), Presence::Here));
    rib.apply(&Event::Route(key(1), route(Hops::One(hop(2))), Change::Add(Place::Only)));
    rib.apply(&Event::Address(to(3), Presence::Gone));
    assert!(matches!(rib.choice(dest()), Choice::Is(_)));
    assert!(!rib.doubts());
    rib.apply(&Event::Address(to(2), Presence::Gone));
    assert_eq!(rib.choice(dest()), Choice::Nothing);
}

#[test]
fn indistinguishable_routes_are_in_doubt() {
    let one = route(Hops::One(hop(2)));
    let other = Route { prefsrc: Some([10, 0, 0, 1].into()), ..one.clone() };
    for (change, reported, doubts) in [
        (Change::Add(Place::Last), &one, true),
        (Change::Add(Place::First), &one, true),
        (Change::Add(Place::Instead), &one, false),
        (Change::Add(Place::Last), &other, false),
        (Change::Del, &other, true),
        (Change::Del, &one, false),
    ] {
        let mut rib = Rib::new();
        link(&mut rib, 2, 65);
        rib.apply(&Event::Address(address(2), Presence::Here));
        rib.apply(&Event::Route(key(1), one.clone(), Change::Add(Place::Only)));
        assert!(!rib.doubts());
        rib.apply(&Event::Route(key(1), reported.clone(), change));
        assert_eq!(rib.doubts(), doubts, "{change:?}");
    }
}

#[test]
fn routes_read_before_a_change_of_ignored_devices_are_in_doubt() {
    let mut rib = Rib::new();
    link(&mut rib, 2, 65);
    let ignoring = Ignoring { v4: [2].into(), ..Ignoring::default() };
    rib.set_ignoring(ignoring.clone());
    assert!(!rib.doubts(), "there is none");
    rib.set_ignoring(Ignoring::default());
    rib.apply(&Event::Route(key(1), route(Hops::One(hop(2))), Change::Add(Place::Only)));
    rib.set_ignoring(ignoring);
    assert!(rib.doubts());
}

#[test]
fn a_blackhole_is_one_whatever_its_next_hop_is() {
    for (object, is_of_object) in [(Nexthop::Hop(hop(2)), false), (Nexthop::Blackhole, true)] {
        let mut rib = Rib::new();
        link(&mut rib, 2, 65);
        rib.apply(&Event::Address(address(2), Presence::Here));
        rib.apply(&Event::Nexthop(5, Some(object)));
        let blackhole = Route { kind: RouteKind::Blackhole, ..route(Hops::Object(5)) };
        rib.apply(&Event::Route(key(1), blackhole, Change::Listed));
        let Choice::Is(id) = rib.choice(dest()) else { panic!("there is a route") };
        assert_eq!(rib.attrs(id).route.kind == RouteKind::Unicast, is_of_object);
    }
}

#[test]
fn an_audit_finds_only_changed_extra_and_missing_routes() {
    let key = |third: u8, priority| RouteKey {
        dst: format!("10.0.{third}.0/24").parse().unwrap(),
        ..key(priority)
    };
    let dest = |third: u8| Dest {
        prefix: RoutePrefix::new(IpAddr::from([10, 0, third, 0]), 24),
        ..dest()
    };
    let by = |index| route(Hops::One(hop(index)));
    let mut rib = Rib::new();
    let mut list = |audit, routes: &[(RouteKey, Route)]| {
        rib.apply(&Event::Listing { family: Family::V4, audit });
        for (key, route) in routes {
            rib.apply(&Event::Route(*key, route.clone(), Change::Listed));
        }
        rib.apply(&Event::Listed { family: Family::V4, lists: 1 });
        let mut drift = rib.take_drift();
        drift.sort_unstable();
        drift.dedup();
        (drift, rib.len())
    };
    let all = [1, 2, 3, 4].map(|third| (key(third, 1), by(2)));
    assert_eq!(list(false, &all), (vec![], 4));
    // More lists than there are stamps.
    (0..300).for_each(|_| assert_eq!(list(true, &all), (vec![], 4)));
    let [first, _, third, _] = all;
    let others = [first.clone(), (key(2, 1), by(3)), third.clone(), (key(3, 9), by(2))];
    assert_eq!(list(true, &others), (vec![dest(2), dest(3), dest(4)], 3));
    assert_eq!(list(true, &others), (vec![], 3));
    // One of two routes to a destination goes; then the other is the only one again.
    assert_eq!(list(true, &[first.clone(), third.clone()]), (vec![dest(2), dest(3)], 2));
    assert_eq!(list(true, &[first, third]), (vec![], 2));
}

#[test]
fn only_held_destinations_take_the_kernel_path() {
    let mut rib = Rib::new();
    link(&mut rib, 2, 65);
    rib.apply(&Event::Route(key(1), route(Hops::One(hop(2))), Change::Add(Place::Only)));
    rib.take_touched();
    let to = |last: u8| {
        let address: IpAddr = [192, 0, 2, last].into();
        Dest { table: 254, prefix: RoutePrefix::new(address, 32) }
    };
    rib.set_kernel_path_dests([[192, 0, 2, 7].into()].into());
    assert_eq!(rib.touched().collect::<Vec<_>>(), [to(7)]);
    assert_eq!(rib.choice(to(7)), Choice::Kernel);
    assert_eq!(rib.longest(254, to(7).prefix), Some((to(7).prefix, Choice::Kernel)));
    assert_eq!(rib.longest(254, to(8).prefix).map(|(prefix, _)| prefix), Some(dest().prefix));
    assert!(matches!(rib.choice(dest()), Choice::Is(_)));
    let all = |rib: &Rib| {
        let mut all = Vec::new();
        rib.each(|dest, choice| all.push((dest, choice == Choice::Kernel)));
        all.sort_unstable();
        all
    };
    assert_eq!(all(&rib), [(dest(), false), (to(7), true)]);
    // A destination with a route of its own is reported once.
    let own = RouteKey { dst: to(7).net(), ..key(1) };
    rib.apply(&Event::Route(own, route(Hops::One(hop(2))), Change::Add(Place::Only)));
    assert_eq!(all(&rib), [(dest(), false), (to(7), true)]);
    // Another table gets its first route, and loses its last.
    let other = RouteKey { table: 7, ..key(1) };
    rib.take_touched();
    rib.apply(&Event::Route(other, route(Hops::One(hop(2))), Change::Add(Place::Only)));
    let of_other = Dest { table: 7, ..to(7) };
    assert!(rib.touched().any(|dest| dest == of_other));
    assert_eq!(rib.choice(of_other), Choice::Kernel);
    rib.take_touched();
    rib.apply(&Event::Route(other, route(Hops::One(hop(2))), Change::Del));
    assert!(rib.touched().any(|dest| dest == of_other));
    assert_eq!(rib.choice(of_other), Choice::Nothing);
    rib.set_kernel_path_dests(std::collections::BTreeSet::new());
    assert_eq!(all(&rib), [(dest(), false), (to(7), false)]);
    assert_eq!(rib.longest(1, to(7).prefix), None);
}
