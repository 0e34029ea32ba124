//! Records how often tables have changed, and where, for caches of the path's decisions.
//!
//! Each table (FIBs, next hops, groups) counts its own changes, so no caller can forget to do so.
//! When the router takes new firewall rules, it counts that change.
//!
//! A route affects only the addresses that its prefix covers. So FIBs write the changed prefixes
//! into a ring instead. A reader that reads the ring often enough misses none.

#[cfg(all(test, loom))]
mod models;
mod voided;

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};
use std::sync::{Mutex, PoisonError};

use crate::memory::zeroed;
use crate::prefix::Prefix;
pub use voided::{Basis, Voided};

/// The number of prefixes in the ring: 160 ms of 100,000 changes per second.
const REMEMBERED: u64 = 1 << 14;

/// A version of the tables: two are equal only if nothing changed in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// The number of the tables: no two ever have the same one, so a swap is a change. Never 0.
    tables: u64,
    /// The number of changes, except those of next hops and routes.
    changes: u64,
    /// The number of changes of next hops and their groups.
    next_hops: u64,
    /// The number of changes of routes.
    routes: u64,
}

impl Version {
    /// Says whether both versions are of the same tables, whatever has changed in between.
    #[must_use]
    pub const fn is_of_same_tables(self, other: Self) -> bool {
        self.tables == other.tables
    }

    /// Says whether nothing has changed in between but routes and next hops.
    #[must_use]
    pub fn has_rules_of(self, other: Self) -> bool {
        (self.tables, self.changes) == (other.tables, other.changes)
    }

    /// The version with the changes of both, if they are of the same tables; else `other`.
    fn join(self, other: Self) -> Self {
        if !self.is_of_same_tables(other) {
            return other;
        }
        Self {
            tables: self.tables,
            changes: self.changes.max(other.changes),
            next_hops: self.next_hops.max(other.next_hops),
            routes: self.routes.max(other.routes),
        }
    }
}

/// A changed route, as the set of addresses that share these first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Touched {
    /// 4 or 6.
    pub version: u8,
    /// The first 32 bits of the prefix; bits after its length are 0.
    pub bits: u32,
    /// The number of significant bits.
    pub len: u8,
}

impl Touched {
    const LEN_SHIFT: u32 = 32;
    const IPV6: u64 = 1 << 63;

    fn new(version: u8, prefix: Prefix) -> Self {
        Self { version, bits: (prefix.bits() >> 96) as u32, len: prefix.len().min(32) }
    }

    const fn word(self) -> u64 {
        let family = if self.version == 6 { Self::IPV6 } else { 0 };
        family | (self.len as u64) << Self::LEN_SHIFT | self.bits as u64
    }

    const fn of_word(word: u64) -> Self {
        let version = if word & Self::IPV6 == 0 { 4 } else { 6 };
        Self { version, bits: word as u32, len: (word >> Self::LEN_SHIFT & 63) as u8 }
    }
}

/// Counts the changes of one [`crate::tables::Tables`].
///
/// A change is counted after it was made, and only if it may alter the result for a packet that was
/// forwarded. So load the version first and then look up: either the lookup sees the change, or the
/// next version differs and the result is void.
///
/// The counters use the standard library's atomics even under loom: no table's memory depends on them.
#[derive(Debug)]
pub struct Changes {
    tables: u64,
    count: AtomicU64,
    next_hops: AtomicU64,
    /// The number of prefixes written so far.
    routes: AtomicU64,
    /// The last prefixes, as [`Touched::word`].
    ring: Box<[AtomicU64]>,
    /// Locked while a prefix is written.
    writer: Mutex<()>,
}

impl Changes {
    /// Creates a counter without changes.
    #[must_use]
    pub fn new() -> Self {
        static TABLES: AtomicU64 = AtomicU64::new(1);
        Self {
            tables: TABLES.fetch_add(1, Relaxed),
            count: AtomicU64::new(0),
            next_hops: AtomicU64::new(0),
            routes: AtomicU64::new(0),
            ring: zeroed(REMEMBERED as usize),
            writer: Mutex::new(()),
        }
    }

    /// Counts a change that was made.
    pub fn note(&self) {
        // Release: a thread that sees the count also sees the change.
        self.count.fetch_add(1, Release);
    }

    /// Counts a change of a next hop, or of a group of them.
    pub fn note_next_hop(&self) {
        // As in `note`.
        self.next_hops.fetch_add(1, Release);
    }

    /// Records that the route for a prefix has changed, in whichever FIB.
    pub fn note_route(&self, version: u8, prefix: Prefix) {
        // A panic here leaves nothing half done.
        let _writing = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let number = self.routes.load(Relaxed);
        if let Some(place) = self.ring.get((number % REMEMBERED) as usize) {
            // Release: a thread that reads this entry sees at least the count from before it.
            place.store(Touched::new(version, prefix).word(), Release);
        }
        // Release: a thread that sees the count also sees the change and the ring entry.
        self.routes.store(number + 1, Release);
    }

    /// The current version.
    #[inline(always)]
    #[must_use]
    pub fn version(&self) -> Version {
        // Acquire: later lookups do not run before these loads.
        let (changes, next_hops) = (self.count.load(Acquire), self.next_hops.load(Acquire));
        Version { tables: self.tables, changes, next_hops, routes: self.routes.load(Acquire) }
    }

    /// Calls `each` for every route that has changed from `then` to `now`, a version of these
    /// tables. Returns whether nothing else has changed. If it returns false, other things or too
    /// many routes have changed, and the calls of `each` mean nothing.
    pub fn routes_between(
        &self,
        then: Version,
        now: Version,
        mut each: impl FnMut(Touched),
    ) -> bool {
        let same = now.has_rules_of(then) && now.next_hops == then.next_hops;
        let count = now.routes.wrapping_sub(then.routes);
        if !same || now.tables != self.tables || count >= REMEMBERED {
            return false;
        }
        for number in then.routes..now.routes {
            let word = self.ring.get((number % REMEMBERED) as usize);
            each(Touched::of_word(word.map_or(0, |word| word.load(Relaxed))));
        }
        // If an entry was overwritten before it was read, this load sees at least the count from
        // before that write. The comparison also excludes the entry that is being written.
        fence(Acquire);
        self.routes.load(Relaxed).wrapping_sub(then.routes) < REMEMBERED
    }
}

impl Default for Changes {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(number: u32) -> Prefix {
        Prefix::v4(number << 8, 24)
    }

    fn between(changes: &Changes, then: Version) -> Option<Vec<Touched>> {
        let mut touched = Vec::new();
        let whole = changes.routes_between(then, changes.version(), |one| touched.push(one));
        whole.then_some(touched)
    }

    #[test]
    fn next_hops_are_no_rules() {
        let changes = Changes::new();
        let start = changes.version();
        changes.note_next_hop();
        changes.note_route(4, prefix(1));
        assert!(changes.version().has_rules_of(start) && between(&changes, start).is_none());
        changes.note();
        assert!(!changes.version().has_rules_of(start));
    }

    #[test]
    fn routes_are_reported_with_what_they_cover() {
        let changes = Changes::new();
        let start = changes.version();
        assert_eq!(between(&changes, start), Some(Vec::new()));
        changes.note_route(4, Prefix::v4(0x0a01_0203, 32));
        changes.note_route(4, Prefix::v4(0, 0));
        changes.note_route(6, Prefix::v6(0x2001_0db8_ffff << 80, 48));
        changes.note_route(6, Prefix::v6(0x2001_0d00 << 96, 24));
        let touched = |version, bits, len| Touched { version, bits, len };
        let expected = [
            touched(4, 0x0a01_0203, 32),
            touched(4, 0, 0),
            touched(6, 0x2001_0db8, 32),
            touched(6, 0x2001_0d00, 24),
        ];
        assert_eq!(between(&changes, start), Some(expected.to_vec()));
        assert_eq!(between(&changes, changes.version()), Some(Vec::new()));
    }

    #[test]
    fn another_change_is_one_of_everything() {
        let changes = Changes::new();
        let start = changes.version();
        changes.note_route(4, prefix(1));
        changes.note();
        assert_eq!(between(&changes, start), None);
        assert_eq!(between(&Changes::new(), start), None, "other tables");
        assert_eq!(between(&changes, Version::default()), None, "none's");
    }

    #[test]
    fn too_many_are_everything() {
        let changes = Changes::new();
        let start = changes.version();
        let note = |range: std::ops::Range<u64>| {
            range.for_each(|number| changes.note_route(4, prefix(number as u32)));
        };
        note(0..REMEMBERED - 1);
        assert_eq!(between(&changes, start).map(|all| all.len() as u64), Some(REMEMBERED - 1));
        let later = changes.version();
        note(REMEMBERED - 1..REMEMBERED);
        assert_eq!(between(&changes, start), None);
        note(0..REMEMBERED - 2);
        let all = between(&changes, later).unwrap();
        assert_eq!(all[0].bits, prefix(REMEMBERED as u32 - 1).bits().wrapping_shr(96) as u32);
        assert_eq!(all[1].bits, 0);
    }

    /// A reader that follows two writers sees what each writes, in order and without a gap, unless it
    /// receives the result that there may be one.
    #[test]
    fn whoever_follows_misses_nothing() {
        const MANY: u32 = if cfg!(miri) { 20 } else { 100_000 };
        let changes = Changes::new();
        let running = AtomicU64::new(2);
        let start = changes.version();
        std::thread::scope(|scope| {
            for version in [4, 6] {
                let (changes, running) = (&changes, &running);
                scope.spawn(move || {
                    for number in 0..MANY {
                        let bits = u128::from(number << 8) << 96;
                        changes.note_route(version, Prefix::v6(bits, 32));
                        if number % 64 == 0 {
                            std::thread::yield_now();
                        }
                    }
                    running.fetch_sub(1, Release);
                });
            }
            let (mut then, mut next, mut followed) = (start, [Some(0); 2], 0);
            loop {
                let last = running.load(Acquire) == 0;
                let now = changes.version();
                let mut touched = Vec::new();
                if changes.routes_between(then, now, |one| touched.push(one)) {
                    followed += touched.len();
                    for one in touched {
                        let next = &mut next[usize::from(one.version == 6)];
                        let number = one.bits >> 8;
                        assert_eq!(next.unwrap_or(number), number, "{one:?}");
                        *next = Some(number + 1);
                    }
                } else {
                    next = [None; 2];
                }
                then = now;
                if last {
                    break;
                }
            }
            assert!(followed > 0);
            assert!(next.into_iter().flatten().all(|next| next == MANY), "{next:?}");
        });
    }
}
