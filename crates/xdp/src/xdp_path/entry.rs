//! Entries of the XDP path: a flow's key from its packet, and its action from its next hop.

use tollway_dataplane::burst::Burst;
use tollway_dataplane::frame::Umem;
use tollway_dataplane::id::LinkId;
use tollway_dataplane::next_hops::{HEADER_ROOM, Record};
use tollway_dataplane::stages::filter::FlowKey;
use tollway_dataplane::verdict::DropReason;
use tollway_dataplane::wire::ipv4::{self, Ipv4View, VERSION_IHL_PLAIN};
use tollway_dataplane::wire::ipv6::{self, Ipv6View};
use tollway_dataplane::wire::{eth, l4, vlan, word32, word64};

use crate::flows::{Flow, Flow4Key, Flow6Key, TO_KERNEL};
use crate::regions::{region4, region6};

/// Bytes of the longest Ethernet header that the XDP path accepts on arrival: one tag.
const MOST_L2: u8 = (eth::LEN + vlan::LEN) as u8;

/// Bytes of the source and destination port together.
const PORTS: usize = 4;

/// A flow's key as words in memory order. Equal words mean the same flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlowWords {
    /// Source and destination; the rest of the key.
    V4(u64, u64),
    /// Source and destination; the rest of the key.
    V6([u64; 4], u64),
}

impl FlowWords {
    /// The flow of a forwarded, punted or dropped packet, if its kind may enter the XDP path. `l2_len` is
    /// the length of its Ethernet header; for a forwarded packet, of the new one.
    #[inline(always)]
    pub(super) fn of(burst: &Burst, umem: &Umem, lane: usize, l2_len: u8) -> Option<Self> {
        if burst.l3[lane] > MOST_L2 {
            return None;
        }
        let (addr, l3) = (burst.addr[lane], usize::from(l2_len));
        // The path has already trimmed the bytes after the packet.
        let len = usize::from(burst.len[lane]).wrapping_sub(l3);
        let link = burst.link[lane];
        // Enough to include the ports; a shorter packet's excess bytes are not used.
        let header = umem.bytes::<{ ipv4::LEN + PORTS }>(addr, l3);
        if header[0] == VERSION_IHL_PLAIN {
            let ip = Ipv4View(header.first_chunk()?);
            // Only the first fragment has ports.
            if ip.is_fragment() {
                return None;
            }
            let ports = match ip.protocol() {
                l4::TCP | l4::UDP if len >= ipv4::LEN + PORTS => word32(header, ipv4::LEN),
                l4::ICMP => 0,
                _ => return None,
            };
            return Some(Self::V4(word64(header, 12), rest(ports, ip.protocol(), link)));
        }
        if header[0] >> 4 != 6 {
            return None;
        }
        let header = umem.bytes::<{ ipv6::LEN + PORTS }>(addr, l3);
        // Extension headers, including that of fragments, count as other protocols.
        let protocol = Ipv6View(header.first_chunk()?).next_header();
        let ports = match protocol {
            l4::TCP | l4::UDP if len >= ipv6::LEN + PORTS => word32(header, ipv6::LEN),
            l4::ICMPV6 => 0,
            _ => return None,
        };
        let addresses = [8, 16, 24, 32].map(|at| word64(header, at));
        Some(Self::V6(addresses, rest(ports, protocol, link)))
    }

    /// The regions of source and destination.
    #[inline(always)]
    pub(super) const fn regions(self) -> [u32; 2] {
        // The first bytes on the wire are in the lowest bits.
        match self {
            Self::V4(addresses, _) => {
                let [src, dst] = [addresses as u16, (addresses >> 32) as u16];
                [region4(src.swap_bytes()), region4(dst.swap_bytes())]
            }
            Self::V6([src, _, dst, _], _) => {
                [region6((src as u32).swap_bytes()), region6((dst as u32).swap_bytes())]
            }
        }
    }

    /// The flow as the firewall's rules see it, with its egress link, if that is known.
    pub(super) fn for_rules(self, output: Option<LinkId>) -> FlowKey {
        let (version, source, destination, (sport, dport, protocol, link)) = match self {
            Self::V4(addresses, rest) => {
                let [source, destination] = halves(addresses.to_le_bytes());
                let number = |bytes| u32::from_be_bytes(bytes).into();
                (4, number(source), number(destination), parts(rest))
            }
            Self::V6([a, b, c, d], rest) => {
                let number = |low, high| (u128::from(low) | u128::from(high) << 64).swap_bytes();
                (6, number(a, b), number(c, d), parts(rest))
            }
        };
        let ports = matches!(protocol, l4::TCP | l4::UDP);
        let ports = ports.then(|| (u16::from_be_bytes(sport), u16::from_be_bytes(dport)));
        let input = LinkId(link);
        let connection = None;
        FlowKey { version, source, destination, protocol, ports, input, output, connection }
    }

    /// The flow's key as the XDP program looks it up.
    pub(super) fn key(self) -> Key {
        match self {
            Self::V4(addresses, rest) => {
                let [src_be, dst_be] = halves(addresses.to_le_bytes());
                let (sport_be, dport_be, protocol, link) = parts(rest);
                Key::V4(Flow4Key { src_be, dst_be, sport_be, dport_be, protocol, link })
            }
            Self::V6([a, b, c, d], rest) => {
                let src_be = (u128::from(a) | u128::from(b) << 64).to_le_bytes();
                let dst_be = (u128::from(c) | u128::from(d) << 64).to_le_bytes();
                let (sport_be, dport_be, protocol, link) = parts(rest);
                Key::V6(Flow6Key { src_be, dst_be, sport_be, dport_be, protocol, link })
            }
        }
    }
}

/// The flow label of a packet, if its next hop depends on it.
pub(super) fn label(burst: &Burst, umem: &Umem, lane: usize, l2_len: u8) -> Option<u32> {
    let counts = burst.labelled.has(lane);
    let header = || umem.bytes::<4>(burst.addr[lane], usize::from(l2_len));
    counts.then(|| u32::from_be_bytes(*header()) & 0xf_ffff)
}

/// A flow's key, of either family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    V4(Flow4Key),
    V6(Flow6Key),
}

/// The key without the addresses: ports as read little-endian, protocol, link.
#[inline(always)]
const fn rest(ports: u32, protocol: u8, link: LinkId) -> u64 {
    ports as u64 | (protocol as u64) << 32 | (link.0 as u64) << 48
}

fn parts(rest: u64) -> ([u8; 2], [u8; 2], u8, u16) {
    let [sport, dport] = [rest, rest >> 16].map(|word| (word as u16).to_le_bytes());
    (sport, dport, (rest >> 32) as u8, (rest >> 48) as u16)
}

fn halves([a, b, c, d, e, f, g, h]: [u8; 8]) -> [[u8; 4]; 2] {
    [[a, b, c, d], [e, f, g, h]]
}

/// A flow whose packets take the kernel path.
pub(super) fn to_kernel((generation, by_source): (u32, bool)) -> Flow {
    Flow {
        generation,
        by_source,
        mtu: u16::MAX,
        egress_port: TO_KERNEL,
        l2_len: eth::LEN as u8,
        ..Flow::default()
    }
}

/// A flow whose packets are dropped, without a tally: the reason, and whether its tally counts whole
/// frames.
pub(super) fn dropped(
    (reason, counts_frames): (DropReason, bool),
    (generation, by_source): (u32, bool),
    label: Option<u32>,
) -> Flow {
    Flow { generation, by_source, label, ..Flow::dropping(reason, counts_frames) }
}

/// The entry that repeats what the path has just done with this next hop. `None` if the XDP program
/// has no port of that number.
pub(super) fn flow(
    record: &Record,
    (generation, by_source): (u32, bool),
    label: Option<u32>,
) -> Option<Flow> {
    let mut room = [0; HEADER_ROOM];
    for (bytes, word) in room.as_chunks_mut().0.iter_mut().zip(record.header()) {
        *bytes = word.to_ne_bytes();
    }
    let l2_len = record.header_len();
    // The header lies at the end of its room.
    let header = &room[HEADER_ROOM.saturating_sub(usize::from(l2_len))..];
    let mut flow = Flow {
        generation,
        by_source,
        label,
        mtu: record.mtu(),
        egress_port: u8::try_from(record.port().0).ok().filter(|port| *port < TO_KERNEL)?,
        l2_len,
        ..Flow::default()
    };
    flow.l2.get_mut(..header.len())?.copy_from_slice(header);
    Some(flow)
}
