//! Changes a router's tables on the thread that makes the change, while workers forward.
//!
//! ```text
//! lock the router ─▶ change ─▶ release: a changed state is published ─▶ void flows ─▶ wait for the workers
//!   late? bypass                                                        late? bypass of the workers, for 50 ms
//! ```
//!
//! The kernel has made the same change to its own forwarding already. So it forwards while the lock is late, and what
//! is for workers while one of them is. A change does not wait for a worker that hangs: the dispatcher sends nothing
//! to that worker, and the others forward on. What such a worker may still read is not reused (`epoch.rs` of the data
//! plane).

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tollway_dataplane::epoch::Epochs;
use tollway_dataplane::router::{Locked, Router};
use tollway_linux::sync::lock;
use tollway_xdp::xdp_path::Outdated;

use crate::mailbox::SOON;
use crate::{Overdue, WorkerMailbox};

#[cfg(test)]
mod tests;

/// A worker that has taken no turn for this long gets no frames: the dispatcher sends it none when its
/// last heartbeat is 30 ms old (`STALE_NS` in `xdp/bpf/maps.h`). The clock of both advances by up to 10 ms at once.
const UNSERVED: Duration = Duration::from_millis(50);

/// How often a thread tries to get a lock before it waits for it.
const TRY_EVERY: Duration = Duration::from_micros(20);

/// The least time between two log lines about workers that lag.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// Changes the tables of a running router; cheap to clone.
#[derive(Clone)]
pub struct Updater {
    router: Arc<Router>,
    mailbox: WorkerMailbox,
    shared: Arc<Shared>,
}

/// What all clones of an [`Updater`] share.
struct Shared {
    workers: Mutex<Workers>,
    /// The changes for which flows of the XDP path are void already.
    outdated: Mutex<Outdated>,
}

/// Whether the workers keep up with changes; with the time of the last log line about this, if any.
#[derive(Clone, Copy)]
enum Workers {
    /// At the last change, all did.
    KeepUp(Option<Instant>),
    /// One does not.
    Lag(Option<Instant>),
}

impl Default for Workers {
    fn default() -> Self {
        Self::KeepUp(None)
    }
}

impl Updater {
    /// Creates what changes a router; `mailbox` is that of worker 0.
    #[must_use]
    pub fn new(router: &Arc<Router>, mailbox: WorkerMailbox, outdated: Outdated) -> Self {
        let shared = Shared { workers: Mutex::default(), outdated: Mutex::new(outdated) };
        Self { router: Arc::clone(router), mailbox, shared: Arc::new(shared) }
    }

    /// The router.
    #[must_use]
    pub const fn router(&self) -> &Arc<Router> {
        &self.router
    }

    /// The worker's mailbox.
    #[must_use]
    pub const fn mailbox(&self) -> &WorkerMailbox {
        &self.mailbox
    }

    /// Changes the router. When this returns, every worker works by the change, except those that take no turns
    /// and get no frames.
    pub fn change<T>(&self, job: impl FnOnce(&mut Locked<'_>) -> T) -> T {
        let (done, bypass) = self.make(job);
        self.wait(bypass);
        done
    }

    /// As [`Updater::change`], for one of many changes: it does not wait for the workers. Call
    /// [`Updater::synchronize`] after the last.
    pub fn change_one<T>(&self, job: impl FnOnce(&mut Locked<'_>) -> T) -> T {
        self.make(job).0
    }

    /// Waits until every worker works by all changes, except those that take no turns and get no frames.
    pub fn synchronize(&self) {
        self.wait(None);
    }

    /// Invalidates the XDP path's decisions that predate the changes in tables: a worker that sleeps would do so
    /// later.
    pub fn void(&self, tables: &Epochs) {
        if let Some(state) = self.mailbox.dispatcher_state() {
            lock(&self.shared.outdated).void(&tables.changes, state);
        }
    }

    /// Makes a change; returns the bypass that began meanwhile, if any.
    fn make<T>(&self, job: impl FnOnce(&mut Locked<'_>) -> T) -> (T, Option<Overdue>) {
        let (mut locked, bypass) = self.lock();
        // The job may use numbers of next hops again that are free since the change before: the programs note numbers
        // in entries of connections, which end here if the thread that made that change has not come to it yet.
        self.void(&locked.tables.epochs);
        let done = job(&mut locked);
        let epochs = Arc::clone(&locked.tables.epochs);
        drop(locked);
        self.void(&epochs);
        (done, bypass)
    }

    /// Locks the router. If somebody else has it for long, the kernel forwards until the change is active.
    fn lock(&self) -> (Locked<'_>, Option<Overdue>) {
        if let Some(locked) = soon(|| self.router.try_lock()) {
            return (locked, None);
        }
        let bypass = self.mailbox.bypass();
        (self.router.lock(), Some(bypass))
    }

    /// Waits for the workers. If one is late, the kernel forwards meanwhile what is for them: the programs decide by
    /// the change already, and what a late worker enters as a flow is void.
    fn wait(&self, bypass: Option<Overdue>) {
        let late = bypass.map(|_| self.mailbox.bypass_workers());
        if self.router.synchronize(SOON) {
            return self.keep_up();
        }
        if matches!(*lock(&self.shared.workers), Workers::Lag(_)) {
            return;
        }
        let _late = late.unwrap_or_else(|| self.mailbox.bypass_workers());
        if self.router.synchronize(UNSERVED) { self.keep_up() } else { self.lag() }
    }

    /// Notes that all workers keep up.
    fn keep_up(&self) {
        let mut workers = lock(&self.shared.workers);
        if let Workers::Lag(logged) = *workers {
            *workers = Workers::KeepUp(logged);
        }
    }

    /// Notes that a worker takes no turns.
    fn lag(&self) {
        let mut workers = lock(&self.shared.workers);
        let (Workers::KeepUp(logged) | Workers::Lag(logged)) = *workers;
        if logged.is_some_and(|logged| logged.elapsed() < REPORT_EVERY) {
            *workers = Workers::Lag(logged);
            return;
        }
        *workers = Workers::Lag(Some(Instant::now()));
        tracing::warn!(
            "a worker has taken no turn for {} ms; changes do not wait for it",
            UNSERVED.as_millis()
        );
    }
}

/// Tries to get a lock for as long as a change may take without the bypass.
pub(crate) fn soon<T>(mut try_lock: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    while start.elapsed() <= SOON {
        if let Some(locked) = try_lock() {
            return Some(locked);
        }
        std::thread::sleep(TRY_EVERY);
    }
    None
}
