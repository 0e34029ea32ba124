//! The scheduling of the worker: how soon it gets a processor when packets arrive and other
//! programs compete for it.
//!
//! Measured with four busy loops on two processors (Linux 6.18, a thread that wakes up each
//! millisecond): an ordinary thread runs 54 ms late in one of 100 cases (143 ms at worst), one of
//! nice -20 8 ms (16 ms), one of `SCHED_FIFO` 0.06 ms (0.2 ms). Shorter slices
//! (`sched_attr.sched_runtime`) made no difference to the worst case.
//!
//! So the worker is a real-time thread of the lowest priority, but only while it sleeps a good part
//! of its time. A worker that is busy throughout is an ordinary thread of nice -20 until it sleeps
//! again, which leaves part of its processor to other programs. On a single processor it always is
//! an ordinary thread. Programs that it starts are ordinary.

use std::io;

use tollway_linux::sys::{self, Schedule};

/// How soon the worker is to get a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// At once: before all threads that are not real-time, as long as the worker is not busy
    /// throughout.
    #[default]
    Realtime,
    /// Before ordinary programs (nice -20).
    High,
    /// As any program.
    Normal,
}

/// The least time between two checks of its load.
const LOOK_NS: u64 = 50_000_000;
/// A worker that sleeps less than this part of its time, in percent, is busy.
const BUSY_BELOW: u64 = 15;
/// A busy worker that sleeps more than this part, in percent, is no longer busy.
const IDLE_ABOVE: u64 = 30;

/// How the worker is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    /// By its nice value.
    Ordinary,
    /// As soon as it is runnable.
    Realtime,
}

impl Policy {
    /// The schedule after a period in which the worker slept for this share, in percent.
    const fn after(self, slept_percent: u64) -> Self {
        match self {
            Self::Realtime if slept_percent < BUSY_BELOW => Self::Ordinary,
            Self::Ordinary if slept_percent > IDLE_ABOVE => Self::Realtime,
            as_before => as_before,
        }
    }
}

/// Keeps the calling thread scheduled as requested.
#[derive(Debug)]
pub(super) struct Scheduling {
    policy: Policy,
    /// Whether the thread may become a real-time thread.
    may_change: bool,
    slept_ns: u64,
    looked_ns: u64,
}

impl Scheduling {
    /// Takes charge of the calling thread.
    pub(super) fn begin(wanted: Priority) -> Self {
        let mut this =
            Self { policy: Policy::Ordinary, may_change: false, slept_ns: 0, looked_ns: 0 };
        if wanted == Priority::Normal {
            return this;
        }
        if let Err(error) = sys::set_nice(-20) {
            refused("nice -20", &error);
        }
        // On a single processor it would delay the kernel's own work on packets (ksoftirqd, RCU).
        if wanted == Priority::Realtime && sys::processors() > 1 {
            this.may_change = true;
            this.enter(Policy::Realtime);
        }
        this
    }

    /// Accounts time that the worker has slept.
    #[inline]
    pub(super) fn slept(&mut self, ns: u64) {
        self.slept_ns += ns;
    }

    /// To be called about ten times a second.
    pub(super) fn tick(&mut self, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.looked_ns);
        if !self.may_change || elapsed_ns < LOOK_NS {
            return;
        }
        let next = self.policy.after(self.slept_ns * 100 / elapsed_ns);
        (self.looked_ns, self.slept_ns) = (now_ns, 0);
        if next != self.policy {
            self.enter(next);
        }
    }

    fn enter(&mut self, policy: Policy) {
        let schedule = match policy {
            Policy::Ordinary => Schedule::Ordinary,
            Policy::Realtime => Schedule::Realtime,
        };
        match sys::set_schedule(schedule) {
            Ok(()) => self.policy = policy,
            Err(error) => {
                self.may_change = false;
                refused("SCHED_FIFO", &error);
            }
        }
    }
}

impl Drop for Scheduling {
    fn drop(&mut self) {
        if self.policy == Policy::Realtime {
            // A failure here has no consequences.
            let _ = sys::set_schedule(Schedule::Ordinary);
        }
    }
}

fn refused(what: &str, error: &io::Error) {
    tracing::info!(
        "the worker gets no priority over other programs ({what}: {error}); with CAP_SYS_NICE, or limits for \
         it (ulimit -r 1, ulimit -e 40), packets wait less where processors are busy"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_is_busy_throughout_is_ordinary_until_it_sleeps() {
        let mut policy = Policy::Realtime;
        for (slept, after) in [
            (90, Policy::Realtime),
            (20, Policy::Realtime),
            (14, Policy::Ordinary),
            (20, Policy::Ordinary),
            (31, Policy::Realtime),
            (0, Policy::Ordinary),
        ] {
            policy = policy.after(slept);
            assert_eq!(policy, after, "{slept}%");
        }
    }
}
