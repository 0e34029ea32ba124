//! Hook ingress: packets as a device receives them, before any check.
//!
//! Kernel equivalent: `nf_ingress` (`net/core/dev.c`, `__netif_receive_skb_core`).

use super::evaluate::evaluate;
use super::{Filter, Point, State};
use crate::burst::{Burst, Lanes};
use crate::frame::Umem;
use crate::stages::classify::Classified;
use crate::stages::rule::RouteTables;
use crate::verdict::Verdict;
use crate::wire::be16;
use crate::wire::eth::ethertype;

/// Evaluates the rules of hook ingress; returns the packets that continue.
#[inline(always)]
pub fn ingress(
    burst: &mut Burst,
    umem: &mut Umem,
    filter: &Filter,
    routes: &RouteTables,
    state: &mut State,
    mut packets: Classified,
) -> Classified {
    state.begin(filter);
    if let Some(classifier) = filter.at(Point::Ingress, 4) {
        packets.ip4 = evaluate(filter, classifier, burst, umem, routes, state, packets.ip4);
    }
    if let Some(classifier) = filter.at(Point::Ingress, 6) {
        packets.ip6 = evaluate(filter, classifier, burst, umem, routes, state, packets.ip6);
    }
    if !burst.exited.is_empty() {
        evaluate_for_host(filter, burst, umem, routes, state);
    }
    packets
}

/// Evaluates the rules for frames to the host: ARP, and packets to group addresses.
#[cold]
fn evaluate_for_host(
    filter: &Filter,
    burst: &mut Burst,
    umem: &mut Umem,
    routes: &RouteTables,
    state: &mut State,
) {
    let mut lanes_of = [(4, Lanes::NONE), (6, Lanes::NONE), (0, Lanes::NONE)];
    for lane in burst.exited {
        if burst.verdict[lane] == Verdict::Local {
            let at = usize::from(burst.l3[lane]).saturating_sub(2);
            let lanes = match be16(umem.bytes::<2>(burst.addr[lane], at), 0) {
                ethertype::IPV4 => &mut lanes_of[0].1,
                ethertype::IPV6 => &mut lanes_of[1].1,
                _ => &mut lanes_of[2].1,
            };
            lanes.put(lane, true);
        }
    }
    for (version, lanes) in lanes_of {
        if let Some(classifier) = filter.at(Point::Ingress, version) {
            evaluate(filter, classifier, burst, umem, routes, state, lanes);
        }
    }
}
