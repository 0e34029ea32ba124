//! The entries of the kernel's bridges, and those that a database has of them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tollway_dataplane::stages::bridge::{Fdb, FdbEntry, FdbFull, FdbKey, FdbWriter};

use super::event::{EntryKey, EntryKind, Event, KernelEntry};
use super::watch::FdbWatch;

/// Changes made before somebody else can lock the database.
const CHANGES_PER_LOCK: usize = 256;

/// How long ago entries of unknown age are said to have been refreshed, in ticks of 2^26 ns: 4.5 years,
/// longer than any bridge keeps them.
const LONG_AGO: u32 = 1 << 31;

/// The tick of an entry from a list: its age is not known, so its next frame refreshes it.
pub(super) const fn due_tick(now_tick: u32) -> u32 {
    now_tick.wrapping_sub(LONG_AGO)
}

/// A change for the database; no entry removes it.
#[derive(Clone, Copy, Debug)]
struct Change {
    key: FdbKey,
    entry: Option<FdbEntry>,
    tick: u32,
}

/// Whether an event says what notifications should have said before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// The entry is another.
    Other,
    /// It has gone from one device to another.
    Moved,
    /// It is as before, or has only aged, about which the kernel is silent.
    Nothing,
}

/// All entries of the kernel's bridges, of which a database has those of the router.
pub(super) struct State {
    watch: FdbWatch,
    fdb: Arc<Fdb>,
    entries: HashMap<EntryKey, KernelEntry>,
    changes: Vec<Change>,
    /// Entries for which the database has no room.
    left_out: HashSet<FdbKey>,
}

/// The state before a switch to another database.
pub(super) struct BeforeSwitch {
    watch: FdbWatch,
    fdb: Arc<Fdb>,
    left_out: HashSet<FdbKey>,
}

impl State {
    pub(super) fn new(watch: FdbWatch, fdb: Arc<Fdb>) -> Self {
        let (entries, changes, left_out) = <_>::default();
        Self { watch, fdb, entries, changes, left_out }
    }

    /// Applies an event; `tick` is when the entry was refreshed if this is a new one. [`State::install`] follows.
    pub(super) fn apply(&mut self, event: Event, tick: u32) -> News {
        let Event { key, entry } = event;
        let before = match entry {
            Some(entry) => self.entries.insert(key, entry),
            None => self.entries.remove(&key),
        };
        if entry == before {
            return News::Nothing;
        }
        let translate = |entry: Option<KernelEntry>| self.watch.translate(key, entry?);
        let change = match (translate(before), translate(entry)) {
            (before, after) if before == after => None,
            (_, Some((key, entry))) => Some(Change { key, entry: Some(entry), tick }),
            (Some((key, _)), None) => Some(Change { key, entry: None, tick }),
            (None, None) => None,
        };
        self.changes.extend(change);
        let is_expired = |entry: Option<KernelEntry>| {
            entry.is_some_and(|entry| entry.kind == EntryKind::Expired)
        };
        match (before, entry) {
            _ if is_expired(before) || is_expired(entry) => News::Nothing,
            (Some(before), Some(entry)) if before.device != entry.device => News::Moved,
            _ => News::Other,
        }
    }

    /// Makes the changes in the database; returns how many.
    pub(super) fn install(&mut self) -> usize {
        let changes = std::mem::take(&mut self.changes);
        for part in changes.chunks(CHANGES_PER_LOCK) {
            let mut fdb = self.fdb.lock();
            part.iter().for_each(|change| change.apply(&mut fdb, &mut self.left_out));
        }
        changes.len()
    }

    /// Tries again to add entries for which there was no room.
    pub(super) fn retry(&mut self, now_tick: u32) {
        if self.left_out.is_empty() {
            return;
        }
        let missing = self.wanted().filter(|(key, _)| self.left_out.contains(key));
        let tick = due_tick(now_tick);
        let changes = missing.map(|(key, entry)| Change { key, entry: Some(entry), tick });
        self.changes = changes.collect();
        self.install();
    }

    /// The entries that the database is to have.
    fn wanted(&self) -> impl Iterator<Item = (FdbKey, FdbEntry)> {
        self.entries.iter().filter_map(|(key, entry)| self.watch.translate(*key, *entry))
    }

    /// Switches to another watch and another database, or the same one, which then has all entries of the watch and no
    /// others. Returns the earlier state.
    pub(super) fn rebind(&mut self, watch: FdbWatch, fdb: Arc<Fdb>, now_tick: u32) -> BeforeSwitch {
        let before = BeforeSwitch {
            watch: std::mem::replace(&mut self.watch, watch),
            fdb: std::mem::replace(&mut self.fdb, fdb),
            left_out: std::mem::take(&mut self.left_out),
        };
        self.fill(now_tick);
        before
    }

    /// Switches back to the earlier database.
    pub(super) fn go_back(&mut self, before: BeforeSwitch, now_tick: u32) {
        BeforeSwitch { watch: self.watch, fdb: self.fdb, left_out: self.left_out } = before;
        self.fill(now_tick);
    }

    /// Adds all entries that the database lacks, and removes those that it must not have.
    fn fill(&mut self, now_tick: u32) {
        let wanted: HashMap<FdbKey, FdbEntry> = self.wanted().collect();
        let present: HashMap<FdbKey, FdbEntry> = self.fdb.lock().entries().collect();
        let tick = due_tick(now_tick);
        let gone = present.keys().filter(|key| !wanted.contains_key(key));
        let gone = gone.map(|key| Change { key: *key, entry: None, tick });
        let other = wanted.iter().filter(|(key, entry)| present.get(key) != Some(entry));
        let other = other.map(|(key, entry)| Change { key: *key, entry: Some(*entry), tick });
        self.changes = gone.chain(other).collect();
        self.install();
    }

    /// The kernel's entries.
    pub(super) fn keys(&self) -> impl Iterator<Item = EntryKey> {
        self.entries.keys().copied()
    }

    /// Whether the router has no port of a bridge.
    pub(super) fn watches_nothing(&self) -> bool {
        self.watch.is_empty()
    }

    /// The number of entries for which the database has no room.
    pub(super) fn left_out(&self) -> usize {
        self.left_out.len()
    }

    /// The database.
    pub(super) const fn fdb(&self) -> &Arc<Fdb> {
        &self.fdb
    }
}

impl Change {
    fn apply(&self, fdb: &mut FdbWriter<'_>, left_out: &mut HashSet<FdbKey>) {
        let is_left_out = match self.entry {
            Some(entry) => fdb.set(self.key, entry, self.tick) == Err(FdbFull),
            None => {
                fdb.remove(self.key);
                false
            }
        };
        if is_left_out {
            left_out.insert(self.key);
        } else {
            left_out.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests;
