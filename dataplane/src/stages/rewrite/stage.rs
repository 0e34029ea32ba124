use crate::burst::{Burst, Lanes};
use crate::frame::{FrameAddr, Umem};
use crate::stages::validate::Valid6;
use crate::tables::{Action, HEADER_ROOM, NextHop, Tables};
use crate::verdict::{PuntReason, Verdict};
use crate::wire::ipv6;
use crate::wire::{be16, checksum};

/// Room for the new Ethernet header, then as much of the IP header as is read or written.
const WINDOW4: usize = HEADER_ROOM + 12;
const WINDOW6: usize = HEADER_ROOM + 8;

/// Offsets in a window.
const TOTAL_LEN: usize = HEADER_ROOM + 2;
const TTL: usize = HEADER_ROOM + 8;
const CHECKSUM: usize = HEADER_ROOM + 10;
const PAYLOAD_LEN: usize = HEADER_ROOM + 4;
const HOP_LIMIT: usize = HEADER_ROOM + 7;

/// Rewrites IPv4 packets; returns those that are ready to be sent.
#[inline(always)]
pub fn ipv4(burst: &mut Burst, umem: &mut Umem, tables: &Tables, lanes: Lanes) -> Lanes {
    let ready = lanes.filter(|lane| {
        let next = tables.next_hop(burst.next[lane]);
        let l3 = usize::from(burst.l3[lane]);
        let window: &mut [u8; WINDOW4] =
            umem.bytes_mut(burst.addr[lane], l3.wrapping_sub(HEADER_ROOM));
        let total_len = be16(window, TOTAL_LEN);
        // A next hop that does not forward has an MTU of 0, so this asks that as well.
        if (total_len > next.mtu) | (window[TTL] <= 1) {
            return false;
        }
        window[TTL] -= 1;
        let sum = u16::from_le_bytes([window[CHECKSUM], window[CHECKSUM + 1]]);
        let sum = checksum::after_ttl_decrement_le(sum).to_le_bytes();
        window[CHECKSUM..CHECKSUM + 2].copy_from_slice(&sum);
        window[..HEADER_ROOM].copy_from_slice(&next.header);
        put(burst, lane, l3, next, total_len);
        true
    });
    let odd = lanes.without(ready);
    if !odd.is_empty() {
        explain_all(burst, umem, tables, odd, TTL - HEADER_ROOM);
    }
    ready
}

/// Rewrites IPv6 packets; returns those that are ready to be sent.
#[inline(always)]
pub fn ipv6(burst: &mut Burst, umem: &mut Umem, tables: &Tables, valid: Valid6) -> Lanes {
    let mut lanes = valid.lanes;
    if !valid.scoped.is_empty() {
        lanes = keep_on_link(burst, umem, tables, valid);
    }
    let ready = lanes.filter(|lane| {
        let next = tables.next_hop(burst.next[lane]);
        let l3 = usize::from(burst.l3[lane]);
        let window: &mut [u8; WINDOW6] =
            umem.bytes_mut(burst.addr[lane], l3.wrapping_sub(HEADER_ROOM));
        let total_len = be16(window, PAYLOAD_LEN).saturating_add(ipv6::LEN as u16);
        if (total_len > next.mtu) | (window[HOP_LIMIT] <= 1) {
            return false;
        }
        window[HOP_LIMIT] -= 1;
        window[..HEADER_ROOM].copy_from_slice(&next.header);
        put(burst, lane, l3, next, total_len);
        true
    });
    let odd = lanes.without(ready);
    if !odd.is_empty() {
        explain_all(burst, umem, tables, odd, HOP_LIMIT - HEADER_ROOM);
    }
    ready
}

/// Notes where the packet's frame now begins and ends, and where it goes.
#[inline(always)]
fn put(burst: &mut Burst, lane: usize, l3: usize, next: &NextHop, total_len: u16) {
    let header_len = u32::from(next.header_len);
    let start = burst.addr[lane].0.wrapping_add(l3 as u32).wrapping_sub(header_len);
    burst.addr[lane] = FrameAddr(start);
    // The MTU keeps the sum within 16 bits.
    burst.len[lane] = total_len.wrapping_add(header_len as u16);
    burst.egress[lane] = next.port;
}

/// Sends off the packets that can not be forwarded this way.
#[cold]
fn explain_all(burst: &mut Burst, umem: &Umem, tables: &Tables, odd: Lanes, ttl_offset: usize) {
    for lane in odd {
        let next = tables.next_hop(burst.next[lane]);
        let [ttl] = *umem.bytes(burst.addr[lane], usize::from(burst.l3[lane]) + ttl_offset);
        burst.leave(lane, explain(next, ttl));
    }
}

/// The verdict for a packet that is not forwarded, in the kernel's order of checks.
fn explain(next: &NextHop, ttl: u8) -> Verdict {
    match next.action {
        Action::Local => Verdict::Local,
        Action::Drop(reason) => Verdict::Drop(reason),
        Action::Punt(reason) => Verdict::Punt(reason),
        Action::Forward | Action::Resolve | Action::Glean if ttl <= 1 => {
            Verdict::Punt(PuntReason::TtlExpired)
        }
        Action::Forward => Verdict::Punt(PuntReason::MtuExceeded),
        Action::Resolve | Action::Glean => Verdict::Punt(PuntReason::NeighUnresolved),
    }
}

/// Sends off packets that would leave the link that their source is bound to.
#[cold]
fn keep_on_link(burst: &mut Burst, umem: &Umem, tables: &Tables, valid: Valid6) -> Lanes {
    let mut lanes = valid.lanes;
    for lane in valid.scoped {
        let next = tables.next_hop(burst.next[lane]);
        if !matches!(next.action, Action::Forward | Action::Resolve | Action::Glean) {
            continue;
        }
        let ttl_offset = HOP_LIMIT - HEADER_ROOM;
        let [ttl] = *umem.bytes(burst.addr[lane], usize::from(burst.l3[lane]) + ttl_offset);
        let reason = if ttl <= 1 { PuntReason::TtlExpired } else { PuntReason::LinkLocalSource };
        burst.leave(lane, Verdict::Punt(reason));
        lanes.0 &= !(1 << lane);
    }
    lanes
}
