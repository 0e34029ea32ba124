use super::table::Check;
use super::{Rpf, Sources};
use crate::burst::{BURST, Burst, Lanes};
use crate::fib::Root;
use crate::frame::Umem;
use crate::id::{LinkId, NextHopId};
use crate::next_hops::Action;
use crate::stages::rule::{self, RouteQuery, RouteTables};
use crate::verdict::{DropReason, PuntReason, Verdict};
use crate::wire::word32;

/// Offset of the source in the IPv4 header, in bytes.
const SRC: usize = 12;

/// Checks the sources of IPv4 packets; packets with an invalid source exit. Returns the others.
#[inline(never)]
pub(crate) fn run(
    burst: &mut Burst,
    umem: &Umem,
    tables: &RouteTables,
    sources: &Sources,
    marks: &[u32; BURST],
    lanes: Lanes,
) -> Lanes {
    let link = only_link(burst, lanes);
    let mut keys = [0; BURST];
    match lanes.dense() {
        Some(range) => range.for_each(|lane| keys[lane & (BURST - 1)] = key(burst, umem, lane)),
        None => lanes.into_iter().for_each(|lane| keys[lane] = key(burst, umem, lane)),
    }
    let (mut suspects, mut by_route) = (Lanes::NONE, Lanes::NONE);
    match link {
        Some(link) if sources.of(link).source.rpf != Rpf::Off => by_route = lanes,
        _ => {
            for lane in lanes {
                let looks_up_route = sources.of(burst.link[lane]).source.rpf != Rpf::Off;
                by_route.put(lane, looks_up_route);
                let src = (keys[lane] >> 32) as u32;
                suspects.put(lane, !looks_up_route && sources.may_have(src));
            }
        }
    }
    let mut exited = Lanes::NONE;
    for lane in suspects {
        let check = sources.of(burst.link[lane]);
        let found = check_address(sources, check, (keys[lane] >> 32) as u32);
        exited.put(lane, exit_if_faulty(burst, tables, check, lane, |_| found));
    }
    if !by_route.is_empty() {
        exited =
            exited.or(check_routes(burst, umem, tables, sources, marks, (by_route, link), &keys));
    }
    lanes.without(exited)
}

/// The link of all packets, if there is only one.
#[inline(always)]
fn only_link(burst: &Burst, lanes: Lanes) -> Option<LinkId> {
    let first = burst.link[lanes.lowest()?];
    let mut others = 0;
    match lanes.dense() {
        Some(range) => range.for_each(|lane| others |= burst.link[lane & (BURST - 1)].0 ^ first.0),
        None => lanes.into_iter().for_each(|lane| others |= burst.link[lane].0 ^ first.0),
    }
    (others == 0).then_some(first)
}

/// A packet's source as a key of the FIB.
#[inline(always)]
fn key(burst: &Burst, umem: &Umem, lane: usize) -> u64 {
    let header: &[u8; 20] = umem.bytes(burst.addr[lane], usize::from(burst.l3[lane]));
    u64::from(word32(header, SRC).swap_bytes()) << 32
}

/// Checks sources by the routes to them; returns the packets that have exited.
fn check_routes(
    burst: &mut Burst,
    umem: &Umem,
    tables: &RouteTables,
    sources: &Sources,
    marks: &[u32; BURST],
    (lanes, only): (Lanes, Option<LinkId>),
    keys: &[u64; BURST],
) -> Lanes {
    let routes = routes(burst, umem, tables, sources, marks, (lanes, only), keys);
    let valid =
        only.map_or(Lanes::NONE, |link| plainly_valid(tables, sources, link, lanes, &routes));
    let (mut groups, mut exited) = (SeenGroups::default(), Lanes::NONE);
    for lane in lanes.without(valid) {
        let link = burst.link[lane];
        let check = sources.of(link);
        let kind = groups.kind(tables, link, NextHopId(routes[lane]));
        let found = check_route(sources, check, (keys[lane] >> 32) as u32, kind);
        // The result does not depend on the packet's egress link, so skip that lookup.
        if found.is_ok() && sources.has_one_route_back(check) {
            continue;
        }
        let evaluate = |egress| match is_route_back_known(tables, sources, check, (link, egress)) {
            true => found,
            false => Err(SourceFault::Unsure),
        };
        exited.put(lane, exit_if_faulty(burst, tables, check, lane, evaluate));
    }
    exited
}

/// Of packets from one link, the usual ones: the route to their source is to one next hop, which suffices wherever
/// they leave.
#[inline(always)]
fn plainly_valid(
    tables: &RouteTables,
    sources: &Sources,
    link: LinkId,
    lanes: Lanes,
    routes: &[u32; BURST],
) -> Lanes {
    let check = sources.of(link);
    let needs_link = match check.source.rpf {
        Rpf::Strict | Rpf::Unnumbered => true,
        Rpf::Off | Rpf::Kind | Rpf::Loose => false,
    };
    let mut valid = Lanes::NONE;
    if !sources.has_one_route_back(check) {
        return valid;
    }
    let next_hops = tables.next_hops.view();
    for lane in lanes {
        let record = next_hops.record(next_hops.installed(NextHopId(routes[lane])));
        let suffices = record
            .is_some_and(|record| record.is_unicast() & (!needs_link | (record.link() == link)));
        valid.put(lane, suffices);
    }
    valid
}

/// The fault of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SourceFault {
    /// It is dropped for this reason, and the kernel may log it.
    Martian(DropReason),
    /// Only the kernel can decide.
    Unsure,
}

/// Makes a packet exit if its source is faulty and the check applies to it, which requires a unicast
/// route. Says whether it has exited.
fn exit_if_faulty(
    burst: &mut Burst,
    tables: &RouteTables,
    check: Check,
    lane: usize,
    evaluate: impl FnOnce(LinkId) -> Result<(), SourceFault>,
) -> bool {
    let Some(record) = tables.next_hops.view().record(burst.next[lane]) else { return false };
    if !matches!(record.action(), Action::Forward | Action::Resolve | Action::Glean) {
        return false;
    }
    let verdict = match evaluate(record.link()) {
        Ok(()) => return false,
        Err(SourceFault::Martian(reason)) if !check.source.martians_to_kernel => {
            Verdict::Drop(reason)
        }
        Err(SourceFault::Martian(_)) => Verdict::Punt(PuntReason::Martian),
        Err(SourceFault::Unsure) => Verdict::Punt(PuntReason::KernelSource),
    };
    burst.exit(lane, verdict);
    true
}

/// Checks a source by its address alone.
fn check_address(sources: &Sources, check: Check, src: u32) -> Result<(), SourceFault> {
    if check.source.own && sources.is_own(src) {
        return Err(SourceFault::Martian(DropReason::IpLocalSource));
    }
    // A full check would find a martian, and the kernel may make a full check for reasons that user
    // space cannot see.
    if sources.is_broadcast(src) { Err(SourceFault::Unsure) } else { Ok(()) }
}

/// Checks a source by the route to it.
fn check_route(sources: &Sources, check: Check, src: u32, kind: Kind) -> Result<(), SourceFault> {
    let filtered = !matches!(check.source.rpf, Rpf::Off | Rpf::Kind);
    let leads = match kind {
        Kind::Missing if filtered => return Err(SourceFault::Martian(DropReason::IpRpfilter)),
        Kind::Missing => return Ok(()),
        Kind::Local if check.source.own && sources.is_own(src) => {
            return Err(SourceFault::Martian(DropReason::IpLocalSource));
        }
        Kind::Local if check.source.own => {
            return Err(SourceFault::Martian(DropReason::IpInvalidSource));
        }
        Kind::Local | Kind::Unknown => return Err(SourceFault::Unsure),
        Kind::Unicast(leads) => leads,
    };
    match (check.source.rpf, leads) {
        (_, Leads::Here) | (Rpf::Off | Rpf::Kind, _) => Ok(()),
        (_, Leads::Somewhere) | (Rpf::Unnumbered, Leads::Spread) => Err(SourceFault::Unsure),
        (Rpf::Loose, Leads::Away | Leads::Spread) => Ok(()),
        (Rpf::Strict | Rpf::Unnumbered, Leads::Away | Leads::Spread) => {
            Err(SourceFault::Martian(DropReason::IpRpfilter))
        }
    }
}

/// The kind of the route to a source.
#[derive(Clone, Copy)]
enum Kind {
    /// There is no route, or it reaches nothing.
    Missing,
    /// The router itself, or a broadcast address of a link.
    Local,
    Unicast(Leads),
    /// Only the kernel knows.
    Unknown,
}

/// Where a route leads, seen from a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Leads {
    /// To another link.
    Away,
    /// To other links, as far as their next hops are alive.
    Spread,
    /// Along the kernel path.
    Somewhere,
    /// To this link, with at least one of its next hops.
    Here,
}

/// A cache of the groups seen in a burst: a group may have many members, and a burst few groups.
#[derive(Default)]
struct SeenGroups([Option<(LinkId, NextHopId, Kind)>; 8]);

impl SeenGroups {
    fn kind(&mut self, tables: &RouteTables, link: LinkId, next: NextHopId) -> Kind {
        if !next.is_group() {
            return next_hop_kind(tables, link, next);
        }
        let place = &mut self.0[next.0 as usize % 8];
        match *place {
            Some((of_link, group, kind)) if of_link == link && group == next => kind,
            _ => {
                let kind = group_kind(tables, link, next);
                *place = Some((link, next, kind));
                kind
            }
        }
    }
}

fn group_kind(tables: &RouteTables, link: LinkId, next: NextHopId) -> Kind {
    let mut all = Leads::Spread;
    // Most groups have at most this many distinct members.
    let (mut known, mut oldest) = ([None; 4], 0);
    for member in tables.groups.nexts(next.0 & !NextHopId::GROUP) {
        if known.contains(&Some(member)) {
            continue;
        }
        known[oldest % known.len()] = Some(member);
        oldest += 1;
        match next_hop_kind(tables, link, member) {
            Kind::Unicast(Leads::Here) => return Kind::Unicast(Leads::Here),
            Kind::Unicast(leads) => all = all.max(leads),
            Kind::Missing | Kind::Local | Kind::Unknown => all = all.max(Leads::Somewhere),
        }
    }
    Kind::Unicast(all)
}

fn next_hop_kind(tables: &RouteTables, link: LinkId, next: NextHopId) -> Kind {
    let view = tables.next_hops.view();
    let Some(record) = view.record(view.installed(next)) else { return Kind::Missing };
    match record.action() {
        Action::Forward
        | Action::Resolve
        | Action::Glean
        | Action::Bridge
        | Action::Punt(PuntReason::KernelExit) => {
            Kind::Unicast(if record.link() == link { Leads::Here } else { Leads::Away })
        }
        Action::Local => Kind::Local,
        Action::Drop(_) => Kind::Missing,
        Action::Punt(reason) => match reason {
            PuntReason::NoRoute | PuntReason::Unreachable | PuntReason::Prohibit => Kind::Missing,
            _ => Kind::Unknown,
        },
    }
}

/// Says whether the route back is known although the packet exits through another link. It must be
/// the same as the route of packets that arrive on the ingress link.
///
/// The kernel looks it up as if the packet had arrived on its egress device, but in the VRF of its
/// ingress link, if any (`flowi4_l3mdev`, `l3mdev_update_flow`). For VRFs, kernels differ in which
/// rules with an input device apply (6.15: those of the VRF device, too).
fn is_route_back_known(
    tables: &RouteTables,
    sources: &Sources,
    check: Check,
    (link, egress): (LinkId, LinkId),
) -> bool {
    let by_input = check.lookup.by_input;
    match (check.lookup.vrf_device, sources.of(egress).lookup.vrf_device) {
        (None, None) => !by_input || is_route_back_equal(tables, link, egress),
        (None, Some(_)) => !by_input && is_route_back_equal(tables, link, egress),
        (Some(_), _) => !by_input,
    }
}

/// Says whether a route is the same for packets that arrive on either link.
fn is_route_back_equal(tables: &RouteTables, link: LinkId, egress: LinkId) -> bool {
    let [own, other] = [link, egress].map(|link| tables.links[link].root4);
    let policies = tables.policies.as_ref();
    own == other && policies.is_none_or(|policies| policies.are_alike(link, egress))
}

/// The next hops and groups of the routes to the sources.
fn routes(
    burst: &Burst,
    umem: &Umem,
    tables: &RouteTables,
    sources: &Sources,
    marks: &[u32; BURST],
    (by_route, only): (Lanes, Option<LinkId>),
    keys: &[u64; BURST],
) -> [u32; BURST] {
    let mut routes = [0; BURST];
    let Some(first) = by_route.lowest() else { return routes };
    let root = tables.links[burst.link[first]].root4;
    let policies = tables.policies.as_ref();
    let is_plain = |link: LinkId| {
        let has_policy = policies.is_some_and(|policies| policies.of(link).is_some());
        tables.links[link].root4 == root && !has_policy
    };
    let are_plain = match only {
        Some(link) => is_plain(link),
        None => by_route.into_iter().all(|lane| is_plain(burst.link[lane])),
    };
    if are_plain {
        tables.fib4.look_up_keys(Root(root), keys, &mut routes, 0..burst.count);
        let fallback = tables.fallbacks.as_ref().and_then(|all| all.next_root(4, root));
        if let Some(other) = fallback {
            for lane in by_route {
                if routes[lane] == NextHopId::NO_ROUTE.0 {
                    routes[lane] = tables.find_from(4, other, u128::from(keys[lane]) << 64).0;
                }
            }
        }
        return routes;
    }
    for lane in by_route {
        let mark = marks[lane];
        let there = rule::query(burst, umem, lane, 4, mark);
        let with_mark = sources.of(there.link).lookup.mark;
        let back = RouteQuery {
            root: tables.links[there.link].root4,
            src: there.dst,
            dst: there.src,
            mark: if with_mark { mark } else { 0 },
            ..there
        };
        routes[lane] = tables.find(&back).0;
    }
    routes
}

/// Punts the martians among the packets that exited to the kernel, on links for which it logs them.
#[inline(never)]
pub(crate) fn punt_martians(burst: &mut Burst, sources: &Sources) {
    for lane in burst.exited {
        let is_martian = matches!(
            burst.verdict[lane],
            Verdict::Drop(DropReason::IpInvalidSource | DropReason::IpInvalidDest)
        );
        if is_martian && sources.of(burst.link[lane]).source.martians_to_kernel {
            burst.verdict[lane] = Verdict::Punt(PuntReason::Martian);
        }
    }
}
