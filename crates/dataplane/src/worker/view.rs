//! The state that a worker forwards by, and its part in saying when memory may be reused.

use std::sync::Arc;

use crate::epoch::Reader;
use crate::router::{Generations, Router};
use crate::tables::ForwardingState;

/// The state that a worker has taken.
pub(super) struct View {
    pub(super) state: Arc<ForwardingState>,
    pub(super) generations: Generations,
    reader: Reader,
    /// The number of the state ([`Router::number`]).
    number: u64,
    /// The epoch in which the worker last compared that number.
    epoch: u64,
}

impl View {
    /// Takes the state that is published now.
    pub(super) fn take(router: &Router) -> Self {
        let (number, state, generations) = router.take();
        let reader = state.epochs.join();
        // The first turn compares the number.
        Self { state, generations, reader, number, epoch: u64::MAX }
    }

    /// Reports that the worker holds no reference that it found in a table. Returns whether another state may
    /// be published.
    #[inline(always)]
    pub(super) fn pass(&mut self) -> bool {
        let epoch = self.reader.pass();
        epoch != std::mem::replace(&mut self.epoch, epoch)
    }

    /// Says whether another state is published.
    pub(super) fn is_outdated(&self, router: &Router) -> bool {
        router.number() != self.number
    }

    pub(super) fn park(&self) {
        self.reader.park();
    }

    pub(super) fn wake(&self) {
        self.reader.wake();
    }
}
