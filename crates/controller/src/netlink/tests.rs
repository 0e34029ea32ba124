//! Tests of what the available kernels cannot show: devices that they do not have, malformed messages, and
//! lists that contradict notifications.

use std::time::{Duration, Instant};

use ipnet::IpNet;
use proptest::prelude::*;

use super::drift::Findings;
use super::message::{self, List};
use super::pass::{Next, Pass};
use super::touched::Touched;
use super::{link, nexthop, route, rule};
use crate::event::{Change, Event, Place, Presence};
use crate::kernel::{
    BridgePort, BridgePortFlags, BridgePortState, BridgeSettings, Family, Hop, Hops, Kernel,
    Netdev, Route, RouteKey, RouteKind, Rule, RuleAction, Stp,
};
use tollway_linux::netlink::Message;

/// An attribute with its padding.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn device(attributes: &[Vec<u8>]) -> Netdev {
    let mut body = vec![0; 4];
    body.extend(7_u32.to_ne_bytes());
    body.extend(0x1_1043_u32.to_ne_bytes());
    body.extend([0; 4]);
    body.extend(attributes.concat());
    let (index, netdev) = link::read(&body).unwrap();
    assert_eq!((index, netdev.flags), (7, 0x1_1043));
    netdev
}

fn info(kind: &str, data: &[u8]) -> Vec<u8> {
    let kind = attribute(1, format!("{kind}\0").as_bytes());
    attribute(18, &[kind, attribute(2 | 0x8000, data)].concat())
}

#[test]
fn vlan_and_vrf_devices_are_read() {
    let tag = [attribute(1, &5_u16.to_ne_bytes()), attribute(5, &0x88a8_u16.to_be_bytes())];
    let below = attribute(5, &3_u32.to_ne_bytes());
    let vlan = device(&[attribute(3, b"v\0"), below.clone(), info("vlan", &tag.concat())]);
    assert_eq!((vlan.vlan, vlan.lower, vlan.name.as_str()), (Some((5, 0x88a8)), Some(3), "v"));
    let plain = device(&[info("vlan", &tag[0])]);
    assert_eq!(plain.vlan, Some((5, 0x8100)));
    let vrf = device(&[info("vrf", &attribute(1, &100_u32.to_ne_bytes()))]);
    assert_eq!((vrf.vrf_table, vrf.kind.as_deref()), (Some(100), Some("vrf")));
    let elsewhere = device(&[below, attribute(37, &0_u32.to_ne_bytes())]);
    assert_eq!(elsewhere.lower, None, "what is below is in another namespace");
    // With programs in two modes, there is no single number.
    let programs = [attribute(2, &[4]), attribute(5, &9_u32.to_ne_bytes())];
    assert_eq!(device(&[attribute(43, &programs.concat())]).xdp, Some(9));
    assert_eq!(device(&[attribute(43, &attribute(2, &[0]))]).xdp, None);
}

#[test]
fn link_messages_of_other_protocols_are_ignored() {
    let mut body = vec![7, 0, 0, 0];
    body.extend([0; 12]);
    assert_eq!(link::read(&body), None, "a bridge's member");
    body[0] = 0;
    assert!(link::read(&body).is_some());
    body.extend(attribute(11, &[0; 8]));
    assert_eq!(link::read(&body), None, "an event of the radio");
}

proptest! {
    #[test]
    fn broken_messages_are_no_trouble(
        kind in 16_u16..110, flags: u16, listed: bool, mut body: Vec<u8>, family in 0_usize..4,
    ) {
        if let Some(first) = body.first_mut() {
            let families = [0, libc::AF_INET, libc::AF_INET6, libc::AF_BRIDGE];
            *first = families[family] as u8;
        }
        let message = Message { kind, flags, sequence: 1, port: 0, body: &body };
        let _ = message::read(&message, listed).count();
        let _ = (route::read(&body), nexthop::read(&body), rule::read(&body), link::address(&body));
        let _ = Message::cut(&body);
    }

    #[test]
    fn truncated_routes_are_no_trouble(len in 0_usize..200) {
        let hop = [&[16, 0, 0, 0, 3, 0, 0, 0][..], &attribute(5, &[10, 0, 0, 1])].concat();
        let mut body = vec![libc::AF_INET as u8, 24, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0];
        body.extend(attribute(1, &[192, 0, 2, 0]));
        body.extend(attribute(9, &[hop.clone(), hop].concat()));
        let whole = route::read(&body).unwrap();
        prop_assert_eq!(whole.1.hops.list().len(), 2);
        let cut = &body[..len.min(body.len())];
        prop_assert_eq!(route::read(cut).is_some(), cut.len() >= 12);
    }
}

fn key(dst: &str) -> RouteKey {
    RouteKey { table: 254, dst: dst.parse().unwrap(), tos: 0, priority: 0 }
}

fn by(last: u8) -> Route {
    let via = Some([10, 0, 0, last].into());
    let hop = Hop { via, ifindex: 2, weight: 1, flags: 0, encap: false };
    let (kind, hops) = (RouteKind::Unicast, Hops::One(hop));
    Route { kind, hops, protocol: 3, prefsrc: None, mtu: 0, unsupported: false }
}

fn route_event(dst: &str, last: u8, change: Change) -> Event {
    Event::Route(key(dst), by(last), change)
}

/// The routes accepted from a list in datagrams, with notifications before some of these; and whether the
/// list is settled.
fn list(
    datagrams: &[&[(&str, u8)]],
    notifications: &[(usize, Event)],
) -> (Vec<(String, u8)>, bool) {
    let (mut touched, mut believed) = (Touched::default(), Vec::new());
    for (at, datagram) in datagrams.iter().enumerate() {
        notifications
            .iter()
            .filter(|(when, _)| *when == at)
            .for_each(|(_, event)| touched.receive(event));
        touched.begin_datagram();
        for (dst, last) in *datagram {
            if touched.listed(&key(dst), &by(*last)) {
                believed.push(((*dst).to_owned(), *last));
            }
        }
    }
    let family = key(datagrams[0][0].0).family();
    (believed, touched.is_complete(family))
}

const A: &str = "10.0.0.0/8";
const B: &str = "10.0.0.0/16";
const C: &str = "11.0.0.0/8";

#[test]
fn notifications_are_newer_than_lists() {
    let two: &[&[(&str, u8)]] = &[&[(A, 1)], &[(C, 2)]];
    let all = vec![(A.to_owned(), 1), (C.to_owned(), 2)];
    assert_eq!(list(two, &[]), (all.clone(), true));
    let only = |at, last| [(at, route_event(C, last, Change::Add(Place::Only)))];
    assert_eq!(list(two, &only(1, 9)), (all[..1].to_vec(), true));
    // The listed state is older than the notification.
    assert_eq!(
        list(two, &[(1, route_event(A, 9, Change::Add(Place::Instead)))]),
        (all.clone(), true)
    );
    // The route was listed just before its deletion; the notification arrived after the list.
    assert_eq!(list(two, &[(1, route_event(C, 2, Change::Del))]), (all[..1].to_vec(), true));
    // A route other than the deleted one.
    assert!(!list(two, &[(1, route_event(C, 3, Change::Del))]).1);
    // One of several routes, and the others are not accepted.
    assert!(!list(two, &[(1, route_event(C, 3, Change::Add(Place::Last)))]).1);
}

#[test]
fn several_of_one_key_that_change_are_in_doubt() {
    let two: &[&[(&str, u8)]] = &[&[(A, 1), (A, 2)], &[(C, 2)]];
    let instead = |at| [(at, route_event(A, 9, Change::Add(Place::Instead)))];
    assert!(!list(two, &instead(0)).1);
    assert!(list(two, &instead(1)).1);
    let torn: &[&[(&str, u8)]] = &[&[(A, 1)], &[(A, 2)]];
    assert!(!list(torn, &instead(1)).1);
}

#[test]
fn lists_that_may_lack_routes_are_in_doubt() {
    // Routes of one address, split between datagrams.
    let torn: &[&[(&str, u8)]] = &[&[(A, 1)], &[(B, 2)]];
    assert!(list(torn, &[(1, route_event(C, 9, Change::Del))]).1);
    assert!(!list(torn, &[(1, route_event("10.0.0.0/24", 9, Change::Del))]).1);
    let whole: &[&[(&str, u8)]] = &[&[(A, 1), (B, 2)], &[(C, 2)]];
    assert!(list(whole, &[(1, route_event("10.0.0.0/24", 9, Change::Del))]).1);
    // Any deletion in IPv6.
    let six: &[&[(&str, u8)]] = &[&[("2001:db8::/32", 1)], &[("2001:db9::/32", 2)]];
    assert!(list(six, &[(1, route_event("fd00::/8", 9, Change::Add(Place::Only)))]).1);
    assert!(!list(six, &[(1, route_event("fd00::/8", 9, Change::Del))]).1);
}

#[test]
fn rules_that_change_while_they_are_listed_are_listed_again() {
    let (mut pass, mut touched) = (Pass::new(false), Touched::default());
    let rule = |priority| Rule {
        family: Family::V4,
        priority,
        src: None,
        dst: None,
        iif: None,
        mark: None,
        action: RuleAction::Nop,
        unsupported: None,
    };
    let here = |priority| Event::Rule(rule(priority), Presence::Here);
    pass.begin_list(List::Rules(Family::V4), 1);
    assert_eq!(pass.listed(here(1), &mut touched), None);
    pass.receive(&here(2), &mut touched);
    assert_eq!(pass.next(&touched), Next::List(List::Rules(Family::V4)));
    pass.begin_list(List::Rules(Family::V4), 2);
    pass.listed(here(1), &mut touched);
    pass.listed(here(2), &mut touched);
    assert_eq!(pass.next(&touched), Next::List(List::Rules(Family::V6)));
    pass.begin_list(List::Rules(Family::V6), 3);
    // The list of its family has already ended.
    pass.receive(&here(3), &mut touched);
    assert_eq!(pass.next(&touched), Next::List(List::Rules(Family::V4)));
    pass.begin_list(List::Rules(Family::V4), 4);
    (1..=3).for_each(|priority| assert_eq!(pass.listed(here(priority), &mut touched), None));
    assert_eq!(pass.next(&touched), Next::List(List::Rules(Family::V6)));
    pass.begin_list(List::Rules(Family::V6), 5);
    let Next::Whole(whole) = pass.next(&touched) else { panic!() };
    assert_eq!(whole.rules, [rule(1), rule(2), rule(3)]);
}

#[test]
fn programs_without_notification_are_no_findings() {
    let now = Instant::now();
    let kernel = |xdp, mtu| {
        let netdev = Netdev { name: "eth0".to_owned(), xdp, mtu, ..Netdev::default() };
        Kernel { netdevs: [(2, netdev)].into(), ..Kernel::default() }
    };
    for (fresh, found) in [(kernel(Some(7), 1500), 0), (kernel(Some(7), 1400), 1)] {
        let (known, mut findings) = (kernel(None, 1500), Findings::default());
        findings.open();
        findings.compare(&known, &fresh);
        findings.close(now);
        assert_eq!(findings.log(&known), found);
    }
}

/// What an audit finds if the kernel's configuration is another than the known one.
fn found(known: &Kernel, fresh: &Kernel) -> Vec<String> {
    let mut findings = Findings::default();
    findings.open();
    findings.compare(known, fresh);
    findings.names(known)
}

#[test]
fn ports_of_bridges_are_findings() {
    let kernel = |state, flags| {
        let (backup_port, backup_nexthop) = (None, None);
        let port =
            BridgePort { state, flags: BridgePortFlags::default(), backup_port, backup_nexthop };
        let netdev =
            Netdev { name: "eth0".to_owned(), master: Some(3), flags, ..Netdev::default() };
        Kernel {
            netdevs: [(2, netdev)].into(),
            bridge_ports: [(2, port)].into(),
            ..Kernel::default()
        }
    };
    let known = kernel(BridgePortState::Forwarding, 1);
    assert!(found(&known, &known).is_empty());
    assert_eq!(found(&known, &kernel(BridgePortState::Blocking, 1)), ["bridge port eth0"]);
    let without = Kernel { bridge_ports: [].into(), ..known.clone() };
    assert_eq!(found(&known, &without), ["bridge port eth0"]);
    assert_eq!(found(&without, &known), ["bridge port eth0"]);
    // The settings of a port that is down may change without notification.
    let down = kernel(BridgePortState::Forwarding, 0);
    assert!(found(&down, &kernel(BridgePortState::Blocking, 0)).is_empty());
    assert_eq!(found(&down, &without), ["device eth0", "bridge port eth0"]);
}

#[test]
fn settings_of_bridges_without_notification_are_no_findings() {
    let kernel = |stp, seconds, vlan_filtering, flags| {
        let ageing_time = Duration::from_secs(seconds);
        let settings =
            BridgeSettings { stp, ageing_time, vlan_filtering, ..BridgeSettings::default() };
        let (name, bridge) = ("br0".to_owned(), Some(settings));
        let netdev = Netdev { name, bridge, flags, ..Netdev::default() };
        Kernel { netdevs: [(2, netdev)].into(), ..Kernel::default() }
    };
    for stp in [Stp::Off, Stp::User, Stp::Kernel] {
        let named = found(&kernel(stp, 300, false, 1), &kernel(stp, 30, false, 1));
        assert_eq!(named.is_empty(), stp == Stp::Kernel, "{named:?}");
        assert_eq!(found(&kernel(stp, 300, false, 1), &kernel(stp, 300, true, 1)), ["device br0"]);
    }
    // The bridge is down.
    let named = found(&kernel(Stp::Off, 300, false, 0), &kernel(Stp::Off, 30, true, 0));
    assert!(named.is_empty(), "{named:?}");
}

#[test]
fn changes_with_notification_are_no_findings() {
    let now = Instant::now();
    let known = Kernel::default();
    let dst = |dst: &str| -> IpNet { dst.parse().unwrap() };
    let mut findings = Findings::default();
    findings.suspect_routes(254, dst(A));
    findings.open();
    findings.suspect_routes(254, dst(B));
    findings.suspect_routes(7, dst(A));
    findings.suspect_routes(254, dst(C));
    findings.receive(&route_event(C, 1, Change::Del));
    findings.suspect_routes(254, dst(C));
    findings.close(now);
    assert!(findings.due().is_some_and(|due| due > now));
    assert_eq!(
        findings.names(&known),
        ["route 10.0.0.0/8 of table 7", "route 10.0.0.0/16 of table main"]
    );
    assert_eq!(findings.log(&known), 2);
    assert_eq!((findings.due(), findings.log(&known)), (None, 0));
}
