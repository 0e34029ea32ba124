use super::classifier::{Act, Classifier};
use super::detour::{self, Detoured};
use super::first::Work;
use super::walk::walk;
use super::{Filter, Point, State, Steer, steer};
use crate::burst::{Burst, Lanes};
use crate::frame::Umem;
use crate::stages::validate::Valid6;
use crate::tables::{Action, Tables};
use crate::verdict::{DropReason, PuntReason, Verdict};
use crate::wire::{be16, ipv6};

/// Says if there are rules at a point.
#[inline(always)]
#[must_use]
pub fn hangs(tables: &Tables, point: Point) -> bool {
    tables.filter.as_ref().is_some_and(|filter| filter.hangs_at(point))
}

/// Asks the rules of hook prerouting; returns the packets that go on.
#[inline(always)]
pub fn prerouting(
    burst: &mut Burst,
    umem: &mut Umem,
    tables: &Tables,
    state: &mut State,
    lanes: (Lanes, Valid6),
) -> (Lanes, Valid6) {
    if !hangs(tables, Point::Ingress) {
        state.begin();
    }
    let none_is_ours = burst.left.is_empty() || state.kernel_has_rules;
    state.detoured = if none_is_ours { Detoured::default() } else { detour::find(burst, umem) };
    both(Point::Prerouting, burst, umem, tables, state, lanes)
}

/// Asks the rules of hooks forward, postrouting and egress; returns the packets that go on.
///
/// What is not to be forwarded (for the router itself, without a route, at the end of its hops) does not
/// come to these hooks; it goes on to where that is found out.
#[inline(always)]
pub fn forward(
    burst: &mut Burst,
    umem: &mut Umem,
    tables: &Tables,
    state: &mut State,
    lanes: (Lanes, Valid6),
) -> (Lanes, Valid6) {
    if !state.steered.is_empty() {
        steer::take_place(burst, umem, tables, state);
    }
    both(Point::Forward, burst, umem, tables, state, lanes)
}

#[inline(always)]
fn both(
    point: Point,
    burst: &mut Burst,
    umem: &mut Umem,
    tables: &Tables,
    state: &mut State,
    (mut ip4, mut ip6): (Lanes, Valid6),
) -> (Lanes, Valid6) {
    let Some(filter) = &tables.filter else { return (ip4, ip6) };
    if let Some(classifier) = filter.at(point, 4) {
        ip4 = ask(filter, classifier, burst, umem, tables, state, ip4);
    }
    if let Some(classifier) = filter.at(point, 6) {
        ip6.lanes = ask(filter, classifier, burst, umem, tables, state, ip6.lanes);
        ip6.scoped = Lanes(ip6.scoped.0 & ip6.lanes.0);
    }
    if state.detoured != Detoured::default() {
        detour::detour(filter, point, burst, umem, tables, state);
    }
    (ip4, ip6)
}

/// Asks the rules of one point and version; returns the packets that go on.
#[inline(always)]
pub(super) fn ask(
    filter: &Filter,
    classifier: &Classifier,
    burst: &mut Burst,
    umem: &mut Umem,
    tables: &Tables,
    state: &mut State,
    lanes: Lanes,
) -> Lanes {
    if lanes.is_empty() {
        return lanes;
    }
    let work = Work { burst, umem, tables, mark: &state.mark, lanes };
    classifier.classify.run(classifier, &work, &mut state.room);
    let (drop, rest) = sort(classifier, state, lanes);
    if rest.is_empty() {
        return lanes;
    }
    if drop == rest && classifier.point != Point::Forward {
        burst.leave_all(drop, Verdict::Drop(DropReason::NetfilterDrop));
        return lanes.without(drop);
    }
    lanes.without(settle(filter, classifier, burst, umem, tables, state, rest))
}

/// The packets whose first rule drops them, and those whose first rule does not just let them go on.
#[inline(always)]
fn sort(classifier: &Classifier, state: &State, lanes: Lanes) -> (Lanes, Lanes) {
    if classifier.width == 1 {
        let (drop, rest) = classifier.plain.sort(&state.room.set);
        return (Lanes(drop.0 & lanes.0), Lanes(rest.0 & lanes.0));
    }
    let (mut drop, mut rest) = (Lanes::NONE, Lanes::NONE);
    let last = classifier.acts.len() - 1;
    for lane in lanes {
        let act = classifier.acts[(state.room.first[lane] as usize).min(last)];
        drop.put(lane, act == Act::Drop);
        rest.put(lane, act != Act::Accept);
    }
    (drop, rest)
}

/// Does what the rules say with packets that do not just go on; returns those that have left.
#[inline(never)]
fn settle(
    filter: &Filter,
    classifier: &Classifier,
    burst: &mut Burst,
    umem: &mut Umem,
    tables: &Tables,
    state: &mut State,
    lanes: Lanes,
) -> Lanes {
    let mut gone = Lanes::NONE;
    for lane in lanes {
        let kernel_has_rules = state.kernel_has_rules;
        if classifier.point == Point::Forward
            && !reaches(classifier, burst, umem, tables, kernel_has_rules, lane)
        {
            continue;
        }
        let act = classifier.acts.get(state.room.first[lane] as usize);
        let verdict = if act == Some(&Act::Drop) {
            Some(Verdict::Drop(DropReason::NetfilterDrop))
        } else {
            let mark = state.mark;
            let work = Work { burst, umem, tables, mark: &mark, lanes };
            let said = walk(classifier, filter, &work, state, lane);
            if let Some(head) = said.head {
                let bytes = umem.bytes_mut(burst.addr[lane], usize::from(burst.l3[lane]));
                if kernel_has_rules {
                    state.written.push((lane, *bytes));
                }
                *bytes = head.bytes;
            }
            if let Some(steer) = said.steer {
                send_by(steer, classifier, burst, umem, tables, state, lane);
            }
            said.verdict
        };
        if let Some(verdict) = verdict {
            let is_rejected = verdict == Verdict::Punt(PuntReason::Reject);
            if classifier.point == Point::Forward && is_rejected && !state.kernel_has_rules {
                count_hop(classifier, burst, umem, lane);
            }
            burst.leave(lane, verdict);
            gone.put(lane, true);
        }
    }
    gone
}

/// Takes one hop off before the packet is quoted to its sender, as `ip_forward` and `ip6_forward` have done
/// before hook forward.
fn count_hop(classifier: &Classifier, burst: &Burst, umem: &mut Umem, lane: usize) {
    let header: &mut [u8; 12] = umem.bytes_mut(burst.addr[lane], usize::from(burst.l3[lane]));
    if classifier.version == 6 {
        header[7] = header[7].saturating_sub(1);
        return;
    }
    header[8] = header[8].saturating_sub(1);
    // RFC 1141: a header whose TTL is less by one has a checksum that is greater by 0x100.
    let sum = u32::from(u16::from_be_bytes([header[10], header[11]])) + 0x100;
    let sum = (sum + (sum >> 16)) as u16;
    header[10..].copy_from_slice(&sum.to_be_bytes());
}

/// Sends a packet where rules want it; one that has its route already does not look for another.
fn send_by(
    steer: Steer,
    classifier: &Classifier,
    burst: &mut Burst,
    umem: &Umem,
    tables: &Tables,
    state: &mut State,
    lane: usize,
) {
    match (classifier.point, steer) {
        (Point::Forward, Steer::Next(id)) => {
            burst.next[lane] = steer::record(burst, umem, tables, lane, id);
            state.steer(lane, steer);
        }
        (Point::Forward, _) => {}
        (_, Steer::Vrf(vrf)) => {
            steer::set_root(burst, tables, classifier.version, lane, vrf);
            state.steer(lane, steer);
        }
        _ => state.steer(lane, steer),
    }
}

/// Says if a packet comes to hook forward (`ip_forward`, `ip6_forward`): it has a next hop and a hop left,
/// and is not to be answered because of its size.
///
/// What waits for a neighbour has no size to be held against. A kernel that has the rules as well
/// (`kernel_has_rules`) is asked for the neighbour, and then sees to it all.
fn reaches(
    classifier: &Classifier,
    burst: &Burst,
    umem: &Umem,
    tables: &Tables,
    kernel_has_rules: bool,
    lane: usize,
) -> bool {
    let Some(record) = tables.next_hops.view().record(burst.next[lane]) else { return false };
    let l3 = usize::from(burst.l3[lane]);
    let header: &[u8; 12] = umem.bytes(burst.addr[lane], l3);
    // Off the road nobody has cut off yet what is behind the packet.
    let (ttl, may_cut, length) = match classifier.version {
        4 => (header[8], header[6] & 0x40 == 0, be16(header, 2)),
        _ => (header[7], false, be16(header, 4).saturating_add(ipv6::LEN as u16)),
    };
    match record.action() {
        Action::Forward => {
            let fits = length <= record.mtu();
            ttl > 1 && (fits || may_cut)
        }
        Action::Resolve | Action::Glean => ttl > 1 && !kernel_has_rules,
        Action::Local | Action::Drop(_) | Action::Punt(_) => false,
    }
}
