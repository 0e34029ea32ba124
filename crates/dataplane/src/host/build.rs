//! Builds IP and ICMP packets (RFC 791, RFC 8200, RFC 792, RFC 4443); the wire library fills in
//! lengths and checksums.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::wire::{
    Icmpv4Packet, Icmpv6Packet, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket, TcpSeqNumber,
};

use crate::wire;

/// `IPDEFTTL`; also the hop limit.
pub(super) const TTL: u8 = 64;

/// Bytes of an ICMP message before its body.
pub(super) const ICMP_LEN: usize = 8;

/// The fields of an IPv4 header except addresses and length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header4 {
    pub(super) protocol: u8,
    pub(super) tos: u8,
    pub(super) ident: u16,
    pub(super) dont_fragment: bool,
}

/// The fields of an IPv6 header except addresses and length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header6 {
    pub(super) next_header: u8,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
}

/// An IPv4 packet.
pub(super) fn ipv4(src: Ipv4Addr, dst: Ipv4Addr, header: Header4, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; wire::ipv4::LEN];
    bytes.extend_from_slice(payload);
    let len = bytes.len() as u16;
    let mut ip = Ipv4Packet::new_unchecked(&mut bytes);
    ip.set_version(4);
    ip.set_header_len(wire::ipv4::LEN as u8);
    ip.set_dscp(header.tos >> 2);
    ip.set_ecn(header.tos & 3);
    ip.set_total_len(len);
    ip.set_ident(header.ident);
    ip.clear_flags();
    ip.set_dont_frag(header.dont_fragment);
    ip.set_hop_limit(TTL);
    ip.set_next_header(IpProtocol::from(header.protocol));
    ip.set_src_addr(src);
    ip.set_dst_addr(dst);
    ip.fill_checksum();
    bytes
}

/// An IPv6 packet.
pub(super) fn ipv6(src: Ipv6Addr, dst: Ipv6Addr, header: Header6, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; wire::ipv6::LEN];
    bytes.extend_from_slice(payload);
    let mut ip = Ipv6Packet::new_unchecked(&mut bytes);
    ip.set_version(6);
    ip.set_traffic_class(header.traffic_class);
    ip.set_payload_len(payload.len() as u16);
    ip.set_next_header(IpProtocol::from(header.next_header));
    ip.set_hop_limit(header.hop_limit);
    ip.set_src_addr(src);
    ip.set_dst_addr(dst);
    bytes
}

/// An ICMP message; `rest` is the second word of its header.
pub(super) fn icmp4(kind: u8, code: u8, rest: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = icmp(kind, code, rest, body);
    Icmpv4Packet::new_unchecked(&mut bytes).fill_checksum();
    bytes
}

/// An ICMPv6 message between two addresses; its checksum covers them.
pub(super) fn icmp6(
    (src, dst): (Ipv6Addr, Ipv6Addr),
    (kind, code): (u8, u8),
    rest: u32,
    body: &[u8],
) -> Vec<u8> {
    let mut bytes = icmp(kind, code, rest, body);
    Icmpv6Packet::new_unchecked(&mut bytes).fill_checksum(&src, &dst);
    bytes
}

fn icmp(kind: u8, code: u8, rest: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ICMP_LEN + body.len());
    bytes.extend_from_slice(&[kind, code, 0, 0]);
    bytes.extend_from_slice(&rest.to_be_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// The number that a reset carries (RFC 9293, 3.10.7.1).
#[derive(Clone, Copy, Debug)]
pub(super) enum Reset {
    /// The sequence number that was acknowledged.
    At(u32),
    /// No sequence number: the reset acknowledges up to this number.
    Acknowledges(u32),
}

/// A TCP reset between two addresses and two ports; its checksum covers them.
pub(super) fn reset((src, dst): (IpAddr, IpAddr), ports: (u16, u16), number: Reset) -> Vec<u8> {
    let mut bytes = vec![0; 20];
    let mut reset = TcpPacket::new_unchecked(&mut bytes);
    reset.set_src_port(ports.0);
    reset.set_dst_port(ports.1);
    reset.set_header_len(20);
    reset.set_rst(true);
    match number {
        Reset::At(number) => reset.set_seq_number(TcpSeqNumber(number as i32)),
        Reset::Acknowledges(number) => {
            reset.set_ack(true);
            reset.set_ack_number(TcpSeqNumber(number as i32));
        }
    }
    reset.fill_checksum(&src.into(), &dst.into());
    bytes
}

/// Decrements the TTL or hop limit.
pub(super) fn decrement_ttl(packet: &mut [u8]) {
    match packet.first().map(|byte| byte >> 4) {
        Some(4) if packet.len() >= wire::ipv4::LEN => {
            packet[8] = packet[8].saturating_sub(1);
            fill_checksum4(packet);
        }
        Some(6) if packet.len() >= wire::ipv6::LEN => packet[7] = packet[7].saturating_sub(1),
        _ => {}
    }
}

/// The TTL or hop limit.
pub(super) fn ttl(packet: &[u8]) -> u8 {
    let at = if packet.first().is_some_and(|byte| byte >> 4 == 4) { 8 } else { 7 };
    packet.get(at).copied().unwrap_or(0)
}

/// Writes the checksum of an IPv4 header, options included.
pub(super) fn fill_checksum4(packet: &mut [u8]) {
    if let Ok(mut ip) = Ipv4Packet::new_checked(packet) {
        ip.fill_checksum();
    }
}
