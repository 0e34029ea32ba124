//! The counts of firewall rules, summed over workers and carried from one generation of rules to the next.

use std::collections::VecDeque;

use crate::stages::filter::{Count, Filter};

/// The counts by counter number. A worker adds its own now and then, and before it takes other rules.
#[derive(Debug, Default)]
pub(crate) struct RuleCounts {
    /// The number of the rules that the counts are of.
    generation: u64,
    counts: Vec<Count>,
    /// For the last generations, oldest first: the numbers of the next generation's counters in it. Workers may
    /// still count by all but the newest.
    steps: VecDeque<Vec<Option<u32>>>,
    /// For each generation that workers count by, oldest first: the generation and the number of workers.
    workers: VecDeque<(u64, usize)>,
}

impl RuleCounts {
    pub(crate) fn new(filter: Option<&Filter>) -> Self {
        Self { counts: filter.map(Filter::starts).unwrap_or_default(), ..Self::default() }
    }

    /// The counts of the newest rules.
    pub(crate) fn totals(&self) -> &[Count] {
        &self.counts
    }

    /// Continues with other rules: counters that `carried` names continue, others begin as the rules say.
    pub(crate) fn renew(
        &mut self,
        generation: u64,
        filter: Option<&Filter>,
        carried: &[Option<u32>],
    ) {
        let mut counts = filter.map(Filter::starts).unwrap_or_default();
        for (count, old) in counts.iter_mut().zip(carried) {
            if let Some(old) = old.and_then(|old| self.counts.get(old as usize)) {
                *count = *old;
            }
        }
        self.counts = counts;
        self.generation = generation;
        self.steps.push_back(carried.to_vec());
        self.trim();
    }

    /// A worker counts by these rules from now on.
    pub(crate) fn join(&mut self, generation: u64) {
        let found = self.workers.iter_mut().find(|(joined, _)| *joined == generation);
        match found {
            Some((_, workers)) => *workers += 1,
            // Workers never join older rules than others have.
            None => self.workers.push_back((generation, 1)),
        }
    }

    /// Adds a worker's counts, which then counts by these rules no more.
    pub(crate) fn leave(&mut self, generation: u64, counts: &[Count]) {
        self.add(generation, counts);
        for (joined, workers) in &mut self.workers {
            *workers -= usize::from(*joined == generation);
        }
        self.workers.retain(|(_, workers)| *workers > 0);
        self.trim();
    }

    /// Adds counts by the rules of a generation that a worker has joined.
    pub(crate) fn add(&mut self, generation: u64, counts: &[Count]) {
        let behind = (self.generation - generation) as usize;
        let first = self.steps.len().saturating_sub(behind);
        let mut moved = counts.to_vec();
        for carried in self.steps.iter().skip(first) {
            let old = |old: &Option<u32>| old.and_then(|old| moved.get(old as usize)).copied();
            moved = carried.iter().map(|number| old(number).unwrap_or_default()).collect();
        }
        for (total, count) in self.counts.iter_mut().zip(moved) {
            total.packets += count.packets;
            total.bytes += count.bytes;
        }
    }

    /// Forgets the steps that no worker's counts take any more.
    fn trim(&mut self) {
        let oldest = self.workers.iter().map(|(joined, _)| *joined).min();
        let behind = self.generation - oldest.unwrap_or(self.generation).min(self.generation);
        while self.steps.len() > behind as usize {
            self.steps.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(packets: &[u64]) -> Vec<Count> {
        packets.iter().map(|packets| Count { packets: *packets, bytes: 10 * packets }).collect()
    }

    #[test]
    fn counts_of_a_worker_that_is_behind_reach_the_rules_that_continue() {
        let rules = |number: usize| Filter::new(number, Vec::new());
        let mut all = RuleCounts::new(Some(&rules(2)));
        all.join(0);
        all.join(0);
        all.add(0, &counts(&[1, 2]));
        all.renew(1, Some(&rules(3)), &[Some(1), None, Some(0)]);
        all.renew(2, Some(&rules(1)), &[Some(2)]);
        assert_eq!(all.totals(), counts(&[1]));
        all.leave(0, &counts(&[100, 200]));
        all.join(2);
        assert_eq!(all.totals(), counts(&[101]));
        all.add(2, &counts(&[1000]));
        assert_eq!(all.steps.len(), 2, "the other worker still counts by the first rules");
        all.leave(0, &counts(&[10_000, 0]));
        assert_eq!(all.totals(), counts(&[11_101]));
        assert!(all.steps.is_empty());
        all.renew(3, None, &[]);
        all.leave(2, &counts(&[5]));
        assert!(all.totals().is_empty() && all.workers.is_empty() && all.steps.is_empty());
    }

    #[test]
    fn rules_begin_at_their_initial_counts() {
        let mut rules = Filter::new(2, Vec::new());
        rules.begin_at(counts(&[7, 8]));
        let mut all = RuleCounts::new(Some(&rules));
        assert_eq!(all.totals(), counts(&[7, 8]));
        all.renew(1, Some(&rules), &[None, Some(0)]);
        assert_eq!(all.totals(), counts(&[7, 7]));
    }
}
