//! Where a packet has what a translation changes.

use super::{MOST_CHANGED, ipv4, l4};
use crate::wire::be16;
use crate::wire::ipv6;

/// Where a packet has its parts. All that it names lies in the packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) version: u8,
    pub(super) protocol: u8,
    pub(super) transport: Transport,
    /// Bytes before the transport header.
    transport_at: usize,
    /// Bytes of the packet.
    pub(super) end: usize,
}

/// What of a transport header changes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Transport {
    /// Nothing.
    None,
    /// Ports and a checksum, which a quoted packet may lack.
    Ports { at: usize, sum_at: Option<usize> },
    /// ICMP and ICMPv6.
    Icmp { at: usize, sum_at: usize, is_query: bool, has_pseudo_header: bool },
}

/// Bytes of a transport header that a quoted packet has at least (RFC 792).
const LEAST_QUOTED: usize = 8;

impl Layout {
    /// That of a packet; none if what would change is cut off.
    pub(super) fn whole(packet: &[u8]) -> Option<Self> {
        let end = end(packet)?;
        Self::of(packet.get(..end)?, packet.first()? >> 4, false)
    }

    /// That of a packet that an error of this version of IP quotes, which may end early. As in the kernel, it does not matter
    /// what version the packet itself says.
    pub(super) fn quoted(packet: &[u8], version: u8) -> Option<Self> {
        Self::of(packet, version, true)
    }

    fn of(packet: &[u8], version: u8, is_quoted: bool) -> Option<Self> {
        let (version, found) = match version {
            4 => (4, transport4(packet)?),
            6 => (6, transport6(packet)?),
            _ => return None,
        };
        let none = Self {
            version,
            protocol: l4::NO_NEXT_HEADER,
            transport: Transport::None,
            transport_at: packet.len(),
            end: packet.len(),
        };
        let Some((protocol, at)) = found else { return Some(none) };
        let transport = Transport::of(packet, version, protocol, at, is_quoted)?;
        Some(Self { protocol, transport, transport_at: at, ..none })
    }

    /// Where source and destination address are, and their bytes.
    pub(super) const fn addresses(self) -> (usize, usize, usize) {
        match self.version {
            4 => (12, 16, 4),
            _ => (8, 24, 16),
        }
    }

    /// The number of bytes, from the first one on, that hold all that changes.
    pub(super) const fn changed_len(self) -> usize {
        self.transport_at.saturating_add(MOST_CHANGED)
    }
}

impl Transport {
    fn of(packet: &[u8], version: u8, protocol: u8, at: usize, is_quoted: bool) -> Option<Self> {
        let len = packet.len().checked_sub(at)?;
        let (sum_at, least) = match protocol {
            l4::TCP => (16, 20),
            l4::UDP | l4::UDP_LITE => (6, 8),
            l4::DCCP => (6, 12),
            l4::ICMP | l4::ICMPV6 if (protocol == l4::ICMP) == (version == 4) => (2, 8),
            _ => return Some(Self::None),
        };
        if len < if is_quoted { LEAST_QUOTED } else { least } {
            return None;
        }
        Some(match protocol {
            l4::ICMP | l4::ICMPV6 => Self::Icmp {
                at,
                sum_at: at + sum_at,
                is_query: is_query(version, packet[at]),
                has_pseudo_header: version == 6,
            },
            // A checksum in a header that is cut off stays, as in the kernel.
            _ => Self::Ports { at, sum_at: (len >= least).then_some(at + sum_at) },
        })
    }
}

/// Says whether ICMP of this type has an identifier, as connection tracking has it; of ICMPv6, echo.
const fn is_query(version: u8, kind: u8) -> bool {
    match version {
        4 => matches!(kind, 0 | 8 | 13..=18),
        _ => matches!(kind, 128 | 129),
    }
}

/// Bytes of the packet by its header.
fn end(packet: &[u8]) -> Option<usize> {
    match packet.first()? >> 4 {
        4 => Some(be16(packet.first_chunk::<{ ipv4::LEN }>()?, 2).into()),
        _ => Some(ipv6::LEN + usize::from(be16(packet.first_chunk::<{ ipv6::LEN }>()?, 4))),
    }
}

/// The transport protocol, and bytes before its header; nothing inside in later fragments.
fn transport4(packet: &[u8]) -> Option<Option<(u8, usize)>> {
    let header = ipv4::Ipv4View(packet.first_chunk()?);
    let at = header.header_len();
    if at < ipv4::LEN || packet.len() < at {
        return None;
    }
    Some((!header.is_later_fragment()).then_some((header.protocol(), at)))
}

/// The same by the walk of `ipv6_skip_exthdr` (`net/ipv6/exthdrs_core.c`).
fn transport6(packet: &[u8]) -> Option<Option<(u8, usize)>> {
    let header = ipv6::Ipv6View(packet.first_chunk()?);
    let (mut protocol, mut at) = (header.next_header(), ipv6::LEN);
    while l4::is_extension(protocol) {
        let &[next, len] = packet.get(at..)?.first_chunk()?;
        at += match protocol {
            l4::FRAGMENT => {
                let header = packet.get(at..)?.first_chunk::<8>()?;
                if be16(header, 2) & !7 != 0 {
                    return Some(None);
                }
                8
            }
            l4::AUTH => (usize::from(len) + 2) * 4,
            _ => (usize::from(len) + 1) * 8,
        };
        protocol = next;
    }
    Some((protocol != l4::NO_NEXT_HEADER).then_some((protocol, at)))
}
