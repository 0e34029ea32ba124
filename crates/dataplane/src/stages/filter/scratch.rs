//! A worker's scratch memory for lookups, and its caches of their results.

mod cache;
mod flows;

use super::dim::MOST_DIMS;
use super::tally::Tally;
use super::{POINTS, VERSIONS};
use crate::burst::BURST;
pub(super) use cache::{Packing, look_up, new_cache, store};
pub(super) use flows::Flows;

/// Where the words that a lookup gathers at once begin, in bytes after the IP header's start.
pub(super) const GATHERED_FROM: usize = 8;
/// The number of these words: TTL and protocol, addresses, ports.
pub(super) const GATHERED: usize = 4;

/// Scratch memory of lookups for the packets of a burst. It holds garbage for packets that do not take
/// part.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Scratch {
    /// Values of a field.
    pub(super) value: [u32; BURST],
    /// Keys of a trie.
    pub(super) key: [u64; BURST],
    /// Words of the IP header from [`GATHERED_FROM`] on.
    pub(super) word: [[u32; BURST]; GATHERED],
    /// Sets of one word, or blocks in which rules may match.
    pub(super) set: [u64; BURST],
    /// The first rule that matches.
    pub(super) first: [u32; BURST],
    /// The result of a list that was executed rule by rule.
    pub(super) tally: Tally,
    /// Combinations of classes for each point and version, see `cache.rs`.
    pub(super) caches: [Vec<u64>; POINTS * VERSIONS],
    /// Flows for each point and version, see `flows.rs`.
    pub(super) flows: [Flows; POINTS * VERSIONS],
    /// Classes, field by field.
    pub(super) class: [[u32; BURST]; MOST_DIMS],
}

impl Scratch {
    pub(super) fn new() -> Self {
        Self {
            value: [0; BURST],
            key: [0; BURST],
            word: [[0; BURST]; GATHERED],
            set: [0; BURST],
            first: [0; BURST],
            tally: Tally::new(),
            caches: Default::default(),
            flows: Default::default(),
            class: [[0; BURST]; MOST_DIMS],
        }
    }

    /// The TTL of a packet whose words were gathered.
    #[inline(always)]
    pub(super) fn ttl(&self, lane: usize) -> u8 {
        (self.word[0][lane & (BURST - 1)] >> 24) as u8
    }
}
