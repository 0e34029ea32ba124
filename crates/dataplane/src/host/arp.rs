//! ARP: RFC 826, as `arp_process` and `arp_solicit` in `net/ipv4/arp.c` do it by default.
//!
//! The defaults are `arp_ignore` 0 (the router answers for any of its addresses in the link's VRF),
//! `arp_announce` 0, and `arp_accept` 0 (an unsolicited reply only updates a known neighbour).

use std::net::{IpAddr, Ipv4Addr};

use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress};

use super::neigh::News;
use super::{Context, Host};
use crate::id::LinkId;
use crate::wire::eth::ethertype;

const BROADCAST: [u8; 6] = [0xff; 6];

/// An ARP message for Ethernet and IPv4.
#[derive(Clone, Copy, Debug)]
struct Message {
    operation: ArpOperation,
    sender_mac: [u8; 6],
    sender: Ipv4Addr,
    target: Ipv4Addr,
}

fn parse(bytes: &[u8]) -> Option<Message> {
    let packet = ArpPacket::new_checked(bytes).ok()?;
    let ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr,
        source_protocol_addr,
        target_protocol_addr,
        ..
    } = ArpRepr::parse(&packet).ok()?
    else {
        return None;
    };
    Some(Message {
        operation,
        sender_mac: source_hardware_addr.0,
        sender: source_protocol_addr,
        target: target_protocol_addr,
    })
}

impl Host {
    /// Handles an ARP message; `to_us` says whether the frame was sent to the router alone.
    pub(super) fn take_arp(
        &mut self,
        context: &mut Context<'_>,
        link: LinkId,
        bytes: &[u8],
        to_us: bool,
    ) {
        let Some(message) = parse(bytes).filter(|message| self.is_sound(context, link, message))
        else {
            self.counters.neigh_invalid += 1;
            return;
        };
        let for_us = self.addresses.is_local(context.tables, link, message.target.into());
        match message.operation {
            ArpOperation::Request if for_us => self.answer_arp(context, link, message),
            ArpOperation::Request | ArpOperation::Reply => {
                self.note_arp(context, link, message, to_us);
            }
            ArpOperation::Unknown(_) => self.counters.neigh_invalid += 1,
        }
    }

    /// Whether a message is plausible: its sender is a single station, in a prefix of the link.
    fn is_sound(&self, context: &Context<'_>, link: LinkId, message: &Message) -> bool {
        let sender = message.sender;
        let probe = sender.is_unspecified() && message.operation == ArpOperation::Request;
        let addresses = &self.addresses;
        let can_be_neighbour = !sender.is_loopback()
            && !addresses.is_group(context.tables, link, sender.into())
            && !addresses.is_local(context.tables, link, sender.into())
            && addresses.is_connected(link, sender.into());
        message.sender_mac[0] & 1 == 0
            && message.sender_mac != [0; 6]
            && !message.target.is_multicast()
            && !message.target.is_loopback()
            && (probe || can_be_neighbour)
    }

    /// Answers a request. Learns its sender, except from a probe for duplicates (RFC 5227).
    fn answer_arp(&mut self, context: &mut Context<'_>, link: LinkId, message: Message) {
        if !message.sender.is_unspecified() {
            let news = News {
                mac: Some(message.sender_mac),
                solicited: false,
                overrides: true,
                weak: false,
            };
            self.apply_news(context, (link, IpAddr::V4(message.sender)), news, true);
        }
        let answer = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Reply,
            source_hardware_addr: EthernetAddress(context.tables.link(link).mac_bytes),
            source_protocol_addr: message.target,
            target_hardware_addr: EthernetAddress(message.sender_mac),
            target_protocol_addr: message.sender,
        };
        self.counters.arp_replies_sent += 1;
        self.send_arp(context, link, message.sender_mac, answer);
    }

    /// Notes a reply, or a gratuitous message.
    fn note_arp(&mut self, context: &mut Context<'_>, link: LinkId, message: Message, to_us: bool) {
        if message.sender.is_unspecified() {
            return;
        }
        let key = (link, IpAddr::V4(message.sender));
        let gratuitous = message.sender == message.target;
        let news = News {
            mac: Some(message.sender_mac),
            solicited: message.operation == ArpOperation::Reply && to_us,
            overrides: gratuitous || !self.is_locked(key, context.now_ns),
            weak: false,
        };
        self.apply_news(context, key, news, false);
    }

    /// Sends a request for a neighbour: to all stations, or to the last station known to have the
    /// address.
    pub(super) fn solicit_arp(
        &mut self,
        context: &mut Context<'_>,
        link: LinkId,
        target: Ipv4Addr,
        mac: Option<[u8; 6]>,
    ) {
        let source = self.addresses.source4(context.tables, link, target.into());
        let query = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Request,
            source_hardware_addr: EthernetAddress(context.tables.link(link).mac_bytes),
            source_protocol_addr: source.unwrap_or(Ipv4Addr::UNSPECIFIED),
            target_hardware_addr: EthernetAddress([0; 6]),
            target_protocol_addr: target,
        };
        self.counters.arp_requests_sent += 1;
        self.send_arp(context, link, mac.unwrap_or(BROADCAST), query);
    }

    fn send_arp(&mut self, context: &mut Context<'_>, link: LinkId, mac: [u8; 6], repr: ArpRepr) {
        let mut bytes = vec![0; repr.buffer_len()];
        repr.emit(&mut ArpPacket::new_unchecked(&mut bytes));
        self.send_frame(context, link, (mac, ethertype::ARP), &bytes);
    }
}
