//! Answers to packets that a rule rejects: `nf_send_unreach` and `nf_send_reset`
//! (`net/ipv4/netfilter/nf_reject_ipv4.c`), `nf_send_unreach6` and `nf_send_reset6`
//! (`net/ipv6/netfilter/nf_reject_ipv6.c`).
//!
//! A packet gets no answer if its checksum is wrong or covers bytes that did not arrive. An ICMP
//! error has the limits and addresses of all of the host's errors ([`super::error`]). A reset is
//! not limited, and comes from the packet's destination address.
//!
//! On a port with a kernel behind it, the host answers too, because the kernel does not know the rule.

use std::net::IpAddr;

use super::build::{self, Header4, Reset};
use super::error::{Fault, Offender};
use super::local::Received;
use super::{Context, Host, Packet, take};
use crate::ip;
use crate::stages::filter::Reject;
use crate::verdict::{DropReason, PuntReason};
use crate::wire::tcp_flags::{ACK, FIN, RST, SYN};
use crate::wire::{checksum, l4};

const TCP_LEN: usize = 20;

impl Host {
    /// Handles a packet that a rule rejects, and answers its sender.
    pub fn reject(&mut self, context: &mut Context<'_>, packet: Packet, reject: Reject) {
        let frame = take(context, packet);
        let layer3 = frame.get(usize::from(packet.l3)..).unwrap_or_default();
        let Some(bytes) = ip::trim(layer3) else {
            context.counters.drop(DropReason::IpInhdr);
            return;
        };
        context.counters.punt(PuntReason::Reject);
        let to_group = frame.first().is_some_and(|byte| byte & 1 != 0);
        let offender = Offender { link: packet.link, packet: bytes, to_group };
        let valid =
            transport(bytes).zip(ip::endpoints(bytes)).and_then(|(transport, (src, dst))| {
                let (protocol, at) = transport;
                let payload = bytes.get(at..)?;
                let received = Received { offender, src, dst, protocol, payload, tos: 0 };
                has_right_checksum(received).then_some(received)
            });
        match (valid, reject) {
            (None, _) => self.counters.suppressed += 1,
            (Some(_), Reject::Unreachable(code)) => {
                self.report(context, offender, Fault::Rejected(code));
            }
            (Some(received), Reject::TcpReset) => self.reset_connection(context, received),
        }
    }

    /// Resets a connection on behalf of its destination.
    fn reset_connection(&mut self, context: &mut Context<'_>, received: Received<'_>) {
        let Received { offender, src, dst, protocol, payload, .. } = received;
        let header = payload.first_chunk::<TCP_LEN>().filter(|_| protocol == l4::TCP);
        let anonymous = src.is_unspecified() || src.is_loopback();
        let group = |address| self.addresses.is_group(context.tables, offender.link, address);
        let Some(tcp) = header
            .filter(|tcp| tcp[13] & RST == 0)
            .filter(|_| !(anonymous || offender.to_group || group(src) || group(dst)))
        else {
            self.counters.suppressed += 1;
            return;
        };
        let word = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
        let flags = tcp[13];
        let number = if flags & ACK != 0 {
            Reset::At(word(8))
        } else {
            // As the kernel, this does not check the header's own length field.
            let data = (payload.len() as u32).wrapping_sub(u32::from(tcp[12] >> 4) * 4);
            let controls = u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
            Reset::Acknowledges(word(4).wrapping_add(controls).wrapping_add(data))
        };
        let ports = (u16::from_be_bytes([tcp[2], tcp[3]]), u16::from_be_bytes([tcp[0], tcp[1]]));
        let bytes = build::reset((dst, src), ports, number);
        let header = Header4 { protocol: l4::TCP, tos: 0, ident: 0, dont_fragment: true };
        self.counters.resets_sent += 1;
        self.reply(context, received, dst, header, &bytes);
    }
}

/// The transport protocol and the offset of its header.
///
/// `None` for a fragment other than the first, and for headers that are cut off
/// (`ipv6_skip_exthdr`).
fn transport(packet: &[u8]) -> Option<(u8, usize)> {
    let first = packet.first()?;
    if first >> 4 == 4 {
        let &[high, low, _, protocol] = packet.get(6..)?.first_chunk()?;
        let is_later = u16::from_be_bytes([high, low]) & 0x1fff != 0;
        return (!is_later).then_some((protocol, usize::from(first & 15) * 4));
    }
    let (mut protocol, mut at) = (*packet.get(6)?, 40);
    loop {
        let (unit, more) = match protocol {
            l4::HOP_BY_HOP | l4::ROUTING | l4::DEST_OPTIONS => (8, 1),
            l4::AUTH => (4, 2),
            l4::FRAGMENT => (0, 0),
            l4::NO_NEXT_HEADER => return None,
            _ => return (at < packet.len()).then_some((protocol, at)),
        };
        let &[next, len] = packet.get(at..)?.first_chunk()?;
        if protocol == l4::FRAGMENT {
            let &[high, low] = packet.get(at + 2..)?.first_chunk()?;
            if u16::from_be_bytes([high, low]) & 0xfff8 != 0 {
                return None;
            }
            at += 8;
        } else {
            at += (usize::from(len) + more) * unit;
        }
        protocol = next;
    }
}

/// Whether a packet's checksum is right, or its protocol has none over the whole packet
/// (`nf_reject_verify_csum`, `nf_ip_checksum`, `nf_ip6_checksum`). Linux 6.16 and later do not know
/// DCCP, and expect a full checksum there.
fn has_right_checksum(received: Received<'_>) -> bool {
    let Received { src, dst, protocol, payload, .. } = received;
    let has_none = match protocol {
        // Their packets have no checksum of this kind to verify.
        l4::AUTH | l4::ESP | l4::SCTP | l4::UDP_LITE | l4::GRE => true,
        l4::UDP => matches!(payload, [_, _, _, _, _, _, 0, 0, ..]),
        _ => false,
    };
    if has_none {
        return true;
    }
    let length = payload.len() as u32;
    let before = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) if matches!(protocol, l4::TCP | l4::UDP) => {
            let end = [0, protocol, (length >> 8) as u8, length as u8];
            [&src.octets()[..], &dst.octets(), &end].concat()
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let end = [0, 0, 0, protocol];
            [&src.octets()[..], &dst.octets(), &length.to_be_bytes(), &end].concat()
        }
        _ => Vec::new(),
    };
    // For protocols without a pseudo-header, the kernel's sum includes the IPv4 header, so only zeros are
    // right.
    let is_empty = before.is_empty() && payload.iter().all(|byte| *byte == 0);
    is_empty || checksum::sum(&[&before[..], payload].concat()) == 0xffff
}
