//! Which entries of the XDP path are void after tables have changed.

use std::sync::Arc;

use tollway_dataplane::changes::{Basis, Changes, Version, Voided};

use crate::State;
use crate::regions::regions;

/// Voids entries that changes have made void. Each thread that does so has its own.
#[derive(Debug)]
pub struct Outdated {
    /// What any of them has voided.
    voided: Arc<Voided>,
    /// Regions of changes, kept for its memory.
    touched: Vec<u32>,
}

/// The void entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Void<'a> {
    /// Flows from or to these regions.
    Regions(&'a [u32]),
    /// All flows, but no connections.
    Flows,
    All,
}

impl Outdated {
    /// Creates one of those that void the entries of one XDP path.
    #[must_use]
    pub const fn new(voided: Arc<Voided>) -> Self {
        Self { voided, touched: Vec::new() }
    }

    /// Calls `void` with what is void because of changes up to `now`, unless all of that has been voided. The
    /// version was read from `changes`.
    pub(super) fn follow(&mut self, changes: &Changes, now: Basis, void: impl FnOnce(Void<'_>)) {
        let Self { voided, touched } = self;
        voided.up_to(now, |from, to| {
            let few = from.ports == to.ports && collect(touched, changes, from.tables, to.tables);
            void(match few {
                true => Void::Regions(touched),
                false if to.tables.has_rules_of(from.tables) => Void::Flows,
                false => Void::All,
            });
        });
    }

    /// Invalidates entries that predate any change made before this call. Any thread may call it,
    /// for the workers may be asleep or have no processor. To a worker, it looks as if another
    /// worker had noticed the changes first (`XdpFlows::begin`).
    pub fn void(&mut self, changes: &Changes, state: &State) {
        // Changes of ports void by themselves (`Ports`).
        let now = Basis { tables: changes.version(), ports: 0 };
        self.follow(changes, now, |void| match void {
            Void::Regions(regions) => state.bump_regions(regions.iter().copied()),
            Void::Flows => state.bump_flows(),
            Void::All => {
                state.bump_generation();
            }
        });
    }
}

/// Collects the regions of the changed routes; false if more has changed.
fn collect(touched: &mut Vec<u32>, changes: &Changes, from: Version, to: Version) -> bool {
    touched.clear();
    let mut few = true;
    few &= changes.routes_between(from, to, |one| match regions(one) {
        Some(regions) => touched.extend(regions),
        None => few = false,
    });
    touched.sort_unstable();
    touched.dedup();
    few
}
