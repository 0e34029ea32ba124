//! The slots of a node during a change, stored like in its memory: run by run.

#[cfg(test)]
mod tests;

use std::ops::Range;

use super::node::{Changes, Node, SLOTS};
use super::{Entry, Fib};

/// 256 slots: where the value changes, and one value for each run between.
///
/// Adjacent runs never have the same value, so that the bitmap fully describes their boundaries.
#[derive(Clone, Debug)]
pub(super) struct Runs {
    changes: Changes,
    values: [u32; SLOTS],
    count: usize,
}

impl Runs {
    /// The same value in every slot.
    pub(super) fn all(value: Entry) -> Self {
        let mut values = [0; SLOTS];
        values[0] = value.0;
        Self { changes: Changes::NONE, values, count: 1 }
    }

    /// The runs of a node.
    pub(super) fn of(fib: &Fib, node: &Node) -> Self {
        let changes = node.changes();
        let count = changes.count() as usize;
        let mut values = [0; SLOTS];
        for (value, place) in values[..count].iter_mut().zip(node.base() + 1..) {
            *value = fib.entry(place).0;
        }
        debug_assert!(values[..count].windows(2).all(|pair| pair[0] != pair[1]), "one run each");
        Self { changes, values, count }
    }

    pub(super) const fn changes(&self) -> Changes {
        self.changes
    }

    /// The value of each run.
    pub(super) fn values(&self) -> impl Iterator<Item = Entry> {
        self.values[..self.count].iter().map(|value| Entry(*value))
    }

    /// The value of each slot.
    pub(super) fn expand(&self) -> [Entry; SLOTS] {
        let mut run = 0;
        std::array::from_fn(|slot| {
            run += usize::from(slot > 0 && self.changes.at(slot));
            Entry(self.values[run])
        })
    }

    /// Sets a slot's value.
    pub(super) fn set(&mut self, slot: usize, value: Entry) {
        self.map(slot..slot + 1, |_| value);
    }

    /// Replaces the values in one or more slots: calls `change` once for each run in them.
    pub(super) fn map(&mut self, slots: Range<usize>, mut change: impl FnMut(Entry) -> Entry) {
        let first = self.split(slots.start);
        let end = if slots.end < SLOTS { self.split(slots.end) } else { self.count };
        for value in &mut self.values[first..end] {
            *value = change(Entry(*value)).0;
        }
        self.join(slots, first);
    }

    /// Makes a run begin at a slot; returns its index.
    fn split(&mut self, slot: usize) -> usize {
        let run = self.changes.run(slot);
        if self.changes.at(slot) {
            return run;
        }
        self.values.copy_within(run..self.count, run + 1);
        self.changes.put(slot, true);
        self.count += 1;
        run + 1
    }

    /// Joins adjacent equal runs, one of which is in these slots; `first` begins with them.
    fn join(&mut self, slots: Range<usize>, first: usize) {
        let (mut from, mut to) = (first, first);
        for slot in slots.start..=slots.end.min(SLOTS - 1) {
            if !self.changes.at(slot) {
                continue;
            }
            let value = self.values[from];
            from += 1;
            if to > 0 && self.values[to - 1] == value {
                self.changes.put(slot, false);
            } else {
                self.values[to] = value;
                to += 1;
            }
        }
        if to < from {
            self.values.copy_within(from..self.count, to);
            self.count -= from - to;
        }
    }
}
