//! When threads do their periodic work: all at the same moments.
//!
//! A thread that wakes up takes the processor from somebody, whose caches and place it disturbs: 200 wake-ups a second,
//! each of microseconds, took 12% of the rate of a TCP connection whose ends used both processors of a machine. So
//! periods are multiples of each other, and each begins when the monotonic clock (`CLOCK_MONOTONIC`) is at a multiple of
//! it: threads whose periods begin together wake up together.

use std::time::{Duration, Instant};

use crate::sys;

/// How often the kernel's state is read that it does not notify of. A change counts within 100 ms.
pub const POLL: Duration = Duration::from_millis(80);

/// The time until the next period begins; never zero.
pub fn until_next(period: Duration) -> Duration {
    let now_ns = sys::monotonic_time().as_nanos();
    // Less than a period, of which 64 bits hold centuries.
    period - Duration::from_nanos((now_ns % period.as_nanos()) as u64)
}

/// When the next period begins.
pub fn next(period: Duration) -> Instant {
    let left = until_next(period);
    Instant::now() + left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_begin_together() {
        let periods = [20, 40, 80, 240].map(Duration::from_millis);
        for period in periods {
            let before = sys::monotonic_time();
            let left = until_next(period);
            let after = sys::monotonic_time();
            assert!(!left.is_zero() && left <= period);
            // It has read the clock between the two.
            let number = |begin: Duration| begin.as_nanos() / period.as_nanos();
            assert_eq!(number(after + left), number(before + left - Duration::from_nanos(1)) + 1);
        }
    }
}
