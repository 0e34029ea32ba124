//! Numbers that were taken out of a table, for reuse when no reader can still have them.

use std::sync::Arc;

use super::{Epochs, Retired};

/// Numbers of a table for reuse. A reader that found a number before it was given up may still look it up, so it
/// is not reused before every reader has passed.
#[derive(Debug)]
pub struct Spare<T> {
    retired: Retired<T>,
    free: Vec<T>,
}

impl<T> Spare<T> {
    /// Creates an empty list for the readers of `epochs`.
    #[must_use]
    pub fn new(epochs: &Arc<Epochs>) -> Self {
        Self { retired: Retired::new(Arc::clone(epochs)), free: Vec::new() }
    }

    /// Keeps a number that nothing refers to any more.
    pub fn push(&mut self, number: T) {
        self.retired.push(number);
    }

    /// Takes a number that no reader has.
    pub fn pop(&mut self) -> Option<T> {
        if self.free.is_empty() {
            self.retired.reclaim(|number| self.free.push(number));
        }
        self.free.pop()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_reused_when_every_reader_has_passed() {
        let epochs = Epochs::new();
        let mut spare = Spare::new(&epochs);
        assert_eq!(spare.pop(), None);
        let (one, other) = (epochs.join(), epochs.join());
        spare.push(7);
        assert_eq!(spare.pop(), None);
        one.pass();
        assert_eq!(spare.pop(), None);
        other.park();
        assert_eq!(spare.pop(), Some(7));
        assert_eq!(spare.pop(), None);
    }
}
