//! What bridges have learned, in numbers, and where the next sweep begins.

use super::fdb::FdbKey;
use crate::sync::{AtomicU32, AtomicU64, Mutex};

/// What a bridge has learned. All workers count together, since none of this happens often.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Entries that were learned and are not forgotten.
    pub(super) learned: AtomicU32,
    pub(super) moved: AtomicU64,
    pub(super) full: AtomicU64,
}

/// The counts of a bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LearningCounts {
    /// Addresses that it knows and has learned.
    pub learned: u32,
    /// How often an address came from another port than before.
    pub moved: u64,
    /// Frames whose sender was not learned for want of room.
    pub full: u64,
}

/// Where the next sweep begins.
#[derive(Debug, Default)]
pub(super) struct Sweep(pub(super) Mutex<Option<FdbKey>>);
