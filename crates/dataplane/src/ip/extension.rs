//! IPv6 extension headers: RFC 8200, 4. `ip6_parse_tlv` (`net/ipv6/exthdrs.c`) reads options this
//! way, and `is_ineligible` (`net/ipv6/icmp.c`) looks past the headers.
//!
//! Unlike in IPv4, fragments other than the first may cause errors (RFC 4443, 2.4 e).
//!
//! Limits: jumbograms (RFC 2675) are dropped. Options that Linux supports only if built or
//! configured for them (CALIPSO, IOAM) are unknown, as in Linux by default.

use std::net::IpAddr;

use super::endpoints;
use crate::verdict::DropReason;
use crate::wire::{ipv6, l4};

/// The maximum number of headers that the host walks in a packet.
const MOST_HEADERS: usize = 8;
/// `max_hbh_opts_number`: options not counting padding.
const MOST_OPTIONS: usize = 8;
/// Consecutive bytes of padding: enough to align the next option to a multiple of 8.
const MOST_PADDING: usize = 7;

const PAD1: u8 = 0;
const PADN: u8 = 1;
const ROUTER_ALERT: u8 = 5;
const JUMBO: u8 = 0xc2;

/// Why the host does not forward or deliver a packet with options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExtensionFault {
    /// It is dropped.
    Drop(DropReason),
    /// Its sender gets an ICMPv6 Parameter Problem: the option at this offset is unknown.
    ParameterProblem(u32),
}

/// Checks the options of the header at `at`; returns the offset of the next header.
pub(crate) fn options(packet: &[u8], at: usize) -> Result<usize, ExtensionFault> {
    const MALFORMED: ExtensionFault = ExtensionFault::Drop(DropReason::IpInhdr);
    let len = packet.get(at + 1).ok_or(MALFORMED)?;
    let end = at + (usize::from(*len) + 1) * 8;
    if end > packet.len() {
        return Err(MALFORMED);
    }
    let (mut here, mut padding, mut count) = (at + 2, 0, 0);
    while here < end {
        let kind = packet[here];
        if kind == PAD1 {
            (here, padding) = (here + 1, padding + 1);
        } else {
            let len = packet.get(here + 1).map(|len| usize::from(*len)).ok_or(MALFORMED)?;
            let behind = here + 2 + len;
            if behind > end {
                return Err(MALFORMED);
            }
            let data = &packet[here + 2..behind];
            if kind == PADN {
                padding += 2 + len;
                if data.iter().any(|byte| *byte != 0) {
                    return Err(MALFORMED);
                }
            } else {
                (padding, count) = (0, count + 1);
                if count > MOST_OPTIONS {
                    return Err(MALFORMED);
                }
                check_option(packet, here, kind, data)?;
            }
            here = behind;
        }
        if padding > MOST_PADDING {
            return Err(MALFORMED);
        }
    }
    Ok(end)
}

/// Whether an option lets the packet go on (RFC 8200, 4.2).
fn check_option(packet: &[u8], at: usize, kind: u8, data: &[u8]) -> Result<(), ExtensionFault> {
    let to_group = matches!(endpoints(packet), Some((_, IpAddr::V6(dst))) if dst.is_multicast());
    match (kind, kind >> 6) {
        (ROUTER_ALERT, _) if data.len() == 2 => Ok(()),
        (ROUTER_ALERT | JUMBO, _) => Err(ExtensionFault::Drop(DropReason::IpInhdr)),
        (_, 0) => Ok(()),
        (_, 1) => Err(ExtensionFault::Drop(DropReason::UnhandledProto)),
        (_, 3) if to_group => Err(ExtensionFault::Drop(DropReason::UnhandledProto)),
        _ => Err(ExtensionFault::ParameterProblem(at as u32)),
    }
}

/// What follows a packet's extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Upper {
    pub(crate) protocol: u8,
    /// Its offset.
    pub(crate) at: usize,
    /// The offset of the field that names the protocol.
    pub(crate) named_at: usize,
}

/// What a packet for the router itself carries.
///
/// `None` if the packet carries nothing, is a fragment, or has a routing header to follow
/// (`accept_source_route` 0).
pub(crate) fn upper(packet: &[u8]) -> Result<Option<Upper>, ExtensionFault> {
    let (mut at, mut named_at) = (ipv6::LEN, 6);
    for position in 0..=MOST_HEADERS {
        let Some(&protocol) = packet.get(named_at) else { return Ok(None) };
        let next = match protocol {
            // Only the first header can be a hop-by-hop header; elsewhere Linux does not know it.
            l4::HOP_BY_HOP if position == 0 => options(packet, at)?,
            l4::DEST_OPTIONS => options(packet, at)?,
            l4::ROUTING => match packet.get(at..at + 4) {
                Some(&[_, len, _, 0]) => at + (usize::from(len) + 1) * 8,
                _ => return Ok(None),
            },
            l4::FRAGMENT | l4::NO_NEXT_HEADER => return Ok(None),
            _ => return Ok(Some(Upper { protocol, at, named_at })),
        };
        (named_at, at) = (at, next);
    }
    Ok(None)
}

/// Whether a packet is a fragment.
pub(crate) fn is_fragment(packet: &[u8]) -> bool {
    skip(packet).is_some_and(|(protocol, _)| protocol == l4::FRAGMENT)
}

/// Whether a packet is an ICMPv6 error, or may be one: an error never causes an error.
pub(crate) fn is_icmp6_error(packet: &[u8]) -> bool {
    let mut place = skip(packet);
    let mut is_fragment = false;
    while let Some((l4::FRAGMENT, at)) = place {
        let Some(&[next, _, high, low]) = packet.get(at..).and_then(<[u8]>::first_chunk) else {
            return false;
        };
        let offset = u16::from_be_bytes([high, low]);
        // A fragment other than the first does not show its ICMP type.
        if offset & 0xfff8 != 0 {
            return false;
        }
        is_fragment = offset != 0;
        place = skip_from(packet, next, at + 8);
    }
    let Some((protocol, at)) = place else { return false };
    protocol == l4::ICMPV6 && packet.get(at).map_or(!is_fragment, |kind| kind & 0x80 == 0)
}

/// The first header that is not options, routing or authentication, and its offset.
fn skip(packet: &[u8]) -> Option<(u8, usize)> {
    skip_from(packet, *packet.get(6)?, ipv6::LEN)
}

/// The same, starting at a given header.
fn skip_from(packet: &[u8], mut protocol: u8, mut at: usize) -> Option<(u8, usize)> {
    for _ in 0..MOST_HEADERS {
        let unit = match protocol {
            l4::HOP_BY_HOP | l4::ROUTING | l4::DEST_OPTIONS => (1, 8),
            l4::AUTH => (2, 4),
            _ => break,
        };
        let [next, len] = *packet.get(at..)?.first_chunk()?;
        (protocol, at) = (next, at + (usize::from(len) + unit.0) * unit.1);
    }
    Some((protocol, at))
}
