//! The writer's side of the database: where each entry lies, and which table is in use.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::Ordering::Relaxed;

use super::Fdb;
use super::entry::{FdbEntry, FdbKey};
use super::lines::{EMPTY, Head, Line, REMOVED, SEARCHED, Sizes, Slot, WAYS};
use crate::sync::MutexGuard;

/// Entries go to the large table when they would take more than this part of the small table's slots: then 4 in 1,000 of
/// them are outside of their home.
const MOST_OF_SMALL: usize = 4;

/// Entries may go back when they take less than this part of the small table's slots, so that some more do not change
/// the table again.
const FEW_OF_SMALL: usize = 8;

/// How long entries must have been few before they go back, in ns.
const FEW_FOR_NS: u64 = 60_000_000_000;

/// No room is left for an entry in the buckets where it may be; the database is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdbFull;

/// Whether readers find entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Open,
    Paused,
}

/// The writer's state.
pub(super) struct Writer {
    sizes: Sizes,
    /// The table in use; none if there are no tables.
    table: Option<Table>,
    access: Access,
    /// Since when the entries in the large table have been few, in ns.
    few_since_ns: Option<u64>,
    left_out: u64,
}

impl Writer {
    pub(super) fn new(sizes: Sizes) -> Self {
        let table = sizes.small().map(Table::new);
        Self { sizes, table, access: Access::Paused, few_since_ns: None, left_out: 0 }
    }

    /// Says whether the small table has at least this part of its slots taken, by so many entries.
    const fn is_taken(&self, entries: usize, part: usize) -> bool {
        entries * part >= self.sizes.small as usize * WAYS
    }
}

/// The memory to write.
#[derive(Clone, Copy)]
struct Area<'a> {
    lines: &'a [Line],
    seed: u64,
}

/// One of the two tables, and where its entries are.
struct Table {
    head: Head,
    entries: BTreeMap<FdbKey, Placed>,
    /// For each bucket, the number of entries whose search crosses it. All of them are in the buckets that follow.
    crossings: Vec<u8>,
}

/// Where an entry is, and what it says.
#[derive(Clone, Copy)]
struct Placed {
    bucket: u32,
    way: u8,
    entry: FdbEntry,
}

impl Table {
    fn new(head: Head) -> Self {
        let crossings = vec![0; head.mask() as usize + 1];
        Self { head, entries: BTreeMap::new(), crossings }
    }

    /// The line of a bucket.
    fn line<'a>(&self, area: Area<'a>, bucket: u32) -> &'a Line {
        &area.lines[self.head.line(bucket)]
    }

    fn slot<'a>(&self, area: Area<'a>, placed: &Placed) -> &'a Slot {
        &self.line(area, placed.bucket).slots[usize::from(placed.way)]
    }

    /// Adds an entry that is not there yet.
    fn insert(
        &mut self,
        area: Area<'_>,
        key: FdbKey,
        entry: FdbEntry,
        tick: u32,
    ) -> Result<(), FdbFull> {
        let mask = self.head.mask();
        let home = self.head.home(key, area.seed);
        // In a tiny table, the buckets that follow are the same ones again.
        for step in 0..SEARCHED.min(mask + 1) {
            let bucket = (home + step) & mask;
            let line = self.line(area, bucket);
            let Some(way) = line.slots.iter().position(Slot::is_free) else { continue };
            line.slots[way].fill(key, entry, tick);
            for before in 0..step {
                self.crossings[((home + before) & mask) as usize] += 1;
            }
            self.entries.insert(key, Placed { bucket, way: way as u8, entry });
            return Ok(());
        }
        Err(FdbFull)
    }

    /// Changes an entry; says whether it is there.
    fn change(&mut self, area: Area<'_>, key: FdbKey, entry: FdbEntry, tick: u32) -> bool {
        let Some(mut placed) = self.entries.get(&key).copied() else { return false };
        let slot = self.slot(area, &placed);
        slot.tick.store(tick, Relaxed);
        if placed.entry != entry {
            slot.set_entry(entry);
            placed.entry = entry;
            self.entries.insert(key, placed);
        }
        true
    }

    /// Removes an entry; says whether it was there.
    fn remove(&mut self, area: Area<'_>, key: FdbKey) -> bool {
        let Some(placed) = self.entries.remove(&key) else { return false };
        self.vacate(area, key, placed);
        true
    }

    /// Frees the slot of an entry.
    fn vacate(&mut self, area: Area<'_>, key: FdbKey, placed: Placed) {
        let is_crossed = self.crossings[placed.bucket as usize] > 0;
        let free = if is_crossed { REMOVED } else { EMPTY };
        // The store of what comes into the slot next orders this one ahead of it.
        self.slot(area, &placed).key.store(free, Relaxed);
        let mut bucket = self.head.home(key, area.seed);
        while bucket != placed.bucket {
            self.uncross(area, bucket);
            bucket = (bucket + 1) & self.head.mask();
        }
    }

    /// Notes that the search for one entry less crosses a bucket. After the last one, searches may end there again.
    fn uncross(&mut self, area: Area<'_>, bucket: u32) {
        let crossings = &mut self.crossings[bucket as usize];
        *crossings -= 1;
        if *crossings > 0 {
            return;
        }
        for slot in &self.line(area, bucket).slots {
            if slot.key.load(Relaxed) == REMOVED {
                slot.key.store(EMPTY, Relaxed);
            }
        }
    }

    /// Removes all entries. What is removed last leaves no slot behind at which searches do not end.
    fn clear(&mut self, area: Area<'_>) {
        for (key, placed) in std::mem::take(&mut self.entries) {
            self.vacate(area, key, placed);
        }
    }

    /// Fills another table, which is empty, with the same entries.
    fn copy(&self, area: Area<'_>, head: Head) -> Result<Self, FdbFull> {
        let mut copy = Self::new(head);
        for (key, placed) in &self.entries {
            let tick = self.slot(area, placed).tick.load(Relaxed);
            if let Err(full) = copy.insert(area, *key, placed.entry, tick) {
                copy.clear(area);
                return Err(full);
            }
        }
        Ok(copy)
    }
}

impl Slot {
    fn is_free(&self) -> bool {
        matches!(self.key.load(Relaxed), EMPTY | REMOVED)
    }
}

/// The writer of a [`Fdb`], while it has the lock.
pub struct FdbWriter<'a> {
    fdb: &'a Fdb,
    state: MutexGuard<'a, Writer>,
}

impl<'a> FdbWriter<'a> {
    pub(super) const fn new(fdb: &'a Fdb, state: MutexGuard<'a, Writer>) -> Self {
        Self { fdb, state }
    }

    fn area(&self) -> Area<'a> {
        Area { lines: self.fdb.lines.get(), seed: self.fdb.seed }
    }

    /// Adds an entry or changes it, and sets when it was last refreshed.
    ///
    /// # Errors
    /// [`FdbFull`]: the entry is left out, and counted.
    pub fn set(&mut self, key: FdbKey, entry: FdbEntry, now_tick: u32) -> Result<(), FdbFull> {
        let area = self.area();
        let Some(table) = &mut self.state.table else { return self.leave_out() };
        if table.change(area, key, entry, now_tick) {
            return Ok(());
        }
        let entries = table.entries.len();
        if self.is_small() && self.state.is_taken(entries, MOST_OF_SMALL) {
            self.grow();
        }
        if self.insert(key, entry, now_tick).is_ok() {
            return Ok(());
        }
        if self.is_small() && self.grow() && self.insert(key, entry, now_tick).is_ok() {
            return Ok(());
        }
        self.leave_out()
    }

    fn insert(&mut self, key: FdbKey, entry: FdbEntry, now_tick: u32) -> Result<(), FdbFull> {
        let area = self.area();
        let table = self.state.table.as_mut().ok_or(FdbFull)?;
        table.insert(area, key, entry, now_tick)?;
        let entries = table.entries.len();
        if self.state.is_taken(entries, FEW_OF_SMALL) {
            self.state.few_since_ns = None;
        }
        Ok(())
    }

    fn leave_out(&mut self) -> Result<(), FdbFull> {
        self.state.left_out += 1;
        Err(FdbFull)
    }

    /// Removes an entry; returns whether there was one.
    pub fn remove(&mut self, key: FdbKey) -> bool {
        let area = self.area();
        self.state.table.as_mut().is_some_and(|table| table.remove(area, key))
    }

    /// Removes all entries, and returns to the small table.
    pub fn clear(&mut self) {
        let Some(small) = self.state.sizes.small() else { return };
        // If that is in use already, its memory is as empty as the new one when `install` returns.
        self.install(Table::new(small));
    }

    /// Has readers find nothing, until [`FdbWriter::resume`]. Entries may change meanwhile.
    pub fn pause(&mut self) {
        self.state.access = Access::Paused;
        self.publish();
    }

    /// Has readers find the entries.
    pub fn resume(&mut self) {
        self.state.access = Access::Open;
        self.publish();
    }

    /// Returns to the small table if that would have been enough for a minute. Call it some times a minute.
    pub fn shrink(&mut self, now_ns: u64) {
        let is_few = !self.state.is_taken(self.len(), FEW_OF_SMALL);
        if self.is_small() || !is_few {
            self.state.few_since_ns = None;
            return;
        }
        let since = *self.state.few_since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since) >= FEW_FOR_NS {
            self.state.few_since_ns = None;
            self.change_table(self.state.sizes.small());
        }
    }

    /// Removes some of the next `most` entries behind `from`: those for which `is_old` is true, which gets the tick of
    /// the last refresh. Returns where the next sweep begins.
    pub fn sweep(
        &mut self,
        from: Option<FdbKey>,
        most: usize,
        mut is_old: impl FnMut(FdbKey, FdbEntry, u32) -> bool,
    ) -> Option<FdbKey> {
        let area = self.area();
        let table = self.state.table.as_mut()?;
        let (mut last, mut old) = (None, Vec::new());
        let begin = from.map_or(Bound::Unbounded, Bound::Excluded);
        for (key, placed) in table.entries.range((begin, Bound::Unbounded)).take(most) {
            let tick = table.slot(area, placed).tick.load(Relaxed);
            if is_old(*key, placed.entry, tick) {
                old.push(*key);
            }
            last = Some(*key);
        }
        for key in old {
            table.remove(area, key);
        }
        last
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.state.table.as_ref().map_or(0, |table| table.entries.len())
    }

    /// Says whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How often an entry was left out for want of room.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.state.left_out
    }

    /// Says whether the small table is in use.
    #[must_use]
    pub fn is_small(&self) -> bool {
        self.head() == self.state.sizes.small()
    }

    /// The entry of a key.
    #[must_use]
    pub fn get(&self, key: FdbKey) -> Option<FdbEntry> {
        Some(self.state.table.as_ref()?.entries.get(&key)?.entry)
    }

    /// All entries, domain by domain.
    pub fn entries(&self) -> impl Iterator<Item = (FdbKey, FdbEntry)> {
        let entries = self.state.table.iter().flat_map(|table| &table.entries);
        entries.map(|(key, placed)| (*key, placed.entry))
    }

    fn head(&self) -> Option<Head> {
        self.state.table.as_ref().map(|table| table.head)
    }

    /// Changes to the large table; says whether it has room for all entries.
    fn grow(&mut self) -> bool {
        self.change_table(self.state.sizes.large())
    }

    /// Moves the entries to another table; says whether that has room for all of them.
    fn change_table(&mut self, head: Option<Head>) -> bool {
        let area = self.area();
        let Some((table, head)) = self.state.table.as_ref().zip(head) else { return false };
        let Ok(copy) = table.copy(area, head) else { return false };
        self.install(copy);
        true
    }

    /// Has readers search in a table, and empties the one before.
    fn install(&mut self, table: Table) {
        let area = self.area();
        let before = self.state.table.replace(table);
        self.state.few_since_ns = None;
        self.publish();
        if let Some(mut before) = before {
            before.clear(area);
        }
    }

    fn publish(&self) {
        let head = match self.state.access {
            Access::Open => self.head().unwrap_or(Head::PAUSED),
            Access::Paused => Head::PAUSED,
        };
        self.area().lines[0].set_head(head);
    }
}
