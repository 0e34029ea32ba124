//! The memory of the database, byte for byte as BPF programs read it.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::SMALL_BUCKETS;
use super::entry::{FdbEntry, FdbKey, FdbKind};
use crate::id::PortId;
use crate::sync::{AtomicU32, AtomicU64};

/// Slots of a bucket.
pub(super) const WAYS: usize = 4;

/// The number of buckets in which an entry may be: its home and those that follow.
pub(super) const SEARCHED: u32 = 4;

/// The key of a slot at which a search ends.
pub(super) const EMPTY: u64 = 0;

/// The key of a free slot at which a search does not end. It is no domain's.
pub(super) const REMOVED: u64 = 1;

/// A place for an entry.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
#[repr(C)]
pub(super) struct Slot {
    /// An [`FdbKey`], [`EMPTY`] or [`REMOVED`].
    pub(super) key: AtomicU64,
    /// A [`Word`].
    pub(super) word: AtomicU32,
    /// When the entry was last refreshed, in ticks of 2^26 ns. Readers store it, too.
    pub(super) tick: AtomicU32,
}

/// A bucket, or the first line of the memory.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
#[repr(C, align(64))]
pub(super) struct Line {
    pub(super) slots: [Slot; WAYS],
}

/// Of the first line.
impl Line {
    /// The table in use.
    #[inline(always)]
    pub(super) fn head(&self) -> Head {
        Head(self.slots[0].key.load(Acquire))
    }

    /// Says which table is in use. Who sees it sees the entries that were stored before.
    pub(super) fn set_head(&self, head: Head) {
        self.slots[0].key.store(head.0, Release);
    }

    /// Stores the seed, before the first head.
    pub(super) fn set_seed(&self, seed: u64) {
        self.slots[0].word.store(seed as u32, Relaxed);
        self.slots[0].tick.store((seed >> u32::BITS) as u32, Relaxed);
    }
}

/// Which table is in use: the mask of its buckets, and above the line of its first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head(u64);

impl Head {
    /// No table: searches come to line 0, which has no entry.
    pub(super) const PAUSED: Self = Self(0);

    const FIRST_SHIFT: u32 = 32;

    /// A table of a power of two of buckets that begins at this line. Lines need less than 16 bits here, so that the
    /// word is no key.
    pub(super) const fn new(buckets: u32, first: u16) -> Self {
        Self((buckets - 1) as u64 | (first as u64) << Self::FIRST_SHIFT)
    }

    /// The number of buckets, less one.
    #[inline(always)]
    pub(super) const fn mask(self) -> u32 {
        self.0 as u32
    }

    /// The home of a key.
    ///
    /// One multiplication spreads addresses that follow one another badly for one seed in a hundred, and its middle
    /// bits do not depend on the upper bits of the key. So the product's upper half, which depends on all bits, is
    /// multiplied once more.
    #[inline(always)]
    pub(super) const fn home(self, key: FdbKey, seed: u64) -> u32 {
        let product = key.word().wrapping_mul(seed);
        let hash = (product ^ product >> 32).wrapping_mul(seed);
        (hash >> 32) as u32 & self.mask()
    }

    /// The line of a bucket. Bucket numbers start again at the end of the table.
    #[inline(always)]
    pub(super) const fn line(self, bucket: u32) -> usize {
        ((self.0 >> Self::FIRST_SHIFT) as u32 + (bucket & self.mask())) as usize
    }
}

/// The number of buckets of both tables, each a power of two or 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) small: u32,
    pub(super) large: u32,
}

impl Sizes {
    /// The largest number of buckets: a home has 32 bits.
    const MOST: usize = 1 << 31;

    /// The sizes for a capacity in buckets; no tables if that is 0.
    pub(super) const fn of_capacity(buckets: usize) -> Self {
        match buckets {
            0 => Self { small: 0, large: 0 },
            Self::MOST.. => Self { small: SMALL_BUCKETS as u32, large: 1 << 31 },
            _ => Self { small: SMALL_BUCKETS as u32, large: 1 << buckets.ilog2() },
        }
    }

    /// The lines of all memory.
    pub(super) const fn lines(self) -> usize {
        1 + self.small as usize + self.large as usize
    }

    /// The small table; none if there are no tables.
    pub(super) fn small(self) -> Option<Head> {
        (self.small > 0).then(|| Head::new(self.small, 1))
    }

    /// The large table.
    pub(super) fn large(self) -> Option<Head> {
        (self.large > 0).then(|| Head::new(self.large, 1 + self.small as u16))
    }
}

/// An entry in a slot: its port, above it the kind and the version, which changes with each store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word(pub(super) u32);

impl Word {
    const KIND_SHIFT: u32 = 16;
    const VERSION_SHIFT: u32 = 24;

    /// The word of an entry that takes this one's place.
    pub(super) const fn next(self, entry: FdbEntry) -> Self {
        let version = (self.0 >> Self::VERSION_SHIFT).wrapping_add(1);
        let kind = (entry.kind as u32) << Self::KIND_SHIFT;
        Self(entry.port.0 as u32 | kind | version << Self::VERSION_SHIFT)
    }

    #[inline(always)]
    pub(super) const fn port(self) -> PortId {
        PortId(self.0 as u16)
    }

    #[inline(always)]
    pub(super) const fn entry(self) -> FdbEntry {
        let kind = match (self.0 >> Self::KIND_SHIFT) as u8 {
            0 => FdbKind::Host,
            1 => FdbKind::Local,
            2 => FdbKind::Locked,
            _ => FdbKind::Static,
        };
        FdbEntry { port: self.port(), kind }
    }
}
