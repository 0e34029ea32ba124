//! Which entries of the XDP path are void after tables have changed.

use tollway_dataplane::changes::{Changes, Version};

use crate::State;
use crate::regions::regions;

/// Follows the changes of tables.
#[derive(Debug, Default)]
pub struct Outdated {
    /// The version at the last call.
    then: Option<Version>,
    /// Regions of the changes since then.
    touched: Vec<u32>,
}

/// The void entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Void<'a> {
    Nothing,
    /// Flows from or to these regions.
    Regions(&'a [u32]),
    All,
}

impl Outdated {
    /// Creates a follower that knows no version yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { then: None, touched: Vec::new() }
    }

    /// What is void because of changes since the last call; `now` was read from `changes`.
    pub(super) fn since_last(&mut self, changes: &Changes, now: Version) -> Void<'_> {
        let then = self.then.replace(now);
        if then == Some(now) {
            return Void::Nothing;
        }
        self.touched.clear();
        let (touched, mut few) = (&mut self.touched, true);
        few &= changes.routes_between(then.unwrap_or_default(), now, |one| match regions(one) {
            Some(regions) => touched.extend(regions),
            None => few = false,
        });
        if !few {
            return Void::All;
        }
        self.touched.sort_unstable();
        self.touched.dedup();
        Void::Regions(&self.touched)
    }

    /// Invalidates entries that predate any change made before this call. Any thread may call it,
    /// for the worker may be asleep or have no processor. To the worker, it looks as if another
    /// worker had noticed the changes first (`XdpFlows::begin`).
    pub fn void(&mut self, changes: &Changes, state: &State) {
        match self.since_last(changes, changes.version()) {
            Void::Nothing => {}
            Void::Regions(regions) => state.bump_regions(regions.iter().copied()),
            Void::All => {
                state.bump_generation();
            }
        }
    }
}
