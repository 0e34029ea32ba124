use super::Policies;
use crate::burst::{Burst, Lanes};
use crate::frame::Umem;
use crate::stages::filter::{PolicyRoute, State};
use crate::tables::{RouteQuery, Tables};

/// Finds the next hops of packets whose links have a policy, from the policy instead of their FIBs.
#[inline(never)]
pub(crate) fn run(
    burst: &mut Burst,
    umem: &Umem,
    tables: &Tables,
    policies: &Policies,
    state: &State,
    (ip4, ip6): (Lanes, Lanes),
) {
    let next_hops = tables.next_hops.view();
    for (version, lanes) in [(4, ip4), (6, ip6)] {
        for lane in lanes {
            let link = burst.link[lane];
            // A firewall rule has selected the VRF.
            let is_policy_routed = matches!(state.policy_route_of(lane), PolicyRoute::Vrf(_));
            if policies.of(link).is_none() || is_policy_routed {
                continue;
            }
            let query = query(burst, umem, lane, version, state.mark[lane]);
            burst.next[lane] = next_hops.installed(tables.find(&query));
        }
    }
}

/// The query for a packet's route. If the packet ends before its addresses, they are zeros.
pub(crate) fn query(burst: &Burst, umem: &Umem, lane: usize, version: u8, mark: u32) -> RouteQuery {
    let (link, root) = (burst.link[lane], burst.root[lane]);
    let l3 = usize::from(burst.l3[lane]);
    let frame = umem.frame(burst.addr[lane], usize::from(burst.len[lane]));
    let packet = frame.get(l3..).unwrap_or_default();
    let (src, dst) = match version {
        4 => (word4(packet, 12), word4(packet, 16)),
        _ => (word6(packet, 8), word6(packet, 24)),
    };
    RouteQuery { version, link, root, src, dst, mark }
}

fn word4(packet: &[u8], at: usize) -> u128 {
    let bytes = packet.get(at..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u128::from(u32::from_be_bytes(*bytes)) << 96)
}

fn word6(packet: &[u8], at: usize) -> u128 {
    let bytes = packet.get(at..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u128::from_be_bytes(*bytes))
}
