//! The logger of the rules that are in force, which changes with them.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollway_dataplane::stages::filter::State;

use super::Logger;
use crate::filter::eval::Link;
use crate::filter::ir::Ruleset;
use crate::ports::capture::CaptureError;

/// The logger in force; cheap to clone. Only the worker's thread drains and changes it.
#[derive(Clone)]
pub struct Journal(Arc<Mutex<Logger>>);

impl Default for Journal {
    /// For a router without rules.
    fn default() -> Self {
        Self::new(Logger::none())
    }
}

impl Journal {
    /// Begins with the logger of the first rules, or of none.
    #[must_use]
    pub fn new(first: Logger) -> Self {
        Self(Arc::new(Mutex::new(first)))
    }

    /// Writes what has been logged by now.
    pub fn drain(&self, state: &mut State) {
        complain(self.lock().drain(state));
    }

    /// The same by a clock of packets' own: what is logged has the time that `state` has.
    pub fn drain_at_own_time(&self, state: &mut State) {
        let now_ns = state.now_ns;
        complain(self.lock().drain_at(state, now_ns));
    }

    /// Writes what the rules before have logged, and goes on with those that take their place right after.
    /// `goes_on` says that the capture is the same.
    pub fn change(&self, state: &mut State, mut next: Logger, goes_on: bool) {
        let mut logger = self.lock();
        complain(logger.drain(state));
        if goes_on {
            next.continue_capture(&mut logger);
        }
        let before = std::mem::replace(&mut *logger, next);
        complain(before.finish());
    }

    /// Writes what is left, and ends the capture.
    pub fn finish(&self, state: &mut State) {
        let mut logger = self.lock();
        complain(logger.drain(state));
        let last = std::mem::replace(&mut *logger, Logger::none());
        complain(last.finish());
    }

    fn lock(&self) -> MutexGuard<'_, Logger> {
        // What is written is whole at every moment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn complain(written: Result<(), CaptureError>) {
    if let Err(error) = written {
        tracing::error!("what rules log to a group is not written any more: {error}");
    }
}

impl Logger {
    /// For no rules.
    fn none() -> Self {
        Self::new(&Ruleset::default(), &[])
    }

    /// For the rules of a configuration, if it has any; `file` is where what they log to groups goes.
    ///
    /// # Errors
    /// The file can not be made.
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
