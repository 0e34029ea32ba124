//! Mark and sweep: finds objects that a list from the kernel no longer has.

use std::collections::HashSet;
use std::hash::Hash;

/// The objects received during a list.
#[derive(Debug)]
pub(crate) struct Sweep<K> {
    listed: HashSet<K>,
    /// Objects with a notification during the list. The notification may be newer than the list, since the
    /// kernel fills a part of the list before it sends it. The list is never newer than the object's next
    /// notification.
    changed: HashSet<K>,
}

impl<K> Default for Sweep<K> {
    fn default() -> Self {
        Self { listed: HashSet::new(), changed: HashSet::new() }
    }
}

impl<K: Eq + Hash + Copy> Sweep<K> {
    /// Records that an object has changed.
    pub(crate) fn changed(&mut self, key: K) {
        self.changed.insert(key);
    }

    /// Records a listed object; returns whether the list is valid for it.
    pub(crate) fn listed(&mut self, key: K) -> bool {
        self.listed.insert(key);
        !self.changed.contains(&key)
    }

    /// Says whether nothing has changed during the list.
    pub(crate) fn is_quiet(&self) -> bool {
        self.changed.is_empty()
    }

    /// The objects that are gone, after a complete list.
    pub(crate) fn gone(&self, known: impl Iterator<Item = K>) -> Vec<K> {
        known.filter(|key| !self.listed.contains(key) && !self.changed.contains(key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_during_a_list_win_over_it() {
        let mut sweep = Sweep::default();
        assert!(sweep.is_quiet());
        sweep.changed(1);
        assert!(!sweep.listed(1));
        assert!(sweep.listed(2));
        assert!(!sweep.is_quiet());
        sweep.changed(3);
        assert_eq!(sweep.gone([1, 2, 3, 4].into_iter()), [4]);
    }
}
