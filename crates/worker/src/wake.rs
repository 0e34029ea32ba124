//! Wakes a worker that sleeps.

use std::sync::Arc;

use tollway_dataplane::hand_over::Sleeper;
use tollway_linux::mailbox::Waker;

/// Wakes a worker; cheap to clone.
#[derive(Clone)]
pub struct WorkerWaker {
    waker: Waker,
    sleeper: Arc<Sleeper>,
}

impl WorkerWaker {
    pub(crate) fn new(waker: Waker) -> Self {
        Self { waker, sleeper: Arc::default() }
    }

    /// Whether the worker sleeps.
    pub(crate) const fn sleeper(&self) -> &Arc<Sleeper> {
        &self.sleeper
    }

    /// Wakes the worker, or ends its next sleep.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// Wakes the worker if it sleeps, for frames that were handed over to it just before.
    pub(crate) fn wake_sleeper(&self) {
        if self.sleeper.must_be_woken() {
            self.waker.wake();
        }
    }
}
