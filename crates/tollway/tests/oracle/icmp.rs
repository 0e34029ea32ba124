//! ICMP packets that a host on a link makes up.

use std::net::Ipv4Addr;

/// The Internet checksum (RFC 1071).
pub fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| {
        let low = pair.get(1).copied().unwrap_or(0);
        u64::from(u16::from_be_bytes([pair[0], low]))
    });
    let mut sum: u64 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// An IPv4 packet with an ICMP message.
pub fn ip4([src, dst]: [Ipv4Addr; 2], id: u16, payload: &[u8]) -> Vec<u8> {
    const HEADER: u16 = 20;
    let (len, id) = ((HEADER + payload.len() as u16).to_be_bytes(), id.to_be_bytes());
    let mut header = vec![0x45, 0, len[0], len[1], id[0], id[1], 0, 0, 64, 1, 0, 0];
    header.extend([src.octets(), dst.octets()].concat());
    let sum = checksum(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    [&header, payload].concat()
}

/// The ICMP error "fragmentation needed" (RFC 1191, section 4) for a router, about a packet that
/// the router itself sent. That packet is an ICMP message of type `kind` (an echo reply: 0).
pub fn too_big([from, router, to]: [Ipv4Addr; 3], mtu: u16, kind: u8, id: u16) -> Vec<u8> {
    let inner = ip4([router, to], 0, &[kind, 0, 0xff, 0xff, 0, 0, 0, 0]);
    let mut message = [&[3, 4, 0, 0, 0, 0], &mtu.to_be_bytes()[..], &inner].concat();
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    ip4([from, router], id, &message)
}
