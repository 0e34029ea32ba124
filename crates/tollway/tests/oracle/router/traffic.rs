//! Random packets for a router, in waves: first the first packets of flows, then the same packets
//! again, which the XDP path may take.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use super::draw::{Drawn, Link, pick4, pick6};
use super::net::{addresses, icmp as icmp_of, is_four, packet_at};
use super::offloads::Offload;
use crate::dice::Dice;
use crate::icmp::{self, checksum};
use crate::net;
use crate::packets;

/// One in this many cases reports to the router that packets did not fit (RFC 1191).
const TOO_BIG_CASES: usize = 4;
/// Waves in each case.
pub const WAVES: usize = 4;

/// A packet, and how it arrives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packet {
    /// The wave in which it arrives.
    pub wave: usize,
    /// The device on which it arrives.
    pub device: usize,
    #[serde(with = "hexadecimal")]
    pub frame: Vec<u8>,
    /// What the sender leaves to its network card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload: Option<Offload>,
}

mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&crate::case::hex(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        let byte = |at| text.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
        let bytes: Option<_> = (0..text.len()).step_by(2).map(byte).collect();
        bytes.ok_or_else(|| serde::de::Error::custom("these are no pairs of hexadecimal digits"))
    }
}

/// Draws the packets of `flows` flows.
pub fn draw(drawn: &mut Drawn, flows: usize, dice: &mut Dice) -> Vec<Packet> {
    drawn.constants.later_fragments =
        drawn.config.rules.is_none() || drawn.constants.later_fragments;
    let mut packets: Vec<Packet> = Vec::new();
    for number in 0..flows {
        packets.push(first(drawn, number as u32 + 1, dice));
    }
    for wave in 1..WAVES {
        for number in 0..flows {
            if dice.one_in(3) {
                continue;
            }
            let mut again = packets[number].clone();
            again.wave = wave;
            retag(&mut again.frame, (wave * flows + number) as u32 + 1);
            packets.push(again);
        }
    }
    if dice.one_in(TOO_BIG_CASES) {
        for number in 0..1 + dice.below(3) {
            let tag = (WAVES * flows + number) as u32 + 1;
            packets.extend(too_big(drawn, &packets[..flows], tag, dice));
        }
    }
    packets
}

/// A host on a link reports to the router that a packet of the router's own did not fit. The
/// packet's destination is one of the case's. Below 552 bytes the MTU also holds for what the
/// router forwards.
fn too_big(drawn: &Drawn, packets: &[Packet], tag: u32, dice: &mut Dice) -> Option<Packet> {
    let link = dice.pick(&drawn.links);
    let (router, host) = (link.host4(1), link.host4(0x150));
    let Some([_, IpAddr::V4(to)]) = addresses(&dice.pick(packets).frame) else { return None };
    let mtu = dice.pick(&[68_u16, 400, 551, 552, 600, 1000]);
    // The packet is an echo reply of the router, or an echo request, which the router never sent.
    let kind = dice.pick(&[0, 0, 8]);
    let mut frame = net::mac(link.device).to_vec();
    frame.extend([0x0a, 0, 0, 0, 0, link.device as u8 + 1]);
    frame.extend(&link.tags);
    frame.extend([8, 0]);
    frame.extend(icmp::too_big([host, router, to], mtu, kind, tag as u16));
    Some(Packet { wave: 0, device: link.device, frame, offload: None })
}

/// The destination of the packet that did not fit, according to a "fragmentation needed" error.
pub fn did_not_fit(frame: &[u8]) -> Option<IpAddr> {
    const HEADERS: usize = 20 + 8;
    if !is_four(frame) || icmp_of(frame) != Some([3, 4]) {
        return None;
    }
    let at = packet_at(frame);
    let inner = [frame.get(..at)?, frame.get(at + HEADERS..)?].concat();
    addresses(&inner).map(|[_, to]| to)
}

/// The number of a packet, or of the packet that a fragment belongs to. Packets that routers make
/// have numbers, too.
pub fn tag(frame: &[u8]) -> Option<u32> {
    let packet = frame.get(packet_at(frame)..)?;
    if is_four(frame) {
        return Some(u32::from(u16::from_be_bytes(*packet.get(4..)?.first_chunk()?)));
    }
    Some(u32::from_be_bytes(*packet.first_chunk()?) & 0xf_ffff)
}

/// Gives a packet another number; a wrong checksum stays wrong.
fn retag(frame: &mut [u8], tag: u32) {
    let at = packet_at(frame);
    if !is_four(frame) {
        if let Some(word) = frame.get_mut(at..).and_then(|packet| packet.first_chunk_mut::<4>()) {
            let other = u32::from_be_bytes(*word) & !0xf_ffff | tag;
            *word = other.to_be_bytes();
        }
        return;
    }
    let Some(packet) = frame.get_mut(at..).filter(|packet| packet.len() >= 20) else { return };
    let (id, sum): ([u8; 2], [u8; 2]) = ([packet[4], packet[5]], [packet[10], packet[11]]);
    let new = (tag as u16).to_be_bytes();
    // RFC 1624: subtract the old word from the sum's complement, and add the new one.
    let words = [!u16::from_be_bytes(sum), !u16::from_be_bytes(id), tag as u16];
    let sum = checksum(&words.map(u16::to_be_bytes).concat());
    packet[4..6].copy_from_slice(&new);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

fn first(drawn: &Drawn, tag: u32, dice: &mut Dice) -> Packet {
    let link = dice.pick(&drawn.links);
    let six = dice.one_in(2);
    let mut frame = destination_mac(&link, dice).to_vec();
    frame.extend([0x0a, 0, 0, 0, 0, link.device as u8 + 1]);
    frame.extend(tags(&link, dice));
    frame.extend(if six { [0x86, 0xdd] } else { [8, 0] });
    let addresses4 = [source4(drawn, &link, dice), destination4(drawn, dice)];
    let addresses6 = [source6(drawn, &link, dice), destination6(drawn, dice)];
    let mut draw = packets::Draw { constants: &drawn.constants, dice, measured: true };
    frame.extend(match six {
        true => draw.six(addresses6, true, tag),
        false => draw.four(addresses4, true, tag),
    });
    draw.end(&mut frame);
    Packet { wave: 0, device: link.device, frame, offload: None }
}

fn destination_mac(link: &Link, dice: &mut Dice) -> [u8; 6] {
    match dice.below(60) {
        0 => [0xff; 6],
        1 => [0x01, 0, 0x5e, 0, 0, 5],
        2 => [0x33, 0x33, 0, 0, 0, 1],
        3 => [2, 0, 0, 0, 0x99, 9],
        _ => net::mac(link.device),
    }
}

fn tags(link: &Link, dice: &mut Dice) -> Vec<u8> {
    match dice.below(80) {
        // A priority tag without a VLAN, an unknown VLAN, one tag too many.
        0 => vec![0x81, 0, 0xe0, 0],
        1 => vec![0x81, 0, 0, 77],
        2 => [&link.tags[..], &[0x81, 0, 0, 78]].concat(),
        3 if !link.tags.is_empty() => {
            let mut tags = link.tags.clone();
            tags[2] |= 0xa0;
            tags
        }
        _ => link.tags.clone(),
    }
}

/// Draws a source address. Two packets rarely have the same one, as kernels limit errors by source.
pub(super) fn source4(drawn: &Drawn, link: &Link, dice: &mut Dice) -> u32 {
    let odd = [
        [127, 0, 0, 1],
        [0, 0, 0, 0],
        [224, 0, 0, 1],
        [255, 255, 255, 255],
        [240, 0, 0, 1],
        [0, 1, 2, 3],
    ];
    let spread = dice.roll() as u32 & 0xffff;
    match dice.below(40) {
        0 => u32::from_be_bytes(dice.pick(&odd)),
        1 => link.host4(1).into(),
        2 => dice.pick(&drawn.links).host4(1).into(),
        3 => pick4(&drawn.to4, dice),
        4..20 => u32::from(link.host4(0x100)) | spread & 0xff0f,
        _ => u32::from(Ipv4Addr::new(20, dice.below(3) as u8, 0, 0)) | spread,
    }
}

pub(super) fn source6(drawn: &Drawn, link: &Link, dice: &mut Dice) -> u128 {
    let odd: [Ipv6Addr; 5] =
        ["::1", "::", "ff02::1", "::ffff:10.0.0.1", "fe80::99"].map(|text| text.parse().unwrap());
    let spread = u128::from(dice.roll() & 0xff_ff0f);
    match dice.below(40) {
        0 => dice.pick(&odd).into(),
        1 => link.host6(1).into(),
        2 => dice.pick(&drawn.links).host6(1).into(),
        3 => pick6(&drawn.to6, dice),
        4..20 => u128::from(link.host6(0x100)) | spread,
        _ => 0x2001_0db8 << 96 | (dice.below(3) as u128) << 80 | spread,
    }
}

pub(super) fn destination4(drawn: &Drawn, dice: &mut Dice) -> u32 {
    let odd: [[u8; 4]; 8] = [
        [127, 0, 0, 1],
        [0, 0, 0, 0],
        [224, 0, 0, 5],
        [239, 1, 1, 1],
        [255, 255, 255, 255],
        [240, 0, 0, 1],
        [169, 254, 1, 1],
        [10, 99, 0, 2],
    ];
    let link = dice.pick(&drawn.links);
    match dice.below(40) {
        0 => u32::from_be_bytes(dice.pick(&odd)),
        1 | 2 => link.host4(1).into(),
        3 => link.host4(0xffff).into(),
        4..8 => link.host4(dice.below(600) as u16).into(),
        _ => pick4(&drawn.to4, dice),
    }
}

pub(super) fn destination6(drawn: &Drawn, dice: &mut Dice) -> u128 {
    let odd: [Ipv6Addr; 6] = ["::1", "::", "ff02::1", "ff0e::1", "fe80::20:2", "fd00:99::1"]
        .map(|text| text.parse().unwrap());
    let link = dice.pick(&drawn.links);
    match dice.below(40) {
        0 => dice.pick(&odd).into(),
        1 | 2 => link.host6(1).into(),
        3 => link.host6(0).into(),
        4..8 => link.host6(dice.below(600) as u16).into(),
        _ => pick6(&drawn.to6, dice),
    }
}
