//! A hash table of single addresses: buckets of one cache line, read while they change.
//!
//! A key stays in its cell until it is removed, so that a reader always finds a key that exists during
//! its whole lookup. A bucket counts the keys that did not fit into it and lie in later ones. Most buckets have
//! none, so a lookup reads only one cache line. A table that has become too small is rebuilt at twice
//! the size, and readers switch to it with their next lookup.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, OnceLock};

use crate::cpu::prefetch;
use crate::epoch::{Epochs, Retired};
use crate::memory::zeroed;
use crate::sync::{AtomicU32, AtomicU64};

/// Words of a bucket: one cache line. The first counts the keys that lie in later buckets; then follow cells.
const LINE: usize = 8;
const LINE_BYTES: usize = 64;

/// Bits of the bucket count in the smallest table, and in the largest: 256 MB.
const LEAST_BITS: u32 = 3;
const MOST_BITS: u32 = 22;
const AREAS: usize = (MOST_BITS - LEAST_BITS + 1) as usize;

/// Cells taken out before the writer computes which can be reused.
const RECLAIM_FROM: usize = 64;

/// No room is left for another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// A set of keys of `W` words, of which the first is not 0.
#[derive(Debug)]
pub(super) struct Table<const W: usize> {
    /// The memory of each size; outgrown ones stay, because readers may still use them.
    areas: [OnceLock<Area>; AREAS],
    /// The one that readers use.
    now: AtomicU32,
    seed: u64,
}

/// The buckets of one size.
#[derive(Debug)]
struct Area {
    words: Box<[AtomicU64]>,
    /// The first word of the first line.
    start: usize,
    /// How far to shift a hash down for a bucket.
    shift: u32,
}

impl Area {
    fn new(bits: u32) -> Self {
        let words = zeroed::<AtomicU64>((1 << bits) * LINE + LINE);
        let start = words.as_ptr().align_offset(LINE_BYTES).min(LINE);
        Self { words, start, shift: u64::BITS - bits }
    }

    const fn buckets(&self) -> usize {
        1 << (u64::BITS - self.shift)
    }

    /// The first word of the bucket for a hash.
    #[inline(always)]
    const fn home(&self, hash: u64) -> usize {
        self.start + (hash >> self.shift) as usize * LINE
    }

    /// The first word of the next bucket.
    #[inline(always)]
    const fn behind(&self, bucket: usize) -> usize {
        let next = bucket + LINE;
        if next < self.start + self.buckets() * LINE { next } else { self.start }
    }

    #[inline(always)]
    fn line(&self, bucket: usize) -> Option<&[AtomicU64; LINE]> {
        self.words.get(bucket..)?.first_chunk()
    }
}

/// The positions in a line at which its cells begin.
#[inline(always)]
fn cells<const W: usize>() -> impl Iterator<Item = usize> {
    (1..=LINE - W).step_by(W)
}

/// The maximum number of keys in a table of `buckets` buckets: so many that few do not fit their first
/// line.
const fn most<const W: usize>(buckets: usize) -> usize {
    buckets * if W == 1 { 5 } else { 2 }
}

/// The view that a burst's lookups read: none for an empty table.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a, const W: usize> {
    area: &'a Area,
    seed: u64,
}

impl<const W: usize> View<'_, W> {
    /// Where a key's lookup begins.
    #[inline(always)]
    pub(super) fn place(&self, key: [u64; W]) -> usize {
        self.area.home(hash(self.seed, key))
    }

    /// Prefetches the line where a lookup begins.
    #[inline(always)]
    pub(super) fn prefetch(&self, place: usize) {
        prefetch(self.area.words.as_ptr().wrapping_add(place));
    }

    /// Says whether the table has a key, whose lookup begins at `place`.
    #[inline(always)]
    pub(super) fn has(&self, place: usize, key: [u64; W]) -> bool {
        let Some(line) = self.area.line(place) else { return false };
        // Load this before the cells: a key that is stored in a later bucket afterwards did not exist yet.
        let behind = line[0].load(Acquire);
        // The position in the line is unpredictable: no branch.
        let found = cells::<W>().fold(false, |found, at| found | is(line, at, key));
        found || behind != 0 && self.has_behind(place, key)
    }

    #[cold]
    fn has_behind(&self, mut place: usize, key: [u64; W]) -> bool {
        for _ in 1..self.area.buckets() {
            place = self.area.behind(place);
            let Some(line) = self.area.line(place) else { return false };
            let behind = line[0].load(Acquire);
            if cells::<W>().any(|at| is(line, at, key)) {
                return true;
            }
            if behind == 0 {
                return false;
            }
        }
        false
    }
}

/// Says whether a cell holds a key. The first word is written last and read first, so the others belong
/// to the same key: a cell is reused only after all readers that may have read its first word have
/// passed.
#[inline(always)]
fn is<const W: usize>(line: &[AtomicU64; LINE], at: usize, key: [u64; W]) -> bool {
    let mut same = true;
    for word in 0..W {
        same &= line[at + word].load(Acquire) == key[word];
    }
    same
}

#[inline(always)]
fn hash<const W: usize>(seed: u64, key: [u64; W]) -> u64 {
    let mut hash = seed;
    for word in key {
        let wide = u128::from(hash ^ word) * 0x9e37_79b9_7f4a_7c15_u128;
        hash = wide as u64 ^ (wide >> 64) as u64;
    }
    hash
}

impl<const W: usize> Table<W> {
    pub(super) fn new() -> Self {
        Self {
            areas: [const { OnceLock::new() }; AREAS],
            now: AtomicU32::new(0),
            // A sender of packets must not know which addresses share a bucket.
            seed: RandomState::new().hash_one(0_u8),
        }
    }

    /// The view for lookups; none if the table was never filled.
    #[inline(always)]
    pub(super) fn view(&self) -> Option<View<'_, W>> {
        let area = self.areas.get(self.now.load(Acquire) as usize)?.get()?;
        Some(View { area, seed: self.seed })
    }

    pub(super) fn has(&self, key: [u64; W]) -> bool {
        self.view().is_some_and(|view| view.has(view.place(key), key))
    }

    /// Every key, in no order.
    pub(super) fn keys(&self) -> Vec<[u64; W]> {
        let Some(View { area, .. }) = self.view() else { return Vec::new() };
        let (lines, _) = area.words[area.start..].as_chunks::<LINE>();
        let key = |line: &[AtomicU64; LINE], at: usize| {
            std::array::from_fn(|word| line[at + word].load(Acquire))
        };
        let lines = lines.iter().take(area.buckets());
        let all = lines.flat_map(|line| cells::<W>().map(move |at| key(line, at)));
        all.filter(|key| key[0] != 0).collect()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.areas.iter().filter_map(OnceLock::get).map(|area| size_of_val(&*area.words)).sum()
    }
}

/// The state of the one writer of a table.
#[derive(Debug)]
pub(super) struct Writer<const W: usize> {
    count: usize,
    epochs: Arc<Epochs>,
    /// Cells that readers may have begun to read.
    held: HashSet<usize>,
    retired: Retired<usize>,
}

impl<const W: usize> Writer<W> {
    pub(super) fn new(epochs: &Arc<Epochs>) -> Self {
        let (epochs, retired) = (Arc::clone(epochs), Retired::new(Arc::clone(epochs)));
        Self { count: 0, epochs, held: HashSet::new(), retired }
    }

    /// The number of keys.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Inserts a key; false if it existed.
    pub(super) fn insert(&mut self, table: &Table<W>, key: [u64; W]) -> Result<bool, Full> {
        if table.has(key) {
            return Ok(false);
        }
        self.reserve(table, 1)?;
        let area = table.view().ok_or(Full)?.area;
        let placed = self.place(area, table.seed, key);
        self.count += usize::from(placed);
        if placed { Ok(true) } else { Err(Full) }
    }

    /// Removes a key; false if it did not exist.
    pub(super) fn remove(&mut self, table: &Table<W>, key: [u64; W]) -> bool {
        let Some(View { area, .. }) = table.view() else { return false };
        let home = area.home(hash(table.seed, key));
        let mut bucket = home;
        for _ in 0..area.buckets() {
            let Some(line) = area.line(bucket) else { return false };
            if let Some(at) = cells::<W>().find(|at| is(line, *at, key)) {
                line[at].store(0, Release);
                add_behind(area, home, bucket, u64::MAX);
                self.hold(bucket + at);
                self.count -= 1;
                return true;
            }
            if line[0].load(Relaxed) == 0 {
                return false;
            }
            bucket = area.behind(bucket);
        }
        false
    }

    /// Makes room for `more` keys.
    pub(super) fn reserve(&mut self, table: &Table<W>, more: usize) -> Result<(), Full> {
        let wanted = self.count + self.held.len() + more;
        let now = table.view().map(|view| view.area);
        if now.is_some_and(|area| wanted <= most::<W>(area.buckets())) {
            return Ok(());
        }
        let bits = (LEAST_BITS..=MOST_BITS).find(|bits| wanted <= most::<W>(1 << bits));
        let bits = bits.ok_or(Full)?;
        let number = bits - LEAST_BITS;
        let keys = table.keys();
        let area = table.areas[number as usize].get_or_init(|| Area::new(bits));
        // No reader has used this one yet.
        self.held = HashSet::new();
        self.retired = Retired::new(Arc::clone(&self.epochs));
        for key in keys {
            self.place(area, table.seed, key);
        }
        table.now.store(number, Release);
        Ok(())
    }

    /// Inserts a key into the first bucket from its own on that has a free cell.
    fn place(&self, area: &Area, seed: u64, key: [u64; W]) -> bool {
        let home = area.home(hash(seed, key));
        let mut bucket = home;
        for _ in 0..area.buckets() {
            let Some(line) = area.line(bucket) else { return false };
            let is_free = |at: &usize| {
                line[*at].load(Relaxed) == 0
                    && (W == 1 || self.held.is_empty() || !self.held.contains(&(bucket + at)))
            };
            if let Some(at) = cells::<W>().find(is_free) {
                add_behind(area, home, bucket, 1);
                for word in (0..W).rev() {
                    line[at + word].store(key[word], Release);
                }
                return true;
            }
            bucket = area.behind(bucket);
        }
        false
    }

    /// Keeps a cell whose first word a reader may have read. A key of one word is read at once, so its
    /// cell is free immediately.
    fn hold(&mut self, cell: usize) {
        if W == 1 {
            return;
        }
        self.held.insert(cell);
        self.retired.push(cell);
        if self.retired.unmarked() >= RECLAIM_FROM {
            let held = &mut self.held;
            self.retired.reclaim(|cell| {
                held.remove(&cell);
            });
        }
    }
}

/// Adds to the counts of the buckets that a key's lookup passes.
fn add_behind(area: &Area, home: usize, bucket: usize, more: u64) {
    let mut passed = home;
    while passed != bucket {
        let Some([count, ..]) = area.line(passed) else { return };
        count.store(count.load(Relaxed).wrapping_add(more), Release);
        passed = area.behind(passed);
    }
}
