use super::batch::Batch;
use super::hash::{By, Key, Multipath};
use super::table::Groups;
use crate::burst::{Burst, Lanes};
use crate::frame::Umem;
use crate::id::NextHopId;
use crate::next_hops::NextHops;

/// Replaces groups by the member for each packet's flow.
///
/// It is part of the path, so that it is compiled for the path's instruction set: the hashes use wide
/// instructions.
#[inline(always)]
pub(crate) fn run(
    burst: &mut Burst,
    umem: &Umem,
    (groups, multipath): (&Groups, &Multipath),
    next_hops: &NextHops,
    (ip4, ip6): (Lanes, Lanes),
) {
    spread(burst, umem, (groups, next_hops), ip4, |packet| multipath.key4(packet));
    spread(burst, umem, (groups, next_hops), ip6, |packet| multipath.key6(packet));
}

/// Replaces groups by the member that the result of `key` selects.
#[inline(always)]
fn spread<const WORDS: usize>(
    burst: &mut Burst,
    umem: &Umem,
    tables: (&Groups, &NextHops),
    lanes: Lanes,
    key: impl Fn(&[u8]) -> Option<Key<WORDS>>,
) {
    let mut batch = Batch::new();
    for lane in lanes {
        if burst.next[lane].group().is_none() {
            continue;
        }
        let frame = umem.frame(burst.addr[lane], usize::from(burst.len[lane]));
        let packet = frame.get(usize::from(burst.l3[lane])..).unwrap_or_default();
        // All packets that reach this stage have a complete header.
        let Some(key) = key(packet) else { continue };
        match key.by {
            By::Flow => {}
            By::Label => burst.labelled.put(lane, true),
            By::Cause => burst.bound.put(lane, true),
        }
        if batch.push(lane, &key) {
            choose(burst, tables, &mut batch);
        }
    }
    choose(burst, tables, &mut batch);
}

/// Sets the members for the packets of a batch.
#[inline(always)]
fn choose<const WORDS: usize>(
    burst: &mut Burst,
    (groups, next_hops): (&Groups, &NextHops),
    batch: &mut Batch<WORDS>,
) {
    let next_hops = next_hops.view();
    for (lane, hash) in batch.drain() {
        if let Some(group) = burst.next[lane].group() {
            burst.next[lane] = next_hops.installed(select(groups, group, hash));
        }
    }
}

/// The member of group `next` for a packet.
pub(crate) fn member(
    groups: &Groups,
    multipath: &Multipath,
    next: NextHopId,
    packet: &[u8],
) -> NextHopId {
    select(groups, next, multipath.hash(packet))
}

/// The member of group `next` for a flow's hash; "no route" if the group does not exist.
#[inline(always)]
fn select(groups: &Groups, next: NextHopId, hash: u32) -> NextHopId {
    groups.select(next.0 & (NextHopId::GROUP - 1), hash)
}
