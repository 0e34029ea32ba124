use super::hash::{Hash, flow_hash, l3_hash};
use crate::burst::{Burst, Lanes};
use crate::frame::Umem;
use crate::id::NextHopId;
use crate::tables::Tables;

/// Replaces groups by the member that each packet's flow has.
pub fn run(burst: &mut Burst, umem: &Umem, tables: &Tables, (ip4, ip6): (Lanes, Lanes)) {
    if tables.multipath.v4 == tables.multipath.v6 {
        spread(tables.multipath.v4, burst, umem, tables, ip4.or(ip6));
    } else {
        spread(tables.multipath.v4, burst, umem, tables, ip4);
        spread(tables.multipath.v6, burst, umem, tables, ip6);
    }
}

fn spread(hash: Hash, burst: &mut Burst, umem: &Umem, tables: &Tables, lanes: Lanes) {
    match hash {
        Hash::L4 => spread_by(burst, umem, tables, lanes, |packet| (flow_hash(packet), false)),
        Hash::L3 => spread_by(burst, umem, tables, lanes, l3_hash),
    }
}

/// Replaces groups by what `hash` chooses, which also says of a packet if that depended on more than its
/// flow.
#[inline(always)]
fn spread_by(
    burst: &mut Burst,
    umem: &Umem,
    tables: &Tables,
    lanes: Lanes,
    hash: impl Fn(&[u8]) -> (u32, bool),
) {
    let next_hops = tables.next_hops.view();
    for lane in lanes {
        if let Some(group) = burst.next[lane].group() {
            let frame = umem.frame(burst.addr[lane], usize::from(burst.len[lane]));
            let packet = frame.get(usize::from(burst.l3[lane])..).unwrap_or_default();
            let (hash, bound) = hash(packet);
            burst.bound.put(lane, bound);
            burst.next[lane] = next_hops.in_force(select(tables, group, hash));
        }
    }
}

/// The member of group `next` for a packet.
pub(crate) fn member(tables: &Tables, next: NextHopId, packet: &[u8]) -> NextHopId {
    let is_ipv4 = packet.first().is_some_and(|first| first >> 4 == 4);
    let hash = if is_ipv4 { tables.multipath.v4 } else { tables.multipath.v6 };
    let hash = match hash {
        Hash::L4 => flow_hash(packet),
        Hash::L3 => l3_hash(packet).0,
    };
    select(tables, next, hash)
}

/// The member of group `next` for a flow's hash; a group that is not there has no route.
#[inline(always)]
fn select(tables: &Tables, next: NextHopId, hash: u32) -> NextHopId {
    tables.groups.select(next.0 & (NextHopId::GROUP - 1), hash)
}
