//! How busy a worker is, and where it runs.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use std::time::Instant;

/// The time over which the load is measured.
const LOAD_NS: u64 = 1_000_000_000;
/// In place of a number that is not known.
const NO_LOAD: u32 = u32::MAX;
const NO_PROCESSOR: usize = usize::MAX;

/// A worker's times and its processor. The worker writes them, and any thread may read them.
pub struct Activity {
    start: Instant,
    asleep_ns: AtomicU64,
    bursts: AtomicU64,
    /// In thousandths.
    load: AtomicU32,
    processor: AtomicUsize,
}

/// How a worker has spent its time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// The time that it was not asleep, in ns.
    pub busy_ns: u64,
    /// The time that it was asleep, in ns.
    pub asleep_ns: u64,
    /// Bursts with at least one packet.
    pub bursts: u64,
    /// The share of the last full second that it was not asleep, in percent; none before the first is over.
    pub load_percent: Option<f64>,
}

impl Default for Activity {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            asleep_ns: AtomicU64::new(0),
            bursts: AtomicU64::new(0),
            load: AtomicU32::new(NO_LOAD),
            processor: AtomicUsize::new(NO_PROCESSOR),
        }
    }
}

impl Activity {
    fn elapsed_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Counts the time until now as asleep: the worker begins.
    pub(crate) fn begin(&self) -> LoadMeter {
        let now_ns = self.elapsed_ns();
        self.asleep_ns.store(now_ns, Relaxed);
        LoadMeter { since_ns: now_ns, asleep_ns: now_ns }
    }

    /// Counts time that the worker has slept.
    pub(crate) fn slept(&self, ns: u64) {
        // Only the worker writes.
        self.asleep_ns.store(self.asleep_ns.load(Relaxed) + ns, Relaxed);
    }

    /// Counts a burst with at least one packet.
    pub(crate) fn count_burst(&self) {
        self.bursts.store(self.bursts.load(Relaxed) + 1, Relaxed);
    }

    /// Notes the processor that the worker is pinned to.
    pub(crate) fn set_processor(&self, processor: Option<usize>) {
        self.processor.store(processor.unwrap_or(NO_PROCESSOR), Relaxed);
    }

    /// The number of the processor that the worker is pinned to, if it is.
    #[must_use]
    pub fn processor(&self) -> Option<usize> {
        Some(self.processor.load(Relaxed)).filter(|processor| *processor != NO_PROCESSOR)
    }

    /// How the worker has spent its time. Call this on the worker's thread: elsewhere, a sleep that has not ended
    /// counts as busy.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let asleep_ns = self.asleep_ns.load(Relaxed);
        let load = Some(self.load.load(Relaxed)).filter(|load| *load != NO_LOAD);
        Usage {
            busy_ns: self.elapsed_ns().saturating_sub(asleep_ns),
            asleep_ns,
            bursts: self.bursts.load(Relaxed),
            load_percent: load.map(|load| f64::from(load) / 10.0),
        }
    }
}

/// Measures the load over one second after the other.
pub(crate) struct LoadMeter {
    since_ns: u64,
    asleep_ns: u64,
}

impl LoadMeter {
    /// To be called about ten times a second.
    pub(crate) fn tick(&mut self, activity: &Activity) {
        self.measure(activity, activity.elapsed_ns());
    }

    fn measure(&mut self, activity: &Activity, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.since_ns);
        if elapsed_ns < LOAD_NS {
            return;
        }
        let all_asleep_ns = activity.asleep_ns.load(Relaxed);
        let asleep_ns = all_asleep_ns.saturating_sub(self.asleep_ns).min(elapsed_ns);
        let load = (elapsed_ns - asleep_ns).saturating_mul(1000) / elapsed_ns;
        activity.load.store(u32::try_from(load).unwrap_or(1000), Relaxed);
        (self.since_ns, self.asleep_ns) = (now_ns, all_asleep_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_is_that_of_the_last_full_second() {
        let activity = Activity::default();
        let mut meter = LoadMeter { since_ns: 0, asleep_ns: 0 };
        let mut load_after = |asleep_ns, now_ns| {
            activity.slept(asleep_ns);
            meter.measure(&activity, now_ns);
            activity.usage().load_percent
        };
        assert_eq!(load_after(500_000_000, 900_000_000), None);
        assert_eq!(load_after(100_000_000, 1_000_000_000), Some(40.0));
        assert_eq!(load_after(0, 1_900_000_000), Some(40.0));
        assert_eq!(load_after(0, 2_000_000_000), Some(100.0));
        assert_eq!(load_after(1_100_000_000, 3_100_000_000), Some(0.0));
    }

    #[test]
    fn the_time_before_the_begin_is_asleep() {
        let activity = Activity::default();
        std::thread::sleep(std::time::Duration::from_millis(5));
        let _ = activity.begin();
        let usage = activity.usage();
        assert!(usage.asleep_ns >= 5_000_000, "{usage:?}");
        assert!(usage.busy_ns < usage.asleep_ns + 1_000_000_000, "{usage:?}");
        assert_eq!(activity.processor(), None);
        activity.set_processor(Some(3));
        assert_eq!(activity.processor(), Some(3));
    }
}
