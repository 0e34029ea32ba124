//! The path of a packet through the router: every stage, in order, on one screen.

use crate::burst::{Burst, Lanes};
use crate::features::Features;
use crate::frame::Umem;
use crate::stages::admit::Admitted;
use crate::stages::filter::Point;
use crate::stages::transmit::Egress;
use crate::stages::{
    Stage, admit, bridge, classify, ecmp, filter, icmp_redirect, rewrite, route, rule,
    source_check, transmit, validate,
};
use crate::tables::ForwardingState;
use crate::tolls::{StageTimer, Tolls};

/// Takes a burst from its port to the queues in `egress`.
///
/// All other packets are in [`Burst::exited`], each with its verdict and unchanged.
#[inline(always)]
pub(crate) fn forward<F: Features, const TIMED: bool>(
    burst: &mut Burst,
    umem: &mut Umem,
    tables: &ForwardingState,
    tolls: &mut Tolls,
    egress: &mut Egress,
    state: &mut filter::State,
) {
    let Some(port) = tables.ports.get(usize::from(burst.port.0)) else { return };
    let (routes, next_hops) = (&tables.routes, &*tables.routes.next_hops);
    let mut timer = StageTimer::<TIMED>::start(tolls);

    let (mut bridged, mut admitted) = (Lanes::NONE, Admitted::default());
    if F::BRIDGE
        && let Some(bridges) = &tables.bridges
        && let Some(from) = bridges.port(burst.port)
    {
        bridged = bridge::run(burst, umem, bridges, from, egress, state.now_ns);
        timer.record(Stage::Bridge, burst.lanes());
    } else {
        admitted = admit::run(burst, umem, port.mac, port.link);
        timer.record(Stage::Admit, burst.lanes());
    }

    let mut packets = classify::run::<F>(burst, umem, &routes.links, port, admitted);
    timer.record(Stage::Classify, packets.ip4.or(packets.ip6));

    if F::FILTER
        && let Some(rules) = &tables.filter
        && rules.hangs_at(Point::Ingress)
    {
        let lanes = packets.ip4.or(packets.ip6);
        packets = filter::ingress(burst, umem, rules, routes, state, packets);
        timer.record(Stage::Ingress, lanes);
    }

    let mut ip4 = validate::ipv4(burst, umem, packets.ip4);
    let mut ip6 = validate::ipv6(burst, umem, packets.ip6);
    timer.record(Stage::Validate, packets.ip4.or(packets.ip6));

    if F::FILTER
        && let Some(rules) = &tables.filter
    {
        let lanes = ip4.or(ip6.lanes);
        (ip4, ip6) = filter::prerouting(burst, umem, rules, routes, state, (ip4, ip6));
        timer.record(Stage::Prerouting, lanes);
    }

    route::run::<route::V4>(burst, umem, &routes.fib4, next_hops, ip4);
    route::run::<route::V6>(burst, umem, &routes.fib6, next_hops, ip6.lanes);
    if F::RULE
        && let Some(fallbacks) = &routes.fallbacks
    {
        let (fib4, fib6) = (&routes.fib4, &routes.fib6);
        route::fall_back::<route::V4>(burst, umem, fib4, next_hops, fallbacks, ip4);
        route::fall_back::<route::V6>(burst, umem, fib6, next_hops, fallbacks, ip6.lanes);
    }
    timer.record(Stage::Route, ip4.or(ip6.lanes));

    if F::RULE
        && let Some(policies) = &routes.policies
    {
        let with_vrf = state.with_vrf();
        let lanes = (ip4.without(with_vrf), ip6.lanes.without(with_vrf));
        rule::run(burst, umem, routes, policies, &state.mark, lanes);
        timer.record(Stage::Rule, ip4.or(ip6.lanes));
    }

    if F::ECMP && !routes.groups.is_empty() {
        let ecmp = (&*routes.groups, &routes.multipath);
        ecmp::run(burst, umem, ecmp, next_hops, (ip4, ip6.lanes));
        timer.record(Stage::Ecmp, ip4.or(ip6.lanes));
    }

    if F::SOURCE_CHECK
        && let Some(redirects) = &tables.redirects
    {
        let lanes = ip4.or(ip6.lanes);
        (ip4, ip6) = icmp_redirect::run(burst, next_hops, redirects, (ip4, ip6));
        timer.record(Stage::IcmpRedirect, lanes);
    }

    if F::SOURCE_CHECK
        && let Some(sources) = &tables.sources
    {
        let lanes = ip4;
        ip4 = source_check::run(burst, umem, routes, sources, &state.mark, ip4);
        timer.record(Stage::SourceCheck, lanes);
    }

    if F::FILTER
        && let Some(rules) = &tables.filter
    {
        let lanes = ip4.or(ip6.lanes);
        (ip4, ip6) = filter::forward(burst, umem, rules, routes, state, (ip4, ip6));
        timer.record(Stage::Forward, lanes);
    }

    let ready = rewrite::ipv4(burst, umem, next_hops, ip4);
    let ready = ready.or(rewrite::ipv6(burst, umem, next_hops, ip6));
    timer.record(Stage::Rewrite, ip4.or(ip6.lanes));

    let ready = ready.or(bridged);
    transmit::run(burst, egress, ready);
    timer.record(Stage::Transmit, ready);

    if F::SOURCE_CHECK
        && let Some(sources) = &tables.sources
        && sources.logs_martians
    {
        source_check::punt_martians(burst, sources);
    }
}
