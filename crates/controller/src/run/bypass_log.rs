//! Log lines about long bypasses: why the kernel forwards everything, and when that ends.

use std::time::{Duration, Instant};

/// Changes of links and rules begin bypasses that end within milliseconds; only longer ones are logged.
const LONG: Duration = Duration::from_secs(1);

/// Who has forwarded since when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum BypassLog {
    /// Tollway.
    #[default]
    Forwarding,
    /// The kernel, for this reason; not logged so far.
    Bypassed(Instant, String),
    /// The kernel; logged.
    Logged(Instant),
}

impl BypassLog {
    /// Follows why the kernel forwards, if it does; returns the line that is due, if any.
    pub(super) fn next(&mut self, why: Option<&str>, now: Instant) -> Option<String> {
        let (next, line) = match (&*self, why) {
            (Self::Forwarding, Some(why)) => (Self::Bypassed(now, why.to_owned()), None),
            (Self::Bypassed(since, _), Some(why)) if now - *since >= LONG => {
                let line = format!("the kernel forwards everything on all ports: {why}");
                (Self::Logged(*since), Some(line))
            }
            // It began and ended within one turn.
            (Self::Bypassed(since, why), None) if now - *since >= LONG => {
                (Self::Forwarding, Some(format!("{}: {why}", ended(now - *since))))
            }
            (Self::Logged(since), None) => (Self::Forwarding, Some(ended(now - *since))),
            (Self::Bypassed(..), None) => (Self::Forwarding, None),
            _ => return None,
        };
        *self = next;
        line
    }
}

fn ended(after: Duration) -> String {
    format!("Tollway forwards again; the kernel has for {:.1} s", after.as_secs_f64())
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
            .chain([(3500, None), (3600, None), (4000, why), (5200, None)])
            .filter_map(|(ms, why)| log.next(why, start + Duration::from_millis(ms)))
            .collect();
        assert_eq!(
            lines,
            [
                "the kernel forwards everything on all ports: messages were lost",
                "Tollway forwards again; the kernel has for 2.5 s",
                "Tollway forwards again; the kernel has for 1.2 s: messages were lost"
            ]
        );
    }
}
