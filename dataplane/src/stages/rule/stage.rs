use super::Policies;
use crate::burst::{Burst, Lanes};
use crate::frame::Umem;
use crate::stages::filter::{State, Steer};
use crate::tables::{Question, Tables};

/// Finds the next hops of packets whose links have a policy, by that in place of their FIBs'.
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
            // A rule of the firewall has named the VRF.
            let is_steered = matches!(state.steer_of(lane), Steer::Vrf(_));
            if policies.of(link).is_none() || is_steered {
                continue;
            }
            let question = question(burst, umem, lane, version, state.mark[lane]);
            burst.next[lane] = next_hops.in_force(tables.find(&question));
        }
    }
}

/// What a packet's route is asked for; one that ends before its addresses has those of zeros.
pub(crate) fn question(
    burst: &Burst,
    umem: &Umem,
    lane: usize,
    version: u8,
    mark: u32,
) -> Question {
    let (link, root) = (burst.link[lane], burst.root[lane]);
    let l3 = usize::from(burst.l3[lane]);
    let frame = umem.frame(burst.addr[lane], usize::from(burst.len[lane]));
    let packet = frame.get(l3..).unwrap_or_default();
    let (src, dst) = match version {
        4 => (word4(packet, 12), word4(packet, 16)),
        _ => (word6(packet, 8), word6(packet, 24)),
    };
    Question { version, link, root, src, dst, mark }
}

fn word4(packet: &[u8], at: usize) -> u128 {
    let bytes = packet.get(at..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u128::from(u32::from_be_bytes(*bytes)) << 96)
}

fn word6(packet: &[u8], at: usize) -> u128 {
    let bytes = packet.get(at..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u128::from_be_bytes(*bytes))
}
