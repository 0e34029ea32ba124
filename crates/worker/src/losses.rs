//! Logs packets that were lost on their way to the kernel.

use std::fmt::Write as _;

use tollway_dataplane::verdict::DropReason;
use tollway_dataplane::worker::Worker;

/// The least time between two log lines.
const REPORT_NS: u64 = 5_000_000_000;

/// The state at the last log line.
#[derive(Default)]
pub(super) struct Losses {
    /// Whether the worker looks at the limits that all workers share; one of them does.
    looks_at_limits: bool,
    refused: Vec<u64>,
    failed: u64,
    reported_ns: Option<u64>,
}

impl Losses {
    /// Nothing lost yet at the worker of this number.
    pub(super) fn of_worker(number: usize) -> Self {
        Self { looks_at_limits: number == 0, ..Self::default() }
    }

    /// Logs what has been lost since the last line; to be called about ten times a second.
    pub(super) fn tick(&mut self, worker: &Worker, now_ns: u64) {
        if self.reported_ns.is_some_and(|reported_ns| now_ns < reported_ns + REPORT_NS) {
            return;
        }
        let mut lost = String::new();
        let limits = &worker.router().limits;
        let looked_at = if self.looks_at_limits { limits.refused().count() } else { 0 };
        self.refused.resize(looked_at, 0);
        for ((reason, now), before) in limits.refused().zip(&mut self.refused) {
            let count = now - std::mem::replace(before, now);
            if count > 0 {
                let _ = write!(
                    lost,
                    ", {count} that the kernel should have answered ({})",
                    reason.name()
                );
            }
        }
        let failed = worker.counters.drops[DropReason::PuntFailed as usize];
        let count = failed - std::mem::replace(&mut self.failed, failed);
        if count > 0 {
            let _ = write!(lost, ", {count} that the kernel did not accept");
        }
        if let Some(lost) = lost.strip_prefix(", ") {
            self.reported_ns = Some(now_ns);
            tracing::warn!(
                "packets of the kernel path were dropped: {lost}; `tollway show drops` counts them"
            );
        }
    }
}
