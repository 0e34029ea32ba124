use super::super::binding::{BindingRange, Manip, Site, range_of};
use super::super::detour;
use super::super::evaluate::{evaluate, reaches_forward_hook};
use super::super::tracking::{self, NatEnd};
use super::super::{Filter, Point, State, Tracker};
use crate::burst::{Burst, Lanes};
use crate::frame::Umem;
use crate::id::LinkId;
use crate::next_hops::Action;
use crate::stages::rule::RouteTables;
use crate::stages::validate::Valid6;
use crate::verdict::{DropReason, Verdict};
use crate::wire::translate::{Translation, translate, translate_quoted};

/// What translates the packets of a version of IP.
struct Nat<'a> {
    filter: &'a Filter,
    tracker: &'a Tracker,
    routes: &'a RouteTables,
    version: u8,
}

/// Translates destinations, at the end of hook prerouting; returns the packets that continue.
#[inline(never)]
pub(in super::super) fn destination(
    (filter, tracker): (&Filter, &Tracker),
    burst: &mut Burst,
    umem: &mut Umem,
    routes: &RouteTables,
    state: &mut State,
    lanes: (Lanes, Valid6),
) -> (Lanes, Valid6) {
    both(Manip::Destination, (filter, tracker), burst, umem, routes, state, lanes)
}

/// Translates sources, at the end of hook postrouting, and puts new connections into the table; returns the packets that
/// continue.
#[inline(never)]
pub(in super::super) fn source(
    (filter, tracker): (&Filter, &Tracker),
    burst: &mut Burst,
    umem: &mut Umem,
    routes: &RouteTables,
    state: &mut State,
    lanes: (Lanes, Valid6),
) -> (Lanes, Valid6) {
    for version in [4, 6].into_iter().filter(|version| tracker.translates(*version)) {
        if filter.at(Point::Forward, version).is_none() {
            // Nobody has looked for the routes of packets off the path.
            detour::find_routes(burst, umem, routes, state, version);
        }
    }
    both(Manip::Source, (filter, tracker), burst, umem, routes, state, lanes)
}

/// Translates one end of packets of both versions of IP, on the path and off it; returns those on it that continue.
fn both(
    manip: Manip,
    (filter, tracker): (&Filter, &Tracker),
    burst: &mut Burst,
    umem: &mut Umem,
    routes: &RouteTables,
    state: &mut State,
    (mut ip4, mut ip6): (Lanes, Valid6),
) -> (Lanes, Valid6) {
    let [four, six] = state.detoured;
    if tracker.translates(4) {
        let nat = Nat { filter, tracker, routes, version: 4 };
        ip4 = nat.ends(manip, burst, umem, state, ip4);
        state.detoured[0] = nat.ends(manip, burst, umem, state, four);
    }
    if tracker.translates(6) {
        let nat = Nat { filter, tracker, routes, version: 6 };
        ip6.lanes = nat.ends(manip, burst, umem, state, ip6.lanes);
        ip6.scoped = Lanes(ip6.scoped.0 & ip6.lanes.0);
        state.detoured[1] = nat.ends(manip, burst, umem, state, six);
    }
    (ip4, ip6)
}

impl Nat<'_> {
    fn ends(
        &self,
        manip: Manip,
        burst: &mut Burst,
        umem: &mut Umem,
        state: &mut State,
        lanes: Lanes,
    ) -> Lanes {
        match manip {
            Manip::Destination => self.destinations(burst, umem, state, lanes),
            Manip::Source => self.sources(burst, umem, state, lanes),
        }
    }

    fn destinations(
        &self,
        burst: &mut Burst,
        umem: &mut Umem,
        state: &mut State,
        mut lanes: Lanes,
    ) -> Lanes {
        let new = state.connections.beginning(lanes);
        if !new.is_empty() {
            lanes = self.rules(Point::DestinationNat, burst, umem, state, (lanes, new));
            for lane in state.connections.beginning(lanes) {
                let Some(range) = self.range(Manip::Destination, burst, state, lane) else {
                    lanes = exit(burst, lanes, lane);
                    continue;
                };
                let now_ns = state.now_ns;
                state.connections.bind_destination(self.tracker, lane, &range, now_ns);
            }
        }
        rewrite(Manip::Destination, burst, umem, state, lanes, lanes)
    }

    fn sources(
        &self,
        burst: &mut Burst,
        umem: &mut Umem,
        state: &mut State,
        mut lanes: Lanes,
    ) -> Lanes {
        let (next_hops, kernel) = (self.routes.next_hops.view(), state.kernel_has_rules);
        let reach = lanes.filter(|lane| {
            reaches_forward_hook((self.version, kernel), burst, umem, next_hops, lane)
        });
        let new = state.connections.beginning(reach);
        if !new.is_empty() {
            lanes = self.rules(Point::SourceNat, burst, umem, state, (lanes, new));
            for lane in state.connections.beginning(Lanes(lanes.0 & reach.0)) {
                lanes = match self.range(Manip::Source, burst, state, lane) {
                    Some(range) => self.confirm(burst, umem, state, (lanes, lane), &range),
                    None => exit(burst, lanes, lane),
                };
            }
        }
        for lane in state.connections.beginning(lanes.without(reach)) {
            // The router answers what was sent to another address, from that address.
            let is_translated = state.connections.nat_end(lane, Manip::Destination).is_some();
            let record = next_hops.record(burst.next[lane]);
            let is_local = record.is_some_and(|record| record.action() == Action::Local);
            if is_translated
                && is_local
                && let Some(range) = self.range(Manip::Source, burst, state, lane)
            {
                lanes = self.confirm(burst, umem, state, (lanes, lane), &range);
            }
        }
        rewrite(Manip::Source, burst, umem, state, lanes, Lanes(lanes.0 & reach.0))
    }

    /// Evaluates the chains of type nat for packets that begin a connection; returns all that continue.
    fn rules(
        &self,
        point: Point,
        burst: &mut Burst,
        umem: &mut Umem,
        state: &mut State,
        (lanes, new): (Lanes, Lanes),
    ) -> Lanes {
        let Some(classifier) = self.filter.at(point, self.version) else { return lanes };
        let left = evaluate(self.filter, classifier, burst, umem, self.routes, state, new);
        lanes.without(new).or(left)
    }

    /// What the connection that a packet begins may get; none if its link has no address.
    fn range(
        &self,
        manip: Manip,
        burst: &Burst,
        state: &mut State,
        lane: usize,
    ) -> Option<BindingRange> {
        let (order, leaves) = state.connections.take_order(lane)?;
        let Some(range) = order else {
            return Some(BindingRange::keeping(manip.address(&leaves)));
        };
        let record = self.routes.next_hops.view().record(burst.next[lane]);
        let egress = record.map_or(LinkId(u16::MAX), crate::next_hops::Record::link);
        let site = Site {
            ingress: self.filter.addresses_of(burst.link[lane]),
            egress: self.filter.addresses_of(egress),
        };
        range_of(&range, &leaves, site)
    }

    /// Puts the connection that a packet begins into the table; returns the packets that continue.
    fn confirm(
        &self,
        burst: &mut Burst,
        umem: &Umem,
        state: &mut State,
        (lanes, lane): (Lanes, usize),
        range: &BindingRange,
    ) -> Lanes {
        let (tracker, now_ns) = (self.tracker, state.now_ns);
        let packet = (self.version, tracking::packet(burst, umem, lane));
        let Err(counter) = state.connections.confirm_bound(tracker, lane, range, packet, now_ns)
        else {
            return lanes;
        };
        state.count(Point::Forward, lane, counter, burst.layer3_bytes(lane).into());
        exit(burst, lanes, lane)
    }
}

/// Drops a packet; returns the other ones.
fn exit(burst: &mut Burst, lanes: Lanes, lane: usize) -> Lanes {
    burst.exit(lane, Verdict::Drop(DropReason::NetfilterDrop));
    lanes.without(Lanes(1 << lane))
}

/// Writes what these packets become; returns those of all that continue.
fn rewrite(
    manip: Manip,
    burst: &mut Burst,
    umem: &mut Umem,
    state: &State,
    mut lanes: Lanes,
    of: Lanes,
) -> Lanes {
    for lane in of {
        let Some(end) = state.connections.nat_end(lane, manip) else { continue };
        let frame = umem.frame_mut(burst.addr[lane], usize::from(burst.len[lane]));
        let packet = frame.get_mut(usize::from(burst.l3[lane])..).unwrap_or_default();
        let is_v4 = packet.first().is_some_and(|first| first >> 4 == 4);
        if !write(packet, end, manip) {
            lanes = exit(burst, lanes, lane);
        } else if manip == Manip::Destination {
            burst.key[lane] =
                if is_v4 { (end.address as u64) << 32 } else { (end.address >> 64) as u64 };
        }
    }
    lanes
}

/// Writes one end into a packet, and into the packet of the other direction that an error quotes; says whether that is
/// possible.
pub(super) fn write(packet: &mut [u8], end: NatEnd, manip: Manip) -> bool {
    // A connection that is known by its addresses alone has port 0, and what its packets have there stays.
    let has_port = end.port != 0 && !end.is_error;
    let (address, port) = (Some(end.address), has_port.then_some(end.port));
    let source = Translation { source: address, source_port: port, ..Translation::default() };
    let destination =
        Translation { destination: address, destination_port: port, ..Translation::default() };
    let port = Some(end.port);
    let (outer, quoted) = match manip {
        Manip::Source => {
            (source, Translation { destination_port: port, source_port: None, ..destination })
        }
        Manip::Destination => {
            (destination, Translation { source_port: port, destination_port: None, ..source })
        }
    };
    if end.is_error && (is_redirect(packet) || translate_quoted(packet, &quoted).is_err()) {
        return false;
    }
    translate(packet, &outer).is_ok()
}

/// Says whether it is a redirect of ICMP, whose gateway is the way to an address that is not the sender's.
fn is_redirect(packet: &[u8]) -> bool {
    const REDIRECT: u8 = 5;
    let first = packet.first().copied().unwrap_or_default();
    let kind = packet.get(usize::from(first & 15) * 4);
    first >> 4 == 4 && kind == Some(&REDIRECT)
}
