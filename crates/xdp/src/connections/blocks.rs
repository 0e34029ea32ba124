//! Which blocks of slots may have entries with a track. The others need no look for connections that have gone quiet, for
//! which an idle router would take a twentieth of a processor.

use crate::flows::WAYS;

/// Slots of a block, which has whole buckets.
pub(super) const BLOCK_SLOTS: usize = 8 * WAYS;

/// The blocks, and the one that is to be looked at next.
pub(super) struct Blocks {
    pub(super) has_tracks: Vec<bool>,
    next: usize,
}

impl Blocks {
    pub(super) fn new(slots: usize) -> Self {
        Self { has_tracks: vec![false; slots.div_ceil(BLOCK_SLOTS)], next: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.has_tracks.len()
    }

    /// The number of the next block, in turn.
    pub(super) fn next(&mut self) -> usize {
        let block = self.next;
        self.next = (block + 1) % self.len();
        block
    }

    /// Notes that a slot of this one's bucket gets an entry with a track.
    pub(super) fn note(&mut self, slot: usize) {
        self.has_tracks[slot / BLOCK_SLOTS] = true;
    }
}
