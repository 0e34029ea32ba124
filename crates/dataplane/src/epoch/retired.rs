//! Items that were taken out of a table and may still be read: kept until every reader has passed.

#[cfg(all(test, not(loom)))]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use super::Epochs;

/// Items that readers may still look at, oldest first.
///
/// One epoch serves many items: every reader loads the current epoch at each burst boundary, and each
/// new epoch takes that cache line away from all of them.
#[derive(Debug)]
pub(crate) struct Retired<T> {
    epochs: Arc<Epochs>,
    queue: VecDeque<T>,
    /// Epochs, and how many items belong to each; the last items in the queue belong to none yet.
    marks: VecDeque<(u64, usize)>,
    unmarked: usize,
}

impl<T> Retired<T> {
    pub(crate) fn new(epochs: Arc<Epochs>) -> Self {
        Self { epochs, queue: VecDeque::new(), marks: VecDeque::new(), unmarked: 0 }
    }

    /// The number of items kept since the last mark.
    pub(crate) const fn unmarked(&self) -> usize {
        self.unmarked
    }

    /// Keeps an item that no reader can newly reach from now on. It is freed after all readers have
    /// passed the epoch of the next mark: later than necessary, never too early.
    pub(crate) fn push(&mut self, item: T) {
        self.queue.push_back(item);
        self.unmarked += 1;
    }

    /// Begins an epoch for the items kept since the last mark: readers that pass from now on count for
    /// it.
    pub(crate) fn mark(&mut self) {
        if self.unmarked > 0 {
            self.marks.push_back((self.epochs.advance(), self.unmarked));
            self.unmarked = 0;
        }
    }

    /// Hands out the items that every reader has passed, and marks the rest.
    pub(crate) fn reclaim(&mut self, mut take: impl FnMut(T)) {
        if self.queue.is_empty() {
            return;
        }
        self.mark();
        let passed = self.epochs.passed();
        while let Some((_, count)) = self.marks.pop_front_if(|(epoch, _)| *epoch <= passed) {
            self.queue.drain(..count).for_each(&mut take);
        }
    }
}
