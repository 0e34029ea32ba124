//! What is void of the lane after tables have changed.

use tollway_dataplane::changes::{Changes, Version};

use crate::steer::State;
use crate::steer::regions::regions;

/// Follows the changes of tables.
#[derive(Debug, Default)]
pub struct Outdated {
    /// What was known of last.
    then: Option<Version>,
    /// Regions of what has changed since.
    touched: Vec<u32>,
}

/// What is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Void<'a> {
    Nothing,
    /// Flows from or to these regions.
    Regions(&'a [u32]),
    All,
}

impl Outdated {
    /// None is known of yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { then: None, touched: Vec::new() }
    }

    /// What is void for what has changed since this was asked last; `now` was read from `changes`.
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

    /// Makes void what knows nothing of the changes that were made before this is called, by whoever made
    /// them: the worker may be asleep, or have no processor. To the worker it is as if another had
    /// noticed them first (`Lane::begin`).
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
