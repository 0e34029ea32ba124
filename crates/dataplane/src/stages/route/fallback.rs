//! Fallbacks: the FIB that the path looks up if another FIB has no route.

#[cfg(test)]
mod tests;

use super::stage::{Family, run};
use crate::burst::{Burst, Lanes};
use crate::fib::Fib;
use crate::frame::Umem;
use crate::id::{NextHopId, VrfId};
use crate::links::VrfRecord;
use crate::next_hops::NextHops;

/// No fallback FIB.
const NONE: u32 = u32::MAX;

/// The fallback of each FIB. It replaces copies of the tables that the kernel looks up one after the
/// other (`fib_rules_lookup` in `net/core/fib_rules.c`).
#[derive(Clone, Debug, Default)]
pub(crate) struct Fallbacks {
    /// The root to look up next, by root, for IPv4 and IPv6.
    next_roots: [Vec<u32>; 2],
    /// The VRF that each VRF falls back to.
    vrfs: Vec<Option<VrfId>>,
}

impl Fallbacks {
    /// The root to look up if this one has no route.
    #[inline(always)]
    pub(crate) fn next_root(&self, version: u8, root: u32) -> Option<u32> {
        let next = self.next_roots[usize::from(version != 4)].get(root as usize).copied();
        next.filter(|other| *other != NONE)
    }

    /// Says whether a VRF falls back to another, directly or indirectly.
    fn leads_to(&self, from: VrfId, to: VrfId) -> bool {
        let next = |vrf: &VrfId| self.of(*vrf);
        std::iter::successors(Some(from), next).any(|vrf| vrf == to)
    }

    /// The VRF that a VRF falls back to.
    pub(crate) fn of(&self, vrf: VrfId) -> Option<VrfId> {
        self.vrfs.get(usize::from(vrf.0)).copied().flatten()
    }

    /// Says whether no VRF falls back to another.
    pub(crate) fn is_empty(&self) -> bool {
        self.vrfs.iter().all(Option::is_none)
    }

    /// Sets the VRF that a VRF falls back to, each with its number and its FIBs. False if the VRF would
    /// fall back to itself; nothing has changed then.
    pub(crate) fn set(
        &mut self,
        vrf: (VrfId, VrfRecord),
        next: Option<(VrfId, VrfRecord)>,
    ) -> bool {
        let ((id, own), other) = (vrf, next.map(|(_, record)| record));
        let next = next.map(|(next, _)| next);
        if next.is_some_and(|next| self.leads_to(next, id)) {
            return false;
        }
        let index = usize::from(id.0);
        if self.vrfs.len() <= index {
            self.vrfs.resize(index + 1, None);
        }
        self.vrfs[index] = next;
        self.set_root(4, own.root4.0, other.map_or(NONE, |other| other.root4.0));
        self.set_root(6, own.root6.0, other.map_or(NONE, |other| other.root6.0));
        true
    }

    fn set_root(&mut self, version: u8, root: u32, next: u32) {
        let next_roots = &mut self.next_roots[usize::from(version != 4)];
        if next_roots.len() <= root as usize {
            next_roots.resize(root as usize + 1, NONE);
        }
        next_roots[root as usize] = next;
    }
}

/// Looks up packets without a route in the fallback FIBs, level by level.
#[inline(never)]
pub(crate) fn fall_back<F: Family>(
    burst: &mut Burst,
    umem: &Umem,
    fib: &Fib,
    next_hops: &NextHops,
    fallbacks: &Fallbacks,
    lanes: Lanes,
) {
    let mut left = lanes;
    // This terminates, because no VRF falls back to itself.
    while !left.is_empty() {
        let mut again = Lanes::NONE;
        for lane in left {
            if burst.next[lane].0 == NextHopId::NO_ROUTE.0
                && let Some(root) = fallbacks.next_root(F::VERSION, burst.root[lane])
            {
                burst.root[lane] = root;
                F::restore_key(burst, umem, lane);
                again.put(lane, true);
            }
        }
        run::<F>(burst, umem, fib, next_hops, again);
        left = again;
    }
}
