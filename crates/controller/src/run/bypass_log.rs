//! Log lines about long bypasses: why the kernel forwards everything, and when that ends.

use std::time::{Duration, Instant};

/// Changes of links and rules begin bypasses that end within milliseconds; only longer ones are logged.
const LONG: Duration = Duration::from_secs(1);

/// Who has forwarded since when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum BypassLog {
    /// Tollway.
    #[default]
    Forwarding,
    /// The kernel; not logged so far.
    Bypassed(Instant),
    /// The kernel; logged.
    Logged(Instant),
}

impl BypassLog {
    /// Follows why the kernel forwards, if it does; returns the line that is due, if any.
    pub(super) fn next(&mut self, why: Option<&str>, now: Instant) -> Option<String> {
        let (next, line) = match (*self, why) {
            (Self::Forwarding, Some(_)) => (Self::Bypassed(now), None),
            (Self::Bypassed(since), Some(why)) if now - since >= LONG => {
                let line = format!("the kernel forwards everything on all ports: {why}");
                (Self::Logged(since), Some(line))
            }
            (Self::Logged(since), None) => {
                let seconds = (now - since).as_secs_f64();
                let line = format!("Tollway forwards again; the kernel has for {seconds:.1} s");
                (Self::Forwarding, Some(line))
            }
            (Self::Bypassed(_), None) => (Self::Forwarding, None),
            (same, _) => (same, None),
        };
        *self = next;
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_bypasses_are_logged_with_their_ends() {
        let (mut log, start) = (BypassLog::default(), Instant::now());
        let why = Some("messages were lost");
        let steps = [(0, why), (900, why), (950, None), (1000, why), (2100, why), (2500, why)];
        let lines: Vec<_> = steps
            .into_iter()
            .chain([(3500, None), (3600, None)])
            .filter_map(|(ms, why)| log.next(why, start + Duration::from_millis(ms)))
            .collect();
        assert_eq!(
            lines,
            [
                "the kernel forwards everything on all ports: messages were lost",
                "Tollway forwards again; the kernel has for 2.5 s"
            ]
        );
    }
}
