use super::hash::{By, Chosen};
use crate::burst::{Burst, Lanes};
use crate::frame::Umem;
use crate::id::NextHopId;
use crate::tables::Tables;

/// Replaces groups by the member that each packet's flow has.
pub fn run(burst: &mut Burst, umem: &Umem, tables: &Tables, (ip4, ip6): (Lanes, Lanes)) {
    let multipath = &tables.multipath;
    spread(burst, umem, tables, ip4, |packet| multipath.of4(multipath.v4, packet));
    spread(burst, umem, tables, ip6, |packet| multipath.of6(multipath.v6, packet));
}

/// Replaces groups by what `choose` says.
#[inline(always)]
fn spread(
    burst: &mut Burst,
    umem: &Umem,
    tables: &Tables,
    lanes: Lanes,
    choose: impl Fn(&[u8]) -> Chosen,
) {
    let next_hops = tables.next_hops.view();
    for lane in lanes {
        if let Some(group) = burst.next[lane].group() {
            let frame = umem.frame(burst.addr[lane], usize::from(burst.len[lane]));
            let packet = frame.get(usize::from(burst.l3[lane])..).unwrap_or_default();
            let Chosen { hash, by } = choose(packet);
            match by {
                By::Flow => {}
                By::Label => burst.labelled.put(lane, true),
                By::Cause => burst.bound.put(lane, true),
            }
            burst.next[lane] = next_hops.in_force(select(tables, group, hash));
        }
    }
}

/// The member of group `next` for a packet.
pub(crate) fn member(tables: &Tables, next: NextHopId, packet: &[u8]) -> NextHopId {
    select(tables, next, tables.multipath.of(packet).hash)
}

/// The member of group `next` for a flow's hash; a group that is not there has no route.
#[inline(always)]
fn select(tables: &Tables, next: NextHopId, hash: u32) -> NextHopId {
    tables.groups.select(next.0 & (NextHopId::GROUP - 1), hash)
}
