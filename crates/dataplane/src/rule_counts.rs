//! The counts of firewall rules, summed over workers and carried from one generation of rules to the next.

use std::collections::{BTreeMap, VecDeque};

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
    /// The number of workers by the generation that they count by, if there are any.
    workers: BTreeMap<u64, usize>,
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
        for (count, old) in counts.iter_mut().zip(carry(&self.counts, carried)) {
            *count = old.unwrap_or(*count);
        }
        self.counts = counts;
        self.generation = generation;
        self.steps.push_back(carried.to_vec());
        self.trim();
    }

    /// A worker counts by these rules from now on.
    pub(crate) fn join(&mut self, generation: u64) {
        *self.workers.entry(generation).or_default() += 1;
    }

    /// Adds a worker's counts, which then counts by these rules no more.
    pub(crate) fn leave(&mut self, generation: u64, counts: &[Count]) {
        self.add(generation, counts);
        self.workers.entry(generation).and_modify(|workers| *workers -= 1);
        self.workers.retain(|_, workers| *workers > 0);
        self.trim();
    }

    /// Adds counts by the rules of a generation that a worker has joined.
    pub(crate) fn add(&mut self, generation: u64, counts: &[Count]) {
        let behind = (self.generation - generation) as usize;
        let first = self.steps.len().saturating_sub(behind);
        let mut moved = counts.to_vec();
        for carried in self.steps.iter().skip(first) {
            moved = carry(&moved, carried).map(Option::unwrap_or_default).collect();
        }
        for (total, count) in self.counts.iter_mut().zip(moved) {
            total.packets += count.packets;
            total.bytes += count.bytes;
        }
    }

    /// Forgets the steps that no worker's counts take any more.
    fn trim(&mut self) {
        let oldest = self.workers.keys().next().copied().unwrap_or(self.generation);
        let behind = self.generation - oldest;
        while self.steps.len() > behind as usize {
            self.steps.pop_front();
        }
    }
}

/// The counts of earlier rules that continue, by the number that the counter has in the next rules.
fn carry<'a>(
    counts: &'a [Count],
    carried: &'a [Option<u32>],
) -> impl Iterator<Item = Option<Count>> + use<'a> {
    carried.iter().map(|old| counts.get((*old)? as usize).copied())
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
