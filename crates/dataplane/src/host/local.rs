//! Packets for the router itself: echo (RFC 792, RFC 4443; `icmp_echo` in `net/ipv4/icmp.c`,
//! `icmpv6_echo_reply` in `net/ipv6/icmp.c`), and the answers of a host without listeners
//! (`__udp4_lib_rcv`, `tcp_v4_send_reset`, `ip_protocol_deliver_rcu`).
//!
//! Limits: the host reassembles no fragments. It does not answer timestamp requests, as it has no
//! time of day. A reply does not carry the request's options. An IPv6 reply that exceeds its link's
//! MTU is not sent.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::wire::{Icmpv4Packet, Icmpv6Packet, IpAddress, TcpPacket, UdpPacket};

use super::build::{self, Header4, Header6, Reset};
use super::error::{Fault, Offender};
use super::nd;
use super::neigh::Waiting;
use super::translated::translate_own;
use super::{Context, Host};
use crate::ip;
use crate::ip::extension::{self, ExtensionFault};
use crate::wire::l4;

const ECHO4: u8 = 8;
const ECHO_REPLY4: u8 = 0;
const ECHO6: u8 = 128;
const ECHO_REPLY6: u8 = 129;
const IGMP: u8 = 2;

/// A received packet: its endpoints and its payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received<'a> {
    pub(super) offender: Offender<'a>,
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    pub(super) protocol: u8,
    /// The bytes after all IP headers.
    pub(super) payload: &'a [u8],
    /// TOS or traffic class.
    pub(super) tos: u8,
}

impl Host {
    /// Handles a delivered IP packet, which is sound and has no padding.
    pub(super) fn receive(&mut self, context: &mut Context<'_>, offender: Offender<'_>) {
        match ip::endpoints(offender.packet) {
            Some((IpAddr::V4(src), IpAddr::V4(dst))) => {
                self.receive4(context, offender, src, dst);
            }
            Some((IpAddr::V6(src), IpAddr::V6(dst))) => {
                self.receive6(context, offender, src, dst);
            }
            _ => self.counters.malformed += 1,
        }
    }

    /// Whether a packet with this source can come from another station.
    fn is_from_elsewhere(
        &self,
        context: &Context<'_>,
        offender: Offender<'_>,
        src: IpAddr,
    ) -> bool {
        let addresses = &self.addresses;
        let own = addresses.is_local(context.tables, offender.link, src);
        !src.is_loopback() && !own && !addresses.is_group(context.tables, offender.link, src)
    }

    fn receive4(
        &mut self,
        context: &mut Context<'_>,
        offender: Offender<'_>,
        src: Ipv4Addr,
        dst: Ipv4Addr,
    ) {
        let packet = offender.packet;
        // Also suppresses replies to groups: Linux ignores echo requests to those by default.
        let ours = self.addresses.is_local(context.tables, offender.link, dst.into());
        if !ours || src.is_unspecified() || !self.is_from_elsewhere(context, offender, src.into()) {
            self.counters.ignored += 1;
            return;
        }
        if u16::from_be_bytes([packet[6], packet[7]]) & 0x3fff != 0 {
            self.counters.fragments_ignored += 1;
            return;
        }
        let header_len = usize::from(packet[0] & 0x0f) * 4;
        let received = Received {
            offender,
            src: src.into(),
            dst: dst.into(),
            protocol: packet[9],
            payload: &packet[header_len..],
            tos: packet[1],
        };
        match received.protocol {
            l4::ICMP => self.take_icmp4(context, received),
            IGMP => self.counters.ignored += 1,
            _ => self.take_transport(context, received, 9),
        }
    }

    fn receive6(
        &mut self,
        context: &mut Context<'_>,
        offender: Offender<'_>,
        src: Ipv6Addr,
        dst: Ipv6Addr,
    ) {
        let packet = offender.packet;
        let ours = self.addresses.is_local(context.tables, offender.link, dst.into());
        let from_elsewhere = self.is_from_elsewhere(context, offender, src.into());
        if !from_elsewhere || !(ours || dst.is_multicast()) {
            self.counters.ignored += 1;
            return;
        }
        let upper = match extension::upper(packet) {
            Ok(Some(upper)) => upper,
            Ok(None) if extension::is_fragment(packet) => {
                self.counters.fragments_ignored += 1;
                return;
            }
            Ok(None) => {
                self.counters.ignored += 1;
                return;
            }
            Err(ExtensionFault::Drop(_)) => {
                self.counters.malformed += 1;
                return;
            }
            Err(ExtensionFault::ParameterProblem(at)) => {
                self.report(context, offender, Fault::Option6(at));
                return;
            }
        };
        let received = Received {
            offender,
            src: src.into(),
            dst: dst.into(),
            protocol: upper.protocol,
            payload: packet.get(upper.at..).unwrap_or_default(),
            tos: packet[0] << 4 | packet[1] >> 4,
        };
        match upper.protocol {
            l4::ICMPV6 => self.take_icmp6(context, received, (src, dst)),
            _ if dst.is_multicast() => self.counters.ignored += 1,
            _ => self.take_transport(context, received, upper.named_at as u32),
        }
    }

    fn take_icmp4(&mut self, context: &mut Context<'_>, received: Received<'_>) {
        let sound = Icmpv4Packet::new_checked(received.payload).is_ok_and(|m| m.verify_checksum());
        let [ECHO4, _, _, _, a, b, c, d, data @ ..] = received.payload else {
            self.counters.ignored += 1;
            return;
        };
        if !sound {
            self.counters.malformed += 1;
            return;
        }
        let rest = u32::from_be_bytes([*a, *b, *c, *d]);
        let reply = build::icmp4(ECHO_REPLY4, 0, rest, data);
        let (tos, ident) = (received.tos, self.next_ident());
        let header = Header4 { protocol: l4::ICMP, tos, ident, dont_fragment: false };
        self.counters.echo_answered += 1;
        self.counters.icmp4(ECHO_REPLY4);
        self.reply(context, received, received.dst, header, &reply);
    }

    fn take_icmp6(
        &mut self,
        context: &mut Context<'_>,
        received: Received<'_>,
        (src, dst): (Ipv6Addr, Ipv6Addr),
    ) {
        let message = received.payload;
        let link = received.offender.link;
        let sound = Icmpv6Packet::new_checked(message).is_ok_and(|m| m.verify_checksum(&src, &dst));
        if !sound {
            self.counters.malformed += 1;
            return;
        }
        match message {
            [nd::ROUTER_SOLICIT..=nd::REDIRECT, ..] => {
                let hop_limit = received.offender.packet[7];
                self.take_nd(context, nd::Received { link, src, dst, hop_limit, message });
            }
            [ECHO6, _, _, _, a, b, c, d, data @ ..] if !src.is_unspecified() => {
                let from = if dst.is_multicast() {
                    self.addresses.source6(context.tables, link, src)
                } else {
                    dst
                };
                let rest = u32::from_be_bytes([*a, *b, *c, *d]);
                let reply = build::icmp6((from, src), (ECHO_REPLY6, 0), rest, data);
                let header = Header4 {
                    protocol: l4::ICMPV6,
                    tos: received.tos,
                    ident: 0,
                    dont_fragment: false,
                };
                self.counters.echo_answered += 1;
                self.counters.icmp6(ECHO_REPLY6);
                self.reply(context, received, from.into(), header, &reply);
            }
            _ => self.counters.ignored += 1,
        }
    }

    /// Answers a packet that is not ICMP; nothing listens here. `named_at` is the offset of the
    /// field that names the protocol.
    fn take_transport(&mut self, context: &mut Context<'_>, received: Received<'_>, named_at: u32) {
        if received.src.is_unspecified() {
            self.counters.ignored += 1;
            return;
        }
        match received.protocol {
            l4::TCP => self.reset(context, received),
            l4::UDP if !udp_is_sound(received) => self.counters.malformed += 1,
            l4::UDP => self.report(context, received.offender, Fault::Port),
            _ => self.report(context, received.offender, Fault::Protocol(named_at)),
        }
    }

    /// Resets a connection that does not exist (RFC 9293, 3.10.7.1).
    fn reset(&mut self, context: &mut Context<'_>, received: Received<'_>) {
        let (src, dst) = (IpAddress::from(received.src), IpAddress::from(received.dst));
        let segment = TcpPacket::new_checked(received.payload);
        let Ok(segment) = segment.map_err(|_| ()).and_then(|segment| {
            if segment.verify_checksum(&src, &dst) { Ok(segment) } else { Err(()) }
        }) else {
            self.counters.malformed += 1;
            return;
        };
        if segment.rst() || received.offender.to_group {
            self.counters.ignored += 1;
            return;
        }
        let number = if segment.ack() {
            Reset::At(segment.ack_number().0 as u32)
        } else {
            let len = segment.segment_len() as u32;
            Reset::Acknowledges((segment.seq_number().0 as u32).wrapping_add(len))
        };
        let ports = (segment.dst_port(), segment.src_port());
        let bytes = build::reset((received.dst, received.src), ports, number);
        // `tcp_v4_send_reset`: DF is set, so it needs no identification; no ECN.
        let tos = received.tos & 0xfc;
        let header = Header4 { protocol: l4::TCP, tos, ident: 0, dont_fragment: true };
        self.counters.resets_sent += 1;
        self.reply(context, received, received.dst, header, &bytes);
    }

    /// Sends a message back to a packet's source. For IPv6, it uses only the header fields that
    /// IPv6 has.
    pub(super) fn reply(
        &mut self,
        context: &mut Context<'_>,
        received: Received<'_>,
        from: IpAddr,
        header: Header4,
        payload: &[u8],
    ) {
        let mut packet = match (from, received.src) {
            (IpAddr::V4(from), IpAddr::V4(to)) => build::ipv4(from, to, header, payload),
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let header = Header6 {
                    next_header: header.protocol,
                    traffic_class: header.tos,
                    hop_limit: build::TTL,
                };
                build::ipv6(from, to, header, payload)
            }
            _ => return,
        };
        let link = received.offender.link;
        let to = translate_own(context, &mut packet).unwrap_or(received.src);
        if let Some(egress_link) = self.egress_link(context.tables, link, to, &packet) {
            self.send_cut(context, egress_link, &packet, Waiting::Made);
        }
    }
}

/// Whether a UDP datagram is complete and its checksum right; IPv6 requires one (RFC 8200, 8.1).
fn udp_is_sound(received: Received<'_>) -> bool {
    let (src, dst) = (IpAddress::from(received.src), IpAddress::from(received.dst));
    UdpPacket::new_checked(received.payload).is_ok_and(|datagram| {
        (datagram.checksum() != 0 || received.src.is_ipv4()) && datagram.verify_checksum(&src, &dst)
    })
}
