//! Packets on their way that the path could not forward: `ip_forward` (`net/ipv4/ip_forward.c`)
//! and `ip6_forward` (`net/ipv6/ip6_output.c`) for the odd ones.

use std::net::{IpAddr, Ipv4Addr};

use super::error::{Fault, Offender};
use super::neigh::Waiting;
use super::options::Refusal;
use super::send::{Destination, Way, age, onward};
use super::{Context, Host, Packet, build, extension, fragment};
use crate::frame::Descriptor;
use crate::id::LinkId;
use crate::stages::filter::Steer;
use crate::verdict::{DropReason, PuntReason};

impl Host {
    /// Takes a packet whose neighbour is not known; it is counted as what it becomes.
    pub(super) fn hold(&mut self, context: &mut Context<'_>, mut packet: Packet) {
        let frame = Descriptor { addr: packet.addr, len: u32::from(packet.len) };
        let frame = context.umem.whole(frame);
        let layer3 = frame.get(usize::from(packet.l3)..).unwrap_or_default();
        let sound = build::trim(layer3)
            .and_then(|bytes| build::endpoints(bytes).map(|(_, dst)| (bytes.to_vec(), dst)));
        let Some((bytes, dst)) = sound else {
            context.counters.drop(DropReason::IpInhdr);
            context.umem.free(packet.addr);
            return;
        };
        let link = packet.link;
        // The routes may have changed since the path looked, with the burst's first packets.
        let destination = onward(context.tables, (link, packet.steer), dst, &bytes);
        if let Destination::Way(way) = destination
            && bytes.len() <= usize::from(context.tables.link(way.link).mtu)
        {
            age(context, &mut packet, bytes.len());
            self.hand_to(context, way, packet, Waiting::Held);
            return;
        }
        context.umem.free(packet.addr);
        match destination {
            Destination::Way(way) => {
                context.counters.punt(PuntReason::MtuExceeded);
                self.too_big(context, link, bytes, way);
            }
            Destination::Local => {
                context.counters.delivered += 1;
                self.receive(context, Offender { link, packet: &bytes, to_group: false });
            }
            Destination::Drop(reason) => context.counters.drop(reason),
            Destination::Punt(reason) => {
                context.counters.punt(reason);
                self.answer(context, link, &bytes, reason);
            }
        }
    }

    /// Tells a packet's sender why it was punted.
    pub(super) fn answer(
        &mut self,
        context: &mut Context<'_>,
        link: LinkId,
        packet: &[u8],
        reason: PuntReason,
    ) {
        let fault = match reason {
            PuntReason::TtlExpired => Fault::TimeExceeded,
            PuntReason::NoRoute => Fault::NoRoute,
            PuntReason::Unreachable => Fault::Unreachable,
            PuntReason::Prohibit => Fault::Prohibited,
            PuntReason::LinkLocalSource => Fault::BeyondScope,
            // Those are worked on, not answered.
            PuntReason::IpOptions
            | PuntReason::HopByHop
            | PuntReason::MtuExceeded
            | PuntReason::NeighUnresolved
            // What a rule wants to be answered comes by another way; the others are nobody's without a
            // kernel.
            | PuntReason::Reject
            | PuntReason::FilterUnsupported
            | PuntReason::KernelLink
            | PuntReason::KernelRoute
            | PuntReason::KernelRule
            | PuntReason::Redirect
            | PuntReason::Martian
            | PuntReason::KernelSource => return,
        };
        self.report(context, Offender { link, packet, to_group: false }, fault);
    }

    /// Forwards a packet that is larger than the link that the path found for it.
    pub(super) fn forward_big(
        &mut self,
        context: &mut Context<'_>,
        (link, steer): (LinkId, Steer),
        packet: Vec<u8>,
    ) {
        let Some((_, dst)) = build::endpoints(&packet) else { return };
        match onward(context.tables, (link, steer), dst, &packet) {
            Destination::Way(way) => self.too_big(context, link, packet, way),
            Destination::Punt(reason) => self.answer(context, link, &packet, reason),
            Destination::Local | Destination::Drop(_) => self.counters.unroutable += 1,
        }
    }

    /// Cuts a packet into fragments, or tells its sender to send smaller ones.
    fn too_big(&mut self, context: &mut Context<'_>, link: LinkId, mut packet: Vec<u8>, way: Way) {
        let mtu = context.tables.link(way.link).mtu;
        if packet.len() > usize::from(mtu)
            && (packet[0] >> 4 == 6 || fragment::is_forbidden(&packet))
        {
            let offender = Offender { link, packet: &packet, to_group: false };
            self.report(context, offender, Fault::TooBig(mtu));
            return;
        }
        build::decrement_ttl(&mut packet);
        self.send_cut(context, way, &packet, Waiting::Forwarded);
    }

    /// Sends an IP packet, in fragments where it is IPv4 and larger than the link takes.
    pub(super) fn send_cut(
        &mut self,
        context: &mut Context<'_>,
        way: Way,
        packet: &[u8],
        kind: Waiting,
    ) {
        let mtu = usize::from(context.tables.link(way.link).mtu);
        if packet.len() <= mtu {
            self.send_packet(context, way, packet, kind);
            return;
        }
        let is_ipv4 = packet[0] >> 4 == 4;
        let Some(fragments) = fragment::cut(packet, mtu).filter(|_| is_ipv4) else {
            context.counters.originated_lost += 1;
            return;
        };
        self.counters.fragmented += 1;
        self.counters.fragments_made += fragments.len() as u64;
        for fragment in fragments {
            self.send_packet(context, way, &fragment, kind);
        }
    }

    /// Forwards an IPv4 packet with options, or says why it is dropped.
    pub(super) fn forward_options(
        &mut self,
        context: &mut Context<'_>,
        (link, steer): (LinkId, Steer),
        mut packet: Vec<u8>,
    ) -> Result<(), DropReason> {
        let is_ours =
            |address: Ipv4Addr| self.addresses.is_local(context.tables, link, address.into());
        let plan = match super::options::read(&packet, is_ours) {
            Ok(plan) => plan,
            Err(Refusal::SourceRoute) => {
                self.counters.source_routed += 1;
                return Err(DropReason::IpOptions);
            }
            Err(Refusal::Malformed(at)) => {
                let offender = Offender { link, packet: &packet, to_group: false };
                self.report(context, offender, Fault::Option4(at));
                return Err(DropReason::IpOptions);
            }
        };
        let Some(way) = self.onward(context, (link, steer), &packet)? else { return Ok(()) };
        let mtu = context.tables.link(way.link).mtu;
        if packet.len() > usize::from(mtu) && fragment::is_forbidden(&packet) {
            let offender = Offender { link, packet: &packet, to_group: false };
            self.report(context, offender, Fault::TooBig(mtu));
            return Ok(());
        }
        let own = self.addresses.source4(context.tables, way.link, way.neigh);
        plan.apply(&mut packet, own.unwrap_or(Ipv4Addr::UNSPECIFIED), context.now_ns);
        build::decrement_ttl(&mut packet);
        self.counters.forwarded += 1;
        self.send_cut(context, way, &packet, Waiting::Forwarded);
        Ok(())
    }

    /// Forwards an IPv6 packet with a hop-by-hop header, or says why it is dropped.
    pub(super) fn forward_hop_by_hop(
        &mut self,
        context: &mut Context<'_>,
        (link, steer): (LinkId, Steer),
        packet: Vec<u8>,
    ) -> Result<(), DropReason> {
        match extension::options(&packet, 40) {
            Ok(_) => {}
            Err(extension::Refusal::Drop(reason)) => return Err(reason),
            Err(extension::Refusal::Report(fault)) => {
                let offender = Offender { link, packet: &packet, to_group: false };
                self.report(context, offender, fault);
                return Ok(());
            }
        }
        let Some(way) = self.onward(context, (link, steer), &packet)? else { return Ok(()) };
        let scoped = match build::endpoints(&packet) {
            Some((IpAddr::V6(src), _)) => src.is_unicast_link_local() || src.is_unspecified(),
            _ => false,
        };
        if scoped {
            self.answer(context, link, &packet, PuntReason::LinkLocalSource);
        } else {
            self.counters.forwarded += 1;
            self.too_big(context, link, packet, way);
        }
        Ok(())
    }

    /// The way of a packet that is to be forwarded; none where it was dealt with otherwise.
    fn onward(
        &mut self,
        context: &mut Context<'_>,
        (link, steer): (LinkId, Steer),
        packet: &[u8],
    ) -> Result<Option<Way>, DropReason> {
        let Some((_, dst)) = build::endpoints(packet) else { return Err(DropReason::IpInhdr) };
        match onward(context.tables, (link, steer), dst, packet) {
            Destination::Way(_) if build::ttl(packet) <= 1 => {
                self.answer(context, link, packet, PuntReason::TtlExpired);
            }
            Destination::Way(way) => return Ok(Some(way)),
            Destination::Local => {
                self.receive(context, Offender { link, packet, to_group: false });
            }
            Destination::Drop(reason) => return Err(reason),
            Destination::Punt(reason) => self.answer(context, link, packet, reason),
        }
        Ok(None)
    }
}
