//! Packets whose sender leaves a part of its work to a network card, as hosts with default offloads do: the checksum
//! of layer 4, and the segmentation of TCP.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use super::draw::Drawn;
use super::traffic::{Packet, WAVES, destination4, destination6, source4, source6};
use crate::dice::Dice;
use crate::icmp::checksum;
use crate::net;

/// Such packets of each case.
const PACKETS: usize = 10;
/// The number of the first, in IPv4. The segments of one have consecutive numbers.
const FIRST_ID: u32 = 0x8000;
/// More numbers than a packet has segments.
const IDS: u32 = 0x80;
/// Bytes of the headers of Ethernet, IPv4, IPv6, TCP and UDP.
const ETHERNET: usize = 14;
const IP4: usize = 20;
const IP6: usize = 40;
const TCP: usize = 20;
const UDP: usize = 8;

/// What is left to the card (`struct virtio_net_hdr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offload {
    /// Where layer 4 begins in the frame.
    start: u16,
    /// Where its checksum lies, from there on.
    sum_at: u16,
    /// The length of its header, if the packet is to be cut into segments of this many bytes.
    segment: Option<(u16, u16)>,
    is_ipv4: bool,
}

impl Offload {
    /// The header in front of the frame.
    pub fn header(self) -> [u8; 10] {
        const NEEDS_CHECKSUM: u8 = 1;
        const TCP4: u8 = 1;
        const TCP6: u8 = 4;
        let (header_len, segment) = self.segment.unwrap_or_default();
        let kind = match self.segment {
            None => 0,
            Some(_) if self.is_ipv4 => TCP4,
            Some(_) => TCP6,
        };
        let [a, b] = if header_len > 0 { self.start + header_len } else { 0 }.to_ne_bytes();
        let ([c, d], [e, f], [g, h]) =
            (segment.to_ne_bytes(), self.start.to_ne_bytes(), self.sum_at.to_ne_bytes());
        [NEEDS_CHECKSUM, kind, a, b, c, d, e, f, g, h]
    }
}

/// Draws the packets of a case, in all waves.
pub fn draw(drawn: &Drawn, dice: &mut Dice) -> Vec<Packet> {
    let numbers = 0..PACKETS as u32;
    numbers.map(|number| packet(drawn, FIRST_ID + IDS * number, dice)).collect()
}

fn packet(drawn: &Drawn, tag: u32, dice: &mut Dice) -> Packet {
    let plain: Vec<_> = drawn.links.iter().filter(|link| link.tags.is_empty()).cloned().collect();
    let link = dice.pick(&plain);
    let (is_ipv4, is_tcp) = (dice.one_in(2), dice.one_in(2));
    let segment = (is_tcp && !dice.one_in(4)).then(|| dice.pick(&[536, 1000, 1220, 1440, 1460]));
    let payload = match segment {
        Some(segment) => usize::from(segment) * (2 + dice.below(12)) - dice.below(200),
        None => dice.pick(&[0, 1, 18, 500, 1200]),
    };
    let layer4 = if is_tcp { TCP } else { UDP } + payload;
    let mut frame = net::mac(link.device).to_vec();
    frame.extend([0x0a, 0, 0, 0, 0, link.device as u8 + 1]);
    let protocol: u8 = if is_tcp { 6 } else { 17 };
    let ttl = dice.pick(&[1, 2, 64, 64, 64, 255]);
    let pseudo = if is_ipv4 {
        let source = Ipv4Addr::from(source4(drawn, &link, dice)).octets();
        let destination = Ipv4Addr::from(destination4(drawn, dice)).octets();
        let [a, b] = ((IP4 + layer4) as u16).to_be_bytes();
        let [c, d] = (tag as u16).to_be_bytes();
        let fragment = dice.pick(&[0x40, 0x40, 0]);
        let mut header = vec![0x45, 0, a, b, c, d, fragment, 0, ttl, protocol, 0, 0];
        header.extend([source, destination].concat());
        let sum = checksum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        frame.extend([8, 0]);
        frame.extend(&header);
        [source, destination].concat()
    } else {
        let source = Ipv6Addr::from(source6(drawn, &link, dice)).octets();
        let destination = Ipv6Addr::from(destination6(drawn, dice)).octets();
        frame.extend([0x86, 0xdd]);
        frame.extend((6 << 28 | tag).to_be_bytes());
        frame.extend((layer4 as u16).to_be_bytes());
        frame.extend([protocol, ttl]);
        frame.extend([source, destination].concat());
        [source, destination].concat()
    };
    // The sum of what the card does not see, which it completes.
    let length = (layer4 as u32).to_be_bytes();
    let partial = !checksum(&[&pseudo[..], &length, &[0, 0, 0, protocol]].concat());
    let ports = [dice.roll() as u8, 9, 0, dice.pick(&[53, 80, 22])];
    frame.extend(ports);
    if is_tcp {
        frame.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0]);
        frame.extend(partial.to_be_bytes());
        frame.extend([0, 0]);
    } else {
        frame.extend((layer4 as u16).to_be_bytes());
        frame.extend(partial.to_be_bytes());
    }
    frame.extend((0..payload).map(|at| at as u8));
    let offload = Offload {
        start: (ETHERNET + if is_ipv4 { IP4 } else { IP6 }) as u16,
        sum_at: if is_tcp { 16 } else { 6 },
        segment: segment.map(|segment| (TCP as u16, segment)),
        is_ipv4,
    };
    Packet { wave: dice.below(WAVES), device: link.device, frame, offload: Some(offload) }
}
