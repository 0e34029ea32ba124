//! A token bucket that workers share.

#[cfg(all(test, loom))]
mod models;

use std::sync::atomic::Ordering::Relaxed;

use crate::sync::AtomicU64;

/// How fast a bucket fills, and how much it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    /// The time in which one token comes, in ns.
    pub(crate) interval_ns: u64,
    /// The tokens of a full bucket, at least 1.
    pub(crate) burst: u64,
}

/// A token bucket: the generic cell rate algorithm (ITU-T I.371), which needs one word and no lock. It begins full.
#[derive(Debug, Default)]
pub(crate) struct TokenBucket {
    /// The time from which the bucket is full, in ns.
    full_at: AtomicU64,
    /// The latest time that a worker has passed, in ns.
    latest: AtomicU64,
}

impl TokenBucket {
    /// Takes a token; says whether there was one. All workers count `now_ns` from one moment, but one worker's may be
    /// older than another's.
    pub(crate) fn take(&self, rate: Rate, now_ns: u64) -> bool {
        // A worker that was interrupted has an old time, at which the bucket seems to hold less.
        let now_ns = self.latest.fetch_max(now_ns, Relaxed).max(now_ns);
        let taken = self.full_at.fetch_update(Relaxed, Relaxed, |full_at| {
            let full_at = full_at.max(now_ns);
            let has_token = full_at - now_ns <= rate.interval_ns * (rate.burst - 1);
            has_token.then(|| full_at.saturating_add(rate.interval_ns))
        });
        taken.is_ok()
    }
}
