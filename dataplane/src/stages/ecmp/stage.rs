use super::batch::Batch;
use super::hash::{By, Key};
use crate::burst::{Burst, Lanes};
use crate::frame::Umem;
use crate::id::NextHopId;
use crate::tables::Tables;

/// Replaces groups by the member that each packet's flow has.
///
/// Part of the path, so that it is built for the path's instructions: the hashes are wide ones.
#[inline(always)]
pub fn run(burst: &mut Burst, umem: &Umem, tables: &Tables, (ip4, ip6): (Lanes, Lanes)) {
    spread(burst, umem, tables, ip4, |packet| tables.multipath.key4(packet));
    spread(burst, umem, tables, ip6, |packet| tables.multipath.key6(packet));
}

/// Replaces groups by the member that what `key` gives chooses.
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
        // All that got here have a whole header.
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

/// Gives the packets of a batch their members.
#[inline(always)]
fn choose<const WORDS: usize>(burst: &mut Burst, tables: &Tables, batch: &mut Batch<WORDS>) {
    let next_hops = tables.next_hops.view();
    for (lane, hash) in batch.drain() {
        if let Some(group) = burst.next[lane].group() {
            burst.next[lane] = next_hops.in_force(select(tables, group, hash));
        }
    }
}

/// The member of group `next` for a packet.
pub(crate) fn member(tables: &Tables, next: NextHopId, packet: &[u8]) -> NextHopId {
    select(tables, next, tables.multipath.hash(packet))
}

/// The member of group `next` for a flow's hash; a group that is not there has no route.
#[inline(always)]
fn select(tables: &Tables, next: NextHopId, hash: u32) -> NextHopId {
    tables.groups.select(next.0 & (NextHopId::GROUP - 1), hash)
}
