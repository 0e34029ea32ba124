//! The loggers of the last rules: packets that earlier rules have logged may still wait when others are active.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tollway_capture::CaptureError;
use tollway_dataplane::stages::filter::Logged;

use super::{Capture, Logger};

/// How long a logger is kept after other rules came. Within a tenth of that, each worker takes the other rules, and
/// drains what waits.
const KEPT: Duration = Duration::from_secs(1);
/// The most loggers that are kept.
const MOST: usize = 64;

/// A logger, and the number of its rules.
struct Numbered {
    rules: u64,
    logger: Logger,
    /// When other rules replaced these.
    replaced: Option<Instant>,
}

/// The loggers of the last rules, oldest first.
#[derive(Default)]
pub(super) struct Recent(VecDeque<Numbered>);

impl Recent {
    /// Begins with the logger of the first rules.
    pub(super) fn new(logger: Logger) -> Self {
        Self(VecDeque::from([Numbered { rules: 0, logger, replaced: None }]))
    }

    /// Says whether loggers wait for their end.
    pub(super) fn has_old(&self) -> bool {
        self.0.len() > 1
    }

    /// Begins with the logger of other rules, which may become active from now on.
    pub(super) fn begin(
        &mut self,
        rules: u64,
        mut logger: Logger,
        keeps_capture: bool,
        now: Instant,
    ) -> Result<(), CaptureError> {
        if let Some(last) = self.0.back_mut() {
            last.replaced = Some(now);
            if keeps_capture {
                logger.capture = last.logger.hand_over_capture();
            }
        }
        self.0.push_back(Numbered { rules, logger, replaced: None });
        self.end_old(now)
    }

    /// Ends the loggers that no worker's packets need any more.
    pub(super) fn end_old(&mut self, now: Instant) -> Result<(), CaptureError> {
        let is_over = |replaced: Instant| now.saturating_duration_since(replaced) >= KEPT;
        let over = self.0.iter().take_while(|one| one.replaced.is_some_and(is_over)).count();
        self.end(over.max(self.0.len().saturating_sub(MOST)))
    }

    /// Ends all loggers but the newest.
    pub(super) fn end_replaced(&mut self) -> Result<(), CaptureError> {
        self.end(self.0.len().saturating_sub(1))
    }

    /// Ends all loggers.
    pub(super) fn finish(&mut self) -> Result<(), CaptureError> {
        self.end(self.0.len())
    }

    /// Ends the oldest loggers.
    fn end(&mut self, count: usize) -> Result<(), CaptureError> {
        let mut ended = Ok(());
        for oldest in self.0.drain(..count) {
            ended = ended.and(oldest.logger.finish());
        }
        ended
    }

    /// Writes a packet; says whether the logger of its rules was there. Lines go to `tracing`, target `filter`.
    pub(super) fn write(&mut self, logged: &Logged, time_ns: u64) -> Result<bool, CaptureError> {
        // The rules that came last under this number are the ones that became active.
        let Some(index) = self.0.iter().rposition(|numbered| numbered.rules == logged.rules) else {
            return Ok(false);
        };
        if let Some(line) = self.0[index].logger.line(logged) {
            tracing::info!(target: "filter", "{line}");
        } else if let Some(capture) = self.capture(index)
            && let Capture::File(file) = capture
            && let Err(error) = file.write_head(time_ns, logged.bytes(), logged.len)
        {
            *capture = Capture::Nowhere;
            return Err(error);
        }
        Ok(true)
    }

    /// The capture of a logger.
    fn capture(&mut self, index: usize) -> Option<&mut Capture> {
        let mut captures = self.0.range_mut(index..).map(|numbered| &mut numbered.logger.capture);
        captures.find(|capture| !matches!(capture, Capture::OfNext))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loggers_end_when_no_worker_needs_them() {
        let (mut recent, start) = (Recent::new(Logger::none()), Instant::now());
        let begin = |recent: &mut Recent, rules, now| {
            recent.begin(rules, Logger::none(), true, now).unwrap();
            recent.0.iter().map(|numbered| numbered.rules).collect::<Vec<_>>()
        };
        assert!(!recent.has_old());
        assert_eq!(begin(&mut recent, 1, start), [0, 1]);
        assert_eq!(begin(&mut recent, 2, start + KEPT / 2), [0, 1, 2]);
        assert_eq!(begin(&mut recent, 3, start + KEPT), [1, 2, 3]);
        recent.end_old(start + 2 * KEPT).unwrap();
        assert!(!recent.has_old(), "the newest stays");
        for rules in 4..200 {
            assert!(begin(&mut recent, rules, start).len() <= MOST);
        }
        assert!(recent.has_old());
        recent.end_replaced().unwrap();
        assert!(!recent.has_old());
    }
}
