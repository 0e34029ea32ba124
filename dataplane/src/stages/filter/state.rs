//! What a worker keeps beside the rules: counts, limits, marks, and room for its lookups.

use super::build::MOST_DIMS;
use super::detour::Detoured;
use super::flows::Flows;
use super::{Filter, Limit, LogQueue, POINTS, Reject, Steer, VERSIONS, cache};
use crate::burst::{BURST, Lanes};

/// Packets and their bytes of layer 3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What one worker keeps for a [`Filter`].
#[derive(Clone, Debug)]
pub struct State {
    /// Counts by the counters' numbers.
    pub counts: Vec<Count>,
    /// The time, ns, for limits.
    pub now_ns: u64,
    /// The burst's marks.
    pub mark: [u32; BURST],
    /// What the senders of the burst's packets are told that rules reject; rubbish for the others.
    pub reject: [Reject; BURST],
    /// Packets of the burst that rules send another way than their route.
    pub(super) steered: Lanes,
    /// Where; rubbish for the others.
    pub(super) steer: [Steer; BURST],
    /// Packets that rules have logged.
    pub log: LogQueue,
    /// Packets of the burst that are forwarded off the road.
    pub(super) detoured: Detoured,
    /// The kernel has the same rules, and asks them for what leaves the road: nothing is done for it here.
    pub(crate) kernel_has_rules: bool,
    /// How the headers of the burst's packets began into which rules have written, the first time first.
    pub(super) written: Vec<(usize, [u8; HEAD])>,
    /// Where packets of the burst have counted that the kernel may count as well, and their bytes.
    counted: Vec<(usize, u32, u64)>,
    buckets: Vec<Bucket>,
    pub(super) room: Box<Room>,
}

/// Bytes of an IP header that rules may write into.
pub(super) const HEAD: usize = 12;

/// Where the words begin that are read all at once, bytes behind the IP header's start.
pub(super) const GATHERED_FROM: usize = 8;
/// How many there are: TTL and protocol, addresses, ports.
pub(super) const GATHERED: usize = 4;

/// What lookups write down for the packets of a burst; rubbish for those that do not take part.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Room {
    /// Values of a field.
    pub(super) value: [u32; BURST],
    /// Keys of a trie.
    pub(super) key: [u64; BURST],
    /// Words of the IP header from [`GATHERED_FROM`] on.
    pub(super) word: [[u32; BURST]; GATHERED],
    /// Sets of one word, or blocks in which rules may match.
    pub(super) set: [u64; BURST],
    /// The first rule that matches.
    pub(super) first: [u32; BURST],
    /// Combinations of classes for each point and version, see [`super::cache`].
    pub(super) caches: [Vec<u64>; POINTS * VERSIONS],
    /// Flows for each point and version, see [`super::flows`].
    pub(super) flows: [Flows; POINTS * VERSIONS],
    /// Classes, field by field.
    pub(super) class: [[u32; BURST]; MOST_DIMS],
}

/// What is left of a limit, in units times its period, and when that was so.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    held: u128,
    since_ns: u64,
}

impl State {
    /// For no rules.
    #[must_use]
    pub fn new() -> Self {
        let room = Room {
            value: [0; BURST],
            key: [0; BURST],
            word: [[0; BURST]; GATHERED],
            set: [0; BURST],
            first: [0; BURST],
            caches: Default::default(),
            flows: Default::default(),
            class: [[0; BURST]; MOST_DIMS],
        };
        Self {
            counts: Vec::new(),
            now_ns: 0,
            mark: [0; BURST],
            reject: [Reject::TcpReset; BURST],
            steered: Lanes::NONE,
            steer: [Steer::Not; BURST],
            log: LogQueue::default(),
            detoured: [Lanes::NONE; 2],
            kernel_has_rules: false,
            written: Vec::new(),
            counted: Vec::new(),
            buckets: Vec::new(),
            room: Box::new(room),
        }
    }

    /// Begins anew for other rules; what is logged and not taken by then is gone. `carried` has for each of
    /// their counters the number that it had before, where its count is to go on; others begin with what
    /// the rules say.
    pub fn renew(&mut self, filter: &Filter, carried: &[Option<u32>]) {
        let before = std::mem::take(&mut self.counts);
        let count = |number: usize| {
            let old = carried.get(number).copied().flatten()?;
            before.get(old as usize).copied()
        };
        let starts = filter.counters.iter().enumerate();
        self.counts = starts.map(|(number, start)| count(number).unwrap_or(*start)).collect();
        for (index, flows) in self.room.flows.iter_mut().enumerate() {
            *flows = if filter.decides_by_flow(index) { Flows::new() } else { Flows::default() };
        }
        for (index, cache) in self.room.caches.iter_mut().enumerate() {
            *cache = if filter.keeps(index) { cache::room() } else { Vec::new() };
        }
        self.log = LogQueue::new(filter.logs());
        let full = |limit: &Limit| Bucket { held: full(limit), since_ns: self.now_ns };
        self.buckets = filter.limits.iter().map(full).collect();
    }

    /// Forgets the burst before.
    #[inline(always)]
    pub(super) fn begin(&mut self) {
        self.mark = [0; BURST];
        self.steered = Lanes::NONE;
        self.written.clear();
        self.counted.clear();
    }

    /// How the header of a packet of the burst began that rules have written into.
    #[must_use]
    pub fn received_head(&self, lane: usize) -> Option<&[u8; HEAD]> {
        self.written.iter().find(|(written, _)| *written == lane).map(|(_, head)| head)
    }

    /// Counts a packet of the burst.
    #[inline]
    pub(super) fn count(&mut self, lane: usize, counter: u32, bytes: u64) {
        if let Some(count) = self.counts.get_mut(counter as usize) {
            count.packets += 1;
            count.bytes += bytes;
            if self.kernel_has_rules {
                self.counted.push((lane, counter, bytes));
            }
        }
    }

    /// Takes back what a packet of the burst has counted: the kernel's rules count it.
    pub(crate) fn uncount(&mut self, lane: usize) {
        for (_, counter, bytes) in self.counted.iter().filter(|(counted, ..)| *counted == lane) {
            if let Some(count) = self.counts.get_mut(*counter as usize) {
                count.packets = count.packets.saturating_sub(1);
                count.bytes = count.bytes.saturating_sub(*bytes);
            }
        }
    }

    /// Whether so many units more are within a limit; if so, they are used.
    pub(super) fn take(&mut self, number: u32, limit: &Limit, units: u64) -> bool {
        let Some(bucket) = self.buckets.get_mut(number as usize) else { return false };
        let passed = self.now_ns.saturating_sub(bucket.since_ns);
        let held = bucket.held + u128::from(passed) * u128::from(limit.rate);
        bucket.held = held.min(full(limit));
        bucket.since_ns = self.now_ns;
        let wanted = u128::from(units) * u128::from(limit.period_ns);
        let within = bucket.held >= wanted;
        if within {
            bucket.held -= wanted;
        }
        within
    }
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

fn full(limit: &Limit) -> u128 {
    u128::from(limit.burst) * u128::from(limit.period_ns)
}

#[cfg(test)]
mod tests {
    use super::super::LimitUnit;
    use super::*;

    const S: u64 = 1_000_000_000;

    /// How many units at a time of some are within a limit, at each of these times.
    fn within(limit: Limit, each: u64, times: &[u64]) -> Vec<usize> {
        let mut state = State { now_ns: 77 * S, ..State::new() };
        state.renew(&Filter::new(0, vec![limit]), &[]);
        let mut at = |time: &u64| {
            state.now_ns = 77 * S + time;
            (0..1000).filter(|_| state.take(0, &limit, each)).count()
        };
        times.iter().map(&mut at).collect()
    }

    /// `limit rate 10/second` of nft, with the burst that it has by default: `tokens_max` is that burst.
    #[test]
    fn packets_begin_with_a_whole_burst_and_come_back_one_by_one() {
        let limit = Limit { rate: 10, period_ns: S, burst: 5, unit: LimitUnit::Packets };
        let times = [0, S / 10 - 1, S / 10, S / 5, S, 100 * S];
        assert_eq!(within(limit, 1, &times), [5, 0, 1, 1, 5, 5]);
    }

    /// `limit rate 1000 bytes/second burst 500 bytes` of nft: `tokens_max` is worth 1500 bytes.
    #[test]
    fn bytes_are_had_whole_or_not_at_all() {
        let limit = Limit { rate: 1000, period_ns: S, burst: 1500, unit: LimitUnit::Bytes };
        assert_eq!(within(limit, 700, &[0, S / 2, S, 9 * S]), [2, 0, 1, 2]);
        // What does not fit at all uses nothing up.
        assert_eq!(within(limit, 1501, &[0, S, 100 * S]), [0, 0, 0]);
    }

    /// `-m limit --limit 3/hour --limit-burst 2` of iptables: `avg` is 12,000,000 ten-thousandths.
    #[test]
    fn iptables_gives_credit_in_the_same_way() {
        let avg_ns = 12_000_000 * 100_000;
        let limit = Limit { rate: 1, period_ns: avg_ns, burst: 2, unit: LimitUnit::Packets };
        let times = [0, avg_ns - 1, avg_ns, 3 * avg_ns - 1, 3 * avg_ns, 9 * avg_ns];
        assert_eq!(within(limit, 1, &times), [2, 0, 1, 1, 1, 2]);
    }
}
