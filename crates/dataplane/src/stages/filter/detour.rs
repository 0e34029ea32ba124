//! Packets that the host or the kernel forwards because of their IPv4 options or hop-by-hop header.
//! The filter evaluates the rules for them too; otherwise such a header would bypass the firewall.

use super::evaluate::evaluate;
use super::state::Detoured;
use super::{Filter, Point, PolicyRoute, State, policy_route};
use crate::burst::{Burst, Lanes};
use crate::frame::Umem;
use crate::ip::obeys_options;
use crate::stages::rule::RouteTables;
use crate::stages::rule::query;
use crate::verdict::{PuntReason, Verdict};

/// Finds the packets that the host will forward among those that have exited the path. The kernel drops a packet with an invalid
/// hop-by-hop header before hook prerouting (`ip6_rcv_core` in `net/ipv6/ip6_input.c`).
#[cold]
pub(super) fn find(burst: &Burst, umem: &Umem) -> Detoured {
    let mut detoured = [Lanes::NONE; 2];
    for lane in burst.exited {
        match burst.verdict[lane] {
            Verdict::Punt(PuntReason::IpOptions) => detoured[0].put(lane, true),
            Verdict::Punt(PuntReason::HopByHop) => {
                detoured[1].put(lane, obeys_options(packet(burst, umem, lane)));
            }
            _ => {}
        }
    }
    detoured
}

/// Evaluates the rules of a point; accepted packets keep their verdict.
#[cold]
pub(super) fn detour(
    filter: &Filter,
    point: Point,
    burst: &mut Burst,
    umem: &mut Umem,
    routes: &RouteTables,
    state: &mut State,
) {
    for (index, version) in [4, 6].into_iter().enumerate() {
        let Some(classifier) = filter.at(point, version) else { continue };
        if point == Point::Forward {
            find_routes(burst, umem, routes, state, version);
        }
        let lanes = state.detoured[index];
        state.detoured[index] = evaluate(filter, classifier, burst, umem, routes, state, lanes);
    }
}

/// Finds the next hops of packets of a version of IP, and leaves those out that the host will not forward.
#[cold]
pub(super) fn find_routes(
    burst: &mut Burst,
    umem: &Umem,
    routes: &RouteTables,
    state: &mut State,
    version: u8,
) {
    let detoured = &mut state.detoured[usize::from(version == 6)];
    if version == 4 {
        // The kernel parses IPv4 options after hook prerouting (`ip_rcv_options` in
        // `net/ipv4/ip_input.c`).
        for lane in *detoured {
            if !obeys_options(packet(burst, umem, lane)) {
                *detoured = detoured.without(Lanes(1 << lane));
            }
        }
    }
    for lane in *detoured {
        let is_policy_routed = match state.policy_route_of(lane) {
            PolicyRoute::Next(_) => continue,
            PolicyRoute::Vrf(_) => true,
            PolicyRoute::Not => false,
        };
        route(burst, umem, routes, (state.mark[lane], is_policy_routed), version, lane);
    }
}

/// Finds the next hop that the host or the kernel will find.
fn route(
    burst: &mut Burst,
    umem: &Umem,
    routes: &RouteTables,
    (mark, is_policy_routed): (u32, bool),
    version: u8,
    lane: usize,
) {
    let query = query(burst, umem, lane, version, mark);
    let id = match is_policy_routed {
        true => routes.find_from(version, query.root, query.dst),
        false => routes.find(&query),
    };
    burst.next[lane] = policy_route::record(burst, umem, routes, lane, id);
}

fn packet<'a>(burst: &Burst, umem: &'a Umem, lane: usize) -> &'a [u8] {
    let frame = umem.frame(burst.addr[lane], usize::from(burst.len[lane]));
    frame.get(usize::from(burst.l3[lane])..).unwrap_or_default()
}
