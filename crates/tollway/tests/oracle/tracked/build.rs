//! Packets of conversations, from layer 3 on and as frames.

use crate::icmp::checksum;
use crate::net;

/// The two ends of a packet: version of IP, source and destination.
#[derive(Clone, Copy)]
pub struct Ends {
    pub is_six: bool,
    pub source: u128,
    pub destination: u128,
}

/// A frame to the router's device, with a packet of this number.
pub fn frame(device: usize, is_six: bool, packet: &[u8]) -> Vec<u8> {
    let mut frame = [net::mac(device), [0x0a, 0, 0, 0, 0, device as u8 + 1]].concat();
    frame.extend(if is_six { [0x86, 0xdd] } else { [8, 0] });
    frame.extend(packet);
    frame
}

/// A packet of a transport protocol.
pub fn packet(ends: Ends, protocol: u8, tag: u32, payload: &[u8]) -> Vec<u8> {
    let mut header = if ends.is_six {
        let mut header = (6 << 28 | tag & 0xf_ffff).to_be_bytes().to_vec();
        header.extend((payload.len() as u16).to_be_bytes());
        header.extend([protocol, 64]);
        header.extend(ends.source.to_be_bytes());
        header.extend(ends.destination.to_be_bytes());
        header
    } else {
        let mut header = vec![0x45, 0];
        header.extend((20 + payload.len() as u16).to_be_bytes());
        header.extend((tag as u16).to_be_bytes());
        header.extend([0, 0, 64, protocol, 0, 0]);
        header.extend((ends.source as u32).to_be_bytes());
        header.extend((ends.destination as u32).to_be_bytes());
        let sum = checksum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        header
    };
    header.extend(payload);
    header
}

/// Writes the checksum of a transport header at `at`.
pub fn sign(ends: Ends, protocol: u8, payload: &mut [u8], at: usize) {
    payload[at..at + 2].fill(0);
    let mut bytes = Vec::new();
    if protocol != 1 {
        let address = |address: u128| match ends.is_six {
            true => address.to_be_bytes().to_vec(),
            false => (address as u32).to_be_bytes().to_vec(),
        };
        bytes.extend(address(ends.source));
        bytes.extend(address(ends.destination));
        bytes.extend(u32::from(protocol).to_be_bytes());
        bytes.extend((payload.len() as u32).to_be_bytes());
    }
    bytes.extend_from_slice(payload);
    let sum = match checksum(&bytes) {
        0 if protocol == 17 => 0xffff,
        sum => sum,
    };
    payload[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// A message of ICMP or ICMPv6, signed.
pub fn icmp(ends: Ends, [kind, code]: [u8; 2], word: u32, rest: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, code, 0, 0];
    message.extend(word.to_be_bytes());
    message.extend(rest);
    sign(ends, if ends.is_six { 58 } else { 1 }, &mut message, 2);
    message
}
