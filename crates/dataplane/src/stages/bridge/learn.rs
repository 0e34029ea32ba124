//! Learning and ageing.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

use super::counts::LearningCounts;
use super::fdb::{FdbEntry, FdbKey, FdbKind, FdbWriter};
use super::table::{LearningBridge, LearningBridges};
use crate::clock::tick_of;
use crate::id::PortId;

/// The most entries that one call of [`LearningBridges::age`] looks at: some 50 us.
const SWEPT: usize = 1024;

impl LearningBridge {
    /// Learns that a sender is behind a port, or that it is there still.
    pub(super) fn learn(&self, bridges: &LearningBridges, key: FdbKey, port: PortId, tick: u32) {
        let known = bridges.fdb.look_up(key);
        match known {
            Some(hit) if hit.port() == port => return hit.refresh(tick),
            Some(hit) if hit.entry().kind == FdbKind::Static => return,
            // Nobody takes the lock for each frame of an attack.
            None if self.is_full() => return self.leave_out(),
            _ => {}
        }
        self.enter(&mut bridges.fdb.lock(), key, port, tick);
    }

    fn is_full(&self) -> bool {
        self.counts.learned.load(Relaxed) >= self.max_entries
    }

    fn leave_out(&self) {
        self.counts.full.fetch_add(1, Relaxed);
    }

    /// Other workers may have changed the entry before the lock was taken.
    fn enter(&self, writer: &mut FdbWriter<'_>, key: FdbKey, port: PortId, tick: u32) {
        let entry = FdbEntry { port, kind: FdbKind::Host };
        match writer.get(key) {
            Some(before) if before.kind == FdbKind::Static => {}
            Some(before) => {
                self.counts.moved.fetch_add(u64::from(before.port != port), Relaxed);
                // There is room, since it has an entry.
                _ = writer.set(key, entry, tick);
            }
            None if self.is_full() || writer.set(key, entry, tick).is_err() => self.leave_out(),
            None => _ = self.counts.learned.fetch_add(1, Relaxed),
        }
    }

    /// Says whether an entry is forgotten. Another worker may have refreshed it just now, by a later clock.
    fn forgets(&self, entry: FdbEntry, refreshed: u32, tick: u32) -> bool {
        let age_ticks = tick.wrapping_sub(refreshed) as i32;
        entry.kind == FdbKind::Host && age_ticks >= self.forgotten_ticks as i32
    }
}

impl LearningBridges {
    /// The counts of each bridge.
    pub fn counts(&self) -> impl Iterator<Item = LearningCounts> {
        self.bridges.iter().map(|bridge| LearningCounts {
            learned: bridge.counts.learned.load(Relaxed),
            moved: bridge.counts.moved.load(Relaxed),
            full: bridge.counts.full.load(Relaxed),
        })
    }

    /// Forgets old entries among the next 1,024 ones. Call it some ten times a second.
    pub fn age(&self, now_ns: u64) {
        let tick = tick_of(now_ns);
        let mut next = self.sweep.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut writer = self.fdb.lock();
        *next = writer.sweep(*next, SWEPT, |key, entry, refreshed| {
            let number = usize::from(key.domain()).wrapping_sub(1);
            let Some(bridge) = self.bridges.get(number) else { return false };
            let forgotten = bridge.forgets(entry, refreshed, tick);
            if forgotten {
                bridge.counts.learned.fetch_sub(1, Relaxed);
            }
            forgotten
        });
        writer.shrink(now_ns);
    }
}
