//! How far decisions are void after changes, for all who void them: the workers, and threads that change tables.
//!
//! A change concerns the decisions of every worker. So it is enough that one of them voids what predates it, and
//! the others need to know that this was done:
//!
//! 1. A writer changes a table, and counts the change afterwards.
//! 2. Somebody reads the count, voids all decisions that predate it, and notes afterwards how far that went.
//! 3. Whoever reads that count later, and finds it noted, has nothing to void.
//!
//! A decision is void unless it was made under the newest generation, and its maker reads the generation before it
//! looks anything up. If it read the generation before step 2 raised it, the decision is void. If it did so after,
//! its lookups come after step 1 and see the change. In both cases, it does not matter who took step 2.
//!
//! Nobody waits for somebody else's step 2. If several notice a change at the same moment, each of them voids; that
//! costs no more than the decisions made in between.

use std::sync::PoisonError;

use super::Version;
use crate::sync::{Mutex, MutexGuard};

/// What decisions depend on, in numbers that only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Basis {
    /// The version of the tables.
    pub tables: Version,
    /// How often the ports have changed.
    pub ports: u64,
}

impl Basis {
    /// The basis with the changes of both. If they have different tables, those of `other`.
    fn join(self, other: Self) -> Self {
        Self { tables: self.tables.join(other.tables), ports: self.ports.max(other.ports) }
    }
}

/// The basis up to which decisions are void.
#[derive(Debug, Default)]
pub struct Voided(Mutex<Basis>);

impl Voided {
    /// Creates it for decisions of which none has been voided yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Has `void` void all decisions that predate the changes up to `now`, unless somebody has done so. It gets the
    /// basis for which that is already done, and the one for which it is to be done; both may have more changes
    /// than `now`.
    pub fn up_to(&self, now: Basis, void: impl FnOnce(Basis, Basis)) {
        let from = *self.lock();
        let to = from.join(now);
        if to == from {
            return;
        }
        void(from, to);
        let mut done = self.lock();
        *done = done.join(to);
    }

    /// The lock is held to compare or to note, never to void: that may take long.
    fn lock(&self) -> MutexGuard<'_, Basis> {
        // The value is whole at every moment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn basis(tables: u64, changes: u64, routes: u64, ports: u64) -> Basis {
        Basis { tables: Version { tables, changes, next_hops: 0, routes }, ports }
    }

    /// What `up_to` asks for.
    fn asked(voided: &Voided, now: Basis) -> Option<(Basis, Basis)> {
        let mut asked = None;
        voided.up_to(now, |from, to| asked = Some((from, to)));
        asked
    }

    #[test]
    fn each_change_is_voided_once() {
        let voided = Voided::new();
        let first = basis(1, 0, 0, 0);
        assert_eq!(asked(&voided, first), Some((Basis::default(), first)));
        assert_eq!(asked(&voided, first), None);
        for now in [basis(1, 1, 0, 0), basis(1, 0, 1, 0), basis(1, 0, 0, 1)] {
            let both = |from: Basis| (from, from.join(now));
            let from = *voided.lock();
            assert_eq!(asked(&voided, now), Some(both(from)), "{now:?}");
            assert_eq!(asked(&voided, now), None);
        }
        // Each of three threads has seen one change, and their numbers together are known.
        assert_eq!(asked(&voided, basis(1, 1, 1, 1)), None);
        assert_eq!(
            asked(&voided, basis(1, 0, 2, 0)),
            Some((basis(1, 1, 1, 1), basis(1, 1, 2, 1))),
            "nothing is voided again"
        );
    }

    #[test]
    fn other_tables_are_another_basis() {
        let voided = Voided::new();
        asked(&voided, basis(1, 5, 5, 3));
        let now = basis(2, 0, 0, 3);
        assert_eq!(asked(&voided, now), Some((basis(1, 5, 5, 3), now)));
        // A worker that still has the old tables cannot know that all is void.
        assert!(asked(&voided, basis(1, 5, 5, 3)).is_some());
    }

    #[test]
    fn changes_that_two_void_at_the_same_time_are_noted_together() {
        let voided = Voided::new();
        asked(&voided, basis(1, 0, 0, 0));
        voided.up_to(basis(1, 0, 7, 0), |_, _| {
            voided.up_to(basis(1, 2, 3, 0), |from, to| {
                assert_eq!((from, to), (basis(1, 0, 0, 0), basis(1, 2, 3, 0)));
            });
            assert_eq!(asked(&voided, basis(1, 0, 1, 0)), None);
        });
        assert_eq!(asked(&voided, basis(1, 2, 7, 0)), None);
    }
}
