//! Whether the consumer of rings sleeps, so that a producer has to wake it.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::sync::{AtomicBool, fence};

/// The consumer of rings, awake or asleep.
///
/// The consumer says that it falls asleep and looks at its rings once more. A producer pushes and looks whether the
/// consumer sleeps. So at least one of them sees what the other has done (Dekker's algorithm).
#[derive(Debug)]
pub struct Sleeper(AtomicBool);

impl Default for Sleeper {
    fn default() -> Self {
        Self(AtomicBool::new(false))
    }
}

impl Sleeper {
    /// Says that the consumer falls asleep. It looks at its rings after this, and sleeps only if all are empty.
    pub fn fall_asleep(&self) {
        self.0.store(true, Relaxed);
        fence(SeqCst);
    }

    /// Says that the consumer is awake.
    pub fn awake(&self) {
        self.0.store(false, Relaxed);
    }

    /// Says whether a producer that has just pushed has to wake the consumer; true for one of several producers.
    #[must_use]
    pub fn must_be_woken(&self) -> bool {
        fence(SeqCst);
        self.0.load(Relaxed) && self.0.swap(false, Relaxed)
    }
}
