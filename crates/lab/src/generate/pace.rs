//! When frames are due.

/// A sender this late has lost its processor. It continues from now rather than flood to catch up.
const FORGIVEN_NS: u64 = 2_000_000;

/// Limits a sender to a rate.
#[derive(Clone, Debug)]
pub struct SendRate {
    /// Nanoseconds between 1,024 frames; 0 for as fast as possible.
    ns_per_1024: u64,
    start_ns: u64,
    sent: u64,
    off_cpu_ns: u64,
}

/// Nanoseconds between 1,024 frames at a rate; 0 without a rate, which means as fast as possible.
#[must_use]
pub fn ns_per_1024(pps: Option<f64>) -> u64 {
    pps.map_or(0, |pps| (1.024e12 / pps.max(1e-3)).max(1.0) as u64)
}

impl SendRate {
    /// Starts now.
    #[must_use]
    pub fn new(pps: Option<f64>, now_ns: u64) -> Self {
        Self { ns_per_1024: ns_per_1024(pps), start_ns: now_ns, sent: 0, off_cpu_ns: 0 }
    }

    /// The number of frames that are due, limited to `most`.
    #[inline]
    pub fn due(&mut self, now_ns: u64, most: usize) -> usize {
        if self.ns_per_1024 == 0 {
            return most;
        }
        let passed = now_ns.saturating_sub(self.start_ns);
        let planned = (u128::from(passed) << 10) / u128::from(self.ns_per_1024) + 1;
        let behind = u64::try_from(planned).unwrap_or(u64::MAX).saturating_sub(self.sent);
        let late_ns = (u128::from(behind) * u128::from(self.ns_per_1024)) >> 10;
        if late_ns > u128::from(FORGIVEN_NS) && behind > most as u64 {
            self.start_ns += late_ns as u64;
            self.off_cpu_ns += late_ns as u64;
        }
        behind.min(most as u64) as usize
    }

    /// The total time that was skipped because the sender had no processor, ns.
    #[must_use]
    pub const fn off_cpu_ns(&self) -> u64 {
        self.off_cpu_ns
    }

    /// Counts sent frames.
    #[inline]
    pub fn note(&mut self, sent: usize) {
        self.sent += sent as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends for `time_ns` and checks every `step_ns`. Returns the number of frames sent.
    fn sent(pps: f64, time_ns: u64, step_ns: u64, most: usize) -> u64 {
        let mut pace = SendRate::new(Some(pps), 5);
        let mut now_ns = 5;
        while now_ns <= 5 + time_ns {
            let due = pace.due(now_ns, most);
            pace.note(due);
            now_ns += step_ns;
        }
        pace.sent
    }

    #[test]
    fn a_rate_is_kept() {
        assert_eq!(SendRate::new(None, 0).due(0, 64), 64);
        for (pps, step_ns) in [(1000.0, 700), (1e6, 300), (123_456.0, 20_000), (0.5, 1_000_000)] {
            let expected = pps * 2.0 + 1.0;
            let sent = sent(pps, 2_000_000_000, step_ns, 64) as f64;
            assert!((sent - expected).abs() <= expected * 1e-3 + 1.0, "{sent} of {expected}");
        }
    }

    #[test]
    fn a_pause_causes_no_flood() {
        let mut pace = SendRate::new(Some(1e6), 0);
        assert_eq!(pace.due(0, 64), 1);
        pace.note(1);
        let mut sent = 0;
        for step in 0..100 {
            let due = pace.due(50_000_000 + step * 1000, 64);
            pace.note(due);
            sent += due;
        }
        assert!(sent < 300, "{sent}");
        assert!((49_000_000..50_100_000).contains(&pace.off_cpu_ns()), "{}", pace.off_cpu_ns());
    }
}
