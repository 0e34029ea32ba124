//! Packets that rules reroute (ipfw: `fwd`, `setfib`).
//!
//! A rule that runs before the route lookup replaces the route, or selects the VRF of the lookup.
//! After such a packet has exited the path, use [`State::policy_route_of`], not the route.

use super::{Filter, PolicyRoute, State};
use crate::burst::Burst;
use crate::frame::Umem;
use crate::id::{NextHopId, RecordId, VrfId};
use crate::stages::rule::RouteTables;

impl Filter {
    /// Sets the next hops that rules refer to, by number. Packets that rules send to others take the
    /// kernel path.
    #[must_use]
    pub fn with_hops(mut self, hops: Vec<NextHopId>) -> Self {
        self.hops = hops;
        self
    }
}

/// Sets a packet's FIB to that of the VRF from the rules.
pub(super) fn set_root(
    burst: &mut Burst,
    routes: &RouteTables,
    version: u8,
    lane: usize,
    vrf: VrfId,
) {
    if let Some(vrf) = routes.vrfs.get(usize::from(vrf.0)) {
        burst.root[lane] = if version == 4 { vrf.root4.0 } else { vrf.root6.0 };
    }
}

/// Replaces the routes' next hops by those from the rules.
#[cold]
pub(super) fn take_place(burst: &mut Burst, umem: &Umem, routes: &RouteTables, state: &State) {
    for lane in state.policy_routed {
        if let PolicyRoute::Next(id) = state.policy_route[lane] {
            burst.next[lane] = record(burst, umem, routes, lane, id);
        }
    }
}

/// The record of a next hop, or of a group's member for a packet.
pub(super) fn record(
    burst: &Burst,
    umem: &Umem,
    routes: &RouteTables,
    lane: usize,
    id: NextHopId,
) -> RecordId {
    let frame = umem.frame(burst.addr[lane], usize::from(burst.len[lane]));
    let packet = frame.get(usize::from(burst.l3[lane])..).unwrap_or_default();
    routes.next_hops.view().installed(routes.member(id, packet))
}
