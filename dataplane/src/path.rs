//! A packet's whole way through the router, in order, on one screen.

use crate::burst::Burst;
use crate::frame::Umem;
use crate::stages::filter::Point;
use crate::stages::transmit::Egress;
use crate::stages::{
    admit, classify, ecmp, filter, redirect, rewrite, route, rule, source, transmit, validate,
};
use crate::tables::Tables;
use crate::tolls::{Lap, Stage, Tolls};

/// Which optional stages are compiled in. The program has [`Everything`]; the lab measures
/// [`Nothing`] beside it, to show what a feature costs that is there and not configured.
pub trait Features {
    /// VLAN links.
    const VLAN: bool;
    /// Next-hop groups.
    const ECMP: bool;
    /// Rules of the firewall.
    const FILTER: bool;
    /// Policy rules, and VRFs that fall back to others.
    const RULE: bool;
    /// What the kernel asks of sources, and packets that go back where they came from.
    const SOURCE: bool;
}

/// Every optional stage.
pub struct Everything;
impl Features for Everything {
    const VLAN: bool = true;
    const ECMP: bool = true;
    const FILTER: bool = true;
    const RULE: bool = true;
    const SOURCE: bool = true;
}

/// No optional stage.
pub struct Nothing;
impl Features for Nothing {
    const VLAN: bool = false;
    const ECMP: bool = false;
    const FILTER: bool = false;
    const RULE: bool = false;
    const SOURCE: bool = false;
}

/// Takes a burst from its port to the queues in `egress`.
///
/// Packets that do not get there are in [`Burst::left`] with their verdict, unchanged.
#[inline(always)]
pub(crate) fn road<F: Features, const TIMED: bool>(
    burst: &mut Burst,
    umem: &mut Umem,
    tables: &Tables,
    tolls: &mut Tolls,
    egress: &mut Egress,
    state: &mut filter::State,
) {
    let Some(port) = tables.ports.get(usize::from(burst.port.0)) else { return };
    let mut lap = Lap::<TIMED>::start(tolls);

    let admitted = admit::run(burst, umem, port);
    lap.book(Stage::Admit, burst.lanes());

    let mut packets = classify::run::<F>(burst, umem, tables, port, admitted);
    lap.book(Stage::Classify, packets.ip4.or(packets.ip6));

    if F::FILTER && filter::hangs(tables, Point::Ingress) {
        let lanes = packets.ip4.or(packets.ip6);
        packets = filter::ingress(burst, umem, tables, state, packets);
        lap.book(Stage::Ingress, lanes);
    }

    let mut ip4 = validate::ipv4(burst, umem, packets.ip4);
    let mut ip6 = validate::ipv6(burst, umem, packets.ip6);
    lap.book(Stage::Validate, packets.ip4.or(packets.ip6));

    if F::FILTER && tables.filter.is_some() {
        let lanes = ip4.or(ip6.lanes);
        (ip4, ip6) = filter::prerouting(burst, umem, tables, state, (ip4, ip6));
        lap.book(Stage::Prerouting, lanes);
    }

    route::run::<route::V4>(burst, umem, tables, ip4);
    route::run::<route::V6>(burst, umem, tables, ip6.lanes);
    if F::RULE
        && let Some(fallbacks) = &tables.fallbacks
    {
        route::fall_back::<route::V4>(burst, umem, tables, fallbacks, ip4);
        route::fall_back::<route::V6>(burst, umem, tables, fallbacks, ip6.lanes);
    }
    lap.book(Stage::Route, ip4.or(ip6.lanes));

    if F::RULE
        && let Some(policies) = &tables.policies
    {
        rule::run(burst, umem, tables, policies, state, (ip4, ip6.lanes));
        lap.book(Stage::Rule, ip4.or(ip6.lanes));
    }

    if F::ECMP && !tables.groups.is_empty() {
        ecmp::run(burst, umem, tables, (ip4, ip6.lanes));
        lap.book(Stage::Ecmp, ip4.or(ip6.lanes));
    }

    if F::SOURCE
        && let Some(redirects) = &tables.redirects
    {
        let lanes = ip4.or(ip6.lanes);
        (ip4, ip6) = redirect::run(burst, tables, redirects, (ip4, ip6));
        lap.book(Stage::Redirect, lanes);
    }

    if F::SOURCE
        && let Some(sources) = &tables.sources
    {
        let lanes = ip4;
        ip4 = source::run(burst, umem, tables, sources, state, ip4);
        lap.book(Stage::Source, lanes);
    }

    if F::FILTER && tables.filter.is_some() {
        let lanes = ip4.or(ip6.lanes);
        (ip4, ip6) = filter::forward(burst, umem, tables, state, (ip4, ip6));
        lap.book(Stage::Forward, lanes);
    }

    let ready = rewrite::ipv4(burst, umem, tables, ip4);
    let ready = ready.or(rewrite::ipv6(burst, umem, tables, ip6));
    lap.book(Stage::Rewrite, ip4.or(ip6.lanes));

    transmit::run(burst, egress, ready);
    lap.book(Stage::Transmit, ready);

    if F::SOURCE
        && let Some(sources) = &tables.sources
        && sources.tells
    {
        source::tell(burst, sources);
    }
}
