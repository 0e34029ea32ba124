use super::evaluate::{evaluate, reaches_forward_hook};
use super::state::Detoured;
use super::tracking::{self, Lookup};
use super::{Filter, Point, State, Tracker, policy_route};
use super::{detour, nat};
use crate::burst::{Burst, Lanes};
use crate::frame::Umem;
use crate::stages::rule::RouteTables;
use crate::stages::validate::Valid6;
use crate::verdict::{DropReason, Verdict};

/// Evaluates the rules of hook prerouting; returns the packets that continue.
#[inline(always)]
pub fn prerouting(
    burst: &mut Burst,
    umem: &mut Umem,
    filter: &Filter,
    routes: &RouteTables,
    state: &mut State,
    mut lanes: (Lanes, Valid6),
) -> (Lanes, Valid6) {
    if !filter.hangs_at(Point::Ingress) {
        state.begin(filter);
    }
    let none_is_ours = burst.exited.is_empty() || state.kernel_has_rules;
    state.detoured = if none_is_ours { Detoured::default() } else { detour::find(burst, umem) };
    let point = (filter, Point::Prerouting);
    let Some(tracker) = filter.tracker() else {
        return both(point, burst, umem, routes, state, lanes);
    };
    let by_stage = [4, 6].map(|version| !tracker.is_by_op(version));
    lanes = track(tracker, by_stage, burst, umem, state, lanes);
    lanes = both(point, burst, umem, routes, state, lanes);
    lanes = track(tracker, [true; 2], burst, umem, state, lanes);
    if !tracker.translates_some() {
        return lanes;
    }
    lanes = nat::destination((filter, tracker), burst, umem, routes, state, lanes);
    both((filter, Point::BehindNat), burst, umem, routes, state, lanes)
}

/// Looks up the connections of packets of these versions of IP, if they are not known yet; returns the packets that
/// continue.
fn track(
    tracker: &Tracker,
    [has_ip4, has_ip6]: [bool; 2],
    burst: &mut Burst,
    umem: &Umem,
    state: &mut State,
    (mut ip4, mut ip6): (Lanes, Valid6),
) -> (Lanes, Valid6) {
    let detoured = state.detoured;
    if has_ip4 {
        ip4 = track_all(tracker, 4, burst, umem, state, ip4);
        state.detoured[0] = track_all(tracker, 4, burst, umem, state, detoured[0]);
    }
    if has_ip6 {
        ip6.lanes = track_all(tracker, 6, burst, umem, state, ip6.lanes);
        ip6.scoped = Lanes(ip6.scoped.0 & ip6.lanes.0);
        state.detoured[1] = track_all(tracker, 6, burst, umem, state, detoured[1]);
    }
    (ip4, ip6)
}

/// Looks up the connections of packets of a version of IP; returns the packets that continue.
fn track_all(
    tracker: &Tracker,
    version: u8,
    burst: &mut Burst,
    umem: &Umem,
    state: &mut State,
    mut lanes: Lanes,
) -> Lanes {
    for lane in state.connections.untracked(lanes) {
        let packet = (version, tracking::packet(burst, umem, lane));
        let found = state.connections.track(tracker, packet, lane, state.now_ns);
        let bytes = u64::from(burst.layer3_bytes(lane));
        match found {
            Lookup::Found => {}
            Lookup::Invalid => state.count(Point::Prerouting, lane, tracker.invalid(), bytes),
            Lookup::Full => {
                state.count(Point::Prerouting, lane, tracker.full(), bytes);
                burst.exit(lane, Verdict::Drop(DropReason::NetfilterDrop));
                lanes = lanes.without(Lanes(1 << lane));
            }
        }
    }
    lanes
}

/// Puts the new connections of packets that leave the router into the table; returns the packets that continue.
#[cold]
fn confirm(
    (filter, tracker): (&Filter, &Tracker),
    burst: &mut Burst,
    umem: &Umem,
    routes: &RouteTables,
    state: &mut State,
    (mut ip4, mut ip6): (Lanes, Valid6),
) -> (Lanes, Valid6) {
    let next_hops = routes.next_hops.view();
    let reaches = |version, on_path: Lanes, detoured: Lanes| {
        // Without rules, nobody has looked for the route of a packet off the path.
        let is_routed = filter.at(Point::Forward, version).is_some();
        let lanes = if is_routed { on_path.or(detoured) } else { on_path };
        let rules = (version, state.kernel_has_rules);
        let reach = lanes.filter(|lane| reaches_forward_hook(rules, burst, umem, next_hops, lane));
        if is_routed { reach } else { reach.or(detoured) }
    };
    let [four, six] = state.detoured;
    let passed = [reaches(4, ip4, four), reaches(6, ip6.lanes, six)];
    let now_ns = state.now_ns;
    let lost = state.connections.confirm(tracker, (burst, umem), passed, now_ns);
    for lane in lost {
        let bytes = u64::from(burst.layer3_bytes(lane));
        state.count(Point::Forward, lane, tracker.full(), bytes);
        burst.exit(lane, Verdict::Drop(DropReason::NetfilterDrop));
    }
    state.detoured = state.detoured.map(|lanes| lanes.without(lost));
    ip4 = ip4.without(lost);
    ip6.lanes = ip6.lanes.without(lost);
    (ip4, ip6)
}

/// Evaluates the rules of hooks forward, postrouting and egress; returns the packets that continue.
///
/// Packets that are not to be forwarded (for the router itself, without a route, with an expired TTL)
/// skip these hooks and continue; a later stage makes them exit.
#[inline(always)]
pub fn forward(
    burst: &mut Burst,
    umem: &mut Umem,
    filter: &Filter,
    routes: &RouteTables,
    state: &mut State,
    lanes: (Lanes, Valid6),
) -> (Lanes, Valid6) {
    burst.routed = lanes.0.or(lanes.1.lanes);
    if !state.policy_routed.is_empty() {
        policy_route::take_place(burst, umem, routes, state);
    }
    let mut lanes = both((filter, Point::Forward), burst, umem, routes, state, lanes);
    if let Some(tracker) = filter.tracker().filter(|tracker| tracker.translates_some()) {
        lanes = nat::source((filter, tracker), burst, umem, routes, state, lanes);
    }
    match filter.tracker() {
        Some(tracker) if state.connections.has_new() => {
            confirm((filter, tracker), burst, umem, routes, state, lanes)
        }
        _ => lanes,
    }
}

#[inline(always)]
fn both(
    (filter, point): (&Filter, Point),
    burst: &mut Burst,
    umem: &mut Umem,
    routes: &RouteTables,
    state: &mut State,
    (mut ip4, mut ip6): (Lanes, Valid6),
) -> (Lanes, Valid6) {
    if let Some(classifier) = filter.at(point, 4) {
        ip4 = evaluate(filter, classifier, burst, umem, routes, state, ip4);
    }
    if let Some(classifier) = filter.at(point, 6) {
        ip6.lanes = evaluate(filter, classifier, burst, umem, routes, state, ip6.lanes);
        ip6.scoped = Lanes(ip6.scoped.0 & ip6.lanes.0);
    }
    if state.detoured != Detoured::default() {
        detour::detour(filter, point, burst, umem, routes, state);
    }
    (ip4, ip6)
}
