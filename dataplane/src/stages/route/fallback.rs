//! FIBs that are looked up if another has no route.

#[cfg(test)]
mod tests;

use super::stage::{Family, run};
use crate::burst::{Burst, Lanes};
use crate::frame::Umem;
use crate::id::{NextHopId, VrfId};
use crate::tables::{Tables, TablesError};

/// No fallback FIB.
const NONE: u32 = u32::MAX;

/// The fallback of each FIB. It replaces copies of the tables that the kernel looks up one after the
/// other (`fib_rules_lookup` in `net/core/fib_rules.c`).
#[derive(Debug, Default)]
pub(crate) struct Fallbacks {
    /// By root, IPv4 and IPv6.
    after: [Vec<u32>; 2],
    /// The VRF that each VRF falls back to.
    vrfs: Vec<Option<VrfId>>,
}

impl Fallbacks {
    /// The root to look up if this one has no route.
    #[inline(always)]
    pub(crate) fn after(&self, version: u8, root: u32) -> Option<u32> {
        let after = self.after[usize::from(version != 4)].get(root as usize).copied();
        after.filter(|other| *other != NONE)
    }

    /// Says whether a VRF falls back to another, directly or indirectly.
    fn leads(&self, from: VrfId, to: VrfId) -> bool {
        let next = |vrf: &VrfId| self.vrfs.get(usize::from(vrf.0)).copied().flatten();
        std::iter::successors(Some(from), next).any(|vrf| vrf == to)
    }

    fn set(&mut self, version: u8, root: u32, next: u32) {
        let after = &mut self.after[usize::from(version != 4)];
        if after.len() <= root as usize {
            after.resize(root as usize + 1, NONE);
        }
        after[root as usize] = next;
    }
}

impl Tables {
    /// Sets the VRF to look up if a VRF has no route to an address: no entry covers it, or the entry
    /// with the longest prefix is [`NextHopId::NO_ROUTE`] (a throw route). That VRF may have a fallback
    /// itself.
    ///
    /// # Errors
    /// See [`TablesError`]; [`TablesError::Loop`] if the VRF would fall back to itself.
    pub fn set_fallback(&mut self, vrf: VrfId, next: Option<VrfId>) -> Result<(), TablesError> {
        let of = |vrf: VrfId| self.vrfs.get(usize::from(vrf.0)).ok_or(TablesError::Unknown);
        let own = *of(vrf)?;
        let other = next.map(of).transpose()?.copied();
        let all = self.fallbacks.get_or_insert_default();
        if next.is_some_and(|next| all.leads(next, vrf)) {
            return Err(TablesError::Loop);
        }
        let index = usize::from(vrf.0);
        if all.vrfs.len() <= index {
            all.vrfs.resize(index + 1, None);
        }
        all.vrfs[index] = next;
        all.set(4, own.root4.0, other.map_or(NONE, |other| other.root4.0));
        all.set(6, own.root6.0, other.map_or(NONE, |other| other.root6.0));
        if all.vrfs.iter().all(Option::is_none) {
            self.fallbacks = None;
        }
        self.epochs.changes.note();
        Ok(())
    }

    /// The VRF to look up if this one has no route.
    #[must_use]
    pub fn fallback(&self, vrf: VrfId) -> Option<VrfId> {
        self.fallbacks.as_ref()?.vrfs.get(usize::from(vrf.0)).copied().flatten()
    }
}

/// Looks up packets without a route in the fallback FIBs, level by level.
#[inline(never)]
pub(crate) fn fall_back<F: Family>(
    burst: &mut Burst,
    umem: &Umem,
    tables: &Tables,
    fallbacks: &Fallbacks,
    lanes: Lanes,
) {
    let mut lost = lanes;
    // This terminates: no VRF falls back to itself.
    while !lost.is_empty() {
        let mut again = Lanes::NONE;
        for lane in lost {
            if burst.next[lane].0 == NextHopId::NO_ROUTE.0
                && let Some(root) = fallbacks.after(F::VERSION, burst.root[lane])
            {
                burst.root[lane] = root;
                F::restore_key(burst, umem, lane);
                again.put(lane, true);
            }
        }
        run::<F>(burst, umem, tables, again);
        lost = again;
    }
}
