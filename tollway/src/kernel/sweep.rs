//! Mark and sweep: what a list from the kernel says is there, and what it does not.

use std::collections::HashSet;
use std::hash::Hash;

/// What was told while a list was being told.
#[derive(Debug)]
pub(super) struct Sweep<K> {
    listed: HashSet<K>,
    /// Told by a message of its own meanwhile: that may be newer than the list, which the
    /// kernel fills before it sends it, and is never older than the next such message.
    changed: HashSet<K>,
}

impl<K> Default for Sweep<K> {
    fn default() -> Self {
        Self { listed: HashSet::new(), changed: HashSet::new() }
    }
}

impl<K: Eq + Hash + Copy> Sweep<K> {
    /// Notes that something has changed.
    pub(super) fn changed(&mut self, key: K) {
        self.changed.insert(key);
    }

    /// Notes that something is listed; says if the list is to be believed about it.
    pub(super) fn listed(&mut self, key: K) -> bool {
        self.listed.insert(key);
        !self.changed.contains(&key)
    }

    /// Those that are there no more, the list being whole.
    pub(super) fn gone(&self, known: impl Iterator<Item = K>) -> Vec<K> {
        known.filter(|key| !self.listed.contains(key) && !self.changed.contains(key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_meanwhile_is_newer_than_the_list() {
        let mut sweep = Sweep::default();
        sweep.changed(1);
        assert!(!sweep.listed(1));
        assert!(sweep.listed(2));
        sweep.changed(3);
        assert_eq!(sweep.gone([1, 2, 3, 4].into_iter()), [4]);
    }
}
