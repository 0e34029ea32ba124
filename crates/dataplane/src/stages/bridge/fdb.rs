//! The forwarding database of all bridges: a hash table that workers and BPF programs read while one writer changes it.
//!
//! All of it lies in lines of 64 bytes, of little-endian words:
//!
//! ```text
//! line 0      word 0: the table in use (mask of its buckets | its first line << 32), 0 while paused; word 1: the seed
//! 1 to 256    the buckets of the small table
//! from 257    the buckets of the large table
//!
//! bucket      4 slots
//! slot        key u64: the MAC address as it lies in a frame | domain << 48; below 1 << 48 if it holds no entry
//!             port u16 | kind u8 | version u8, tick u32
//! ```
//!
//! An entry is in its home bucket or in one of the next three, around the end of the table. A search ends at a bucket
//! with an empty slot (key 0). While searches for other entries cross a bucket, a slot of it that gets free is not
//! empty, but has the key `REMOVED`. So entries stay where they are, and a reader that searches for one finds it,
//! whatever else the writer changes.
//!
//! While paused, a search comes to line 0. Word 0 is no key there, whatever it becomes meanwhile, because it is less
//! than 1 << 48; nor is the seed, which lies in the place of a slot's other half. So a reader needs no branch for it.
//!
//! **One writer under readers.** Nobody waits for anybody. The writer fills a free slot from behind: tick, port, key.
//! It changes an entry's port by one store, and removes an entry by one store of the key. Each store of a port has
//! another version. A reader who has found its key loads the port, then the key, then the port. If one of them is not
//! as before, it has found nothing, which is always allowed: the frame takes the kernel path. If they are, the key had
//! this port. Otherwise the port would be that of an entry
//!
//! - before the key was there: but who sees the key sees the port stored before it, or a later one, in the last load;
//! - after the key was removed: but who sees such a port in the first load sees no longer that key.
//!
//! Only 256 changes of one slot between these loads, after which the version is the same, would deceive a reader.
//!
//! **Ticks.** Readers store the tick of an entry that they refresh, alone. If the slot meanwhile has become another
//! entry's, that is refreshed one period later. If the entry meanwhile has moved to the other table, it is refreshed
//! once more.
//!
//! **Two tables.** A few entries in 4 MB would each take a page of it, and an entry of the processor's address cache.
//! So the small one is in use while it suffices. To change to the other one, the writer fills that, stores word 0,
//! then empties the first one, slot by slot. A reader that still searches there finds what was right when it began,
//! or nothing.

mod entry;
mod lines;
#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(all(test, not(loom)))]
mod threads;
mod writer;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::PoisonError;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::cpu::prefetch;
use crate::id::PortId;
use crate::memory::{Aligned, Apart, Memory, Part};
use crate::sync::Mutex;
pub use entry::{FdbEntry, FdbKey, FdbKind};
use lines::{EMPTY, Head, Line, SEARCHED, Sizes, Slot, WAYS, Word};
use writer::Writer;
pub use writer::{FdbFull, FdbWriter};

/// Buckets of the small table: 16 KB, which the address caches of all processors of today hold beside what else a frame
/// needs.
pub const SMALL_BUCKETS: usize = 1 << 8;

/// The lines that a database takes whose large table has so many buckets.
#[must_use]
pub const fn fdb_lines(buckets: usize) -> usize {
    if buckets == 0 { 1 } else { 1 + SMALL_BUCKETS + buckets }
}

/// The forwarding database of all bridges.
///
/// Any number of threads may look up; changes lock out each other.
pub struct Fdb {
    lines: Aligned<Line>,
    /// As in line 0.
    seed: u64,
    writer: Apart<Mutex<Writer>>,
}

impl Fdb {
    /// Creates an empty database in this memory, with as many buckets as its capacity says.
    #[must_use]
    pub fn new(memory: &Memory) -> Self {
        let seed = RandomState::new().hash_one(0_u8);
        Self::with_sizes(memory, Sizes::of_capacity(memory.capacities().fdb_buckets), seed)
    }

    /// As [`Fdb::new`]; the seed becomes odd.
    fn with_sizes(memory: &Memory, sizes: Sizes, seed: u64) -> Self {
        let lines = Aligned::new(memory, Part::Fdb, sizes.lines());
        let seed = seed | 1;
        let writer = Apart(Mutex::new(Writer::new(sizes)));
        let fdb = Self { lines, seed, writer };
        if let Some(line) = fdb.lines.get().first() {
            line.set_seed(seed);
        }
        fdb.lock().resume();
        fdb
    }

    /// Locks the database for changes.
    #[must_use]
    pub fn lock(&self) -> FdbWriter<'_> {
        // Each change leaves a state in which readers find nothing wrong, so a panic cannot break it.
        FdbWriter::new(self, self.writer.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The table in use, for the lookups of one burst.
    #[inline(always)]
    #[must_use]
    pub fn view(&self) -> FdbView<'_> {
        let lines = self.lines.get();
        let head = match lines.first() {
            Some(line) => line.head(),
            None => Head::PAUSED,
        };
        FdbView { lines, seed: self.seed, head }
    }

    /// Looks a key up.
    #[inline(always)]
    #[must_use]
    pub fn look_up(&self, key: FdbKey) -> Option<FdbHit<'_>> {
        let view = self.view();
        view.find(key, view.home(key))
    }
}

impl std::fmt::Debug for Fdb {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Fdb").finish_non_exhaustive()
    }
}

/// The table of a [`Fdb`] that was in use when a burst began.
#[derive(Clone, Copy)]
pub struct FdbView<'a> {
    lines: &'a [Line],
    seed: u64,
    head: Head,
}

/// The bucket in which the search for a key begins; it is valid in the same [`FdbView`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FdbHome(u32);

impl FdbHome {
    /// Two of them in one word, which a burst has room for.
    #[inline(always)]
    pub(super) const fn pair(self, other: Self) -> u64 {
        self.0 as u64 | (other.0 as u64) << u32::BITS
    }

    /// Those of [`FdbHome::pair`].
    #[inline(always)]
    pub(super) const fn of_pair(word: u64) -> (Self, Self) {
        (Self(word as u32), Self((word >> u32::BITS) as u32))
    }
}

impl<'a> FdbView<'a> {
    /// The bucket in which the search for a key begins.
    #[inline(always)]
    #[must_use]
    pub const fn home(self, key: FdbKey) -> FdbHome {
        FdbHome(self.head.home(key, self.seed))
    }

    /// Fetches a bucket into the cache, for a search that follows.
    #[inline(always)]
    pub fn prefetch(self, home: FdbHome) {
        prefetch(self.lines.as_ptr().wrapping_add(self.head.line(home.0)));
    }

    /// Searches for a key from its home on.
    #[inline(always)]
    #[must_use]
    pub fn find(self, key: FdbKey, home: FdbHome) -> Option<FdbHit<'a>> {
        for step in 0..SEARCHED {
            let line = self.lines.get(self.head.line(home.0 + step))?;
            let (mut same, mut empty) = (0_usize, false);
            for way in 0..WAYS {
                let found = line.slots[way].key.load(Relaxed);
                same |= usize::from(found == key.word()) << way;
                empty |= found == EMPTY;
            }
            if same != 0 {
                return line.slots[same.trailing_zeros() as usize % WAYS].read(key);
            }
            if empty {
                return None;
            }
        }
        None
    }
}

impl Slot {
    /// The entry, if it is this key's.
    #[inline(always)]
    fn read(&self, key: FdbKey) -> Option<FdbHit<'_>> {
        let word = self.word.load(Acquire);
        let is_still_there = self.key.load(Acquire) == key.word();
        let is_unchanged = self.word.load(Relaxed) == word;
        if is_still_there & is_unchanged {
            Some(FdbHit { word: Word(word), slot: self })
        } else {
            None
        }
    }

    /// Fills a free slot, whose entry readers find from the last store on.
    fn fill(&self, key: FdbKey, entry: FdbEntry, tick: u32) {
        self.tick.store(tick, Relaxed);
        self.set_entry(entry);
        self.key.store(key.word(), Release);
    }

    /// Changes port and kind. Whoever sees them sees also that the entry before was removed.
    fn set_entry(&self, entry: FdbEntry) {
        let before = Word(self.word.load(Relaxed));
        self.word.store(before.next(entry).0, Release);
    }
}

/// An entry that a lookup has found.
#[derive(Clone, Copy)]
pub struct FdbHit<'a> {
    word: Word,
    slot: &'a Slot,
}

impl FdbHit<'_> {
    /// The port that the key had at some time during the lookup.
    #[inline(always)]
    #[must_use]
    pub const fn port(&self) -> PortId {
        self.word.port()
    }

    /// Port and kind.
    #[inline(always)]
    #[must_use]
    pub const fn entry(&self) -> FdbEntry {
        self.word.entry()
    }

    /// When the entry was last refreshed, in ticks of 2^26 ns.
    #[inline(always)]
    #[must_use]
    pub fn tick(&self) -> u32 {
        self.slot.tick.load(Relaxed)
    }

    /// Stores when the entry was refreshed, for all who read the database.
    #[inline(always)]
    pub fn refresh(&self, now_tick: u32) {
        self.slot.tick.store(now_tick, Relaxed);
    }
}

impl std::fmt::Debug for FdbHit<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("FdbHit").field(&self.entry()).field(&self.tick()).finish()
    }
}
