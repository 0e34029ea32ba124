use super::MAX_EXTENSIONS;
use crate::burst::{Burst, Lanes};
use crate::frame::Umem;
use crate::id::NextHopId;
use crate::tables::Tables;
use crate::wire::ipv4::Ipv4View;
use crate::wire::ipv6::{self, Ipv6View};
use crate::wire::l4;

/// Replaces groups by the member that each packet's flow has.
pub fn run(burst: &mut Burst, umem: &Umem, tables: &Tables, lanes: Lanes) {
    let next_hops = tables.next_hops.view();
    for lane in lanes {
        if let Some(group) = burst.next[lane].group() {
            let frame = umem.frame(burst.addr[lane], usize::from(burst.len[lane]));
            let packet = frame.get(usize::from(burst.l3[lane])..).unwrap_or_default();
            burst.next[lane] = next_hops.in_force(select(tables, group, flow_hash(packet)));
        }
    }
}

/// The member of group `next` for a flow's hash; a group that is not there has no route.
#[inline(always)]
pub(crate) fn select(tables: &Tables, next: NextHopId, hash: u32) -> NextHopId {
    tables.groups.select(next.0 & (NextHopId::GROUP - 1), hash)
}

/// A number that all packets of a flow share: of addresses, protocol and, but for fragments, ports.
pub(crate) fn flow_hash(packet: &[u8]) -> u32 {
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
    let mut hash = SEED;
    for address in [ip.src(), ip.dst()] {
        hash = mix(mix(hash, (address >> 64) as u64), address as u64);
    }
    finish(mix(hash, u64::from(ports) << 8 | u64::from(protocol)))
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
