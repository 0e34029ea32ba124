use std::net::IpAddr;

use etherparse::IpNumber;

use super::{flow_hash, l3_hash};
use crate::testkit::packet::{Ip, Packet, ip};

const A4: &str = "192.0.2.1";
const B4: &str = "198.51.100.2";
const A6: &str = "2001:db8:1::1";
const B6: &str = "2001:db8:2::2";

fn layer3(packet: &Packet) -> Vec<u8> {
    packet.build()[14..].to_vec()
}

/// An ICMP message of a type from a router on the way, to whom the packet came from.
fn error(kind: u8, about: &Packet, to: &str) -> Packet {
    let inner = layer3(about);
    let (router, protocol) = match about.ip {
        Ip::V4(_) => ("203.0.113.9", IpNumber::ICMP),
        Ip::V6 { .. } => ("2001:db8:9::9", IpNumber::IPV6_ICMP),
    };
    let mut packet = Packet::udp(router, to);
    match &mut packet.ip {
        Ip::V4(header) => header.protocol = protocol,
        Ip::V6 { header, .. } => header.next_header = protocol,
    }
    packet.body = [&[kind, 0, 0, 0, 0, 0, 0, 0], &inner[..]].concat();
    packet
}

fn distinct(hashes: impl IntoIterator<Item = u32>) -> usize {
    hashes.into_iter().collect::<std::collections::BTreeSet<_>>().len()
}

#[test]
fn by_layer_3_addresses_tell_flows_apart_and_ports_do_not() {
    for (a, b) in [(A4, B4), (A6, B6)] {
        let hash = |packet: Packet| l3_hash(&layer3(&packet)).0;
        let flow = || Packet::udp(a, b);
        assert_eq!(distinct((0..50).map(|n| hash(flow().ports(n, n + 1).ttl(9 + n as u8)))), 1);
        assert_eq!(
            distinct([hash(flow()), hash(flow().fragment(3, true)), hash(flow().size(900))]),
            if a == A4 { 1 } else { 2 },
            "of IPv6 the next header is looked at"
        );
        let other = |n: u16| match ip(a) {
            IpAddr::V4(_) => Packet::udp(&format!("192.0.2.{n}"), b),
            IpAddr::V6(_) => Packet::udp(&format!("2001:db8:1::{n}"), b),
        };
        assert_eq!(distinct((1..50).map(|n| hash(other(n)))), 49);
        assert_eq!(distinct([hash(flow()), hash(Packet::udp(b, a))]), 2);
    }
}

/// An error goes where the other packets go to the same host from the one that it did not reach.
#[test]
fn by_layer_3_an_error_goes_the_way_of_its_flow() {
    let v4 = [3, 4, 5, 11, 12].map(|kind| (A4, B4, kind));
    let v6 = [1, 2, 3, 4, 127].map(|kind| (A6, B6, kind));
    for (a, b, kind) in v4.into_iter().chain(v6) {
        let error = layer3(&error(kind, &Packet::udp(a, b), a));
        assert!(l3_hash(&error).1, "{kind}");
        assert_eq!(l3_hash(&error).0, l3_hash(&layer3(&Packet::udp(b, a))).0, "{kind}");
        // What is not all there has the hash of its own addresses.
        let short = &error[..error.len() - 30];
        assert!(!l3_hash(short).1);
        assert_ne!(l3_hash(short).0, l3_hash(&error).0);
    }
    for (a, b, kind) in [(A4, B4, 0), (A4, B4, 8), (A4, B4, 13), (A6, B6, 128), (A6, B6, 135)] {
        let message = layer3(&error(kind, &Packet::udp(a, b), a));
        assert!(!l3_hash(&message).1, "{kind}");
    }
}

#[test]
fn a_later_fragment_is_no_error() {
    let whole = error(3, &Packet::udp(A4, B4), A4);
    assert!(l3_hash(&layer3(&whole.clone().fragment(0, true))).1);
    assert!(!l3_hash(&layer3(&whole.fragment(1, false))).1);
}

#[test]
fn any_bytes_have_both_hashes() {
    for length in 0..100 {
        for first in [0x00, 0x45, 0x4f, 0x40, 0x60, 0xff] {
            let mut bytes = vec![1; length];
            bytes.iter_mut().take(1).for_each(|byte| *byte = first);
            assert_eq!(l3_hash(&bytes), l3_hash(&bytes.clone()));
            assert_eq!(flow_hash(&bytes), flow_hash(&bytes.clone()));
        }
    }
}
