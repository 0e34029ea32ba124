//! Neighbour discovery: RFC 4861, 7, as `net/ipv6/ndisc.c` does it for a router.
//!
//! Limits: the router sends no router advertisements and believes none. It counts and ignores
//! router solicitations, router advertisements and redirects. It does not check its own addresses
//! for duplicates.

use std::net::{IpAddr, Ipv6Addr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, Icmpv6Packet, Icmpv6Repr, NdiscNeighborFlags, NdiscOption, NdiscOptionType,
    NdiscRepr,
};

use super::addresses::{multicast_mac, solicited_node};
use super::build::{self, Header6};
use super::neigh::{News, Waiting};
use super::send::EgressLink;
use super::{Context, Host};
use crate::id::LinkId;
use crate::wire::eth::ethertype;
use crate::wire::l4;

/// ICMPv6 types of neighbour discovery.
pub(super) const ROUTER_SOLICIT: u8 = 133;
pub(super) const SOLICIT: u8 = 135;
pub(super) const ADVERT: u8 = 136;
pub(super) const REDIRECT: u8 = 137;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Bytes before the options: the ICMPv6 header and the target.
const FIXED: usize = 24;

/// A message and its origin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received<'a> {
    pub(super) link: LinkId,
    pub(super) src: Ipv6Addr,
    pub(super) dst: Ipv6Addr,
    pub(super) hop_limit: u8,
    /// The bytes from the ICMPv6 type on, with a right checksum.
    pub(super) message: &'a [u8],
}

/// The common part of solicitations and advertisements.
#[derive(Clone, Copy, Debug)]
struct Parsed {
    flags: u8,
    target: Ipv6Addr,
    mac: Option<[u8; 6]>,
}

/// Parses a message with the checks of RFC 4861, 7.1; `wanted` is the option that carries the MAC
/// address.
fn parse(received: &Received<'_>, wanted: NdiscOptionType) -> Option<Parsed> {
    let message = received.message;
    let target = Ipv6Addr::from(*message.get(8..FIXED)?.first_chunk::<16>()?);
    let (code, flags) = (message[1], message[4]);
    if received.hop_limit != 255 || code != 0 || target.is_multicast() {
        return None;
    }
    let mut mac = None;
    let mut rest = &message[FIXED..];
    while let [kind, len, ..] = *rest {
        let bytes = usize::from(len) * 8;
        let (option, behind) = rest.split_at_checked(bytes).filter(|_| len != 0)?;
        if NdiscOptionType::from(kind) == wanted && mac.is_none() {
            mac = Some(link_address(option)?);
        }
        rest = behind;
    }
    rest.is_empty().then_some(Parsed { flags, target, mac })
}

/// The Ethernet address in an option; `None` for another kind of address, or a group.
fn link_address(option: &[u8]) -> Option<[u8; 6]> {
    let option = NdiscOption::new_checked(option).ok().filter(|option| option.data_len() == 1)?;
    let mac = *option.link_layer_addr().as_bytes().first_chunk::<6>()?;
    (mac[0] & 1 == 0).then_some(mac)
}

impl Host {
    /// Handles a message of neighbour discovery.
    pub(super) fn take_nd(&mut self, context: &mut Context<'_>, received: Received<'_>) {
        let done = match received.message.first() {
            Some(&SOLICIT) => self.take_solicit(context, received),
            Some(&ADVERT) => self.take_advert(context, received),
            _ => {
                self.counters.nd_router_ignored += 1;
                Some(())
            }
        };
        if done.is_none() {
            self.counters.neigh_invalid += 1;
        }
    }

    /// `ndisc_recv_ns`; `None` if the message is invalid.
    fn take_solicit(&mut self, context: &mut Context<'_>, received: Received<'_>) -> Option<()> {
        let Received { link, src, dst, .. } = received;
        let solicit = parse(&received, NdiscOptionType::SourceLinkLayerAddr)?;
        let duplicate_check = src.is_unspecified();
        let to_group = dst.is_multicast();
        if duplicate_check && (dst != solicited_node(solicit.target) || solicit.mac.is_some()) {
            return None;
        }
        if self.addresses.is_local(context.tables, link, src.into()) || src.is_multicast() {
            return None;
        }
        if !self.addresses.link_has(context.tables, link, solicit.target.into()) {
            self.counters.ignored += 1;
            return Some(());
        }
        if duplicate_check {
            let flags = NdiscNeighborFlags::ROUTER | NdiscNeighborFlags::OVERRIDE;
            self.advertise(context, link, (solicit.target, ALL_NODES), flags, true);
            return Some(());
        }
        let news = News { mac: solicit.mac, solicited: false, overrides: true, weak: true };
        self.apply_news(context, (link, IpAddr::V6(src)), news, true);
        // Linux neither adds nor answers a station that solicits a group without giving its own
        // address.
        if to_group && solicit.mac.is_none() && !self.knows(context.tables, (link, src.into())) {
            self.counters.ignored += 1;
            return Some(());
        }
        // A station that solicits the group does not know the address (any more); one that solicits
        // the router alone does.
        let mut flags = NdiscNeighborFlags::ROUTER | NdiscNeighborFlags::SOLICITED;
        flags.set(NdiscNeighborFlags::OVERRIDE, to_group);
        self.advertise(context, link, (solicit.target, src), flags, to_group);
        Some(())
    }

    /// `ndisc_recv_na`; `None` if the message is invalid.
    fn take_advert(&mut self, context: &mut Context<'_>, received: Received<'_>) -> Option<()> {
        let link = received.link;
        let advert = parse(&received, NdiscOptionType::TargetLinkLayerAddr)?;
        let flags = NdiscNeighborFlags::from_bits_truncate(advert.flags);
        let solicited = flags.contains(NdiscNeighborFlags::SOLICITED);
        if solicited && received.dst.is_multicast() {
            return None;
        }
        if self.addresses.link_has(context.tables, link, advert.target.into()) {
            self.counters.ignored += 1;
            return Some(());
        }
        let overrides = flags.contains(NdiscNeighborFlags::OVERRIDE);
        let news = News { mac: advert.mac, solicited, overrides, weak: true };
        self.apply_news(context, (link, IpAddr::V6(advert.target)), news, false);
        Some(())
    }

    fn advertise(
        &mut self,
        context: &mut Context<'_>,
        link: LinkId,
        (target, dst): (Ipv6Addr, Ipv6Addr),
        flags: NdiscNeighborFlags,
        with_mac: bool,
    ) {
        let mac = EthernetAddress(context.tables.link(link).mac_bytes);
        let lladdr = with_mac.then(|| mac.into());
        let repr = NdiscRepr::NeighborAdvert { flags, target_addr: target, lladdr };
        let packet = packet((target, dst), repr);
        self.counters.nd_adverts_sent += 1;
        self.counters.icmp6(ADVERT);
        self.send_packet(context, EgressLink { link, neigh: dst.into() }, &packet, Waiting::Made);
    }

    /// Solicits a neighbour: its group, or the neighbour itself at its last known address.
    pub(super) fn solicit_nd(
        &mut self,
        context: &mut Context<'_>,
        link: LinkId,
        target: Ipv6Addr,
        mac: Option<[u8; 6]>,
    ) {
        let src = self.addresses.link_local(context.tables, link);
        let dst = if mac.is_some() { target } else { solicited_node(target) };
        let own = EthernetAddress(context.tables.link(link).mac_bytes);
        let repr = NdiscRepr::NeighborSolicit { target_addr: target, lladdr: Some(own.into()) };
        let packet = packet((src, dst), repr);
        let mac = mac.unwrap_or_else(|| multicast_mac(dst));
        self.counters.nd_solicits_sent += 1;
        self.counters.icmp6(SOLICIT);
        self.send_frame(context, link, (mac, ethertype::IPV6), &packet);
    }
}

fn packet((src, dst): (Ipv6Addr, Ipv6Addr), repr: NdiscRepr<'_>) -> Vec<u8> {
    let repr = Icmpv6Repr::Ndisc(repr);
    let mut message = vec![0; repr.buffer_len()];
    let mut view = Icmpv6Packet::new_unchecked(&mut message);
    repr.emit(&src, &dst, &mut view, &ChecksumCapabilities::default());
    let header = Header6 { next_header: l4::ICMPV6, traffic_class: 0, hop_limit: 255 };
    build::ipv6(src, dst, header, &message)
}
