use crate::burst::{Burst, Lanes};
use crate::frame::{FrameAddr, Umem};
use crate::next_hops::{Action, HEADER_ROOM, NextHops, Record};
use crate::stages::validate::Valid6;
use crate::verdict::{PuntReason, Verdict};
use crate::wire::{checksum, word32};

/// Room for the new Ethernet header and the part of the IP header that is read or written.
const WINDOW: usize = HEADER_ROOM + 12;

/// The difference between the families: the word of the IP header that contains the TTL.
trait Family {
    /// Offset of the word in the header, in bytes.
    const WORD: usize;
    /// TTL or hop limit, from the word read as little-endian.
    fn ttl(word: u32) -> u8;
    /// The word with one hop less.
    fn decrement(word: u32) -> u32;
}

/// TTL, protocol, checksum.
struct V4;
impl Family for V4 {
    const WORD: usize = 8;

    #[inline(always)]
    fn ttl(word: u32) -> u8 {
        word as u8
    }

    #[inline(always)]
    fn decrement(word: u32) -> u32 {
        checksum::after_ttl_decrement(word)
    }
}

/// Payload length, next header, hop limit.
struct V6;
impl Family for V6 {
    const WORD: usize = 4;

    #[inline(always)]
    fn ttl(word: u32) -> u8 {
        (word >> 24) as u8
    }

    #[inline(always)]
    fn decrement(word: u32) -> u32 {
        word.wrapping_sub(1 << 24)
    }
}

/// Rewrites IPv4 packets; returns those that are ready to be sent.
#[inline(always)]
pub fn ipv4(burst: &mut Burst, umem: &mut Umem, next_hops: &NextHops, lanes: Lanes) -> Lanes {
    rewrite::<V4>(burst, umem, next_hops, lanes)
}

/// Rewrites IPv6 packets; returns those that are ready to be sent.
#[inline(always)]
pub fn ipv6(burst: &mut Burst, umem: &mut Umem, next_hops: &NextHops, valid: Valid6) -> Lanes {
    if valid.scoped.is_empty() {
        return rewrite::<V6>(burst, umem, next_hops, valid.lanes);
    }
    let lanes = keep_on_link(burst, umem, next_hops, valid);
    rewrite::<V6>(burst, umem, next_hops, lanes)
}

#[inline(always)]
fn rewrite<F: Family>(
    burst: &mut Burst,
    umem: &mut Umem,
    next_hops: &NextHops,
    lanes: Lanes,
) -> Lanes {
    let rare = match lanes.dense() {
        Some(range) => write::<F>(burst, umem, next_hops, range),
        None => write::<F>(burst, umem, next_hops, lanes),
    };
    if !rare.is_empty() {
        explain_all::<F>(burst, umem, next_hops, rare);
    }
    lanes.without(rare)
}

/// Rewrites the packets that can be forwarded; returns the others.
#[inline(always)]
fn write<F: Family>(
    burst: &mut Burst,
    umem: &mut Umem,
    next_hops: &NextHops,
    lanes: impl IntoIterator<Item = usize>,
) -> Lanes {
    let next_hops = next_hops.view();
    let mut rare = Lanes::NONE;
    for lane in lanes {
        let Some(hop) = next_hops.record(burst.next[lane]) else {
            rare.insert_rare(lane);
            continue;
        };
        let l3 = usize::from(burst.l3[lane]);
        let window: &mut [u8; WINDOW] =
            umem.bytes_mut(burst.addr[lane], l3.wrapping_sub(HEADER_ROOM));
        let word = word32(window, HEADER_ROOM + F::WORD);
        // Validate has cut off the bytes after the packet.
        let total_len = burst.len[lane].wrapping_sub(l3 as u16);
        // A next hop that does not forward has an MTU of 0, so this test covers it, too.
        if total_len > hop.mtu() || F::ttl(word) <= 1 {
            rare.insert_rare(lane);
            continue;
        }
        for (room, word) in window.as_chunks_mut().0.iter_mut().zip(hop.header()) {
            *room = word.to_ne_bytes();
        }
        window[HEADER_ROOM + F::WORD..][..4].copy_from_slice(&F::decrement(word).to_le_bytes());
        let header_len = u32::from(hop.header_len());
        let packet = burst.addr[lane].0.wrapping_add(l3 as u32);
        burst.addr[lane] = FrameAddr(packet.wrapping_sub(header_len));
        burst.len[lane] = total_len.wrapping_add(header_len as u16);
        burst.egress[lane] = hop.port();
    }
    rare
}

/// Makes packets exit that cannot be forwarded here.
#[cold]
fn explain_all<F: Family>(burst: &mut Burst, umem: &Umem, next_hops: &NextHops, rare: Lanes) {
    for lane in rare {
        let action = action(next_hops, burst, lane);
        let verdict = explain(action, ttl::<F>(burst, umem, lane));
        burst.exit(lane, verdict);
    }
}

/// The action of a packet's next hop; "no route" if there is none.
fn action(next_hops: &NextHops, burst: &Burst, lane: usize) -> Action {
    let record = next_hops.view().record(burst.next[lane]);
    record.map_or(Action::Punt(PuntReason::NoRoute), Record::action)
}

fn ttl<F: Family>(burst: &Burst, umem: &Umem, lane: usize) -> u8 {
    let header = umem.bytes::<12>(burst.addr[lane], usize::from(burst.l3[lane]));
    F::ttl(word32(header, F::WORD))
}

/// The verdict for a packet that is not forwarded, in the kernel's order of checks.
fn explain(action: Action, ttl: u8) -> Verdict {
    match action {
        Action::Local => Verdict::Local,
        Action::Drop(reason) => Verdict::Drop(reason),
        Action::Punt(reason) => Verdict::Punt(reason),
        Action::Forward | Action::Resolve | Action::Glean if ttl <= 1 => {
            Verdict::Punt(PuntReason::TtlExpired)
        }
        Action::Forward => Verdict::Punt(PuntReason::MtuExceeded),
        Action::Bridge => Verdict::Punt(PuntReason::KernelExit),
        Action::Resolve | Action::Glean => Verdict::Punt(PuntReason::NeighUnresolved),
    }
}

/// Makes packets exit that would be sent to another link than the one their source is bound to.
#[cold]
fn keep_on_link(burst: &mut Burst, umem: &Umem, next_hops: &NextHops, valid: Valid6) -> Lanes {
    let mut lanes = valid.lanes;
    for lane in valid.scoped {
        let action = action(next_hops, burst, lane);
        if !matches!(action, Action::Forward | Action::Resolve | Action::Glean) {
            continue;
        }
        let expired = ttl::<V6>(burst, umem, lane) <= 1;
        let reason = if expired { PuntReason::TtlExpired } else { PuntReason::LinkLocalSource };
        burst.exit(lane, Verdict::Punt(reason));
        lanes.0 &= !(1 << lane);
    }
    lanes
}
