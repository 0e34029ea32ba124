use std::net::IpAddr;

use etherparse::IpNumber;

use super::{By, Chosen, Hash, Keyed, Multipath};
use crate::stages::ecmp::MOST_HASH;
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

/// The seed that what is known to be right was had with.
const SEED: u32 = 0x1234_5678;

fn chosen(by: Hash, packet: &[u8]) -> Chosen {
    Multipath { v4: by, v6: by, keyed: Keyed::new(SEED) }.of(packet)
}

fn hash(by: Hash, packet: &Packet) -> u32 {
    chosen(by, &layer3(packet)).hash
}

fn labelled(mut packet: Packet, label: u32) -> Packet {
    if let Ip::V6 { header, .. } = &mut packet.ip {
        header.flow_label = label.try_into().unwrap();
    }
    packet
}

fn distinct(hashes: impl IntoIterator<Item = u32>) -> usize {
    hashes.into_iter().collect::<std::collections::BTreeSet<_>>().len()
}

/// The answers are those by which Linux 6.18 chose.
#[test]
fn hashes_are_the_kernels() {
    let (four, six) = (Packet::udp(A4, B4), Packet::udp(A6, B6));
    let protocol = |number| four.clone().v4(|header| header.protocol = IpNumber(number));
    let mut tcp6 = six.clone().ports(1000, 53);
    if let Ip::V6 { header, .. } = &mut tcp6.ip {
        header.next_header = IpNumber::TCP;
    }
    for (by, packet, expected) in [
        (Hash::L3, four.clone(), 0x4752_3b07),
        (Hash::L4, four.clone().ports(1000, 53), 0x6d7a_3ee2),
        (Hash::L4, protocol(1), 0x3c66_6fa4),
        (Hash::L3, labelled(six, 0xabcde), 0x7f2d_4a33),
        (Hash::L4, tcp6, 0x0455_dbf5),
    ] {
        assert_eq!(hash(by, &packet), expected, "{by:?} {packet:?}");
    }
}

/// Both ways of a connection have one hash.
#[test]
fn which_way_a_packet_goes_makes_no_difference() {
    for (a, b) in [(A4, B4), (A6, B6)] {
        let there = Packet::udp(a, b).ports(4711, 80);
        let back = Packet::udp(b, a).ports(80, 4711);
        for by in [Hash::L3, Hash::L4] {
            assert_eq!(hash(by, &there), hash(by, &back));
            assert!(hash(by, &there) <= MOST_HASH);
        }
        // Addresses and ports are put in order each for itself.
        assert_eq!(hash(Hash::L4, &there), hash(Hash::L4, &Packet::udp(a, b).ports(80, 4711)));
    }
}

#[test]
fn by_layer_3_addresses_tell_flows_apart_and_ports_do_not() {
    for (a, b) in [(A4, B4), (A6, B6)] {
        let hash = |packet: Packet| hash(Hash::L3, &packet);
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
    }
}

#[test]
fn a_flow_label_counts_by_layer_3_alone() {
    let labels =
        || [0, 1, 0x100, 0x10000, 0xfffff].map(|label| labelled(Packet::udp(A6, B6), label));
    assert_eq!(distinct(labels().map(|packet| hash(Hash::L3, &packet))), 5);
    assert_eq!(distinct(labels().map(|packet| hash(Hash::L4, &packet))), 1);
    let by = |by, packet: &Packet| chosen(by, &layer3(packet)).by;
    assert_eq!(by(Hash::L3, &labels()[0]), By::Label, "another one may come");
    assert_eq!(by(Hash::L4, &labels()[1]), By::Flow);
    assert_eq!(by(Hash::L3, &Packet::udp(A4, B4)), By::Flow);
}

/// An error goes where the other packets go to the same host from the one that it did not reach.
#[test]
fn by_layer_3_an_error_goes_the_way_of_its_flow() {
    let v4 = [3, 4, 5, 11, 12].map(|kind| (A4, B4, kind));
    let v6 = [1, 2, 3, 4].map(|kind| (A6, B6, kind));
    for (a, b, kind) in v4.into_iter().chain(v6) {
        let error = layer3(&error(kind, &labelled(Packet::udp(a, b), 77), a));
        assert_eq!(chosen(Hash::L3, &error).by, By::Cause, "{kind}");
        let flow = hash(Hash::L3, &labelled(Packet::udp(b, a), 77));
        assert_eq!(chosen(Hash::L3, &error).hash, flow, "{kind}");
        assert_eq!(chosen(Hash::L4, &error).by, By::Flow, "{kind}");
        // What is not all there has the hash of its own addresses.
        let short = &error[..error.len() - 30];
        assert_ne!(chosen(Hash::L3, short).by, By::Cause);
        assert_ne!(chosen(Hash::L3, short).hash, flow);
    }
    let four = [0, 8, 13].map(|kind| (A4, B4, kind));
    let six = [0, 5, 127, 128, 135].map(|kind| (A6, B6, kind));
    for (a, b, kind) in four.into_iter().chain(six) {
        let message = layer3(&error(kind, &Packet::udp(a, b), a));
        assert_ne!(chosen(Hash::L3, &message).by, By::Cause, "{kind}");
    }
}

#[test]
fn a_later_fragment_is_no_error() {
    let by = |packet: Packet| chosen(Hash::L3, &layer3(&packet)).by;
    let whole = error(3, &Packet::udp(A4, B4), A4);
    assert_eq!(by(whole.clone().fragment(0, true)), By::Cause);
    assert_eq!(by(whole.fragment(1, false)), By::Flow);
}

#[test]
fn ipsec_has_an_index_for_ports() {
    let with = |protocol: u8, bytes: [u8; 8]| {
        let mut packet = Packet::udp(A4, B4).v4(|header| header.protocol = IpNumber(protocol));
        packet.body = bytes.to_vec();
        hash(Hash::L4, &packet)
    };
    assert_ne!(with(50, [1, 2, 3, 4, 5, 6, 7, 8]), with(50, [1, 2, 3, 9, 5, 6, 7, 8]));
    assert_eq!(with(50, [1, 2, 3, 4, 5, 6, 7, 8]), with(50, [1, 2, 3, 4, 5, 6, 7, 9]));
    assert_ne!(with(51, [1, 2, 3, 4, 5, 6, 7, 8]), with(51, [1, 2, 3, 4, 5, 6, 7, 9]));
    assert_eq!(with(51, [1, 2, 3, 4, 5, 6, 7, 8]), with(51, [1, 2, 3, 9, 5, 6, 7, 8]));
}

#[test]
fn any_bytes_have_both_hashes() {
    for length in 0..100 {
        for first in [0x00, 0x45, 0x4f, 0x40, 0x60, 0xff] {
            for next in [0, 43, 44, 60] {
                let mut bytes = vec![1; length];
                bytes.iter_mut().take(1).for_each(|byte| *byte = first);
                bytes.iter_mut().skip(6).step_by(34).take(1).for_each(|byte| *byte = next);
                for by in [Hash::L3, Hash::L4] {
                    assert!(chosen(by, &bytes).hash <= MOST_HASH);
                }
            }
        }
    }
}
