//! The log of the rules, for all workers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Instant, SystemTime};

use tollway_capture::CaptureError;
use tollway_dataplane::stages::filter::State;

use super::recent::Recent;
use super::{LINES_A_SECOND, Logger};

/// The log of the rules, for all workers; cheap to clone. Each worker drains what it has logged itself. Each entry has
/// the number of the rules that logged it, so that a change of rules waits for no worker: the journal keeps the last
/// loggers for a while.
#[derive(Clone)]
pub struct Journal(Arc<Shared>);

struct Shared {
    recent: Mutex<Recent>,
    /// Whether loggers wait for their end. A worker without entries looks only at this.
    has_old: AtomicBool,
}

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
        let (recent, has_old) = (Mutex::new(Recent::new(first)), AtomicBool::new(false));
        Self(Arc::new(Shared { recent, has_old }))
    }

    /// Writes what a worker has logged so far. Without entries, this costs next to nothing. If somebody else writes
    /// at this moment, the entries stay until the next call: the file of a capture may be slow.
    pub fn drain(&self, state: &mut State) {
        if self.has_work(state)
            && let Some(recent) = self.try_lock()
        {
            self.drain_at(recent, state, wall_ns());
        }
    }

    /// Like [`Journal::drain`], with the packets' own clock: log entries get the time of `state`.
    pub fn drain_at_own_time(&self, state: &mut State) {
        if self.has_work(state) {
            self.drain_at(self.lock(), state, state.now_ns);
        }
    }

    fn has_work(&self, state: &State) -> bool {
        !state.log.is_empty() || self.0.has_old.load(Ordering::Relaxed)
    }

    /// `wall_ns` is the current time in ns since 1970.
    fn drain_at(&self, mut recent: MutexGuard<'_, Recent>, state: &mut State, wall_ns: u64) {
        while let Some(logged) = state.log.pop() {
            let ago = state.now_ns.saturating_sub(logged.now_ns);
            match recent.write(&logged, wall_ns.saturating_sub(ago)) {
                Ok(is_known) => state.log.lost += u64::from(!is_known),
                Err(error) => report_failure(Err(error)),
            }
        }
        report_lost(state);
        report_failure(recent.end_old(Instant::now()));
        self.note_old(&recent);
    }

    /// Continues with the logger of the rules of this number
    /// ([`next_rules`](tollway_dataplane::router::Control::next_rules)). Call it before these become active.
    /// `keeps_capture` says whether the capture stays the same. What earlier rules have logged is written as their
    /// logger says, when its worker drains it.
    pub fn change(&self, rules: u64, next: Logger, keeps_capture: bool) {
        let mut recent = self.lock();
        report_failure(recent.begin(rules, next, keeps_capture, Instant::now()));
        self.note_old(&recent);
    }

    /// Ends the loggers of all rules but the newest, and their captures. Call it before a capture is created: its file
    /// may be one of theirs.
    pub fn end_replaced(&self) {
        let mut recent = self.lock();
        report_failure(recent.end_replaced());
        self.note_old(&recent);
    }

    /// Writes the rest of all workers, which log no more, and ends the captures.
    pub fn finish<'a>(&self, states: impl IntoIterator<Item = &'a mut State>) {
        for state in states {
            self.drain_at(self.lock(), state, wall_ns());
        }
        report_failure(self.lock().finish());
    }

    fn note_old(&self, recent: &Recent) {
        self.0.has_old.store(recent.has_old(), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Recent> {
        // The loggers are consistent at every moment.
        self.0.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Recent>> {
        match self.0.recent.try_lock() {
            Ok(recent) => Some(recent),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// The current time in ns since 1970.
fn wall_ns() -> u64 {
    let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX)
}

fn report_failure(written: Result<(), CaptureError>) {
    if let Err(error) = written {
        tracing::error!("the capture of packets that rules log to a group ends here: {error}");
    }
}

/// Logs what was not logged since the last report.
fn report_lost(state: &mut State) {
    let lost = std::mem::take(&mut state.log.lost);
    let limited = std::mem::take(&mut state.log.limited);
    if (lost, limited) != (0, 0) {
        tracing::info!(
            target: "filter",
            "{limited} lines not written: more than {LINES_A_SECOND} a second of one rule; \
             {lost} packets not logged: too many at once"
        );
    }
}
