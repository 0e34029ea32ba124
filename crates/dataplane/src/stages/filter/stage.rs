use super::detour;
use super::evaluate::evaluate;
use super::state::Detoured;
use super::{Filter, Point, State, policy_route};
use crate::burst::{Burst, Lanes};
use crate::frame::Umem;
use crate::stages::rule::RouteTables;
use crate::stages::validate::Valid6;

/// Evaluates the rules of hook prerouting; returns the packets that continue.
#[inline(always)]
pub fn prerouting(
    burst: &mut Burst,
    umem: &mut Umem,
    filter: &Filter,
    routes: &RouteTables,
    state: &mut State,
    lanes: (Lanes, Valid6),
) -> (Lanes, Valid6) {
    if !filter.hangs_at(Point::Ingress) {
        state.begin(filter);
    }
    let none_is_ours = burst.exited.is_empty() || state.kernel_has_rules;
    state.detoured = if none_is_ours { Detoured::default() } else { detour::find(burst, umem) };
    both((filter, Point::Prerouting), burst, umem, routes, state, lanes)
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
    both((filter, Point::Forward), burst, umem, routes, state, lanes)
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
