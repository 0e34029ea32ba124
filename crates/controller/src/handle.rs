//! Requests to a running controller.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use tollway_linux::mailbox::{Mailbox, MailboxReceiver};
use tollway_linux::sync::lock;
use tollway_xdp::State;

/// The state and the counters of a controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Network devices.
    pub devices: usize,
    /// Addresses.
    pub addresses: usize,
    /// Rules of policy routing.
    pub rules: usize,
    /// Destinations in all tables.
    pub routes: usize,
    /// Next-hop objects.
    pub nexthops: usize,
    /// Changes that the kernel has notified of, including lists.
    pub changes: u64,
    /// How many of these changes are active.
    pub installed: u64,
    /// Why the kernel forwards everything at the moment, if it does.
    pub bypassed: Option<String>,
    /// How often the tables were rebuilt.
    pub rebuilds: u64,
    /// How often messages of the kernel were lost, and everything was listed again.
    pub lost: u64,
    /// How often all routes were listed as a check.
    pub audits: u64,
    /// The number of differences that these checks found.
    pub drift: u64,
}

/// The answer when everything that the kernel had notified of is active.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Synced {
    /// Changes that the kernel had notified of, including lists.
    pub changes: u64,
    /// Why the kernel still forwards everything, if it does.
    pub bypassed: Option<String>,
}

/// A request to the controller's thread.
pub(super) enum Request {
    /// Answer when everything that the kernel has notified of so far is active.
    Sync(SyncSender<Synced>),
    /// Clear the bypass when everything that the kernel has notified of so far is active; the number says how
    /// often the router was paused.
    Pause(u64, State),
    /// Count the routes and evaluate the offload.
    Evaluate(SyncSender<()>),
    /// Compare everything with the kernel's configuration.
    Audit,
    /// End the thread.
    Stop,
}

/// A handle for requests to a running controller; cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    requests: Mailbox<Request>,
    status: Arc<Mutex<Status>>,
    /// How often the router was paused.
    pauses: Arc<AtomicU64>,
}

/// The thread's side of a [`Handle`].
pub(super) struct ControllerMailbox {
    pub(super) requests: MailboxReceiver<Request>,
    pub(super) status: Arc<Mutex<Status>>,
    pub(super) pauses: Arc<AtomicU64>,
}

impl ControllerMailbox {
    /// Clears the bypass after `pauses` pauses of the router, because everything is active. Does nothing if the
    /// router was paused again.
    pub(super) fn go_on(&self, pauses: u64, state: &State) {
        state.set_behind(false);
        if self.pauses.load(Ordering::SeqCst) != pauses {
            // The request for the last pause follows.
            state.set_behind(true);
        }
    }
}

/// A handle, and the mailbox that the controller's thread reads.
pub(super) fn handle() -> io::Result<(Handle, ControllerMailbox)> {
    let (requests, received) = Mailbox::pair()?;
    let status = Arc::<Mutex<Status>>::default();
    let pauses = Arc::<AtomicU64>::default();
    let mailbox = ControllerMailbox {
        requests: received,
        status: Arc::clone(&status),
        pauses: Arc::clone(&pauses),
    };
    Ok((Handle { requests, status, pauses }, mailbox))
}

impl Handle {
    /// Waits until everything that the kernel has notified of so far is active; `None` if that takes longer than
    /// `patience`.
    #[must_use]
    pub fn sync(&self, patience: Duration) -> Option<Synced> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.send(Request::Sync(answer));
        answered.recv_timeout(patience).ok()
    }

    /// Waits until the published offload ([`Live`](super::offload::Live)) considers the present routes; false if
    /// that takes longer than `patience`.
    #[must_use]
    pub fn evaluate(&self, patience: Duration) -> bool {
        let (answer, answered) = mpsc::sync_channel(1);
        self.send(Request::Evaluate(answer));
        answered.recv_timeout(patience).is_ok()
    }

    /// Starts an audit now: compares everything with the kernel's configuration.
    pub fn audit(&self) {
        self.send(Request::Audit);
    }

    /// Lets the kernel forward until everything that it has notified of so far is active; to be called after a
    /// pause of the router, before the programs see a fresh heartbeat.
    pub fn paused(&self, state: &State) {
        // In this order: see `ControllerMailbox::go_on`.
        let pauses = self.pauses.fetch_add(1, Ordering::SeqCst) + 1;
        state.set_behind(true);
        self.send(Request::Pause(pauses, state.clone()));
    }

    /// The state and the counters.
    #[must_use]
    pub fn status(&self) -> Status {
        lock(&self.status).clone()
    }

    /// Ends the thread.
    pub(super) fn stop(&self) {
        self.send(Request::Stop);
    }

    fn send(&self, request: Request) {
        // An error means that the thread has ended; then there is no answer.
        self.requests.post(request);
    }

    /// Wakes the thread.
    pub(super) fn wake(&self) {
        self.requests.wake();
    }
}
