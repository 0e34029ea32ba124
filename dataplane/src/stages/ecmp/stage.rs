use super::batch::Batch;
use super::hash::{By, Key};
use crate::burst::{Burst, Lanes};
use crate::frame::Umem;
use crate::id::NextHopId;
use crate::tables::Tables;

/// Replaces groups by the member for each packet's flow.
///
/// It is part of the path, so that it is compiled for the path's instruction set: the hashes use wide
/// instructions.
#[inline(always)]
pub fn run(burst: &mut Burst, umem: &Umem, tables: &Tables, (ip4, ip6): (Lanes, Lanes)) {
    spread(burst, umem, tables, ip4, |packet| tables.multipath.key4(packet));
    spread(burst, umem, tables, ip6, |packet| tables.multipath.key6(packet));
}

/// Replaces groups by the member that the result of `key` selects.
#[inline(always)]
fn spread<const WORDS: usize>(
    burst: &mut Burst,
    umem: &Umem,
    tables: &Tables,
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
fn choose<const WORDS: usize>(burst: &mut Burst, tables: &Tables, batch: &mut Batch<WORDS>) {
    let next_hops = tables.next_hops.view();
    for (lane, hash) in batch.drain() {
        if let Some(group) = burst.next[lane].group() {
            burst.next[lane] = next_hops.installed(select(tables, group, hash));
        }
    }
}

/// The member of group `next` for a packet.
pub(crate) fn member(tables: &Tables, next: NextHopId, packet: &[u8]) -> NextHopId {
    select(tables, next, tables.multipath.hash(packet))
}

/// The member of group `next` for a flow's hash; "no route" if the group does not exist.
#[inline(always)]
fn select(tables: &Tables, next: NextHopId, hash: u32) -> NextHopId {
    tables.groups.select(next.0 & (NextHopId::GROUP - 1), hash)
}
