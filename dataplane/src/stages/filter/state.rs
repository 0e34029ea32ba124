//! A worker's state beside the rules: counters, limits, marks, and room for its lookups.

use super::build::MOST_DIMS;
use super::detour::Detoured;
use super::flows::Flows;
use super::{Filter, Limit, LogQueue, POINTS, PolicyRoute, Reject, VERSIONS, cache};
use crate::burst::{BURST, Lanes};

/// Packets and their bytes of layer 3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// The state of one worker for a [`Filter`].
#[derive(Clone, Debug)]
pub struct State {
    /// Counts by counter number.
    pub counts: Vec<Count>,
    /// The time in ns, for limits.
    pub now_ns: u64,
    /// The burst's marks.
    pub mark: [u32; BURST],
    /// The notifications to the senders of packets that rules reject; garbage for other packets.
    pub reject: [Reject; BURST],
    /// Packets of the burst that rules reroute.
    pub(super) policy_routed: Lanes,
    /// Their targets; garbage for other packets.
    pub(super) policy_route: [PolicyRoute; BURST],
    /// Packets that rules have logged.
    pub log: LogQueue,
    /// Packets of the burst that are forwarded off the path.
    pub(super) detoured: Detoured,
    /// Says whether the kernel has the same rules and evaluates them for packets that exit the path. If
    /// so, this filter does nothing for them.
    pub(crate) kernel_has_rules: bool,
    /// The original header starts of the burst's packets into which rules have written.
    pub(super) written: Vec<(usize, [u8; HEAD])>,
    /// Counts of the burst's packets that the kernel may count as well: lane, counter and bytes.
    counted: Vec<(usize, u32, u64)>,
    buckets: Vec<Bucket>,
    pub(super) room: Box<Room>,
}

/// Bytes of an IP header that rules may write into.
pub(super) const HEAD: usize = 12;

/// Where the words that are gathered at once begin, in bytes behind the IP header's start.
pub(super) const GATHERED_FROM: usize = 8;
/// The number of these words: TTL and protocol, addresses, ports.
pub(super) const GATHERED: usize = 4;

/// Scratch memory of lookups for the packets of a burst; garbage for those that do not take part.
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

/// The content of a limit's bucket in units times its period, and the time of that content.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    held: u128,
    since_ns: u64,
}

impl State {
    /// Creates the state for no rules.
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
            policy_routed: Lanes::NONE,
            policy_route: [PolicyRoute::Not; BURST],
            log: LogQueue::default(),
            detoured: [Lanes::NONE; 2],
            kernel_has_rules: false,
            written: Vec::new(),
            counted: Vec::new(),
            buckets: Vec::new(),
            room: Box::new(room),
        }
    }

    /// Starts over for other rules; log entries that were not taken yet are lost. `carried` has for
    /// each of their counters the previous number if its count continues. Other counters begin with the
    /// rules' initial values.
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

    /// Resets the state of the previous burst.
    #[inline(always)]
    pub(super) fn begin(&mut self) {
        self.mark = [0; BURST];
        self.policy_routed = Lanes::NONE;
        self.written.clear();
        self.counted.clear();
    }

    /// The original start of a packet's header, if rules have written into it.
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

    /// Takes back a packet's counts: the kernel's rules count it.
    pub(crate) fn uncount(&mut self, lane: usize) {
        for (_, counter, bytes) in self.counted.iter().filter(|(counted, ..)| *counted == lane) {
            if let Some(count) = self.counts.get_mut(*counter as usize) {
                count.packets = count.packets.saturating_sub(1);
                count.bytes = count.bytes.saturating_sub(*bytes);
            }
        }
    }

    /// Says whether `units` more units are within a limit; if so, uses them.
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

    /// How many requests of `each` units are within a limit, at each of these times.
    fn within(limit: Limit, each: u64, times: &[u64]) -> Vec<usize> {
        let mut state = State { now_ns: 77 * S, ..State::new() };
        state.renew(&Filter::new(0, vec![limit]), &[]);
        let mut at = |time: &u64| {
            state.now_ns = 77 * S + time;
            (0..1000).filter(|_| state.take(0, &limit, each)).count()
        };
        times.iter().map(&mut at).collect()
    }

    /// `limit rate 10/second` of nft, with its default burst: `tokens_max` is that burst.
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
        // A request that can never fit uses nothing up.
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
