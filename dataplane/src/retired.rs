//! What was taken out of a table and may still be read: kept until every reader has passed.

#[cfg(all(test, not(loom)))]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::epoch::Epochs;

/// Things that readers may still look at, oldest first.
///
/// An epoch is begun for many at once, not for each: every reader reads at each burst boundary which
/// one it is, and each new one takes that cache line from all of them.
#[derive(Debug)]
pub(crate) struct Retired<T> {
    epochs: Arc<Epochs>,
    queue: VecDeque<T>,
    /// Epochs, and how many things belong to each; the last ones in the queue belong to none yet.
    marks: VecDeque<(u64, usize)>,
    unmarked: usize,
}

impl<T> Retired<T> {
    pub(crate) fn new(epochs: Arc<Epochs>) -> Self {
        Self { epochs, queue: VecDeque::new(), marks: VecDeque::new(), unmarked: 0 }
    }

    /// How many were kept since the last mark.
    pub(crate) const fn unmarked(&self) -> usize {
        self.unmarked
    }

    /// Keeps something that no reader can newly reach from now on. It may go when all have passed
    /// that find it out of the table at the next mark: later than need be, never too early.
    pub(crate) fn push(&mut self, item: T) {
        self.queue.push_back(item);
        self.unmarked += 1;
    }

    /// Begins an epoch for what was kept since the last mark: who passes from now on counts for it.
    pub(crate) fn mark(&mut self) {
        if self.unmarked > 0 {
            self.marks.push_back((self.epochs.advance(), self.unmarked));
            self.unmarked = 0;
        }
    }

    /// Hands over what every reader has passed, and marks the rest.
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
