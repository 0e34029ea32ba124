//! The logger of the active rules, which changes with them.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollway_dataplane::stages::filter::State;

use super::Logger;
use crate::ir::Ruleset;
use crate::links::Link;
use tollway_capture::CaptureError;

/// The active logger; cheap to clone. Only the worker's thread drains and replaces it.
#[derive(Clone)]
pub struct Journal(Arc<Mutex<Logger>>);

impl Default for Journal {
    /// A journal for a router without rules.
    fn default() -> Self {
        Self::new(Logger::none())
    }
}

impl Journal {
    /// A journal with the logger of the first rules, or of none.
    #[must_use]
    pub fn new(first: Logger) -> Self {
        Self(Arc::new(Mutex::new(first)))
    }

    /// Writes what has been logged so far.
    pub fn drain(&self, state: &mut State) {
        log_failure(self.lock().drain(state));
    }

    /// Like [`Journal::drain`], with the packets' own clock: log entries get the time of `state`.
    pub fn drain_at_own_time(&self, state: &mut State) {
        let now_ns = state.now_ns;
        log_failure(self.lock().drain_at(state, now_ns));
    }

    /// Writes what the old rules have logged, then continues with the logger of the rules that replace them.
    /// `keeps_capture` says whether the capture stays the same.
    pub fn change(&self, state: &mut State, mut next: Logger, keeps_capture: bool) {
        let mut logger = self.lock();
        log_failure(logger.drain(state));
        if keeps_capture {
            next.continue_capture(&mut logger);
        }
        let before = std::mem::replace(&mut *logger, next);
        log_failure(before.finish());
    }

    /// Writes the rest and ends the capture.
    pub fn finish(&self, state: &mut State) {
        let mut logger = self.lock();
        log_failure(logger.drain(state));
        let last = std::mem::replace(&mut *logger, Logger::none());
        log_failure(last.finish());
    }

    fn lock(&self) -> MutexGuard<'_, Logger> {
        // The logger is consistent at every moment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn log_failure(written: Result<(), CaptureError>) {
    if let Err(error) = written {
        tracing::error!("the capture of packets that rules log to a group ends here: {error}");
    }
}

impl Logger {
    /// A logger for no rules.
    fn none() -> Self {
        Self::new(&Ruleset::default(), &[])
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
}
