//! ICMP errors: RFC 792, RFC 1122 (3.2.2), RFC 1812 (4.3), RFC 4443, as `icmp_send`
//! (`net/ipv4/icmp.c`) and `icmp6_send` (`net/ipv6/icmp.c`) build them.
//!
//! Limits: an IPv4 error does not echo the options of the offending packet. The host never sends
//! redirects (`send_redirects` 0).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::build::{self, Header4, Header6, ICMP_LEN};
use super::neigh::Waiting;
use super::translated::{restored, translate_own};
use super::{Context, Host};
use crate::id::LinkId;
use crate::ip::{self, extension};
use crate::wire::l4;

/// Largest IPv4 error, in bytes (RFC 1812, 4.3.2.3).
const MOST4: usize = 576;
/// Largest ICMPv6 error, in bytes: the least MTU of IPv6 (RFC 4443, 2.4 c).
const MOST6: usize = 1280;

/// ICMP types that never cause an error: errors and unassigned types (`icmp_pointers`).
const ERRORS4: u32 = 0x1efe;

/// What is wrong with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// TTL or hop limit ran out.
    TimeExceeded,
    /// No route.
    NoRoute,
    /// A firewall rule rejects it with this code.
    Rejected(u8),
    /// An `unreachable` route.
    Unreachable,
    /// A `prohibit` route.
    Prohibited,
    /// The last hop's neighbour does not answer.
    NeighFailed,
    /// No listener on the port.
    Port,
    /// Unknown protocol; the offset of the field that names it.
    Protocol(u32),
    /// Larger than this MTU.
    TooBig(u16),
    /// A source address that may not leave its link.
    BeyondScope,
    /// An IPv4 option is wrong at this offset.
    Option4(u8),
    /// An IPv6 option at this offset is unknown.
    Option6(u32),
}

impl Fault {
    /// Type, code and second word for IPv4 (`ip_error` in `net/ipv4/route.c` for routes).
    const fn v4(self) -> (u8, u8, u32) {
        match self {
            Self::TimeExceeded => (11, 0, 0),
            Self::NoRoute | Self::BeyondScope => (3, 0, 0),
            Self::Unreachable | Self::NeighFailed => (3, 1, 0),
            Self::Protocol(_) => (3, 2, 0),
            Self::Port => (3, 3, 0),
            Self::TooBig(mtu) => (3, 4, mtu as u32),
            Self::Prohibited => (3, 13, 0),
            Self::Rejected(code) => (3, code, 0),
            Self::Option4(at) => (12, 0, (at as u32) << 24),
            Self::Option6(_) => (12, 0, 0),
        }
    }

    /// Type, code and second word for IPv6. An `unreachable` route is reported as no route:
    /// `ip6_rt_init_dst_reject` (`net/ipv6/route.c`) uses `ip6_pkt_discard` for both.
    const fn v6(self) -> (u8, u8, u32) {
        match self {
            Self::NoRoute | Self::Unreachable => (1, 0, 0),
            Self::Prohibited => (1, 1, 0),
            Self::Rejected(code) => (1, code, 0),
            Self::BeyondScope => (1, 2, 0),
            Self::NeighFailed => (1, 3, 0),
            Self::Port => (1, 4, 0),
            // The host reports at least 1280, the least MTU of IPv6, even if the link's is smaller
            // (RFC 8201, 4).
            Self::TooBig(mtu) => (2, 0, if mtu < 1280 { 1280 } else { mtu as u32 }),
            Self::TimeExceeded => (3, 0, 0),
            Self::Protocol(at) => (4, 1, at),
            Self::Option6(at) => (4, 2, at),
            Self::Option4(at) => (4, 0, at as u32),
        }
    }
}

/// A packet that an error is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offender<'a> {
    pub(super) link: LinkId,
    /// The IP packet, without padding.
    pub(super) packet: &'a [u8],
    /// Whether it came in a group-addressed frame.
    pub(super) to_group: bool,
}

impl Host {
    /// Sends an ICMP error to a packet's sender, if the RFCs and the limits allow it.
    pub(super) fn report(
        &mut self,
        context: &mut Context<'_>,
        offender: Offender<'_>,
        fault: Fault,
    ) {
        match ip::endpoints(offender.packet) {
            Some((IpAddr::V4(src), IpAddr::V4(dst))) => {
                self.report4(context, offender, (src, dst), fault.v4());
            }
            Some((IpAddr::V6(src), IpAddr::V6(dst))) => {
                self.report6(context, offender, (src, dst), fault.v6());
            }
            _ => self.counters.malformed += 1,
        }
    }

    /// Sends an error to the sender of a packet whose neighbour did not answer.
    pub(super) fn neigh_unreachable(
        &mut self,
        context: &mut Context<'_>,
        link: LinkId,
        packet: &[u8],
    ) {
        let packet = &restored(context, packet)[..];
        self.report(context, Offender { link, packet, to_group: false }, Fault::NeighFailed);
    }

    fn report4(
        &mut self,
        context: &mut Context<'_>,
        offender: Offender<'_>,
        (src, dst): (Ipv4Addr, Ipv4Addr),
        (kind, code, rest): (u8, u8, u32),
    ) {
        let Offender { link, packet, to_group } = offender;
        let group =
            |address: Ipv4Addr| self.addresses.is_group(context.tables, link, address.into());
        let anonymous = src.is_unspecified() || src.is_loopback() || group(src);
        if to_group || anonymous || group(dst) || forbids_error4(packet) {
            self.counters.suppressed += 1;
            return;
        }
        let Some(egress_link) = self.egress_link(context.tables, link, src.into(), packet) else {
            return;
        };
        if !self.limiter.allow4(context.now_ns, src.into(), kind, code) {
            self.counters.rate_limited += 1;
            return;
        }
        let own = self.addresses.is_local(context.tables, link, dst.into()).then_some(dst);
        let from = own.or_else(|| {
            self.addresses.source4(context.tables, egress_link.link, egress_link.neigh)
        });
        let Some(from) = from else {
            self.counters.unroutable += 1;
            return;
        };
        let most = MOST4.min(usize::from(context.tables.link(egress_link.link).mtu)).max(68);
        let quoted = packet.len().min(most - 20 - ICMP_LEN);
        let message = build::icmp4(kind, code, rest, &packet[..quoted]);
        // Precedence "internetwork control" over the packet's own TOS (RFC 1812, 4.3.2.5).
        let tos = packet[1] & 0x1e | 0xc0;
        let ident = self.next_ident();
        let header = Header4 { protocol: l4::ICMP, tos, ident, dont_fragment: false };
        let mut error = build::ipv4(from, src, header, &message);
        self.counters.icmp4(kind);
        translate_own(context, &mut error);
        self.send_packet(context, egress_link, &error, Waiting::Made);
    }

    fn report6(
        &mut self,
        context: &mut Context<'_>,
        offender: Offender<'_>,
        (src, dst): (Ipv6Addr, Ipv6Addr),
        (kind, code, rest): (u8, u8, u32),
    ) {
        let Offender { link, packet, to_group } = offender;
        // For packets to groups, only path MTU and options of type 10 cause an error (RFC 4443, 2.4
        // e).
        let option_reports = packet.get(rest as usize).is_some_and(|kind| kind >> 6 == 2);
        let even_to_group = kind == 2 || ((kind, code) == (4, 2) && option_reports);
        let grouped = (to_group || dst.is_multicast()) && !even_to_group;
        let anonymous = src.is_unspecified() || src.is_multicast() || src.is_loopback();
        if grouped || anonymous || extension::is_icmp6_error(packet) {
            self.counters.suppressed += 1;
            return;
        }
        let Some(egress_link) = self.egress_link(context.tables, link, src.into(), packet) else {
            return;
        };
        if !self.limiter.allow6(context.now_ns, src.into(), kind) {
            self.counters.rate_limited += 1;
            return;
        }
        let own = self.addresses.is_local(context.tables, link, dst.into());
        let from =
            if own { dst } else { self.addresses.source6(context.tables, egress_link.link, src) };
        let quoted = packet.len().min(MOST6 - 40 - ICMP_LEN);
        let message = build::icmp6((from, src), (kind, code), rest, &packet[..quoted]);
        let header = Header6 { next_header: l4::ICMPV6, traffic_class: 0, hop_limit: build::TTL };
        let mut error = build::ipv6(from, src, header, &message);
        self.counters.icmp6(kind);
        translate_own(context, &mut error);
        self.send_packet(context, egress_link, &error, Waiting::Made);
    }

    /// The identification of the next packet that may be fragmented.
    pub(super) fn next_ident(&mut self) -> u16 {
        self.ident = self.ident.wrapping_add(1);
        self.ident
    }
}

/// Whether an IPv4 packet must not cause an error: a fragment other than the first, or ICMP that is
/// an error, unknown, or too short to decide.
fn forbids_error4(packet: &[u8]) -> bool {
    let Some(&[first, .., high, low, _, protocol]) = packet.first_chunk::<10>() else {
        return true;
    };
    if u16::from_be_bytes([high, low]) & 0x1fff != 0 {
        return true;
    }
    let kind = packet.get(usize::from(first & 0x0f) * 4);
    protocol == l4::ICMP && kind.is_none_or(|kind| *kind > 18 || ERRORS4 >> *kind & 1 != 0)
}
