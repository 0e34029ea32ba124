//! What was taken out of a table and may still be read: kept until every reader has passed.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::epoch::Epochs;

/// Things that readers may still look at, oldest first.
#[derive(Debug)]
pub(crate) struct Retired<T> {
    epochs: Arc<Epochs>,
    queue: VecDeque<(u64, T)>,
}

impl<T: Copy> Retired<T> {
    pub(crate) fn new(epochs: Arc<Epochs>) -> Self {
        Self { epochs, queue: VecDeque::new() }
    }

    /// How many are kept.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Keeps something that no reader can newly reach from now on.
    pub(crate) fn push(&mut self, item: T) {
        let epoch = self.epochs.advance();
        self.queue.push_back((epoch, item));
    }

    /// Hands over what every reader has passed.
    pub(crate) fn reclaim(&mut self, mut take: impl FnMut(T)) {
        if self.queue.is_empty() {
            return;
        }
        let passed = self.epochs.passed();
        while let Some((epoch, item)) = self.queue.front().copied()
            && epoch <= passed
        {
            take(item);
            self.queue.pop_front();
        }
    }
}
