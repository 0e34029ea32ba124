//! The path of a packet through the router: every stage, in order, on one screen.

use crate::burst::Burst;
use crate::frame::Umem;
use crate::stages::filter::Point;
use crate::stages::transmit::Egress;
use crate::stages::{
    admit, classify, ecmp, filter, icmp_redirect, rewrite, route, rule, source_check, transmit,
    validate,
};
use crate::tables::Tables;
use crate::tolls::{Stage, StageTimer, Tolls};

/// Selects which optional stages are compiled in.
///
/// The program uses [`AllStages`]. The lab also measures [`NoStages`], to show what a feature costs
/// that is compiled in but not configured.
pub trait Features {
    /// VLAN links.
    const VLAN: bool;
    /// Next-hop groups.
    const ECMP: bool;
    /// Firewall rules.
    const FILTER: bool;
    /// Policy rules, and VRFs that fall back to other VRFs.
    const RULE: bool;
    /// Checks of the source address, and packets that exit through their ingress link.
    const SOURCE_CHECK: bool;
}

/// Every optional stage.
pub struct AllStages;
impl Features for AllStages {
    const VLAN: bool = true;
    const ECMP: bool = true;
    const FILTER: bool = true;
    const RULE: bool = true;
    const SOURCE_CHECK: bool = true;
}

/// No optional stage.
pub struct NoStages;
impl Features for NoStages {
    const VLAN: bool = false;
    const ECMP: bool = false;
    const FILTER: bool = false;
    const RULE: bool = false;
    const SOURCE_CHECK: bool = false;
}

/// Takes a burst from its port to the queues in `egress`.
///
/// All other packets are in [`Burst::exited`], each with its verdict and unchanged.
#[inline(always)]
pub(crate) fn forward<F: Features, const TIMED: bool>(
    burst: &mut Burst,
    umem: &mut Umem,
    tables: &Tables,
    tolls: &mut Tolls,
    egress: &mut Egress,
    state: &mut filter::State,
) {
    let Some(port) = tables.ports.get(usize::from(burst.port.0)) else { return };
    let mut timer = StageTimer::<TIMED>::start(tolls);

    let admitted = admit::run(burst, umem, port);
    timer.record(Stage::Admit, burst.lanes());

    let mut packets = classify::run::<F>(burst, umem, tables, port, admitted);
    timer.record(Stage::Classify, packets.ip4.or(packets.ip6));

    if F::FILTER && filter::hangs(tables, Point::Ingress) {
        let lanes = packets.ip4.or(packets.ip6);
        packets = filter::ingress(burst, umem, tables, state, packets);
        timer.record(Stage::Ingress, lanes);
    }

    let mut ip4 = validate::ipv4(burst, umem, packets.ip4);
    let mut ip6 = validate::ipv6(burst, umem, packets.ip6);
    timer.record(Stage::Validate, packets.ip4.or(packets.ip6));

    if F::FILTER && tables.filter.is_some() {
        let lanes = ip4.or(ip6.lanes);
        (ip4, ip6) = filter::prerouting(burst, umem, tables, state, (ip4, ip6));
        timer.record(Stage::Prerouting, lanes);
    }

    route::run::<route::V4>(burst, umem, tables, ip4);
    route::run::<route::V6>(burst, umem, tables, ip6.lanes);
    if F::RULE
        && let Some(fallbacks) = &tables.fallbacks
    {
        route::fall_back::<route::V4>(burst, umem, tables, fallbacks, ip4);
        route::fall_back::<route::V6>(burst, umem, tables, fallbacks, ip6.lanes);
    }
    timer.record(Stage::Route, ip4.or(ip6.lanes));

    if F::RULE
        && let Some(policies) = &tables.policies
    {
        rule::run(burst, umem, tables, policies, state, (ip4, ip6.lanes));
        timer.record(Stage::Rule, ip4.or(ip6.lanes));
    }

    if F::ECMP && !tables.groups.is_empty() {
        ecmp::run(burst, umem, tables, (ip4, ip6.lanes));
        timer.record(Stage::Ecmp, ip4.or(ip6.lanes));
    }

    if F::SOURCE_CHECK
        && let Some(redirects) = &tables.redirects
    {
        let lanes = ip4.or(ip6.lanes);
        (ip4, ip6) = icmp_redirect::run(burst, tables, redirects, (ip4, ip6));
        timer.record(Stage::IcmpRedirect, lanes);
    }

    if F::SOURCE_CHECK
        && let Some(sources) = &tables.sources
    {
        let lanes = ip4;
        ip4 = source_check::run(burst, umem, tables, sources, state, ip4);
        timer.record(Stage::SourceCheck, lanes);
    }

    if F::FILTER && tables.filter.is_some() {
        let lanes = ip4.or(ip6.lanes);
        (ip4, ip6) = filter::forward(burst, umem, tables, state, (ip4, ip6));
        timer.record(Stage::Forward, lanes);
    }

    let ready = rewrite::ipv4(burst, umem, tables, ip4);
    let ready = ready.or(rewrite::ipv6(burst, umem, tables, ip6));
    timer.record(Stage::Rewrite, ip4.or(ip6.lanes));

    transmit::run(burst, egress, ready);
    timer.record(Stage::Transmit, ready);

    if F::SOURCE_CHECK
        && let Some(sources) = &tables.sources
        && sources.logs_martians
    {
        source_check::punt_martians(burst, sources);
    }
}
