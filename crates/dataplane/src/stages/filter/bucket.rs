//! The buckets of the rules' limits. Workers share them with the rules, so that a limit holds for all
//! workers together.
//!
//! Kernel equivalent: `nft_limit_eval` (`net/netfilter/nft_limit.c`), which takes a spinlock for each
//! packet that reaches the limit.

use std::sync::PoisonError;

use super::Limit;
use crate::sync::Mutex;

/// A limit and its bucket, which begins full.
#[derive(Debug)]
pub(super) struct SharedLimit {
    pub(super) limit: Limit,
    bucket: Mutex<Bucket>,
}

/// The content of a limit's bucket in units times its period, and the time of that content.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    held: u128,
    since_ns: u64,
}

impl SharedLimit {
    pub(super) fn new(limit: Limit) -> Self {
        // It is full at whatever time comes first.
        Self { limit, bucket: Mutex::new(Bucket { held: full(&limit), since_ns: 0 }) }
    }

    /// Says whether `units` more units are within the limit; if so, uses them.
    ///
    /// All workers count `now_ns` from one moment, but one worker's may be older than another's.
    pub(super) fn take(&self, units: u64, now_ns: u64) -> bool {
        let wanted = u128::from(units) * u128::from(self.limit.period_ns);
        // The bucket is whole at every moment, so a panic elsewhere cannot have damaged it.
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.fill(&self.limit, now_ns);
        let within = bucket.held >= wanted;
        if within {
            bucket.held -= wanted;
        }
        within
    }
}

impl Bucket {
    /// Adds what has come in until now. An old `now_ns` leaves the time as it is: else the same time
    /// would count twice.
    fn fill(&mut self, limit: &Limit, now_ns: u64) {
        let passed = now_ns.saturating_sub(self.since_ns);
        let came = u128::from(passed) * u128::from(limit.rate);
        self.held = self.held.saturating_add(came).min(full(limit));
        self.since_ns = self.since_ns.max(now_ns);
    }
}

fn full(limit: &Limit) -> u128 {
    u128::from(limit.burst) * u128::from(limit.period_ns)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::super::LimitUnit;
    use super::*;

    const S: u64 = 1_000_000_000;

    /// How many requests of `each` units are within a limit, at each of these times.
    fn within(limit: Limit, each: u64, times: &[u64]) -> Vec<usize> {
        let shared = SharedLimit::new(limit);
        let at = |time: &u64| (0..1000).filter(|_| shared.take(each, 77 * S + time)).count();
        times.iter().map(at).collect()
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

    #[test]
    fn an_old_clock_neither_refuses_nor_counts_time_twice() {
        let limit = Limit { rate: 10, period_ns: S, burst: 5, unit: LimitUnit::Packets };
        assert_eq!(within(limit, 2, &[S, 0, S, 0, S]), [2, 0, 0, 0, 0]);
        let shared = SharedLimit::new(limit);
        assert!(shared.take(1, 9 * S));
        assert_eq!((0..9).filter(|_| shared.take(1, 5)).count(), 4);
        assert!(!shared.take(1, 9 * S));
        assert!(shared.take(1, 9 * S + S / 10));
    }

    #[test]
    fn the_greatest_numbers_do_not_overflow() {
        let limit =
            Limit { rate: u64::MAX, period_ns: u64::MAX, burst: u64::MAX, unit: LimitUnit::Bytes };
        let shared = SharedLimit::new(limit);
        assert!(shared.take(u64::MAX, 0));
        assert!(!shared.take(1, 0));
        assert!(shared.take(u64::MAX, u64::MAX));
    }

    #[test]
    fn workers_have_one_limit_together() {
        const STEP_NS: u64 = S / 1000;
        let steps = if cfg!(miri) { 20 } else { 5_000 };
        let shared = SharedLimit::new(Limit {
            rate: 10_000,
            period_ns: S,
            burst: 300,
            unit: LimitUnit::Packets,
        });
        let drain = |now_ns| {
            let mut count = 0;
            while shared.take(1, now_ns) {
                count += 1;
            }
            count
        };
        assert_eq!(drain(7 * S), 300);
        // Each worker's clock differs from the others' at every step.
        let work = |late_ns: u64| -> u64 {
            let before: u64 = (1..=steps).map(|step| drain(7 * S + step * STEP_NS - late_ns)).sum();
            before + drain(7 * S + steps * STEP_NS)
        };
        let total: u64 = thread::scope(|scope| {
            let workers = [0, 40, 3 * STEP_NS].map(|late_ns| scope.spawn(move || work(late_ns)));
            workers.into_iter().map(|worker| worker.join().expect("no panic")).sum()
        });
        assert_eq!(total, steps * 10);
    }
}
