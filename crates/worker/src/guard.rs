//! Checks whether the rules of a configuration were evaluated for every packet. While a worker or the heartbeat gets
//! no processor for too long, the XDP program drops packets that are for it, or the kernel forwards them unfiltered
//! ([`Ruled`]). The guard counts and logs both.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollway_dataplane::counters::Counters;
use tollway_dataplane::id::PortId;
use tollway_dataplane::verdict::DropReason;

use tollway_xdp::counts::PassReason;
use tollway_xdp::{CountMap, PortCounts, Ruled, State};

/// With a heartbeat older than this, the worker counts as absent: `STALE_NS` of bpf/maps.h.
const STALE_NS: u64 = 30_000_000;
/// The least time between two log lines about rules that were not evaluated.
const REPORT_NS: u64 = 5_000_000_000;

/// Whether the rules are evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// For every packet, as far as is known.
    Evaluated,
    /// Not for every packet since the last log line. Has the longest pause, and the time of the next line.
    Lapsed { longest_ns: u64, report_at_ns: u64 },
}

impl Phase {
    /// Records that a thread was paused for `pause_ns`.
    fn lapse(self, pause_ns: u64, now_ns: u64, reported_ns: Option<u64>) -> Self {
        match self {
            Self::Evaluated => {
                let report_at_ns =
                    reported_ns.map_or(now_ns, |reported_ns| reported_ns + REPORT_NS);
                Self::Lapsed { longest_ns: pause_ns, report_at_ns }
            }
            Self::Lapsed { longest_ns, report_at_ns } => {
                Self::Lapsed { longest_ns: longest_ns.max(pause_ns), report_at_ns }
            }
        }
    }
}

/// What the XDP programs of all ports did with packets while the rules could not be evaluated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Unevaluated {
    dropped: u64,
    forwarded: u64,
}

/// Watches the ports for all workers.
pub(super) struct Guard {
    state: State,
    counts: CountMap,
    last: Vec<PortCounts>,
    /// The longest pause of a worker or of the heartbeat since the last tick, in ns.
    longest_pause_ns: Arc<AtomicU64>,
    phase: Phase,
    unevaluated: Unevaluated,
    reported_ns: Option<u64>,
}

impl Guard {
    /// Watches the first `ports` ports. Their threads report pauses in `longest_pause_ns`.
    pub(super) fn new(
        state: State,
        counts: CountMap,
        ports: usize,
        longest_pause_ns: Arc<AtomicU64>,
    ) -> Self {
        let last = (0..ports).map(|port| read(&counts, port)).collect();
        let (phase, unevaluated) = (Phase::Evaluated, Unevaluated::default());
        Self { state, counts, last, longest_pause_ns, phase, unevaluated, reported_ns: None }
    }

    /// Counts dropped packets, and logs them when that is due; to be called about ten times a
    /// second.
    pub(super) fn tick(&mut self, counters: &mut Counters, now_ns: u64) {
        let ruled = self.state.ruled();
        let pause_ns = self.longest_pause_ns.swap(0, Ordering::Relaxed);
        if pause_ns > STALE_NS && ruled != Ruled::Not {
            self.phase = self.phase.lapse(pause_ns, now_ns, self.reported_ns);
        }
        if ruled == Ruled::Not && self.phase == Phase::Evaluated {
            return;
        }
        self.count(counters);
        if let Phase::Lapsed { longest_ns, report_at_ns } = self.phase
            && now_ns >= report_at_ns
        {
            if self.unevaluated != Unevaluated::default() {
                report(ruled, Duration::from_nanos(longest_ns), self.unevaluated);
            }
            (self.phase, self.unevaluated, self.reported_ns) =
                (Phase::Evaluated, Unevaluated::default(), Some(now_ns));
        }
    }

    /// Counts and logs a last time: the worker ends, and from then on the kernel forwards.
    pub(super) fn end(&mut self, counters: &mut Counters) {
        if self.state.ruled() != Ruled::Not {
            self.count(counters);
            tracing::warn!(
                "the router stops: the kernel forwards from now on, unless another Tollway takes over, and does \
                 not know the configuration's rules"
            );
        }
    }

    /// Adds what the XDP programs have dropped to the worker's counts.
    fn count(&mut self, counters: &mut Counters) {
        for (port, last) in self.last.iter_mut().enumerate() {
            let now = read(&self.counts, port);
            // The counters of a reloaded program begin at zero.
            let before = if now.closed_packets < last.closed_packets {
                PortCounts::default()
            } else {
                *last
            };
            let dropped = now.closed_packets - before.closed_packets;
            if let Some(rx) = counters.rx.get_mut(port) {
                rx.add(dropped, now.closed_bytes.saturating_sub(before.closed_bytes));
            }
            counters.drops[DropReason::FailClosed as usize] += dropped;
            self.unevaluated.dropped += dropped;
            let stale = |counts: &PortCounts| counts.passed(PassReason::Stale);
            self.unevaluated.forwarded += stale(&now).saturating_sub(stale(&before));
            *last = now;
        }
    }
}

fn read(counts: &CountMap, port: usize) -> PortCounts {
    counts.port(PortId(port as u16)).unwrap_or_default()
}

fn report(ruled: Ruled, longest: Duration, Unevaluated { dropped, forwarded }: Unevaluated) {
    let longest = longest.as_millis();
    let why = format!(
        "Tollway had no processor for {longest} ms, so the configuration's rules could not be evaluated"
    );
    match ruled {
        Ruled::FailOpen => tracing::warn!(
            "{why}: the kernel forwarded {forwarded} packets without them (fail = \"open\")"
        ),
        Ruled::Not | Ruled::FailClosed => {
            tracing::warn!("{why}: {dropped} packets were dropped (fail = \"closed\")");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lapses_between_two_lines_are_reported_together() {
        let first = Phase::Evaluated.lapse(30, 1000, None);
        assert_eq!(first, Phase::Lapsed { longest_ns: 30, report_at_ns: 1000 });
        let again = Phase::Evaluated.lapse(40, 2000, Some(1000));
        assert_eq!(again, Phase::Lapsed { longest_ns: 40, report_at_ns: 1000 + REPORT_NS });
        assert_eq!(again.lapse(30, 3000, Some(1000)), again);
        let longer = again.lapse(50, 3000, Some(1000));
        assert_eq!(longer, Phase::Lapsed { longest_ns: 50, report_at_ns: 1000 + REPORT_NS });
    }
}
