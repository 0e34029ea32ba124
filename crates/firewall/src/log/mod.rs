//! What rules log: lines in the kernel's format, and captures.
//!
//! Kernel equivalent: `nf_log_syslog` (`net/netfilter/nf_log_syslog.c`) for logs without a group. For logs
//! with a group, a listener of `nfnetlink_log` that writes a capture.
//!
//! The fast path stores what it logs in the `State::log` of each worker; [`Journal::drain`] empties that between two
//! bursts, some ten times a second.
//!
//! Limits: each log statement writes at most [`LINES_A_SECOND`] lines per second; the kernel has no such
//! limit. A capture contains the first 256 bytes of each packet. Log levels and flags are ignored.

mod journal;
mod line;
mod recent;
#[cfg(test)]
mod tests;

use std::path::Path;

use tollway_dataplane::stages::filter::{Limit, LimitUnit, Logged};

pub use journal::Journal;

use super::ir::{Action, Log, Ruleset, Step};
use super::links::Link;
use tollway_capture::{CaptureError, CaptureWriter};

/// Lines per second of one log statement. A line costs as much as a thousand packets, so without this limit
/// anyone who can send logged packets could stop the router.
pub const LINES_A_SECOND: u64 = 10;

/// Burst of lines of one log statement.
pub const LINES_AT_ONCE: u64 = 20;

/// The rate limit of each log statement.
pub(super) const LINES: Limit = Limit {
    rate: LINES_A_SECOND,
    period_ns: 1_000_000_000,
    burst: LINES_AT_ONCE,
    unit: LimitUnit::Packets,
};

/// A ruleset's log statements in order; their positions are their numbers.
pub(super) fn logs(rules: &Ruleset) -> impl Iterator<Item = &Log> {
    let steps = rules.chains.iter().flat_map(|chain| &chain.rules).flat_map(|rule| &rule.steps);
    steps.filter_map(|step| match step {
        Step::Do(Action::Log(log)) => Some(log),
        _ => None,
    })
}

/// Says what the rules of one ruleset log, and has their capture.
pub struct Logger {
    logs: Vec<Log>,
    /// Names of links by number.
    links: Vec<String>,
    capture: Capture,
}

/// Where packets go that rules log to a group.
enum Capture {
    Nowhere,
    File(CaptureWriter),
    /// To the capture of the rules that came next.
    OfNext,
}

impl Logger {
    /// A logger for a ruleset; `links` are those that it was compiled for.
    #[must_use]
    pub fn new(rules: &Ruleset, links: &[Link]) -> Self {
        Self {
            logs: logs(rules).cloned().collect(),
            links: links.iter().map(|link| link.name.clone()).collect(),
            capture: Capture::Nowhere,
        }
    }

    /// A logger for the rules of a configuration, if it has any; `file` receives what they log to groups.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn of(
        rules: Option<&Ruleset>,
        links: &[Link],
        file: Option<&Path>,
    ) -> Result<Self, CaptureError> {
        let mut logger = rules.map_or_else(Self::none, |rules| Self::new(rules, links));
        if let Some(file) = file {
            logger.capture_to(file)?;
        }
        Ok(logger)
    }

    /// A logger for no rules.
    fn none() -> Self {
        Self::new(&Ruleset::default(), &[])
    }

    /// Writes packets that are logged to a group to a capture file; replaces an existing file.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn capture_to(&mut self, file: &Path) -> Result<(), CaptureError> {
        self.capture = Capture::File(CaptureWriter::create(file)?);
        Ok(())
    }

    /// Leaves the capture to the rules that come next.
    fn hand_over_capture(&mut self) -> Capture {
        std::mem::replace(&mut self.capture, Capture::OfNext)
    }

    /// Ends the capture, unless other rules have it.
    fn finish(self) -> Result<(), CaptureError> {
        match self.capture {
            Capture::File(file) => file.finish(),
            Capture::Nowhere | Capture::OfNext => Ok(()),
        }
    }

    /// The line for a packet; `None` if its log goes to a group.
    fn line(&self, logged: &Logged) -> Option<String> {
        let log = self.logs.get(logged.log as usize).filter(|log| log.group.is_none())?;
        let name = |number: u16| self.links.get(usize::from(number)).map_or("", String::as_str);
        let output = logged.output.map_or("", |link| name(link.0));
        Some(line::line(logged, &log.prefix, name(logged.input.0), output))
    }
}
