//! Follows the kernel's neighbours, for ports where the kernel acts as the host behind Tollway.
//!
//! There the kernel speaks ARP and ND. Tollway follows the results by rtnetlink (rtnetlink(7),
//! `RTM_NEWNEIGH`, `net/core/neighbour.c`). A neighbour is in the tables while it is in a state in which the
//! kernel would send to it. Tollway punts a packet for a missing neighbour; the kernel resolves the neighbour, and
//! its notification adds it here. So the kernel decides, and Tollway itself resolves nothing. A packet that rules of a
//! file have translated cannot be punted: it waits in the router, which has the kernel resolve the neighbour.
//!
//! At the start, and after a loss of messages, Tollway lists everything, and removes neighbours that are not in
//! the list while packets flow. The kernel sees no packets of the fast path. So Tollway makes it confirm
//! neighbours as soon as they are stale, as if the kernel had sent to them (`NTF_USE`), and repeats this while
//! they remain stale. Then the kernel notices a moved or lost neighbour as soon as it would without Tollway,
//! and does not remove (garbage collect) one in use.
//!
//! The kernel uses a neighbour's new address at once; Tollway may read its notification later. The kernel
//! forwards until the worker is up to date in three cases: more notifications arrive than the thread reads
//! within milliseconds, messages were lost, or the router was paused ([`PauseReporter`]). With rules from a
//! configuration, which the kernel does not have, nothing is forwarded meanwhile.
//!
//! Limits: a VLAN link's neighbours are those of the kernel's VLAN device with its tag or, without such a
//! device, of the device with its name. Neighbours with a group's Ethernet address take the kernel path.
//! Tollway does not know which neighbours are in use, so it has the kernel confirm all stale ones.

mod event;
mod follow;
mod socket;
mod state;
mod watch;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::Updater;
use crate::ports::Facts;
use crate::service::Beat;
use crate::waiter::{Waiter, wait_for};
use tollway_dataplane::id::LinkId;
use tollway_dataplane::router::Resolver;
use tollway_linux::mailbox::Mailbox;
use tollway_linux::sync::lock;
use tollway_model::PortIndex;
use tollway_model::compile::Compiled;

use follow::FollowerThread;
use state::State;
pub use watch::Watch;

/// How to follow the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bytes of messages that may wait to be read.
    pub receive_buffer: usize,
    /// How often stale neighbours are confirmed.
    pub confirm_every: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { receive_buffer: 8 << 20, confirm_every: Duration::from_secs(30) }
    }
}

/// Called when the device behind a port has got another address or MTU, and at first.
pub type OnDevice = Box<dyn Fn(PortIndex, Facts) + Send>;

/// The counters of a follower, while it runs, and its heartbeat.
#[derive(Debug, Default)]
struct Counts {
    lists: AtomicU64,
    lost: AtomicU64,
    changes: AtomicU64,
    confirmed: AtomicU64,
    beat: Beat,
}

/// The counters of a [`Follower`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// How often everything was listed without a loss of messages.
    pub lists: u64,
    /// How often the receive buffer was full and messages were lost.
    pub lost: u64,
    /// Changes made in the tables.
    pub changes: u64,
    /// Stale neighbours that the kernel got a request to confirm.
    pub confirmed: u64,
}

/// Follows the kernel's neighbours on a thread of its own, until it is dropped.
pub struct Follower {
    state: Arc<Mutex<State>>,
    counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
    requests: Mailbox<Request>,
}

/// A request to the thread.
enum Request {
    /// Call the waiter when the tables have all notifications of the kernel so far.
    CatchUp(Waiter),
    /// Have the kernel resolve neighbours.
    Resolve(Vec<(LinkId, IpAddr)>),
    /// End the thread.
    Stop,
}

/// Has the kernel resolve neighbours for which packets wait in the router itself.
struct KernelResolver(Mailbox<Request>);

impl fmt::Debug for KernelResolver {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("KernelResolver")
    }
}

impl Resolver for KernelResolver {
    fn resolve(&self, neighs: &[(LinkId, IpAddr)]) {
        // Without the thread, the packets wait in vain, as without an answer.
        let _ = self.0.post(Request::Resolve(neighs.to_vec()));
    }
}

/// Reports that the router was paused; cheap to clone.
#[derive(Clone)]
pub struct PauseReporter {
    requests: Mailbox<Request>,
    count: Arc<AtomicU64>,
}

impl PauseReporter {
    /// Lets the kernel forward until the tables have all notifications that the kernel has sent so far; to be
    /// called before the programs see a fresh heartbeat.
    pub fn paused(&self, state: &tollway_xdp::State) {
        let pauses = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        state.set_behind(true);
        let (count, of_waiter) = (Arc::clone(&self.count), state.clone());
        // On the follower's thread, for workers may get no processor.
        let waiter = Box::new(move || {
            // The router may have been paused again.
            let is_last = || count.load(Ordering::SeqCst) == pauses;
            if is_last() {
                of_waiter.bump_generation();
                of_waiter.set_behind(false);
            }
            if !is_last() {
                // Another report does this at the same time, and its own waiter ends it.
                of_waiter.set_behind(true);
            }
        });
        if !self.requests.post(Request::CatchUp(waiter)) {
            state.set_behind(false);
        }
    }
}

impl Follower {
    /// Starts to follow the neighbours of some links of the active tables.
    ///
    /// # Errors
    /// The system refuses a netlink socket or a thread.
    pub fn start(
        watch: Watch,
        updater: Updater,
        on_device: OnDevice,
        settings: Settings,
    ) -> io::Result<Self> {
        let state = Arc::new(Mutex::new(State::new(watch)));
        let counts = Arc::new(Counts::default());
        let (requests, received) = Mailbox::pair()?;
        updater.router().set_resolver(Box::new(KernelResolver(requests.clone())));
        let follow = FollowerThread::new(
            Arc::clone(&state),
            (updater, on_device),
            settings,
            Arc::clone(&counts),
            received,
        )?;
        let thread = std::thread::Builder::new().name("neighbours".to_owned());
        let thread = Some(thread.spawn(move || follow.run())?);
        Ok(Self { state, counts, thread, requests })
    }

    /// Waits until the tables have all changes that the kernel has notified of so far; false if that takes longer
    /// than `patience`.
    #[must_use]
    pub fn catch_up(&self, patience: Duration) -> bool {
        wait_for(|waiter| self.requests.post(Request::CatchUp(waiter)), patience)
    }

    /// A handle for a worker without a controller. A controller has its own (`paused` of its
    /// handle).
    #[must_use]
    pub fn pause_reporter(&self) -> PauseReporter {
        PauseReporter { requests: self.requests.clone(), count: Arc::default() }
    }

    /// The heartbeat of its thread, which beats at least twice a second.
    #[must_use]
    pub fn beat(&self) -> Beat {
        self.counts.beat.clone()
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { lists, lost, changes, confirmed, .. } = &*self.counts;
        Stats {
            lists: read(lists),
            lost: read(lost),
            changes: read(changes),
            confirmed: read(confirmed),
        }
    }

    /// Switches to other tables: adds all neighbours to them, and passes them to `swap`, which makes them the
    /// active ones. No change is lost or overtaken meanwhile; if `swap` takes long, the kernel forwards as soon as
    /// a neighbour changes. If it returns none, the earlier tables are still active: they get what has changed
    /// meanwhile within a second.
    pub fn hand_over<T>(
        &self,
        watch: Watch,
        mut compiled: Compiled,
        swap: impl FnOnce(Compiled) -> Option<T>,
    ) -> Option<T> {
        let mut state = lock(&self.state);
        let Compiled { tables, host } = &mut compiled;
        let is_static = |link, address| host.has_static(link, address);
        let (failed, before) = state.rebind(watch, tables, is_static);
        if failed > 0 {
            tracing::warn!(
                "the tables have no room for {failed} neighbours; packets to these take the kernel path"
            );
        }
        let swapped = swap(compiled);
        if swapped.is_none() {
            state.go_back(before);
        }
        swapped
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.requests.post(Request::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
