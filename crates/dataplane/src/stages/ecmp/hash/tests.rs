use std::net::IpAddr;

use etherparse::IpNumber;

use super::{By, Hash, Key, Keyed, Multipath};
use crate::stages::ecmp::MOST_HASH;
use crate::stages::ecmp::batch::{AT_ONCE, Batch};
use crate::testkit::packet::{Ip, Packet, ip};

const A4: &str = "192.0.2.1";
const B4: &str = "198.51.100.2";
const A6: &str = "2001:db8:1::1";
const B6: &str = "2001:db8:2::2";

fn layer3(packet: &Packet) -> Vec<u8> {
    packet.build()[14..].to_vec()
}

/// An ICMP message of a type from a router on the path to the packet's sender.
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

/// The seed with which the known results were measured.
const SEED: u32 = 0x1234_5678;

fn multipath(by: Hash) -> Multipath {
    Multipath { v4: by, v6: by, keyed: Keyed::new(SEED) }
}

fn hash_of(by: Hash, packet: &[u8]) -> u32 {
    multipath(by).hash(packet)
}

fn hash(by: Hash, packet: &Packet) -> u32 {
    hash_of(by, &layer3(packet))
}

/// The properties that the hash of a packet depends on.
fn by(hash: Hash, packet: &[u8]) -> By {
    match packet[0] >> 4 {
        4 => multipath(hash).key4(packet).unwrap().by,
        _ => multipath(hash).key6(packet).unwrap().by,
    }
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

/// The expected results are the hashes by which Linux 6.18 selected members.
#[test]
fn hashes_equal_the_kernels() {
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

/// Both directions of a connection have one hash.
#[test]
fn which_way_a_packet_goes_makes_no_difference() {
    for (a, b) in [(A4, B4), (A6, B6)] {
        let there = Packet::udp(a, b).ports(4711, 80);
        let back = Packet::udp(b, a).ports(80, 4711);
        for by in [Hash::L3, Hash::L4] {
            assert_eq!(hash(by, &there), hash(by, &back));
            assert!(hash(by, &there) <= MOST_HASH);
        }
        // Addresses and ports are sorted independently.
        assert_eq!(hash(Hash::L4, &there), hash(Hash::L4, &Packet::udp(a, b).ports(80, 4711)));
    }
}

#[test]
fn by_layer_3_addresses_distinguish_flows_and_ports_do_not() {
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
    let by = |hash, packet: &Packet| by(hash, &layer3(packet));
    assert_eq!(by(Hash::L3, &labels()[0]), By::Label, "another one may come");
    assert_eq!(by(Hash::L4, &labels()[1]), By::Flow);
    assert_eq!(by(Hash::L3, &Packet::udp(A4, B4)), By::Flow);
}

/// An error takes the path of other packets from the unreached host to the same destination.
#[test]
fn by_layer_3_an_error_goes_the_way_of_its_flow() {
    let v4 = [3, 4, 5, 11, 12].map(|kind| (A4, B4, kind));
    let v6 = [1, 2, 3, 4].map(|kind| (A6, B6, kind));
    for (a, b, kind) in v4.into_iter().chain(v6) {
        let error = layer3(&error(kind, &labelled(Packet::udp(a, b), 77), a));
        assert_eq!(by(Hash::L3, &error), By::Cause, "{kind}");
        let flow = hash(Hash::L3, &labelled(Packet::udp(b, a), 77));
        assert_eq!(hash_of(Hash::L3, &error), flow, "{kind}");
        assert_eq!(by(Hash::L4, &error), By::Flow, "{kind}");
        // A truncated packet has the hash of its own addresses.
        let short = &error[..error.len() - 30];
        assert_ne!(by(Hash::L3, short), By::Cause);
        assert_ne!(hash_of(Hash::L3, short), flow);
    }
    let four = [0, 8, 13].map(|kind| (A4, B4, kind));
    let six = [0, 5, 127, 128, 135].map(|kind| (A6, B6, kind));
    for (a, b, kind) in four.into_iter().chain(six) {
        let message = layer3(&error(kind, &Packet::udp(a, b), a));
        assert_ne!(by(Hash::L3, &message), By::Cause, "{kind}");
    }
}

#[test]
fn a_later_fragment_is_no_error() {
    let by = |packet: Packet| by(Hash::L3, &layer3(&packet));
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
                    assert!(hash_of(by, &bytes) <= MOST_HASH);
                }
            }
        }
    }
}

/// Packets hashed at once have the same hashes as each alone, whatever their number, in their order.
#[test]
fn a_batch_has_the_hashes_of_its_packets() {
    fn all<const WORDS: usize>(keys: &[Key<WORDS>]) -> Vec<(usize, u32)> {
        let mut batch = Batch::new();
        let mut hashes = Vec::new();
        for (lane, key) in keys.iter().enumerate() {
            if batch.push(lane, key) {
                hashes.extend(batch.drain());
            }
        }
        hashes.extend(batch.drain());
        assert_eq!(batch.drain().count(), 0, "it is empty now");
        hashes
    }
    fn alone<const WORDS: usize>(keys: &[Key<WORDS>]) -> Vec<(usize, u32)> {
        keys.iter().map(Key::hash).enumerate().collect()
    }
    let ports = |n: usize| (n as u16, 7 * n as u16);
    for by in [Hash::L3, Hash::L4] {
        for count in 0..3 * AT_ONCE {
            let packets = |a: &str, b: &str| -> Vec<_> {
                let packet = |n| Packet::udp(a, b).ports(ports(n).0, ports(n).1);
                (0..count).map(|n| layer3(&packet(n))).collect()
            };
            let four: Vec<_> = packets(A4, B4)
                .iter_mut()
                .enumerate()
                .map(|(n, packet)| {
                    packet[9] = [6, 17, 1][n % 3];
                    packet[15] = n as u8;
                    multipath(by).key4(packet).unwrap()
                })
                .collect();
            assert_eq!(all(&four), alone(&four));
            let six: Vec<_> = packets(A6, B6)
                .iter_mut()
                .enumerate()
                .map(|(n, packet)| {
                    packet[23] = n as u8;
                    multipath(by).key6(packet).unwrap()
                })
                .collect();
            assert_eq!(all(&six), alone(&six));
        }
    }
}
