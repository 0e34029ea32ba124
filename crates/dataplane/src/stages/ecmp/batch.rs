//! Hashes of several packets at once.
//!
//! A SipHash is one long chain: each step waits for the one before it, and most of a processor is idle.
//! Packets are independent of each other, so hashing several at once uses it.

use super::hash::{Key, hashes};
use super::sip::{STATE, Sip};

/// The number of packets hashed at once: the 64-bit words of an AVX-512 register.
pub(super) const AT_ONCE: usize = 8;

/// Keys of packets that wait to be hashed, as a structure of arrays.
pub(super) struct Batch<const WORDS: usize> {
    begun: [[u64; AT_ONCE]; STATE],
    words: [[u64; AT_ONCE]; WORDS],
    lanes: [usize; AT_ONCE],
    count: usize,
}

impl<const WORDS: usize> Batch<WORDS> {
    pub(super) const fn new() -> Self {
        let (begun, words) = ([[0; AT_ONCE]; STATE], [[0; AT_ONCE]; WORDS]);
        Self { begun, words, lanes: [0; AT_ONCE], count: 0 }
    }

    /// Adds packet `lane`; true if the batch is full.
    #[inline(always)]
    pub(super) fn push(&mut self, lane: usize, key: &Key<WORDS>) -> bool {
        let at = self.count % AT_ONCE;
        for (slots, word) in self.begun.iter_mut().zip(key.begun.state()) {
            slots[at] = word;
        }
        for (slots, word) in self.words.iter_mut().zip(key.words) {
            slots[at] = word;
        }
        self.lanes[at] = lane;
        self.count = at + 1;
        self.count == AT_ONCE
    }

    /// Returns each packet's lane and hash, and empties the batch.
    #[inline(always)]
    pub(super) fn drain(&mut self) -> impl Iterator<Item = (usize, u32)> {
        let count = std::mem::take(&mut self.count);
        // Unused slots are hashed, too: only loops of a known length become wide instructions.
        let hashes = match count {
            0 => [0; AT_ONCE],
            _ => hashes(Sip::of(self.begun), self.words),
        };
        self.lanes.into_iter().zip(hashes).take(count)
    }
}
