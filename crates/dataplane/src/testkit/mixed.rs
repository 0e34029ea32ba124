//! Frames of every kind, valid and broken, each made from one number.

use std::net::IpAddr;

use etherparse::IpNumber;

use super::dice::Dice;
use super::packet::{DOT1AD, DOT1Q, Packet, Tag, ip};
use super::wires::{LinkVariant, OVERLAP4, OVERLAP6, PORTS, Special};

const ODD_SOURCES: [&str; 8] =
    ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "::", "::1", "ff02::1", "fe80::7"];

const ODD_DESTINATIONS: [&str; 10] = [
    OVERLAP4,
    OVERLAP6,
    "0.0.0.0",
    "127.0.0.1",
    "224.0.0.5",
    "255.255.255.255",
    "::",
    "::1",
    "ff02::2",
    "fe80::8",
];

/// A frame for a port. Half of the packets are unusual in some way, and a quarter of the frames are
/// broken.
pub fn frame(port: u8, seed: u64) -> Vec<u8> {
    let dice = &mut Dice(seed);
    let variant = dice.pick(&LinkVariant::ALL);
    let packet = packet(port, variant, dice);
    let packet = if dice.one_in(2) { odd(packet, port, dice) } else { packet };
    let mut bytes = packet.build();
    if dice.one_in(4) {
        break_it(&mut bytes, dice);
    }
    bytes
}

fn packet(port: u8, variant: LinkVariant, dice: &mut Dice) -> Packet {
    let to = dice.below(PORTS.into()) as u8;
    let (out, special) = (dice.pick(&LinkVariant::ALL), dice.pick(&Special::ALL));
    let dst = match dice.below(4) {
        0 => special.host4(),
        1 => special.host6(),
        2 => out.host4(to),
        _ => out.host6(to),
    };
    let packet = variant.packet(port, dst).ports(dice.roll() as u16, dice.roll() as u16);
    let headers = if dst.is_ipv4() { 20 } else { 40 };
    match dice.below(3) {
        0 => packet.size(headers + dice.below(1500)),
        1 => packet.padded(dice.below(60)),
        _ => packet,
    }
}

fn odd(packet: Packet, port: u8, dice: &mut Dice) -> Packet {
    let family = |texts: &[&str], is_ipv4| -> Vec<IpAddr> {
        texts.iter().map(|text| ip(text)).filter(|ip| ip.is_ipv4() == is_ipv4).collect()
    };
    let (dst, tags) = (packet.dst, packet.tags.clone());
    let between = |src, to| Packet::between(src, to).to(dst).tagged(&tags);
    match dice.below(10) {
        0 => packet.ttl(dice.pick(&[0, 1, 2, 255])),
        1 => packet.to(dice.pick(&[[0xff; 6], [0x33; 6], [6; 6], LinkVariant::Red.mac(port)])),
        2 => packet.fragment(dice.pick(&[0, 1, 185]), dice.one_in(2)),
        3 => retag(packet, dice),
        4 => {
            let src = ip(dice.pick(&ODD_SOURCES[..]));
            let to = if src.is_ipv4() {
                LinkVariant::Plain.host4(1)
            } else {
                LinkVariant::Plain.host6(1)
            };
            between(src, to)
        }
        5 => {
            let to = ip(dice.pick(&ODD_DESTINATIONS[..]));
            between(dice.pick(&family(&["9.9.9.9", "2001:db8::9"], to.is_ipv4())), to)
        }
        6 => packet.size(dice.pick(&[1280, 1281, 1500, 1501, 9000, 9001])),
        _ => more_header(packet, dice),
    }
}

fn more_header(packet: Packet, dice: &mut Dice) -> Packet {
    if matches!(packet.ip, super::packet::Ip::V4(_)) {
        return packet.options(&vec![1; 4 * dice.below(10)]);
    }
    let kind = dice.pick(&[
        IpNumber::IPV6_HEADER_HOP_BY_HOP,
        IpNumber::IPV6_ROUTE_HEADER,
        IpNumber::IPV6_DESTINATION_OPTIONS,
    ]);
    packet.extension(kind, dice.pick(&[8, 16, 80]))
}

fn retag(packet: Packet, dice: &mut Dice) -> Packet {
    let mut tags: Vec<Tag> = packet.tags.clone();
    let tag = (dice.pick(&[DOT1Q, DOT1AD]), dice.pick(&[0, 0xe000, 10, 20, 30, 300, 4095]));
    tags.insert(dice.below(tags.len() + 1), tag);
    if dice.one_in(4) {
        tags.resize(dice.below(7), tag);
    }
    packet.tagged(&tags)
}

fn break_it(bytes: &mut Vec<u8>, dice: &mut Dice) {
    match dice.below(4) {
        0 => bytes.truncate(dice.below(bytes.len() + 1)),
        1 => {
            let at = dice.below(bytes.len().min(64));
            bytes[at] ^= 1 << dice.below(8);
        }
        2 => {
            let at = dice.below(bytes.len().min(40));
            bytes[at] = dice.roll() as u8;
        }
        _ => bytes[12..14].copy_from_slice(&dice.pick(&[0x0806_u16, 0x0026, 0x0800]).to_be_bytes()),
    }
}
