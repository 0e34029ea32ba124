//! The host's output: route, link header, and the wait for a neighbour (`ip_output`,
//! `neigh_resolve_output` in `net/core/neighbour.c`).

use std::net::IpAddr;

use super::addresses::{is_link_local, multicast_mac};
use super::neigh::{Due, Effect, Key, LOCKTIME_NS, News, QUEUE_TOTAL, State, Waiting};
use super::{Context, Host, Outgoing, Packet, build};
use crate::frame::{Descriptor, FrameAddr};
use crate::id::{LinkId, NextHopId, PortId, VrfId};
use crate::next_hops::{Action, HEADER_ROOM};
use crate::stages::filter::PolicyRoute;
use crate::tables::Tables;
use crate::verdict::{DropReason, PuntReason};

/// Where a packet leaves: its egress link and next station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EgressLink {
    pub(super) link: LinkId,
    /// The next station on the link.
    pub(super) neigh: IpAddr,
}

/// The result of a route lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    EgressLink(EgressLink),
    Local,
    Drop(DropReason),
    Punt(PuntReason),
}

/// Looks up a packet's destination, as the path does.
pub(super) fn destination(
    tables: &Tables,
    vrf: VrfId,
    address: IpAddr,
    packet: &[u8],
) -> Destination {
    destination_by(tables, tables.resolve(vrf, address), address, packet)
}

/// The destination of a transit packet, which firewall rules may have redirected.
pub(super) fn onward(
    tables: &Tables,
    (link, policy_route): (LinkId, PolicyRoute),
    address: IpAddr,
    packet: &[u8],
) -> Destination {
    match policy_route {
        PolicyRoute::Not => destination(tables, tables.link(link).vrf, address, packet),
        PolicyRoute::Vrf(vrf) => destination(tables, vrf, address, packet),
        PolicyRoute::Next(id) => destination_by(tables, id, address, packet),
    }
}

/// The destination that a next hop or group leads to.
fn destination_by(tables: &Tables, id: NextHopId, address: IpAddr, packet: &[u8]) -> Destination {
    let next = tables.next_hop(tables.routes.member(id, packet));
    match next.action {
        Action::Forward | Action::Resolve => Destination::EgressLink(EgressLink {
            link: next.link,
            neigh: next.neigh.unwrap_or(address),
        }),
        Action::Glean => Destination::EgressLink(EgressLink { link: next.link, neigh: address }),
        Action::Bridge => Destination::Punt(PuntReason::KernelExit),
        Action::Local => Destination::Local,
        Action::Drop(reason) => Destination::Drop(reason),
        Action::Punt(reason) => Destination::Punt(reason),
    }
}

/// The link header towards a neighbour with a known address, right-aligned in the array; the
/// header's length in bytes; and the egress port.
fn header(tables: &Tables, egress_link: EgressLink) -> Option<([u8; HEADER_ROOM], u8, PortId)> {
    let next = tables.next_hop(tables.find_neigh(egress_link.link, egress_link.neigh)?);
    (next.action == Action::Forward).then_some((next.header, next.header_len, next.port))
}

impl Host {
    /// The egress link of a packet that the router makes: by the VRF of `link`, or `link` itself
    /// for a link-local destination.
    pub(super) fn egress_link(
        &mut self,
        tables: &Tables,
        link: LinkId,
        address: IpAddr,
        packet: &[u8],
    ) -> Option<EgressLink> {
        if is_link_local(address) {
            return Some(EgressLink { link, neigh: address });
        }
        match destination(tables, tables.link(link).vrf, address, packet) {
            Destination::EgressLink(egress_link) => Some(egress_link),
            _ => {
                self.counters.unroutable += 1;
                None
            }
        }
    }

    /// Sends a frame with the given link header.
    pub(super) fn send_frame(
        &mut self,
        context: &mut Context<'_>,
        link: LinkId,
        (mac, ethertype): ([u8; 6], u16),
        payload: &[u8],
    ) {
        let mut bytes = context.tables.header_bytes(link, mac, ethertype);
        bytes.extend_from_slice(payload);
        let port = context.tables.link(link).port;
        match context.umem.store(&bytes) {
            Some(frame) => context.outbox.push(Outgoing { port, frame, released: false }),
            None => context.counters.originated_lost += 1,
        }
    }

    /// Sends an IP packet that the router made or processed; it may wait for a neighbour.
    pub(super) fn send_packet(
        &mut self,
        context: &mut Context<'_>,
        egress_link: EgressLink,
        packet: &[u8],
        kind: Waiting,
    ) {
        if let IpAddr::V6(v6) = egress_link.neigh
            && v6.is_multicast()
        {
            let ethertype = crate::wire::eth::ethertype::IPV6;
            self.send_frame(context, egress_link.link, (multicast_mac(v6), ethertype), packet);
            return;
        }
        let Some(frame) = context.umem.store(packet) else {
            context.counters.originated_lost += 1;
            return;
        };
        let len = packet.len() as u16;
        let policy_route = PolicyRoute::Not;
        let packet = Packet { addr: frame.addr, len, l3: 0, link: egress_link.link, policy_route };
        self.hand_to(context, egress_link, packet, kind);
    }

    /// Sends a frame with an IP packet to a neighbour, or queues it. The frame ends with the
    /// packet, whose TTL is already decremented.
    pub(super) fn hand_to(
        &mut self,
        context: &mut Context<'_>,
        egress_link: EgressLink,
        packet: Packet,
        kind: Waiting,
    ) {
        let key = (egress_link.link, egress_link.neigh);
        if header(context.tables, egress_link).is_none() {
            self.restore(context.tables, key);
        }
        if header(context.tables, egress_link).is_some() {
            release(context, egress_link, packet, kind);
            return;
        }
        let room = self.neighs.waiting()
            < QUEUE_TOTAL.min(context.umem.available() + context.umem.pooled());
        if !room || !self.want(context, key) {
            give_up(context, packet, kind, DropReason::NeighQueueFull);
            return;
        }
        if kind == Waiting::Held {
            context.counters.held = context.counters.held.wrapping_add(1);
        }
        for (oldest, kind) in self.neighs.enqueue(key, packet, kind) {
            discard(context, oldest, kind, DropReason::NeighQueueFull);
        }
    }

    /// Whether a neighbour is known or being solicited.
    pub(super) fn knows(&self, tables: &Tables, key: Key) -> bool {
        let egress_link = EgressLink { link: key.0, neigh: key.1 };
        self.neighs.get(key).is_some() || header(tables, egress_link).is_some()
    }

    /// Enters a known neighbour into rebuilt tables.
    fn restore(&mut self, tables: &mut Tables, key: Key) {
        let entry = self.neighs.get(key).filter(|entry| entry.state != State::Incomplete);
        if let Some(entry) = entry {
            // If this fails, the next packet tries it again.
            let _ = tables.publish_neigh(key.0, key.1, entry.mac);
        }
    }

    /// Ensures that a neighbour is being solicited; false if there is no room for it.
    fn want(&mut self, context: &mut Context<'_>, key: Key) -> bool {
        if self.neighs.get(key).is_some() {
            return true;
        }
        if !self.make_room(context, key) {
            return false;
        }
        self.neighs.add(key, context.now_ns);
        self.step(context, key);
        true
    }

    fn make_room(&mut self, context: &mut Context<'_>, key: Key) -> bool {
        if !self.neighs.is_full(key) {
            return true;
        }
        let Some(victim) = self.neighs.victim(key) else { return false };
        self.counters.neigh_evicted += 1;
        for (packet, kind) in self.forget(context, victim) {
            discard(context, packet, kind, DropReason::NeighQueueFull);
        }
        true
    }

    /// Performs the action that a neighbour's state requires now.
    pub(super) fn step(&mut self, context: &mut Context<'_>, key: Key) {
        let (link, address) = key;
        match self.neighs.step(key, context.now_ns) {
            Due::Nothing => {}
            Due::SolicitAll => self.solicit(context, link, address, None),
            Due::Probe(mac) => self.solicit(context, link, address, Some(mac)),
            Due::Failed => self.fail(context, key),
        }
    }

    fn solicit(
        &mut self,
        context: &mut Context<'_>,
        link: LinkId,
        address: IpAddr,
        mac: Option<[u8; 6]>,
    ) {
        if self.kernel_links.contains(&link) {
            // What is not asked now waits for the next try.
            if self.limiter.allow_question(context.now_ns) {
                self.wanted.push((link, address));
            }
            return;
        }
        match address {
            IpAddr::V4(v4) => self.solicit_arp(context, link, v4, mac),
            IpAddr::V6(v6) => self.solicit_nd(context, link, v6, mac),
        }
    }

    /// Sends the packets that wait for neighbours of the kernel's which are in the tables now. The kernel keeps these
    /// neighbours.
    pub(crate) fn release_resolved(&mut self, context: &mut Context<'_>) {
        if self.kernel_links.is_empty() {
            return;
        }
        for key in self.neighs.incomplete() {
            let egress_link = EgressLink { link: key.0, neigh: key.1 };
            if self.kernel_links.contains(&key.0) && header(context.tables, egress_link).is_some() {
                let queue = self.neighs.take_queue(key);
                self.neighs.remove(key);
                release_all(context, key, queue);
            }
        }
    }

    /// Gives a neighbour up and sends errors to the senders of the waiting packets.
    fn fail(&mut self, context: &mut Context<'_>, key: Key) {
        self.counters.neigh_failed += 1;
        for (packet, kind) in self.forget(context, key) {
            let frame = Descriptor { addr: packet.addr, len: u32::from(packet.len) };
            let frame = context.umem.whole(frame);
            let layer3 = frame.get(usize::from(packet.l3)..).unwrap_or_default().to_vec();
            discard(context, packet, kind, DropReason::NeighFailed);
            if kind != Waiting::Made {
                self.neigh_unreachable(context, packet.link, &layer3);
            }
        }
    }

    /// Removes an entry, its adjacency and its route; returns the frames that waited for it.
    fn forget(
        &mut self,
        context: &mut Context<'_>,
        key: Key,
    ) -> impl Iterator<Item = (Packet, Waiting)> + use<> {
        let entry = self.neighs.remove(key);
        let known = entry.as_ref().is_some_and(|entry| entry.state != State::Incomplete);
        if known && !self.neighs.is_static(key) {
            context.tables.withdraw_neigh(key.0, key.1);
        }
        entry.map(|entry| entry.queue).unwrap_or_default().into_iter()
    }

    /// Applies a neighbour's message; `create` adds a neighbour that is not known yet.
    pub(super) fn apply_news(
        &mut self,
        context: &mut Context<'_>,
        key: Key,
        news: News,
        create: bool,
    ) {
        if self.neighs.get(key).is_none() {
            let set_by_others =
                header(context.tables, EgressLink { link: key.0, neigh: key.1 }).is_some();
            let useful = create && news.mac.is_some() && !set_by_others;
            if !useful || self.neighs.is_static(key) || !self.make_room(context, key) {
                return;
            }
            self.neighs.add(key, context.now_ns);
        }
        let Some(entry) = self.neighs.get_mut(key) else { return };
        if entry.update(news, context.now_ns) == Effect::Moved {
            if context.tables.publish_neigh(key.0, key.1, entry.mac).is_err() {
                return;
            }
            release_all(context, key, self.neighs.take_queue(key));
        }
    }

    /// Whether an entry's address is too new for another answer to replace it (`LOCKTIME`).
    pub(super) fn is_locked(&self, key: Key, now: u64) -> bool {
        let entry = self.neighs.get(key).filter(|entry| entry.state != State::Incomplete);
        entry.is_some_and(|entry| now <= entry.updated.saturating_add(LOCKTIME_NS))
    }
}

/// Sends the frames that waited for a neighbour whose address is known now.
pub(super) fn release_all(
    context: &mut Context<'_>,
    key: Key,
    queue: impl IntoIterator<Item = (Packet, Waiting)>,
) {
    for (packet, kind) in queue {
        if kind == Waiting::Held {
            context.counters.held = context.counters.held.wrapping_sub(1);
        }
        release(context, EgressLink { link: key.0, neigh: key.1 }, packet, kind);
    }
}

/// Prepends the neighbour's link header to a packet and sends the frame. A frame that counted as
/// held no longer does.
fn release(context: &mut Context<'_>, egress_link: EgressLink, packet: Packet, kind: Waiting) {
    let Some((header, header_len, port)) = header(context.tables, egress_link) else {
        give_up(context, packet, kind, DropReason::NeighFailed);
        return;
    };
    let header_len = usize::from(header_len);
    let l3 = packet.addr.0 + u32::from(packet.l3);
    // The header fits: ports reserve that much room before a frame.
    let start = FrameAddr(l3.saturating_sub(header_len as u32));
    let room = context.umem.frame_mut(start, header_len);
    for (to, from) in room.iter_mut().zip(&header[HEADER_ROOM - header_len..]) {
        *to = *from;
    }
    let packet_len = packet.len.saturating_sub(u16::from(packet.l3));
    let len = u32::from(packet_len) + header_len as u32;
    let frame = Descriptor { addr: start, len };
    context.outbox.push(Outgoing { port, frame, released: kind == Waiting::Held });
}

/// Frees a frame that waited, and counts it.
pub(super) fn discard(
    context: &mut Context<'_>,
    packet: Packet,
    kind: Waiting,
    reason: DropReason,
) {
    if kind == Waiting::Held {
        context.counters.held = context.counters.held.wrapping_sub(1);
    }
    give_up(context, packet, kind, reason);
}

/// Frees a frame that is not counted as held, and counts it.
fn give_up(context: &mut Context<'_>, packet: Packet, kind: Waiting, reason: DropReason) {
    match kind {
        Waiting::Held => context.counters.drop(reason),
        Waiting::Forwarded | Waiting::Made => context.counters.originated_lost += 1,
    }
    context.umem.free(packet.addr);
}

// Frames that the host makes begin with the IP packet, so their link header needs the headroom.
const _: () = assert!(crate::frame::HEADROOM as usize >= HEADER_ROOM);

/// Decrements the TTL in a frame, and trims the frame to its packet of `len` bytes.
pub(super) fn age(context: &mut Context<'_>, packet: &mut Packet, len: usize) {
    let l3 = usize::from(packet.l3);
    packet.len = (l3 + len) as u16;
    let frame = context.umem.frame_mut(packet.addr, l3 + len);
    if let Some(layer3) = frame.get_mut(l3..) {
        build::decrement_ttl(layer3);
    }
}
