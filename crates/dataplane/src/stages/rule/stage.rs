use super::table::{Decision, Rule};
use super::{Policies, Policy, RouteTables, query};
use crate::burst::{BURST, Burst, Lanes};
use crate::fib::Root;
use crate::frame::Umem;
use crate::id::{LinkId, NextHopId};
use crate::wire::word32;

/// Offset of the source in the IPv4 header, in bytes.
const SRC: usize = 12;

/// Packets of a link below which one after the other is handled: a lookup of a whole burst takes as long as that of so
/// many packets.
const FEW: usize = 8;

/// Finds the next hops of packets whose links have a policy, from the policy instead of their FIBs.
#[inline(never)]
pub(crate) fn run(
    burst: &mut Burst,
    umem: &Umem,
    tables: &RouteTables,
    policies: &Policies,
    marks: &[u32; BURST],
    (ip4, ip6): (Lanes, Lanes),
) {
    let rest = decide_by_link(burst, umem, tables, policies, marks, ip4);
    let next_hops = tables.next_hops.view();
    for (version, lanes) in [(4, rest), (6, ip6)] {
        for lane in lanes {
            if policies.of(burst.link[lane]).is_none() {
                continue;
            }
            let query = query(burst, umem, lane, version, marks[lane]);
            burst.next[lane] = next_hops.installed(tables.find(&query));
        }
    }
}

/// Decides IPv4 packets of links from which many have arrived; returns the others.
fn decide_by_link(
    burst: &mut Burst,
    umem: &Umem,
    tables: &RouteTables,
    policies: &Policies,
    marks: &[u32; BURST],
    lanes: Lanes,
) -> Lanes {
    let (mut left, mut few) = (lanes, Lanes::NONE);
    while let Some(first) = left.lowest() {
        let link = burst.link[first];
        let mut alike = Lanes::NONE;
        for lane in left {
            alike.put(lane, burst.link[lane] == link);
        }
        left = left.without(alike);
        match policies.of(link) {
            Some(policy) if alike.count() >= FEW => {
                decide(burst, umem, tables, (link, policy), marks, alike);
            }
            _ => few = few.or(alike),
        }
    }
    few
}

/// Applies the rules of a link's policy to its IPv4 packets, one rule after the other, as [`RouteTables::find`].
fn decide(
    burst: &mut Burst,
    umem: &Umem,
    tables: &RouteTables,
    (link, policy): (LinkId, &Policy),
    marks: &[u32; BURST],
    lanes: Lanes,
) {
    if tables.kernel_roots.has(4, tables.links[link].root4) {
        return;
    }
    let mut sources = [0; BURST];
    for lane in lanes {
        let header: &[u8; 20] = umem.bytes(burst.addr[lane], usize::from(burst.l3[lane]));
        sources[lane] = word32(header, SRC).swap_bytes();
    }
    let next_hops = tables.next_hops.view();
    let mut undecided = lanes;
    for rule in policy.rules(4) {
        let matched = matching(burst, rule, &sources, marks, undecided);
        if matched.is_empty() {
            continue;
        }
        let decided = match rule.decision {
            Decision::Root(root) => look_up(burst, tables, root, matched),
            Decision::Next(next) => {
                let record = next_hops.installed(next);
                matched.into_iter().for_each(|lane| burst.next[lane] = record);
                matched
            }
        };
        undecided = undecided.without(decided);
        if undecided.is_empty() {
            return;
        }
    }
    for lane in undecided {
        burst.next[lane] = next_hops.installed(NextHopId::NO_ROUTE);
    }
}

/// The packets that a rule matches.
#[inline(always)]
fn matching(
    burst: &Burst,
    rule: &Rule,
    sources: &[u32; BURST],
    marks: &[u32; BURST],
    lanes: Lanes,
) -> Lanes {
    let (mark, mask) = rule.mark();
    let (src, dst) = rule.prefixes();
    let [src, dst] = [src, dst].map(|prefix| ((prefix.bits() >> 96) as u32, mask4(prefix.len())));
    let mut matched = Lanes::NONE;
    let mut test = |lane: usize| {
        let wrong = (marks[lane] ^ mark) & mask
            | (sources[lane] ^ src.0) & src.1
            | ((burst.key[lane] >> 32) as u32 ^ dst.0) & dst.1;
        matched.put(lane, wrong == 0);
    };
    match lanes.dense() {
        Some(range) => range.for_each(|lane| test(lane & (BURST - 1))),
        None => lanes.into_iter().for_each(test),
    }
    matched
}

/// The mask of a prefix of at most 32 bits.
const fn mask4(len: u8) -> u32 {
    if len == 0 { 0 } else { u32::MAX << ((32 - len as u32) & 31) }
}

/// Finds the next hops of packets in a FIB and in those that it falls back to; returns the packets that have a route.
fn look_up(burst: &mut Burst, tables: &RouteTables, root: u32, lanes: Lanes) -> Lanes {
    let mut found = Lanes::NONE;
    // The stage before has looked up the links' FIBs, whose results are still there.
    if lanes.into_iter().all(|lane| burst.root[lane] == root) {
        for lane in lanes {
            found.put(lane, burst.next[lane].0 != NextHopId::NO_ROUTE.0);
        }
        return found;
    }
    let mut nexts = [0; BURST];
    tables.fib4.look_up_keys(Root(root), &burst.key, &mut nexts, 0..burst.count);
    let fallback = tables.fallbacks.as_ref().and_then(|all| all.next_root(4, root));
    let next_hops = tables.next_hops.view();
    for lane in lanes {
        let mut next = NextHopId(nexts[lane]);
        if next == NextHopId::NO_ROUTE
            && let Some(other) = fallback
        {
            next = tables.find_from(4, other, u128::from(burst.key[lane]) << 64);
        }
        if next != NextHopId::NO_ROUTE {
            burst.next[lane] = next_hops.installed(next);
            found.put(lane, true);
        }
    }
    found
}
