//! Transit packets that the path could not forward: `ip_forward` (`net/ipv4/ip_forward.c`) and
//! `ip6_forward` (`net/ipv6/ip6_output.c`) for the rare cases.

use std::net::{IpAddr, Ipv4Addr};

use super::error::{Fault, Offender};
use super::neigh::Waiting;
use super::send::{Destination, EgressLink, age, onward};
use super::translated::restored;
use super::{Context, Host, Packet, build, fragment};
use crate::frame::Descriptor;
use crate::id::LinkId;
use crate::ip::{self, extension, options};
use crate::stages::filter::PolicyRoute;
use crate::verdict::{DropReason, PuntReason};

/// Whether a packet exceeds an MTU, and nobody may fragment it.
fn must_not_be_cut(packet: &[u8], mtu: u16) -> bool {
    packet.len() > usize::from(mtu) && (packet[0] >> 4 == 6 || fragment::is_forbidden(packet))
}

impl Host {
    /// Handles a packet whose neighbour is unknown; counts it by its outcome.
    pub(super) fn hold(&mut self, context: &mut Context<'_>, mut packet: Packet) {
        let frame = Descriptor { addr: packet.addr, len: u32::from(packet.len) };
        let frame = context.umem.whole(frame);
        let layer3 = frame.get(usize::from(packet.l3)..).unwrap_or_default();
        let sound = ip::trim(layer3)
            .and_then(|bytes| ip::endpoints(bytes).map(|(_, dst)| (bytes.to_vec(), dst)));
        let Some((bytes, dst)) = sound else {
            context.counters.drop(DropReason::IpInhdr);
            context.umem.free(packet.addr);
            return;
        };
        let link = packet.link;
        // The burst's first packets may have changed the routes since the path's lookup.
        let destination = onward(context.tables, (link, packet.policy_route), dst, &bytes);
        if let Destination::EgressLink(egress_link) = destination
            && bytes.len() <= usize::from(context.tables.link(egress_link.link).mtu)
        {
            age(context, &mut packet, bytes.len());
            self.hand_to(context, egress_link, packet, Waiting::Held);
            return;
        }
        context.umem.free(packet.addr);
        let came = restored(context, &bytes);
        match destination {
            Destination::EgressLink(egress_link) => {
                context.counters.punt(PuntReason::MtuExceeded);
                let mtu = context.tables.link(egress_link.link).mtu;
                // Fragments leave as the packet, and its sender knows it as it came.
                let packet = if must_not_be_cut(&bytes, mtu) { came } else { bytes };
                self.too_big(context, link, packet, egress_link);
            }
            Destination::Local => {
                context.counters.delivered += 1;
                self.receive(context, Offender { link, packet: &came, to_group: false });
            }
            Destination::Drop(reason) => context.counters.drop(reason),
            Destination::Punt(reason) => {
                context.counters.punt(reason);
                self.answer(context, link, &came, reason);
            }
        }
    }

    /// Sends the ICMP error for a punt reason to the packet's sender.
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
            // The host processes these instead of answering them.
            PuntReason::IpOptions
            | PuntReason::HopByHop
            | PuntReason::MtuExceeded
            | PuntReason::NeighUnresolved
            // Rejected packets arrive by `reject`; without a kernel, the others get no answer.
            | PuntReason::Reject
            | PuntReason::FilterUnsupported
            | PuntReason::KernelLink
            | PuntReason::KernelRoute
            | PuntReason::KernelRule
            | PuntReason::Redirect
            | PuntReason::Martian
            | PuntReason::KernelSource
            | PuntReason::KernelExit => return,
        };
        self.report(context, Offender { link, packet, to_group: false }, fault);
    }

    /// Forwards a packet that exceeds the MTU of the link that the path found.
    pub(super) fn forward_big(
        &mut self,
        context: &mut Context<'_>,
        (link, policy_route): (LinkId, PolicyRoute),
        packet: Vec<u8>,
    ) {
        let Some((_, dst)) = ip::endpoints(&packet) else { return };
        match onward(context.tables, (link, policy_route), dst, &packet) {
            Destination::EgressLink(egress_link) => {
                self.too_big(context, link, packet, egress_link)
            }
            Destination::Punt(reason) => self.answer(context, link, &packet, reason),
            Destination::Local | Destination::Drop(_) => self.counters.unroutable += 1,
        }
    }

    /// Fragments a packet, or sends its sender an error with the MTU.
    fn too_big(
        &mut self,
        context: &mut Context<'_>,
        link: LinkId,
        mut packet: Vec<u8>,
        egress_link: EgressLink,
    ) {
        let mtu = context.tables.link(egress_link.link).mtu;
        if must_not_be_cut(&packet, mtu) {
            let offender = Offender { link, packet: &packet, to_group: false };
            self.report(context, offender, Fault::TooBig(mtu));
            return;
        }
        build::decrement_ttl(&mut packet);
        self.send_cut(context, egress_link, &packet, Waiting::Forwarded);
    }

    /// Sends an IP packet; an IPv4 packet that exceeds the MTU goes in fragments.
    pub(super) fn send_cut(
        &mut self,
        context: &mut Context<'_>,
        egress_link: EgressLink,
        packet: &[u8],
        kind: Waiting,
    ) {
        let mtu = usize::from(context.tables.link(egress_link.link).mtu);
        if packet.len() <= mtu {
            self.send_packet(context, egress_link, packet, kind);
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
            self.send_packet(context, egress_link, &fragment, kind);
        }
    }

    /// Forwards an IPv4 packet with options; the error is the reason for a drop.
    pub(super) fn forward_options(
        &mut self,
        context: &mut Context<'_>,
        (link, policy_route): (LinkId, PolicyRoute),
        mut packet: Vec<u8>,
    ) -> Result<(), DropReason> {
        let is_ours =
            |address: Ipv4Addr| self.addresses.is_local(context.tables, link, address.into());
        let plan = match options::read(&packet, is_ours) {
            Ok(plan) => plan,
            Err(options::OptionsFault::SourceRoute) => {
                self.counters.source_routed += 1;
                return Err(DropReason::IpOptions);
            }
            Err(options::OptionsFault::Malformed(at)) => {
                let offender = Offender { link, packet: &packet, to_group: false };
                self.report(context, offender, Fault::Option4(at));
                return Err(DropReason::IpOptions);
            }
        };
        let Some(egress_link) = self.onward(context, (link, policy_route), &packet)? else {
            return Ok(());
        };
        let mtu = context.tables.link(egress_link.link).mtu;
        if packet.len() > usize::from(mtu) && fragment::is_forbidden(&packet) {
            let offender = Offender { link, packet: &packet, to_group: false };
            self.report(context, offender, Fault::TooBig(mtu));
            return Ok(());
        }
        let own = self.addresses.source4(context.tables, egress_link.link, egress_link.neigh);
        plan.apply(&mut packet, own.unwrap_or(Ipv4Addr::UNSPECIFIED), context.now_ns);
        build::decrement_ttl(&mut packet);
        self.counters.forwarded += 1;
        self.send_cut(context, egress_link, &packet, Waiting::Forwarded);
        Ok(())
    }

    /// Forwards an IPv6 packet with a hop-by-hop header; the error is the reason for a drop.
    pub(super) fn forward_hop_by_hop(
        &mut self,
        context: &mut Context<'_>,
        (link, policy_route): (LinkId, PolicyRoute),
        packet: Vec<u8>,
    ) -> Result<(), DropReason> {
        match extension::options(&packet, 40) {
            Ok(_) => {}
            Err(extension::ExtensionFault::Drop(reason)) => return Err(reason),
            Err(extension::ExtensionFault::ParameterProblem(at)) => {
                let offender = Offender { link, packet: &packet, to_group: false };
                self.report(context, offender, Fault::Option6(at));
                return Ok(());
            }
        }
        let Some(egress_link) = self.onward(context, (link, policy_route), &packet)? else {
            return Ok(());
        };
        let scoped = match ip::endpoints(&packet) {
            Some((IpAddr::V6(src), _)) => src.is_unicast_link_local() || src.is_unspecified(),
            _ => false,
        };
        if scoped {
            self.answer(context, link, &packet, PuntReason::LinkLocalSource);
        } else {
            self.counters.forwarded += 1;
            self.too_big(context, link, packet, egress_link);
        }
        Ok(())
    }

    /// The egress link of a packet to forward; `None` if the packet was handled otherwise.
    fn onward(
        &mut self,
        context: &mut Context<'_>,
        (link, policy_route): (LinkId, PolicyRoute),
        packet: &[u8],
    ) -> Result<Option<EgressLink>, DropReason> {
        let Some((_, dst)) = ip::endpoints(packet) else { return Err(DropReason::IpInhdr) };
        match onward(context.tables, (link, policy_route), dst, packet) {
            Destination::EgressLink(_) if build::ttl(packet) <= 1 => {
                self.answer(context, link, packet, PuntReason::TtlExpired);
            }
            Destination::EgressLink(egress_link) => return Ok(Some(egress_link)),
            Destination::Local => {
                self.receive(context, Offender { link, packet, to_group: false });
            }
            Destination::Drop(reason) => return Err(reason),
            Destination::Punt(reason) => self.answer(context, link, packet, reason),
        }
        Ok(None)
    }
}
