//! The free chunks of an area that several workers share.
//!
//! Each worker has a cache of free chunks, the `free` of its own [`Umem`]. It takes the lock of the [`Pool`] only for
//! a batch: if the cache is empty, or at the end of a turn that left it too full. `rte_mempool` of DPDK has such caches.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

use super::Umem;
use crate::memory::Apart;
use crate::sync::{AtomicUsize, Mutex, MutexGuard};

/// The largest cache of a shared handle at the end of a turn, in chunks: 16 bursts. A worker that only frees takes the
/// lock once in eight bursts, since it then gives back one half.
const CACHE_MAX: usize = 1024;

/// The number of chunks that a shared handle takes from the pool at once: four bursts.
const BATCH: usize = 256;

/// All caches together hold at most one half of the area's chunks (1 / this) at the end of a turn. Otherwise the
/// workers that free would keep a small area from those that receive.
const CACHED_SHARE: usize = 2;

/// The free chunks that are in no cache.
pub(super) struct Pool {
    /// The number of chunks in the area, free or not.
    chunks: usize,
    /// The largest cache of a handle at the end of a turn, in chunks; no limit if there is only one handle.
    cache_max: AtomicUsize,
    shared: Apart<Shared>,
}

/// What handles write when they give and take chunks.
struct Shared {
    /// The number of free chunks in the pool. A handle that finds none need not take the lock.
    pooled: AtomicUsize,
    state: Mutex<State>,
}

struct State {
    free: Vec<u32>,
    handles: usize,
}

impl Pool {
    /// Creates an empty pool for an area of so many chunks, with one handle.
    pub(super) fn new(chunks: usize) -> Arc<Self> {
        let state = Mutex::new(State { free: Vec::new(), handles: 1 });
        Arc::new(Self {
            chunks,
            cache_max: AtomicUsize::new(usize::MAX),
            shared: Apart(Shared { pooled: AtomicUsize::new(0), state }),
        })
    }

    /// Adds a handle.
    pub(super) fn join(&self) {
        let mut state = self.lock();
        state.handles += 1;
        // So that nobody allocates while holding the lock in a turn.
        let missing = self.chunks.saturating_sub(state.free.len());
        state.free.reserve(missing);
        self.limit_caches(&state);
    }

    /// Removes a handle and takes its free chunks, if another handle can use them.
    fn leave(&self, cache: &[u32]) {
        let mut state = self.lock();
        state.handles -= 1;
        if state.handles > 0 {
            state.free.extend_from_slice(cache);
        }
        self.count(&state);
        self.limit_caches(&state);
    }

    /// Moves a batch of free chunks into a cache, if there are any.
    fn take(&self, cache: &mut Vec<u32>) {
        if self.pooled() == 0 {
            return;
        }
        let mut state = self.lock();
        // A quarter, so that a small cache is not soon too full.
        let batch = BATCH.min(self.cache_max() / 4).max(1);
        let rest = state.free.len().saturating_sub(batch);
        cache.extend(state.free.drain(rest..));
        self.count(&state);
    }

    /// Moves the chunks that a cache has beyond `keep` into the pool: those that were free for the longest time.
    fn give(&self, cache: &mut Vec<u32>, keep: usize) {
        let excess = cache.len().saturating_sub(keep);
        let mut state = self.lock();
        state.free.extend(cache.drain(..excess));
        self.count(&state);
    }

    /// The number of free chunks in the pool.
    fn pooled(&self) -> usize {
        // Whoever takes chunks because of it looks again under the lock.
        self.shared.pooled.load(Relaxed)
    }

    #[inline(always)]
    fn cache_max(&self) -> usize {
        self.cache_max.load(Relaxed)
    }

    fn count(&self, state: &State) {
        self.shared.pooled.store(state.free.len(), Relaxed);
    }

    fn limit_caches(&self, state: &State) {
        let max = match state.handles {
            0 | 1 => usize::MAX,
            handles => CACHE_MAX.min(self.chunks / (CACHED_SHARE * handles)),
        };
        self.cache_max.store(max, Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that happens under the lock panics half-way, so the list is complete.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Umem {
    /// Returns free chunks to the other handles if this one has too many: a worker calls it once per turn, between
    /// two bursts. Without other handles it is one load.
    ///
    /// Afterwards, the handle has at most 1,024 free chunks, and all handles together at most one half of all chunks.
    #[inline(always)]
    pub fn balance(&mut self) {
        if self.free.len() > self.pool.cache_max() {
            self.give_back();
        }
    }

    #[cold]
    fn give_back(&mut self) {
        self.pool.give(&mut self.free, self.pool.cache_max() / 2);
    }

    /// Takes a free chunk from the pool if the cache is empty, and more for the next calls.
    #[cold]
    pub(super) fn refill(&mut self) -> Option<u32> {
        self.pool.take(&mut self.free);
        self.free.pop()
    }

    /// The number of free chunks that any handle of the area can take; none before [`Umem::share`].
    ///
    /// The free chunks of the area are this number, once, and [`Umem::available`] of each handle.
    #[must_use]
    pub fn pooled(&self) -> usize {
        self.pool.pooled()
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        self.pool.leave(&self.free);
    }
}
