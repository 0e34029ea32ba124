//! Flows that enter together.

use tollway_dataplane::burst::BURST;

use super::entry::Key;
use crate::flows::{Flow, Flow4Key, Flow6Key};

/// Flows of one family that enter together.
pub(super) struct Batch<K> {
    keys: Vec<K>,
    flows: Vec<Flow>,
}

impl<K> Batch<K> {
    pub(super) fn new() -> Self {
        Self { keys: Vec::with_capacity(BURST), flows: Vec::with_capacity(BURST) }
    }

    pub(super) fn len(&self) -> usize {
        self.flows.len()
    }

    fn put(&mut self, key: K, flow: Flow) {
        self.keys.push(key);
        self.flows.push(flow);
    }

    fn clear(&mut self) {
        self.keys.clear();
        self.flows.clear();
    }

    /// Passes the batch to `take` and clears it; returns how many flows were entered.
    pub(super) fn empty(&mut self, take: impl FnOnce(&[K], &[Flow]) -> usize) -> usize {
        if self.keys.is_empty() {
            return 0;
        }
        let done = take(&self.keys, &self.flows);
        self.clear();
        done
    }
}

/// Adds a flow to the batch of its family.
pub(super) fn put(v4: &mut Batch<Flow4Key>, v6: &mut Batch<Flow6Key>, key: Key, flow: Flow) {
    match key {
        Key::V4(key) => v4.put(key, flow),
        Key::V6(key) => v6.put(key, flow),
    }
}
