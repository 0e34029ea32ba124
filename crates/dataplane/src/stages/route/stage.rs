use crate::burst::{Burst, Lanes};
use crate::fib::{Entry, Fib, FibView, Top};
use crate::frame::Umem;
use crate::id::{NextHopId, RecordId};
use crate::next_hops::NextHops;
use crate::wire::word64;

/// Offset of the upper half of an IPv6 destination in the header, in bytes.
const DST_HIGH: usize = 24;
const DST_LOW: usize = 32;

/// The differences between the families.
pub trait Family {
    /// The number of keys in an address.
    const HALVES: u32;
    /// The IP version.
    const VERSION: u8;
    /// Sets [`Burst::key`] back to its value before the lookup.
    fn restore_key(burst: &mut Burst, umem: &Umem, lane: usize);
}

/// IPv4: the address, padded with zeros, is one key.
pub struct V4;
impl Family for V4 {
    const HALVES: u32 = 1;
    const VERSION: u8 = 4;

    fn restore_key(_: &mut Burst, _: &Umem, _: usize) {}
}

/// IPv6: each half of the address is a key.
pub struct V6;
impl Family for V6 {
    const HALVES: u32 = 2;
    const VERSION: u8 = 6;

    fn restore_key(burst: &mut Burst, umem: &Umem, lane: usize) {
        let header: &[u8; 40] = umem.bytes(burst.addr[lane], usize::from(burst.l3[lane]));
        burst.key[lane] = word64(header, DST_HIGH).swap_bytes();
    }
}

/// Finds the record of every packet's next hop, or its group.
#[inline(always)]
pub fn run<F: Family>(
    burst: &mut Burst,
    umem: &Umem,
    fib: &Fib,
    next_hops: &NextHops,
    lanes: Lanes,
) {
    look_up::<F>(burst, umem, fib, lanes);
    let next_hops = next_hops.view();
    if !next_hops.is_identity() {
        for lane in lanes {
            burst.next[lane] = next_hops.installed(NextHopId(burst.next[lane].0));
        }
    }
}

/// How to find the top of each packet's FIB.
trait Tops: Copy {
    fn top(self, view: FibView<'_>, root: u32) -> Top;
}

/// Links in different VRFs: each packet has a top of its own.
#[derive(Clone, Copy)]
struct Each;

impl Tops for Each {
    #[inline(always)]
    fn top(self, view: FibView<'_>, root: u32) -> Top {
        view.top(root)
    }
}

/// All packets share one top (the usual case): it stays in registers.
#[derive(Clone, Copy)]
struct One(Top);

impl Tops for One {
    #[inline(always)]
    fn top(self, _: FibView<'_>, _: u32) -> Top {
        self.0
    }
}

/// Looks up every packet's destination in a FIB. [`Burst::next`] then holds numbers of next hops, which
/// are those of their records while none of them changes.
#[inline(always)]
pub fn look_up<F: Family>(burst: &mut Burst, umem: &Umem, fib: &Fib, lanes: Lanes) {
    match lanes.dense() {
        Some(range) => {
            let root = burst.root[0];
            let mut others = 0;
            for lane in range.clone() {
                others |= burst.root[lane] ^ root;
            }
            if others == 0 {
                find::<F>(burst, umem, fib, One(fib.view().top(root)), range.clone());
            } else {
                find::<F>(burst, umem, fib, Each, range.clone());
            }
            strip(burst, range);
        }
        None => {
            find::<F>(burst, umem, fib, Each, lanes);
            strip(burst, lanes);
        }
    }
}

/// Removes the prefix length, which only changes of the FIB use, from every entry.
#[inline(always)]
fn strip(burst: &mut Burst, lanes: impl IntoIterator<Item = usize>) {
    for lane in lanes {
        burst.next[lane] = RecordId(Entry(burst.next[lane].0).next().0);
    }
}

/// Descends to every packet's final entry.
///
/// It works level by level over the whole burst, so that the loads of different packets overlap.
#[inline(always)]
fn find<F: Family>(
    burst: &mut Burst,
    umem: &Umem,
    fib: &Fib,
    tops: impl Tops,
    lanes: impl IntoIterator<Item = usize> + Clone,
) {
    let view = fib.view();
    let mut any = Entry(0);
    for lane in lanes.clone() {
        let entry = view.entry(tops.top(view, burst.root[lane]).place(burst.key[lane]));
        burst.next[lane] = RecordId(entry.0);
        any.0 |= entry.0;
    }
    if !any.is_node() {
        return;
    }
    // For IPv6: with IPv4 all packets take one more step, and the compiler removes this.
    let mut pending = Lanes::NONE;
    for lane in lanes.clone() {
        let entry = Entry(burst.next[lane].0);
        pending.put(lane, entry.is_node());
        view.prefetch_node(entry);
    }
    if F::HALVES == 1 {
        let deeper = step(burst, view, tops, lanes);
        go_down::<false>(burst, view, deeper);
        return;
    }
    let lower = go_down::<true>(burst, view, pending);
    if !lower.is_empty() {
        take_lower_half(burst, umem, lower);
        go_down::<false>(burst, view, lower);
    }
}

/// Takes the step from the top to the next level, which is the last for most IPv4 packets. Returns the
/// packets that have to descend further.
///
/// Few packets already have a final entry or are at a leap. They take part and read the same entry
/// again, which takes less time than searching for the others.
#[inline(always)]
fn step(
    burst: &mut Burst,
    view: FibView<'_>,
    tops: impl Tops,
    lanes: impl IntoIterator<Item = usize> + Clone,
) -> Lanes {
    for lane in lanes.clone() {
        let entry = Entry(burst.next[lane].0);
        let top = tops.top(view, burst.root[lane]);
        let key = burst.key[lane];
        let Some(node) = view.next_node(entry) else { continue };
        let below = node.place_of(top.slot_below(key));
        let place = if entry.is_step() { below } else { top.place(key) };
        view.prefetch_entry(place);
        burst.next[lane] = RecordId(place);
    }
    read_entries(burst, view, lanes)
}

/// Descends to final entries. With keys of the upper half of an IPv6 address (`UPPER`), it stops at
/// nodes in the lower half and returns their packets.
#[inline(always)]
fn go_down<const UPPER: bool>(burst: &mut Burst, view: FibView<'_>, mut pending: Lanes) -> Lanes {
    let mut lower = Lanes::NONE;
    while !pending.is_empty() {
        let others = match pending.dense() {
            Some(range) => find_places::<UPPER>(burst, view, range),
            None => find_places::<UPPER>(burst, view, pending),
        };
        pending = pending.without(others);
        pending = match pending.dense() {
            Some(range) => read_entries(burst, view, range),
            None => read_entries(burst, view, pending),
        };
        lower = lower.or(others);
    }
    lower
}

/// Finds the place of each packet's entry in its node. Returns the packets whose node is in the lower
/// half of the address, for which `UPPER` keys have no bits.
#[inline(always)]
fn find_places<const UPPER: bool>(
    burst: &mut Burst,
    view: FibView<'_>,
    pending: impl IntoIterator<Item = usize>,
) -> Lanes {
    let mut lower = Lanes::NONE;
    for lane in pending {
        let Some(node) = view.node(Entry(burst.next[lane].0)) else { continue };
        if UPPER && node.is_low() {
            lower.insert_rare(lane);
            continue;
        }
        let place = node.place(burst.key[lane]);
        view.prefetch_entry(place);
        burst.next[lane] = RecordId(place);
    }
    lower
}

/// Reads each packet's entry at its place, in a separate loop so that no packet's load waits for that
/// of the packet before. Returns the packets that have to descend further.
#[inline(always)]
fn read_entries(
    burst: &mut Burst,
    view: FibView<'_>,
    pending: impl IntoIterator<Item = usize>,
) -> Lanes {
    let mut deeper = Lanes::NONE;
    for lane in pending {
        let entry = view.entry(burst.next[lane].0);
        burst.next[lane] = RecordId(entry.0);
        deeper.put(lane, entry.is_node());
    }
    for lane in deeper {
        view.prefetch_node(Entry(burst.next[lane].0));
    }
    deeper
}

/// Sets the keys to the lower halves of IPv6 destinations.
#[cold]
fn take_lower_half(burst: &mut Burst, umem: &Umem, lanes: Lanes) {
    for lane in lanes {
        let header: &[u8; 40] = umem.bytes(burst.addr[lane], usize::from(burst.l3[lane]));
        burst.key[lane] = word64(header, DST_LOW).swap_bytes();
    }
}
