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
    let entries = fib.entries();
    let mut pending = lanes.filter(|lane| {
        let slot = burst.root[lane] as usize + (burst.key[lane] >> 48) as usize;
        step(burst, entries, lane, slot)
    });
    let mut resolved = 16;
    while !pending.is_empty() {
        if resolved == KEY_BITS {
            return finish(burst, umem, fib, lanes, pending);
        }
        let shift = KEY_BITS - 8 - resolved;
        pending = pending.filter(|lane| {
            let Some(base) = block_base(burst.next[lane].0) else { return false };
            step(burst, entries, lane, base + (burst.key[lane] >> shift & 0xff) as usize)
        });
        resolved += 8;
    }
    // Final entries carry their prefix length for the control side.
    lanes.each(|lane| burst.next[lane].0 &= NextHopId::MASK);
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
fn finish(burst: &mut Burst, umem: &Umem, fib: &Fib, lanes: Lanes, pending: Lanes) {
    for lane in lanes {
        if pending.has(lane) {
            let header = umem.bytes(burst.addr[lane], usize::from(burst.l3[lane]));
            burst.next[lane] = fib.lookup(Root(burst.root[lane]), Ipv6View(header).dst());
        }
        burst.next[lane].0 &= NextHopId::MASK;
    }
}
