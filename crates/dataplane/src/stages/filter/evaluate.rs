//! Evaluates the rules of one point and version for a burst.

use super::aliases::Translations;
use super::classifier::{Classifier, Work};
use super::scratch::Scratch;
use super::summary::RuleSummary;
use super::tracking::Connections;
use super::walk::walk;
use super::{Filter, Point, PolicyRoute, State, policy_route};
use crate::burst::{Burst, Lanes};
use crate::frame::Umem;
use crate::next_hops::{Action, NextHopsView, Record};
use crate::stages::rule::RouteTables;
use crate::verdict::{DropReason, PuntReason, Verdict};
use crate::wire::{be16, ipv6};

/// Evaluates the rules of one point and version; returns the packets that continue.
#[inline(always)]
pub(super) fn evaluate(
    filter: &Filter,
    classifier: &Classifier,
    burst: &mut Burst,
    umem: &mut Umem,
    routes: &RouteTables,
    state: &mut State,
    lanes: Lanes,
) -> Lanes {
    if lanes.is_empty() {
        return lanes;
    }
    let work =
        Work { burst, umem, routes, mark: &state.mark, connections: &state.connections, lanes };
    classifier.classify.run(classifier, &work, &mut state.scratch);
    let (drop, rest) = sort(classifier, state, lanes);
    if rest.is_empty() {
        return lanes;
    }
    if drop == rest && !classifier.point.is_behind_route() {
        burst.exit_all(drop, Verdict::Drop(DropReason::NetfilterDrop));
        return lanes.without(drop);
    }
    lanes.without(execute(filter, classifier, burst, umem, routes, state, rest))
}

/// The packets whose first rule drops them, and those whose first rule does more than accept them.
#[inline(always)]
fn sort(classifier: &Classifier, state: &State, lanes: Lanes) -> (Lanes, Lanes) {
    if classifier.width == 1 {
        let (drop, rest) = classifier.verdict_sets.sort(&state.scratch.set);
        return (Lanes(drop.0 & lanes.0), Lanes(rest.0 & lanes.0));
    }
    let (mut drop, mut rest) = (Lanes::NONE, Lanes::NONE);
    let last = classifier.summaries.len() - 1;
    for lane in lanes {
        let summary = classifier.summaries[(state.scratch.first[lane] as usize).min(last)];
        drop.put(lane, summary == RuleSummary::Drop);
        rest.put(lane, summary != RuleSummary::Accept);
    }
    (drop, rest)
}

/// Executes the rules for packets that are not simply accepted; returns those that have exited.
#[inline(never)]
fn execute(
    filter: &Filter,
    classifier: &Classifier,
    burst: &mut Burst,
    umem: &mut Umem,
    routes: &RouteTables,
    state: &mut State,
    mut lanes: Lanes,
) -> Lanes {
    if classifier.point.is_behind_route() {
        let known = (&*state.scratch, state.kernel_has_rules);
        lanes = reaching_forward_hook(classifier, burst, umem, routes, known, lanes);
    }
    let mut exited = Lanes::NONE;
    if let Some(by_rule) = &classifier.by_rule {
        // Off the path, the bytes after the packet are not cut off yet.
        let on_path = lanes.without(burst.exited);
        classifier.classify.execute(classifier, by_rule, burst, &mut state.scratch, on_path);
        let tally = &state.scratch.tally;
        lanes = lanes.without(on_path).or(tally.walk);
        exited = tally.drop;
        burst.exit_all(exited, Verdict::Drop(DropReason::NetfilterDrop));
        state.count_tally(classifier.point, by_rule, burst);
    }
    for lane in lanes {
        let verdict = walk_one(filter, classifier, burst, umem, routes, state, (lanes, lane));
        if let Some(verdict) = verdict {
            burst.exit(lane, verdict);
            exited.put(lane, true);
        }
    }
    exited
}

/// Walks a packet through the rules; returns the verdict if it exits.
fn walk_one(
    filter: &Filter,
    classifier: &Classifier,
    burst: &mut Burst,
    umem: &mut Umem,
    routes: &RouteTables,
    state: &mut State,
    (lanes, lane): (Lanes, usize),
) -> Option<Verdict> {
    let summary = classifier.summaries.get(state.scratch.first[lane] as usize);
    if summary == Some(&RuleSummary::Drop) {
        return Some(Verdict::Drop(DropReason::NetfilterDrop));
    }
    let mark = state.mark;
    // The walk has the connections, which it may change.
    let connections = Connections::default();
    let work = Work { burst, umem, routes, mark: &mark, connections: &connections, lanes };
    let mut report = walk(classifier, filter, &work, state, lane);
    if let Some(head) = report.head {
        let bytes = umem.bytes_mut(burst.addr[lane], usize::from(burst.l3[lane]));
        if state.kernel_has_rules {
            state.written.push((lane, *bytes));
        }
        *bytes = head.bytes;
    }
    if let Some(translations) = state.translations.take()
        && report.verdict.is_none()
    {
        match translate(&translations, burst, umem, lane) {
            Some(is_changed) => state.aliased.put(lane, is_changed || state.aliased.has(lane)),
            None => report.verdict = Some(Verdict::Drop(DropReason::NetfilterDrop)),
        }
    }
    if let Some(policy_route) = report.policy_route {
        apply_policy_route(policy_route, classifier, burst, umem, routes, state, lane);
    }
    let is_rejected = report.verdict == Some(Verdict::Punt(PuntReason::Reject));
    if classifier.point.is_behind_route() && is_rejected && !state.kernel_has_rules {
        decrement_ttl(classifier, burst, umem, lane);
    }
    report.verdict
}

/// Bytes from layer 3 on, in one of which each change shows: the addresses, ports and checksums of all packets without
/// options.
const CHANGED: usize = 64;

/// Translates a packet; says whether that changes it, if its headers are whole.
#[inline(never)]
fn translate(
    translations: &Translations,
    burst: &mut Burst,
    umem: &mut Umem,
    lane: usize,
) -> Option<bool> {
    let (addr, l3) = (burst.addr[lane], usize::from(burst.l3[lane]));
    let before: [u8; CHANGED] = *umem.bytes(addr, l3);
    let frame = umem.frame_mut(addr, usize::from(burst.len[lane]));
    let packet = frame.get_mut(l3..)?;
    let is_whole = translations.apply(packet).is_ok();
    // Instances translate IPv4 only; the route lookup comes later.
    if is_whole && let Some(destination) = translations.packet.destination {
        burst.key[lane] = (destination as u64) << 32;
    }
    is_whole.then(|| before != *umem.bytes::<CHANGED>(addr, l3))
}

/// Decrements the TTL before the packet is quoted to its sender, as `ip_forward` and `ip6_forward` have
/// done before hook forward.
fn decrement_ttl(classifier: &Classifier, burst: &Burst, umem: &mut Umem, lane: usize) {
    let header: &mut [u8; 12] = umem.bytes_mut(burst.addr[lane], usize::from(burst.l3[lane]));
    if classifier.version == 6 {
        header[7] = header[7].saturating_sub(1);
        return;
    }
    header[8] = header[8].saturating_sub(1);
    // RFC 1141: decrementing the TTL by one adds 0x100 to the header's checksum.
    let sum = u32::from(u16::from_be_bytes([header[10], header[11]])) + 0x100;
    let sum = (sum + (sum >> 16)) as u16;
    header[10..].copy_from_slice(&sum.to_be_bytes());
}

/// Sends a packet where rules redirect it. It does not route a packet again that already has its route.
fn apply_policy_route(
    policy_route: PolicyRoute,
    classifier: &Classifier,
    burst: &mut Burst,
    umem: &Umem,
    routes: &RouteTables,
    state: &mut State,
    lane: usize,
) {
    match (classifier.point, policy_route) {
        (Point::Forward | Point::SourceNat, PolicyRoute::Next(id)) => {
            burst.next[lane] = policy_route::record(burst, umem, routes, lane, id);
            state.policy_route(lane, policy_route);
        }
        (Point::Forward | Point::SourceNat, _) => {}
        (_, PolicyRoute::Vrf(vrf)) => {
            policy_route::set_root(burst, routes, classifier.version, lane, vrf);
            state.policy_route(lane, policy_route);
        }
        _ => state.policy_route(lane, policy_route),
    }
}

/// The packets that reach hook forward (`ip_forward`, `ip6_forward`): those that have a next hop and a
/// hop left, and are not too big.
///
/// For a packet that waits for a neighbour, the MTU does not count. If the kernel has the rules as well
/// (`kernel_has_rules`), it resolves the neighbour and handles the whole packet.
fn reaching_forward_hook(
    classifier: &Classifier,
    burst: &Burst,
    umem: &Umem,
    routes: &RouteTables,
    (scratch, kernel_has_rules): (&Scratch, bool),
    lanes: Lanes,
) -> Lanes {
    let next_hops = routes.next_hops.view();
    let mut reaching = if classifier.gathers() {
        forwarded_whole(burst, next_hops, lanes, |lane| scratch.ttl(lane))
    } else {
        let at = if classifier.version == 4 { 8 } else { 7 };
        forwarded_whole(burst, next_hops, lanes, |lane| {
            let [ttl] = *umem.bytes(burst.addr[lane], usize::from(burst.l3[lane]) + at);
            ttl
        })
    };
    let version = classifier.version;
    for lane in lanes.without(reaching) {
        let reaches =
            reaches_forward_hook((version, kernel_has_rules), burst, umem, next_hops, lane);
        reaching.put(lane, reaches);
    }
    reaching
}

/// Says the same of one packet of a version of IP.
pub(super) fn reaches_forward_hook(
    (version, kernel_has_rules): (u8, bool),
    burst: &Burst,
    umem: &Umem,
    next_hops: NextHopsView<'_>,
    lane: usize,
) -> bool {
    let Some(record) = next_hops.record(burst.next[lane]) else { return false };
    let l3 = usize::from(burst.l3[lane]);
    let header: &[u8; 12] = umem.bytes(burst.addr[lane], l3);
    // Off the path, the bytes after the packet are not cut off yet.
    let (ttl, may_cut, length) = match version {
        4 => (header[8], header[6] & 0x40 == 0, be16(header, 2)),
        _ => (header[7], false, be16(header, 4).saturating_add(ipv6::LEN as u16)),
    };
    match record.action() {
        Action::Forward => {
            let fits = length <= record.mtu();
            ttl > 1 && (fits || may_cut)
        }
        Action::Resolve | Action::Glean => ttl > 1 && !kernel_has_rules,
        Action::Bridge | Action::Local | Action::Drop(_) | Action::Punt(_) => false,
    }
}

/// Packets that have a next hop to another host and a hop left, and are not longer than the MTU.
// Within the large caller, registers run out, and the loop takes twice the time.
#[inline(never)]
fn forwarded_whole(
    burst: &Burst,
    next_hops: NextHopsView<'_>,
    lanes: Lanes,
    ttl: impl Fn(usize) -> u8,
) -> Lanes {
    lanes.filter(|lane| {
        let bytes = burst.len[lane].wrapping_sub(burst.l3[lane].into());
        // A next hop that does not forward has an MTU of 0.
        let mtu = next_hops.record(burst.next[lane]).map_or(0, Record::mtu);
        bytes <= mtu && ttl(lane) > 1
    })
}
