//! Follows the forwarding databases of the kernel's bridges.
//!
//! The kernel learns and ages the addresses behind a bridge's members. Tollway follows the results by rtnetlink
//! (`RTM_NEWNEIGH` with `AF_BRIDGE`, `net/bridge/br_fdb.c`): a new entry, a moved one and a removed one each have a
//! notification; a refreshed or an expired one has none. Each entry of a watched bridge is in an [`Fdb`], where
//! workers and BPF programs look it up, except
//!
//! - entries at members that are no ports of the router,
//! - expired ones, which the kernel is about to remove,
//! - those for which the database has no room, which are tried again at each list.
//!
//! A frame for an address that the database lacks takes the kernel path.
//!
//! At the start, and after a loss of messages, Tollway lists all entries, and removes those that are not in the
//! list. A notification during a list wins over the list. The kernel lists by position. So while entries come and
//! go, a list may lack one, or have it twice, and says nothing about that (no `NLM_F_DUMP_INTR`). If notifications
//! have arrived during a list, another one follows, until one was quiet. Then a list each minute verifies the
//! entries, and logs what differs.
//!
//! While Tollway does not know what the kernel has, the database is paused, and bridged frames take the kernel
//! path: when more notifications arrive than the thread reads within milliseconds, messages were lost, the
//! router was paused ([`FdbPauseReporter`]), or entries are listed. Nothing else of the router is affected, unless the
//! thread does not work for a second. Where the router has no port of a bridge, nothing is listed.
//!
//! Limits: an entry from a list, or after a switch of tables, is taken for one that was not refreshed for long,
//! although the list has its age. So the next frame from that address takes the kernel path. When two processors
//! learn one address at the same time, their notifications may overtake each other; a list follows each move.
//! The kernel may forget a host that has fallen silent a quarter sooner than by itself, since it has not seen the
//! last frames. One that was about to expire when it was listed, and goes on, takes the kernel path until the next list.

mod event;
mod gate;
mod socket;
mod state;
mod thread;
mod watch;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::service::Beat;
use crate::waiter::{Waiter, wait_for};
use tollway_dataplane::stages::bridge::Fdb;
use tollway_linux::mailbox::Mailbox;
use tollway_linux::sync::lock;

use gate::Gate;
use state::State;
use thread::{FollowerThread, now_tick};
pub use watch::{FdbWatch, LOCAL_PORT};

/// How to follow the kernel's bridges.
#[derive(Clone, Copy, Debug)]
pub struct FdbSettings {
    /// Bytes of notifications that may wait to be read.
    pub receive_buffer: usize,
    /// How often all entries are verified.
    pub audit_every: Duration,
}

impl Default for FdbSettings {
    /// A bridge that removes 65,536 entries at once sends as many messages, of which each takes 1 KB of the buffer.
    fn default() -> Self {
        Self { receive_buffer: 64 << 20, audit_every: Duration::from_secs(60) }
    }
}

/// The counters of a follower, while it runs, and its heartbeat.
#[derive(Debug, Default)]
struct Counts {
    lists: AtomicU64,
    lost: AtomicU64,
    changes: AtomicU64,
    left_out: AtomicU64,
    beat: Beat,
}

/// The counters of a [`FdbFollower`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FdbStats {
    /// How often all entries were listed without a loss of messages.
    pub lists: u64,
    /// How often the receive buffer was full and messages were lost.
    pub lost: u64,
    /// Changes made in the database.
    pub changes: u64,
    /// Entries for which the database has no room at present.
    pub left_out: u64,
}

/// A request to the thread.
enum Request {
    /// Call the waiter when the database has all notifications of the kernel so far.
    CatchUp(Waiter),
    /// The router was paused, which is the report of this number: resume when the database has all notifications.
    Paused(u64),
    /// End the thread.
    Stop,
}

/// A thread that keeps an [`Fdb`] as the kernel's bridges have it, until it is dropped.
pub struct FdbFollower {
    state: Arc<Mutex<State>>,
    gate: Arc<Gate>,
    counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
    requests: Mailbox<Request>,
}

/// Reports that the router was paused; cheap to clone.
#[derive(Clone)]
pub struct FdbPauseReporter {
    gate: Arc<Gate>,
    requests: Mailbox<Request>,
}

impl FdbPauseReporter {
    /// Has readers find no entries until the database has all notifications that the kernel has sent so far; to be
    /// called before the programs see a fresh heartbeat.
    pub fn paused(&self) {
        // Without its thread, the database stays paused.
        let _ = self.requests.post(Request::Paused(self.gate.report()));
    }
}

impl FdbFollower {
    /// Starts to follow the entries of some bridges in a database, which is paused until it has them.
    ///
    /// # Errors
    /// The system refuses a netlink socket or a thread.
    pub fn start(watch: FdbWatch, fdb: Arc<Fdb>, settings: FdbSettings) -> io::Result<Self> {
        let gate = Arc::new(Gate::new(Arc::clone(&fdb)));
        let state = Arc::new(Mutex::new(State::new(watch, fdb)));
        let counts = Arc::new(Counts::default());
        let (requests, received) = Mailbox::pair()?;
        let follow = FollowerThread::new(
            (Arc::clone(&state), Arc::clone(&gate)),
            settings,
            Arc::clone(&counts),
            received,
        )?;
        let thread = std::thread::Builder::new().name("fdb".to_owned());
        let thread = Some(thread.spawn(move || follow.run())?);
        Ok(Self { state, gate, counts, thread, requests })
    }

    /// Waits until the database has all changes that the kernel has notified of so far; false if that takes longer
    /// than `patience`.
    #[must_use]
    pub fn catch_up(&self, patience: Duration) -> bool {
        wait_for(|waiter| self.requests.post(Request::CatchUp(waiter)), patience)
    }

    /// A handle for who notices that the router was paused.
    #[must_use]
    pub fn pause_reporter(&self) -> FdbPauseReporter {
        FdbPauseReporter { gate: Arc::clone(&self.gate), requests: self.requests.clone() }
    }

    /// The heartbeat of its thread, which beats at least twice a second.
    #[must_use]
    pub fn beat(&self) -> Beat {
        self.counts.beat.clone()
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> FdbStats {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { lists, lost, changes, left_out, .. } = &*self.counts;
        FdbStats {
            lists: read(lists),
            lost: read(lost),
            changes: read(changes),
            left_out: read(left_out),
        }
    }

    /// Switches to other bridges and another database, or the same one. When this returns, that has all entries of
    /// these bridges and no others, and is followed from then on; the database before is paused.
    pub fn rebind(&self, watch: FdbWatch, fdb: Arc<Fdb>) {
        let _ = self.hand_over(watch, fdb, || Some(()));
    }

    /// Switches to the database of other tables: adds all entries to it, then calls `swap`, which makes the tables
    /// the active ones. No change is lost or overtaken meanwhile; if `swap` takes long, both databases are paused as
    /// soon as an entry changes. If it returns none, the earlier database is still active, and followed on.
    pub fn hand_over<T>(
        &self,
        watch: FdbWatch,
        fdb: Arc<Fdb>,
        swap: impl FnOnce() -> Option<T>,
    ) -> Option<T> {
        let mut state = lock(&self.state);
        let earlier = Arc::clone(state.fdb());
        self.gate.add(&fdb);
        let before = state.rebind(watch, Arc::clone(&fdb), now_tick());
        if state.left_out() > 0 {
            tracing::warn!(
                "the tables have no room for {} entries of bridges; frames for these take the kernel path",
                state.left_out()
            );
        }
        let swapped = swap();
        if swapped.is_some() {
            self.gate.keep(&fdb);
        } else {
            state.go_back(before, now_tick());
            self.gate.keep(&earlier);
        }
        self.counts.left_out.store(state.left_out() as u64, Ordering::Relaxed);
        swapped
    }
}

impl Drop for FdbFollower {
    /// Ends the thread. The database is paused, because nothing follows it any more.
    fn drop(&mut self) {
        self.requests.post(Request::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.gate.report();
    }
}
