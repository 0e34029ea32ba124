//! Quiescent-state reclamation: says when memory that was taken out of a table may be reused.
//!
//! A worker reads tables without a lock. At each burst boundary it reports that it holds no reference
//! from before ([`Reader::pass`], one load and one store). A writer that takes something out of a table
//! notes the epoch ([`Epochs::advance`]). It reuses the memory when every reader has passed since
//! ([`Epochs::passed`]). Neither side waits: what is not yet free is kept for later.
//!
//! McKenney and Slingwine, "Read-copy update", 1998; Linux `Documentation/RCU/`; `rte_rcu_qsbr` of
//! DPDK.

#[cfg(all(test, loom))]
mod models;
mod retired;
mod spare;
#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::{Arc, PoisonError};

use crate::changes::Changes;
use crate::memory::Apart;
use crate::sync::{AtomicU64, Mutex, MutexGuard, fence};
pub(crate) use retired::Retired;
pub use spare::Spare;

/// The epoch of a parked reader: it holds no reference, whatever the epoch is.
const PARKED: u64 = u64::MAX;

/// The state that writers and readers share.
#[derive(Debug, Default)]
pub struct Epochs {
    now: Apart<AtomicU64>,
    readers: Apart<Mutex<Readers>>,
    /// The changes of the tables that these readers read.
    pub changes: Apart<Changes>,
}

/// The readers of tables.
#[derive(Debug, Default)]
struct Readers {
    slots: Vec<Arc<Slot>>,
    /// BPF programs may find something in the tables.
    have_programs: bool,
}

/// The epoch that one reader last passed in, in a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Slot(AtomicU64, Kind);

/// What reads the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A worker, which passes with every burst.
    Worker,
    /// BPF programs in the kernel. They hold references for microseconds, but it takes up to half a second to be
    /// sure of that. So only memory waits for them.
    Programs,
}

impl Epochs {
    /// Creates the first epoch, without readers.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Adds a reader, which is awake.
    #[must_use]
    pub fn join(self: &Arc<Self>) -> Reader {
        self.join_as(Kind::Worker)
    }

    /// Adds the BPF programs that read the tables as a reader, which is parked until they may find something there
    /// ([`Epochs::wake_programs`]). [`Epochs::passed_by_workers`] does not wait for it.
    #[must_use]
    pub fn join_programs(self: &Arc<Self>) -> Reader {
        self.join_as(Kind::Programs)
    }

    /// Wakes the BPF programs that have joined or will. Call it before they may find something in the tables.
    pub(crate) fn wake_programs(&self) {
        let mut readers = self.readers();
        if !std::mem::replace(&mut readers.have_programs, true) {
            let programs = readers.slots.iter().filter(|slot| slot.1 == Kind::Programs);
            programs.for_each(|slot| self.wake(slot));
        }
    }

    fn join_as(self: &Arc<Self>, kind: Kind) -> Reader {
        let slot = Arc::new(Slot(AtomicU64::new(PARKED), kind));
        let mut readers = self.readers();
        if kind == Kind::Worker || readers.have_programs {
            self.wake(&slot);
        }
        readers.slots.push(Arc::clone(&slot));
        drop(readers);
        // After this, the writer sees the reader (`wake`).
        fence(SeqCst);
        Reader { slot, epochs: Arc::clone(self) }
    }

    fn wake(&self, slot: &Slot) {
        slot.0.store(self.now.load(Acquire), Release);
        // A fence is needed here: a writer that still saw the reader parked reuses everything that was
        // taken out up to then, however old the epoch loaded above is.
        fence(SeqCst);
    }

    /// Begins the next epoch and returns its number; everything taken out before belongs to it.
    pub fn advance(&self) -> u64 {
        self.now.fetch_add(1, SeqCst) + 1
    }

    /// The epoch that every reader has passed: what belongs to it or to an earlier one is free.
    #[must_use]
    pub fn passed(&self) -> u64 {
        // Pairs with the fence of `wake`: either this load sees the reader awake, or the reader sees
        // the tables as they are now.
        fence(SeqCst);
        self.readers().slots.iter().map(|slot| slot.0.load(Acquire)).min().unwrap_or(PARKED)
    }

    /// As [`Epochs::passed`], without the BPF programs.
    #[must_use]
    pub fn passed_by_workers(&self) -> u64 {
        fence(SeqCst);
        let readers = self.readers();
        let workers = readers.slots.iter().filter(|slot| slot.1 == Kind::Worker);
        workers.map(|slot| slot.0.load(Acquire)).min().unwrap_or(PARKED)
    }

    fn readers(&self) -> MutexGuard<'_, Readers> {
        // The list is complete at every moment, so a panic elsewhere cannot have damaged it.
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker's side: it reports each burst boundary.
#[derive(Debug)]
pub struct Reader {
    slot: Arc<Slot>,
    epochs: Arc<Epochs>,
}

impl Reader {
    /// Reports that the reader holds no reference that it found in a table before. Returns the number of the
    /// epoch.
    #[inline(always)]
    pub fn pass(&self) -> u64 {
        // No fence: a thread that sees the slot's new value also sees that all earlier loads are done
        // (Release). Later loads may run before the store, but not before the load of `now` (Acquire).
        // So they no longer find what was taken out up to then.
        let now = self.epochs.now.load(Acquire);
        self.slot.0.store(now, Release);
        now
    }

    /// The current epoch, if the reader has not passed it.
    #[must_use]
    pub fn due(&self) -> Option<u64> {
        let now = self.epochs.now.load(Acquire);
        (self.slot.0.load(Acquire) < now).then_some(now)
    }

    /// As [`Reader::pass`], for an epoch that was current ([`Reader::due`]) before the reader gave up all references.
    pub fn pass_epoch(&self, epoch: u64) {
        self.slot.0.store(epoch, Release);
    }

    /// Reports that the reader holds no reference and reads no table until it wakes.
    pub fn park(&self) {
        self.slot.0.store(PARKED, Release);
    }

    /// Reports that the reader reads tables again.
    pub fn wake(&self) {
        self.epochs.wake(&self.slot);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.epochs.readers().slots.retain(|slot| !Arc::ptr_eq(slot, &self.slot));
    }
}
