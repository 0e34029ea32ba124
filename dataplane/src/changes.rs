//! How often tables have changed: for whoever keeps what the path once decided.
//!
//! Each table counts for itself, where it changes: the FIBs, the next hops, the groups. So no caller
//! of theirs can forget to. Other rules of the firewall are counted by the router that takes them.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// What tables were like at some moment: equal only where nothing changed in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// Which tables: no two ever have the same number, so that a swap is a change. 0 is none's.
    tables: u64,
    /// Their changes.
    changes: u64,
}

impl Version {
    /// Says if both are of the same tables, whatever has changed in between.
    #[must_use]
    pub const fn is_of_same_tables(self, other: Self) -> bool {
        self.tables == other.tables
    }
}

/// Counts the changes of one [`crate::tables::Tables`].
///
/// A change is counted after it was made, and only where a packet that was forwarded might now fare
/// otherwise. So whoever reads the version first and then looks something up either finds it as it
/// is after the change, or sees another version the next time: what was found is then void.
///
/// The counters are the standard library's under loom, too: no table's memory depends on them.
#[derive(Debug)]
pub struct Changes {
    tables: u64,
    count: AtomicU64,
}

impl Changes {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        static TABLES: AtomicU64 = AtomicU64::new(1);
        Self { tables: TABLES.fetch_add(1, Relaxed), count: AtomicU64::new(0) }
    }

    /// Counts a change that has been made.
    pub fn note(&self) {
        // Release: whoever sees the count sees the change.
        self.count.fetch_add(1, Release);
    }

    /// The version now.
    #[inline(always)]
    #[must_use]
    pub fn version(&self) -> Version {
        // Acquire: lookups after this are not carried out before it.
        Version { tables: self.tables, changes: self.count.load(Acquire) }
    }
}

impl Default for Changes {
    fn default() -> Self {
        Self::new()
    }
}
