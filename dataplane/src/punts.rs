//! How many packets may be punted into the kernel: each costs it several microseconds.

use crate::verdict::PuntReason;

/// Packets a second for each reason.
pub(crate) const PER_SECOND: u64 = 10_000;
/// Packets at once for each reason.
pub(crate) const BURST: u64 = 1_000;

/// How many times as many there may be where the kernel is to carry the traffic, and not only to answer it: a
/// worker that does nothing else can hand over about that many.
const CARRIED: u64 = 20;

/// How many times the usual rate a reason has.
const fn times(reason: Option<PuntReason>) -> u64 {
    match reason {
        Some(
            PuntReason::KernelLink
            | PuntReason::KernelRoute
            | PuntReason::KernelRule
            | PuntReason::KernelSource
            | PuntReason::Redirect
            | PuntReason::FilterUnsupported,
        ) => CARRIED,
        _ => 1,
    }
}

/// One bucket of tokens for each reason, and one for what is delivered.
#[derive(Debug)]
pub(crate) struct Limits {
    /// The time from which on a bucket is full, ns.
    full_at: [u64; PuntReason::COUNT + 1],
}

impl Limits {
    pub(crate) const fn new() -> Self {
        Self { full_at: [0; PuntReason::COUNT + 1] }
    }

    /// Whether one more packet may be handed over; `reason` is none for one that is delivered.
    pub(crate) fn allow(&mut self, reason: Option<PuntReason>, now_ns: u64) -> bool {
        let index = reason.map_or(PuntReason::COUNT, |reason| reason as usize);
        let full_at = self.full_at[index].max(now_ns);
        let (per_second, burst) = (PER_SECOND * times(reason), BURST * times(reason));
        // Nanoseconds that one packet costs.
        let interval_ns = 1_000_000_000 / per_second;
        if full_at - now_ns > interval_ns * (burst - 1) {
            return false;
        }
        self.full_at[index] = full_at + interval_ns;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_burst_and_then_its_rate() {
        const INTERVAL_NS: u64 = 1_000_000_000 / PER_SECOND;
        let mut limits = Limits::new();
        let mut count = |reason, now| (0..3 * BURST).filter(|_| limits.allow(reason, now)).count();
        assert_eq!(count(Some(PuntReason::NoRoute), 5), BURST as usize);
        assert_eq!(count(None, 5), BURST as usize, "a bucket of its own");
        assert_eq!(count(Some(PuntReason::NoRoute), 5 + 10 * INTERVAL_NS), 10);
        assert_eq!(count(Some(PuntReason::NoRoute), 3_000_000_000), BURST as usize);
    }

    #[test]
    fn what_the_kernel_carries_has_more() {
        let mut limits = Limits::new();
        let mut count = |reason, now| {
            (0..3 * CARRIED * BURST).filter(|_| limits.allow(Some(reason), now)).count() as u64
        };
        for reason in [PuntReason::KernelRoute, PuntReason::Redirect] {
            assert_eq!(count(reason, 5), CARRIED * BURST);
            assert_eq!(count(reason, 5 + 1_000_000), CARRIED * PER_SECOND / 1000);
        }
        assert_eq!(count(PuntReason::Martian, 5), BURST);
    }
}
