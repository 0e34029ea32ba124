//! Packets that are forwarded off the road, for their IPv4 options or hop-by-hop header: the rules are asked
//! for them too, or such a header would be a way past the firewall.

use super::stage::ask;
use super::{Filter, Point, State, Steer, steer};
use crate::burst::{Burst, Lanes};
use crate::frame::Umem;
use crate::host::obeys_options;
use crate::stages::rule::question;
use crate::tables::Tables;
use crate::verdict::{PuntReason, Verdict};

/// Packets on the way by the host, IPv4 and IPv6.
pub(super) type Detoured = [Lanes; 2];

/// Finds them among the packets that have left the road. A hop-by-hop header that is not to be obeyed ends
/// the way before hook prerouting (`ip6_rcv_core` in `net/ipv6/ip6_input.c`).
#[cold]
pub(super) fn find(burst: &Burst, umem: &Umem) -> Detoured {
    let mut detoured = [Lanes::NONE; 2];
    for lane in burst.left {
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

/// Asks the rules of a point; packets that they let go on keep their verdict.
#[cold]
pub(super) fn detour(
    filter: &Filter,
    point: Point,
    burst: &mut Burst,
    umem: &mut Umem,
    tables: &Tables,
    state: &mut State,
) {
    for (index, version) in [4, 6].into_iter().enumerate() {
        let Some(classifier) = filter.at(point, version) else { continue };
        let mut lanes = state.detoured[index];
        if point == Point::Forward && version == 4 {
            // IPv4 options are looked at behind hook prerouting (`ip_rcv_options` in `net/ipv4/ip_input.c`).
            for lane in state.detoured[index] {
                if !obeys_options(packet(burst, umem, lane)) {
                    lanes = lanes.without(Lanes(1 << lane));
                }
            }
        }
        if point == Point::Forward {
            for lane in lanes {
                let is_steered = match state.steer_of(lane) {
                    Steer::Next(_) => continue,
                    Steer::Vrf(_) => true,
                    Steer::Not => false,
                };
                route(burst, umem, tables, (state.mark[lane], is_steered), version, lane);
            }
        }
        state.detoured[index] = ask(filter, classifier, burst, umem, tables, state, lanes);
    }
}

/// Finds the next hop that the host or the kernel will find.
fn route(
    burst: &mut Burst,
    umem: &Umem,
    tables: &Tables,
    (mark, is_steered): (u32, bool),
    version: u8,
    lane: usize,
) {
    let question = question(burst, umem, lane, version, mark);
    let id = match is_steered {
        true => tables.find_from(version, question.root, question.dst),
        false => tables.find(&question),
    };
    burst.next[lane] = steer::record(burst, umem, tables, lane, id);
}

fn packet<'a>(burst: &Burst, umem: &'a Umem, lane: usize) -> &'a [u8] {
    let frame = umem.frame(burst.addr[lane], usize::from(burst.len[lane]));
    frame.get(usize::from(burst.l3[lane])..).unwrap_or_default()
}
