//! When memory that was taken out of a table may be used again: quiescent-state reclamation.
//!
//! A worker reads tables without a lock, and tells at each burst boundary that it holds nothing from
//! before ([`Reader::pass`], one load and one store). A writer that takes something out of a table
//! notes the epoch ([`Epochs::advance`]) and reuses it when every reader has passed since
//! ([`Epochs::passed`]). Nobody waits: what is not yet free is kept for later.
//!
//! McKenney and Slingwine, "Read-copy update", 1998; Linux `Documentation/RCU/`; `rte_rcu_qsbr` of DPDK.

#[cfg(all(test, loom))]
mod models;
#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::{Arc, PoisonError};

use crate::changes::Changes;
use crate::memory::Apart;
use crate::sync::{AtomicU64, Mutex, MutexGuard, fence};

/// A reader that sleeps: it holds nothing, whatever the epoch.
const PARKED: u64 = u64::MAX;

/// What writers and readers agree on.
#[derive(Debug, Default)]
pub struct Epochs {
    now: Apart<AtomicU64>,
    readers: Apart<Mutex<Vec<Arc<Slot>>>>,
    /// The changes of the tables whose readers these are.
    pub changes: Apart<Changes>,
}

/// The epoch that one reader last passed in; a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Slot(AtomicU64);

impl Epochs {
    /// No reader, the first epoch.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Adds a reader; it is awake.
    #[must_use]
    pub fn join(self: &Arc<Self>) -> Reader {
        let slot = Arc::new(Slot(AtomicU64::new(0)));
        self.slots().push(Arc::clone(&slot));
        let reader = Reader { slot, epochs: Arc::clone(self) };
        reader.wake();
        reader
    }

    /// Begins the next epoch; what was taken out before belongs to the number returned.
    pub fn advance(&self) -> u64 {
        self.now.fetch_add(1, SeqCst) + 1
    }

    /// The epoch that every reader has passed: what belongs to it or to an earlier one is free.
    #[must_use]
    pub fn passed(&self) -> u64 {
        // Pairs with the fence of `wake`: either this sees the reader awake, or the reader sees
        // the tables as they are by now.
        fence(SeqCst);
        self.slots().iter().map(|slot| slot.0.load(Acquire)).min().unwrap_or(PARKED)
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Arc<Slot>>> {
        // The list is whole at every moment, so a panic elsewhere did no harm to it.
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker's side: tells that it has passed a burst boundary.
#[derive(Debug)]
pub struct Reader {
    slot: Arc<Slot>,
    epochs: Arc<Epochs>,
}

impl Reader {
    /// Says that the reader holds nothing that it found in a table before.
    #[inline(always)]
    pub fn pass(&self) {
        // No fence: whoever sees the slot's new value knows that all loads before it are done
        // (Release). Loads after it may be carried out before it, but not before `now` was read
        // (Acquire), so they find no more what was taken out up to then.
        let now = self.epochs.now.load(Acquire);
        self.slot.0.store(now, Release);
    }

    /// Says that the reader holds nothing and will look at nothing until it wakes.
    pub fn park(&self) {
        self.slot.0.store(PARKED, Release);
    }

    /// Says that the reader looks at tables again.
    pub fn wake(&self) {
        self.slot.0.store(self.epochs.now.load(Acquire), Release);
        // Here a fence is needed: a writer that still found the reader parked reuses all that was
        // taken out up to then, however old the epoch that was read above.
        fence(SeqCst);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.epochs.slots().retain(|slot| !Arc::ptr_eq(slot, &self.slot));
    }
}
