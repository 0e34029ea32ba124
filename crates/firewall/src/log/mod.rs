//! What rules log: lines in the kernel's format, and captures.
//!
//! Kernel equivalent: `nf_log_syslog` (`net/netfilter/nf_log_syslog.c`) for logs without a group. For logs
//! with a group, a listener of `nfnetlink_log` that writes a capture.
//!
//! The fast path stores what it logs in [`State::log`]; [`Logger::drain`] empties that between two bursts,
//! some ten times a second.
//!
//! Limits: each log statement writes at most [`LINES_A_SECOND`] lines per second; the kernel has no such
//! limit. A capture contains the first 256 bytes of each packet. Log levels and flags are ignored.

mod journal;
mod line;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::SystemTime;

use tollway_dataplane::stages::filter::{Limit, LimitUnit, Logged, State};

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

/// Writes what the rules of one ruleset log.
pub struct Logger {
    logs: Vec<Log>,
    /// Names of links by number.
    links: Vec<String>,
    capture: Option<CaptureWriter>,
    /// Losses already reported.
    lost: u64,
    limited: u64,
}

impl Logger {
    /// A logger for a ruleset; `links` are those that it was compiled for.
    #[must_use]
    pub fn new(rules: &Ruleset, links: &[Link]) -> Self {
        Self {
            logs: logs(rules).cloned().collect(),
            links: links.iter().map(|link| link.name.clone()).collect(),
            capture: None,
            lost: 0,
            limited: 0,
        }
    }

    /// Writes packets that are logged to a group to a capture file; replaces an existing file.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn capture_to(&mut self, file: &Path) -> Result<(), CaptureError> {
        self.capture = Some(CaptureWriter::create(file)?);
        Ok(())
    }

    /// Takes over the capture of the logger before it, when new rules replace others.
    pub fn continue_capture(&mut self, before: &mut Self) {
        self.capture = before.capture.take();
    }

    /// Writes what has been logged so far; lines go to `tracing`, target `filter`.
    ///
    /// # Errors
    /// The capture cannot be written; the logger writes nothing more to it.
    pub fn drain(&mut self, state: &mut State) -> Result<(), CaptureError> {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.drain_at(state, u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Like [`Logger::drain`]; `wall_ns` is the current time in ns since 1970.
    fn drain_at(&mut self, state: &mut State, wall_ns: u64) -> Result<(), CaptureError> {
        let mut written = Ok(());
        while let Some(logged) = state.log.pop() {
            if let Some(line) = self.line(&logged) {
                tracing::info!(target: "filter", "{line}");
            } else if let Some(capture) = &mut self.capture {
                let ago = state.now_ns.saturating_sub(logged.now_ns);
                let time_ns = wall_ns.saturating_sub(ago);
                written = capture.write_head(time_ns, logged.bytes(), logged.len);
                if written.is_err() {
                    self.capture = None;
                }
            }
        }
        self.report_lost(state);
        written
    }

    /// Flushes the capture.
    ///
    /// # Errors
    /// The capture cannot be written.
    pub fn finish(self) -> Result<(), CaptureError> {
        self.capture.map_or(Ok(()), CaptureWriter::finish)
    }

    /// The line for a packet; `None` if its log goes to a group.
    fn line(&self, logged: &Logged) -> Option<String> {
        let log = self.logs.get(logged.log as usize).filter(|log| log.group.is_none())?;
        let name = |number: u16| self.links.get(usize::from(number)).map_or("", String::as_str);
        let output = logged.output.map_or("", |link| name(link.0));
        Some(line::line(logged, &log.prefix, name(logged.input.0), output))
    }

    fn report_lost(&mut self, state: &State) {
        let (lost, limited) = (state.log.lost, state.log.limited);
        if (lost, limited) != (self.lost, self.limited) {
            let (lost, limited) =
                (lost.saturating_sub(self.lost), limited.saturating_sub(self.limited));
            tracing::info!(
                target: "filter",
                "{limited} lines not written: more than {LINES_A_SECOND} a second of one rule; \
                 {lost} packets not logged: too many at once"
            );
            (self.lost, self.limited) = (state.log.lost, state.log.limited);
        }
    }
}
