//! The network around the oracle's routers: the hosts at the far ends of their wires, and what
//! these answer.
//!
//! Whatever address a router requests by ARP or ND, a host there has it, except addresses whose
//! last byte is [`SILENT`] or more. Ethernet addresses are made of the device and the IP address,
//! so a frame shows which next hop it took.

use std::net::{IpAddr, Ipv4Addr};

use crate::case::hex;
use crate::icmp::checksum;

/// Nobody answers for addresses whose last byte is this or more.
pub const SILENT: u8 = 0xf0;
/// Sources of ICMP errors from kernels of routers that have no address of their own.
pub const NO_ADDRESS: [Ipv4Addr; 2] = [Ipv4Addr::UNSPECIFIED, Ipv4Addr::new(192, 0, 0, 8)];

const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const ARP: [u8; 2] = [0x08, 0x06];
const TAGS: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];

/// The Ethernet address of the host with this IP address, as seen at a device.
pub fn far_mac(device: usize, address: IpAddr) -> [u8; 6] {
    let (family, bytes) = match address {
        IpAddr::V4(four) => (0x40, four.octets()),
        IpAddr::V6(six) => (0x60, *six.octets().last_chunk().unwrap()),
    };
    [6, family | device as u8, bytes[0], bytes[1], bytes[2], bytes[3]]
}

/// The offset of the packet in a frame, behind all tags and the ethertype.
pub fn packet_at(frame: &[u8]) -> usize {
    let mut at = 12;
    while frame.get(at..at + 2).is_some_and(|kind| TAGS.iter().any(|tag| tag == kind)) {
        at += 4;
    }
    at + 2
}

/// The ethertype of a frame, behind all tags.
pub fn ethertype(frame: &[u8]) -> Option<[u8; 2]> {
    frame.get(packet_at(frame) - 2..)?.first_chunk().copied()
}

/// Whether a frame is an IPv4 frame.
pub fn is_four(frame: &[u8]) -> bool {
    ethertype(frame) == Some(IPV4)
}

/// Whether a frame is an IPv6 frame.
pub fn is_six(frame: &[u8]) -> bool {
    ethertype(frame) == Some(IPV6)
}

/// The source and the destination of a frame's packet.
pub fn addresses(frame: &[u8]) -> Option<[IpAddr; 2]> {
    let packet = frame.get(packet_at(frame)..)?;
    if is_four(frame) {
        let four = |at: usize| packet.get(at..)?.first_chunk::<4>().copied();
        return Some([four(12)?.into(), four(16)?.into()]);
    }
    let six = |at: usize| packet.get(at..)?.first_chunk::<16>().copied();
    is_six(frame).then_some(())?;
    Some([six(8)?.into(), six(24)?.into()])
}

/// Type and code of a frame's ICMP or ICMPv6 message, if it is one without extension headers.
pub fn icmp(frame: &[u8]) -> Option<[u8; 2]> {
    let packet = frame.get(packet_at(frame)..)?;
    let at = match (is_four(frame), is_six(frame)) {
        (true, _) if packet.get(9) == Some(&1) => usize::from(packet[0] & 15) * 4,
        (_, true) if packet.get(6) == Some(&58) => 40,
        _ => return None,
    };
    packet.get(at..)?.first_chunk().copied()
}

/// A short description of a frame, for people. The file of the case has the whole frame.
pub fn words_of(frame: &[u8]) -> String {
    let at = packet_at(frame);
    let byte = |at: usize| frame.get(at).copied().unwrap_or(0);
    let mut words = match addresses(frame) {
        Some([from, to]) => format!("{from} > {to}"),
        None => format!("ethertype {:?}", ethertype(frame)),
    };
    let [hops, protocol] = if is_four(frame) { [8, 9] } else { [7, 6] }.map(|of| byte(at + of));
    words += &format!(", protocol {protocol}, hops {hops}, {} bytes", frame.len());
    if let Some([kind, code]) = icmp(frame) {
        words += &format!(", ICMP {kind}/{code}");
    }
    let some = &frame[..frame.len().min(at + 64)];
    words + &format!(": {}", hex(some))
}

/// Whether nobody answers for an address.
pub fn is_silent(address: IpAddr) -> bool {
    let last = match address {
        IpAddr::V4(four) => four.octets()[3],
        IpAddr::V6(six) => six.octets()[15],
    };
    last >= SILENT
}

/// How the far end answers an ARP or ND request.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    /// The frame is not a request.
    Nothing,
    /// Nobody has the address.
    Silent,
    /// The answer of the host that has the address.
    Answer(Vec<u8>),
}

/// How the far end of a device answers a frame.
pub fn reply(device: usize, frame: &[u8]) -> Reply {
    let answer = match ethertype(frame) {
        Some(ARP) => arp(device, frame),
        Some(IPV6) => neighbour(device, frame),
        _ => None,
    };
    answer.unwrap_or(Reply::Nothing)
}

fn arp(device: usize, frame: &[u8]) -> Option<Reply> {
    let at = packet_at(frame);
    let packet = frame.get(at..at + 28)?;
    let target: [u8; 4] = *packet[24..].first_chunk()?;
    // Only requests count; one for the sender's own address is an announcement.
    if packet[..8] != [0, 1, 8, 0, 6, 4, 0, 1] || packet[14..18] == target {
        return None;
    }
    if is_silent(target.into()) {
        return Some(Reply::Silent);
    }
    let own = far_mac(device, target.into());
    let mut answer = [&packet[8..14], &own, &frame[12..at], &packet[..7], &[2], &own].concat();
    answer.extend(target);
    answer.extend(&packet[8..18]);
    Some(Reply::Answer(answer))
}

fn neighbour(device: usize, frame: &[u8]) -> Option<Reply> {
    let at = packet_at(frame);
    let packet = frame.get(at..)?;
    let target: [u8; 16] = *packet.get(48..)?.first_chunk()?;
    // A sender without an address looks for duplicates of the target.
    if packet[6] != 58 || packet[40] != 135 || packet[8..24] == [0; 16] {
        return None;
    }
    if is_silent(target.into()) {
        return Some(Reply::Silent);
    }
    let own = far_mac(device, target.into());
    let mut message = [&[136, 0, 0, 0, 0x60, 0, 0, 0][..], &target, &[2, 1], &own].concat();
    let pseudo = [&target[..], &packet[8..24], &[0, 0, 0, 32, 0, 0, 0, 58], &message].concat();
    let sum = checksum(&pseudo).to_be_bytes();
    message[2..4].copy_from_slice(&sum);
    let mut answer = [&frame[6..12], &own, &frame[12..at]].concat();
    answer.extend([0x60, 0, 0, 0, 0, 32, 58, 255]);
    answer.extend(target);
    answer.extend(&packet[8..24]);
    answer.extend(message);
    Some(Reply::Answer(answer))
}
