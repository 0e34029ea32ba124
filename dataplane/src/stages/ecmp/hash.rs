//! What tells flows apart.

#[cfg(test)]
mod tests;

use super::MAX_EXTENSIONS;
use crate::tables::Tables;
use crate::wire::ipv4::{self, Ipv4View};
use crate::wire::ipv6::{self, Ipv6View};
use crate::wire::l4;

/// What tells flows apart that are spread over a group (`fib_multipath_hash_policy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Hash {
    /// Addresses (0); of an ICMP error those of the packet that it is about, the other way round than that
    /// went, so that it takes the way of the flow that it belongs to. With IPv6 the protocol, too.
    L3,
    /// Addresses, protocol and ports (1).
    #[default]
    L4,
}

/// The same for both families.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Multipath {
    pub(crate) v4: Hash,
    pub(crate) v6: Hash,
}

impl Tables {
    /// Says what tells flows apart that are spread over groups; both are [`Hash::L4`] at first.
    pub fn set_multipath(&mut self, v4: Hash, v6: Hash) {
        self.multipath = Multipath { v4, v6 };
        self.epochs.changes.note();
    }
}

/// A number that all packets of a flow share: of addresses, protocol and, but for fragments, ports.
pub(super) fn flow_hash(packet: &[u8]) -> u32 {
    match packet.first().map(|byte| byte >> 4) {
        Some(4) => packet.first_chunk().map_or(0, |header| hash4(Ipv4View(header), packet)),
        Some(6) => packet.first_chunk().map_or(0, |header| hash6(Ipv6View(header), packet)),
        _ => 0,
    }
}

fn hash4(ip: Ipv4View<'_>, packet: &[u8]) -> u32 {
    let ports = if ip.is_fragment() { 0 } else { ports(packet, ip.header_len(), ip.protocol()) };
    let addresses = u64::from(ip.src()) << 32 | u64::from(ip.dst());
    finish(mix(mix(SEED, addresses), u64::from(ports) << 8 | u64::from(ip.protocol())))
}

fn hash6(ip: Ipv6View<'_>, packet: &[u8]) -> u32 {
    let (protocol, ports) = transport6(ip, packet);
    finish(mix(mix6([ip.src(), ip.dst()]), u64::from(ports) << 8 | u64::from(protocol)))
}

fn mix6(addresses: [u128; 2]) -> u64 {
    addresses
        .iter()
        .fold(SEED, |hash, address| mix(mix(hash, (address >> 64) as u64), *address as u64))
}

/// A number that all packets from one address to another share, with IPv6 of one protocol
/// (`ip_multipath_l3_keys`, `ip6_multipath_l3_keys`); and if this one is an ICMP error, whose number hangs on
/// more than its own addresses.
///
/// The kernel takes IPv6's flow label as well. A flow's packets have one label at a time, and only the kernel
/// that knows its own random key could say which member it would choose.
pub(super) fn l3_hash(packet: &[u8]) -> (u32, bool) {
    // The packet that an error is about went the other way.
    let (packet, is_back) = cause(packet).map_or((packet, false), |cause| (cause, true));
    let hash = match packet.first().map(|byte| byte >> 4) {
        Some(4) => packet.first_chunk().map_or(0, |header| {
            let ip = Ipv4View(header);
            let addresses = u64::from(ip.src()) << 32 | u64::from(ip.dst());
            finish(mix(SEED, if is_back { addresses.rotate_left(32) } else { addresses }))
        }),
        Some(6) => packet.first_chunk().map_or(0, |header| {
            let ip = Ipv6View(header);
            let (from, to) = if is_back { (ip.dst(), ip.src()) } else { (ip.src(), ip.dst()) };
            finish(mix(mix6([from, to]), u64::from(ip.next_header())))
        }),
        _ => 0,
    };
    (hash, is_back)
}

/// The packet that an ICMP error is about, if it is one that has it (`icmp_is_err`, `icmpv6_is_err`).
fn cause(packet: &[u8]) -> Option<&[u8]> {
    let first = packet.first()?;
    if first >> 4 == 6 {
        let ip = Ipv6View(packet.first_chunk()?);
        let message = packet.get(ipv6::LEN..).filter(|_| ip.next_header() == l4::ICMPV6)?;
        return message.get(8..).filter(|inner| message[0] < 128 && inner.len() >= ipv6::LEN);
    }
    let ip = Ipv4View(packet.first_chunk()?);
    if ip.protocol() != l4::ICMP || ip.is_later_fragment() {
        return None;
    }
    let message = packet.get(ip.header_len()..)?;
    let is_error = matches!(message.first()?, 3 | 4 | 5 | 11 | 12);
    message.get(8..).filter(|inner| is_error && inner.len() >= ipv4::LEN)
}

/// The transport protocol behind any extension headers, and its ports.
fn transport6(ip: Ipv6View<'_>, packet: &[u8]) -> (u8, u32) {
    let (mut next, mut at) = (ip.next_header(), ipv6::LEN);
    for _ in 0..MAX_EXTENSIONS {
        let Some(&[following, len]) = packet.get(at..).and_then(<[u8]>::first_chunk) else {
            return (next, 0);
        };
        at += match next {
            l4::HOP_BY_HOP | l4::ROUTING | l4::DEST_OPTIONS => (usize::from(len) + 1) * 8,
            l4::AUTH => (usize::from(len) + 2) * 4,
            l4::FRAGMENT => return (following, 0),
            _ => return (next, ports(packet, at, next)),
        };
        next = following;
    }
    (next, 0)
}

fn ports(packet: &[u8], at: usize, protocol: u8) -> u32 {
    let ports = packet.get(at..).and_then(<[u8]>::first_chunk);
    match ports {
        Some(bytes) if l4::has_ports(protocol) => u32::from_be_bytes(*bytes),
        _ => 0,
    }
}

/// Any odd number does; this one is 2^64 divided by the golden ratio.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// One round of a multiply-and-fold hash: both halves of the product, so that every bit counts.
#[inline(always)]
const fn mix(hash: u64, word: u64) -> u64 {
    let product = (hash ^ word) as u128 * 0xd6e8_feb8_6659_fd93_u128;
    (product as u64 ^ (product >> 64) as u64).wrapping_add(SEED)
}

const fn finish(hash: u64) -> u32 {
    (hash >> 32) as u32 ^ hash as u32
}
