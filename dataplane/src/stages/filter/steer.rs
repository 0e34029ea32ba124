//! Packets that rules send another way than their destination's route (ipfw: `fwd`, `setfib`).
//!
//! What rules say before the route is found takes the route's place, or chooses the VRF that it is looked up
//! in. Whoever deals with such a packet off the road goes by [`State::steer_of`], not by the route.

use super::{Filter, State};
use crate::burst::Burst;
use crate::frame::Umem;
use crate::id::{NextHopId, VrfId};
use crate::stages::ecmp;
use crate::tables::{RecordId, Tables};

/// Where rules send a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Steer {
    /// Nowhere: its route does.
    #[default]
    Not,
    /// To this next hop.
    Next(NextHopId),
    /// Where its route in this VRF leads.
    Vrf(VrfId),
}

impl State {
    /// Where rules send a packet of the burst.
    #[must_use]
    pub fn steer_of(&self, lane: usize) -> Steer {
        if self.steered.has(lane) { self.steer[lane] } else { Steer::Not }
    }

    /// Notes where rules send a packet. Who names a next hop is not overruled by who names a VRF.
    pub(super) fn steer(&mut self, lane: usize, steer: Steer) {
        if !matches!((self.steer_of(lane), steer), (Steer::Next(_), Steer::Vrf(_))) {
            self.steer[lane] = steer;
            self.steered.put(lane, true);
        }
    }
}

impl Filter {
    /// Says what the next hops are that rules name, by number. Packets that are sent to others are left to
    /// the kernel.
    #[must_use]
    pub fn with_hops(mut self, hops: Vec<NextHopId>) -> Self {
        self.hops = hops;
        self
    }
}

/// Has a packet looked up in the VRF that rules name.
pub(super) fn set_root(burst: &mut Burst, tables: &Tables, version: u8, lane: usize, vrf: VrfId) {
    if let Some(vrf) = tables.vrfs.get(usize::from(vrf.0)) {
        burst.root[lane] = if version == 4 { vrf.root4.0 } else { vrf.root6.0 };
    }
}

/// Puts the next hops that rules name in the place of the routes'.
#[cold]
pub(super) fn take_place(burst: &mut Burst, umem: &Umem, tables: &Tables, state: &State) {
    for lane in state.steered {
        if let Steer::Next(id) = state.steer[lane] {
            burst.next[lane] = record(burst, umem, tables, lane, id);
        }
    }
}

/// The record of a next hop, or of a group's member for a packet.
pub(super) fn record(
    burst: &Burst,
    umem: &Umem,
    tables: &Tables,
    lane: usize,
    id: NextHopId,
) -> RecordId {
    let frame = umem.frame(burst.addr[lane], usize::from(burst.len[lane]));
    let packet = frame.get(usize::from(burst.l3[lane])..).unwrap_or_default();
    let id = match id.is_group() {
        true => ecmp::member(tables, id, packet),
        false => id,
    };
    tables.next_hops.view().in_force(id)
}
