use super::table::block_base;
use super::{Fib, Root};
use crate::burst::{Burst, Lanes};
use crate::frame::Umem;
use crate::id::NextHopId;
use crate::wire::ipv6::Ipv6View;

/// Bits of a lookup key ([`Burst::key`]).
const KEY_BITS: u32 = 64;

/// Looks up every packet's next hop or group.
///
/// Level by level over the whole burst, so that the loads of different packets overlap.
#[inline(always)]
pub fn run(burst: &mut Burst, umem: &Umem, fib: &Fib, lanes: Lanes) {
    match lanes.dense() {
        Some(range) => look_up(burst, umem, fib, range),
        None => look_up(burst, umem, fib, lanes),
    }
}

#[inline(always)]
fn look_up(
    burst: &mut Burst,
    umem: &Umem,
    fib: &Fib,
    lanes: impl IntoIterator<Item = usize> + Clone,
) {
    let entries = fib.entries();
    let mut pending = Lanes::NONE;
    for lane in lanes.clone() {
        let slot = burst.root[lane] as usize + (burst.key[lane] >> 48) as usize;
        pending.put(lane, step(burst, entries, lane, slot));
    }
    let mut resolved = 16;
    while !pending.is_empty() {
        if resolved == KEY_BITS {
            finish(burst, umem, fib, pending);
            break;
        }
        let shift = KEY_BITS - 8 - resolved;
        pending = match pending.dense() {
            Some(range) => descend(burst, entries, shift, range),
            None => descend(burst, entries, shift, pending),
        };
        resolved += 8;
    }
    // Final entries carry their prefix length for the control side.
    for lane in lanes {
        burst.next[lane].0 &= NextHopId::MASK;
    }
}

/// Reads the next level's entries; returns the packets that have further to go.
#[inline(always)]
fn descend(
    burst: &mut Burst,
    entries: &[u32],
    shift: u32,
    pending: impl IntoIterator<Item = usize>,
) -> Lanes {
    let mut deeper = Lanes::NONE;
    for lane in pending {
        let Some(base) = block_base(burst.next[lane].0) else { continue };
        let slot = base + (burst.key[lane] >> shift & 0xff) as usize;
        deeper.put(lane, step(burst, entries, lane, slot));
    }
    deeper
}

/// Reads an entry; says if the way goes on.
#[inline(always)]
fn step(burst: &mut Burst, entries: &[u32], lane: usize, slot: usize) -> bool {
    let entry = entries.get(slot).copied().unwrap_or(0);
    burst.next[lane] = NextHopId(entry);
    block_base(entry).is_some()
}

/// Looks up what is longer than the key: IPv6 prefixes beyond /64.
#[cold]
fn finish(burst: &mut Burst, umem: &Umem, fib: &Fib, pending: Lanes) {
    for lane in pending {
        let header = umem.bytes(burst.addr[lane], usize::from(burst.l3[lane]));
        burst.next[lane] = fib.lookup(Root(burst.root[lane]), Ipv6View(header).dst());
    }
}
