//! What others can ask of a mirror that runs.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::steer::State;
use crate::sync::lock;

/// What a mirror has and has done.
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
    /// Changes that the kernel has told, those of lists included.
    pub changes: u64,
    /// How many of them packets are forwarded by.
    pub in_force: u64,
    /// Why the kernel forwards everything at the moment, if it does.
    pub held: Option<String>,
    /// How often the tables were made anew.
    pub rebuilds: u64,
    /// How often messages of the kernel were lost, and all was listed anew.
    pub lost: u64,
    /// How often all routes were listed to see that nothing is amiss.
    pub audits: u64,
    /// What such a list was found to differ by.
    pub drift: u64,
}

/// All that the kernel had told is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Synced {
    /// Changes that the kernel had told, those of lists included.
    pub changes: u64,
    /// Why the kernel forwards everything nevertheless, if it does.
    pub held: Option<String>,
}

/// What is asked of the thread.
pub(super) enum Request {
    /// To say when all is in force that the kernel has told by now.
    Sync(SyncSender<Synced>),
    /// To have the kernel forward no more, when all is in force that it has told by now: the worker was
    /// away, so often by then.
    Gap(u64, State),
    /// To count the routes, and say which traffic takes which road.
    Judge(SyncSender<()>),
    /// To compare everything with what the kernel has.
    Audit,
    /// To end.
    Stop,
}

/// By which a mirror is asked; cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    requests: Sender<Request>,
    wake: Arc<UnixStream>,
    status: Arc<Mutex<Status>>,
    /// How often the worker was away.
    gaps: Arc<AtomicU64>,
}

/// The thread's end of its [`Handle`].
pub(super) struct Door {
    pub(super) requests: Receiver<Request>,
    /// Readable when there are requests.
    pub(super) woken: UnixStream,
    pub(super) status: Arc<Mutex<Status>>,
    pub(super) gaps: Arc<AtomicU64>,
}

impl Door {
    /// All is in force that was told when the worker had been away so often: the kernel need not forward
    /// any more, unless it was away again.
    pub(super) fn go_on(&self, gaps: u64, state: &State) {
        state.set_behind(false);
        if self.gaps.load(Ordering::SeqCst) != gaps {
            // That one is asked about next.
            state.set_behind(true);
        }
    }
}

/// A handle and its other end.
pub(super) fn handle() -> io::Result<(Handle, Door)> {
    let (requests, received) = mpsc::channel();
    let (wake, woken) = UnixStream::pair()?;
    wake.set_nonblocking(true)?;
    woken.set_nonblocking(true)?;
    let status = Arc::<Mutex<Status>>::default();
    let gaps = Arc::<AtomicU64>::default();
    let door =
        Door { requests: received, woken, status: Arc::clone(&status), gaps: Arc::clone(&gaps) };
    Ok((Handle { requests, wake: Arc::new(wake), status, gaps }, door))
}

impl Handle {
    /// Waits until all is in force that the kernel has told by now; none where that takes longer.
    #[must_use]
    pub fn sync(&self, patience: Duration) -> Option<Synced> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.ask(Request::Sync(answer));
        answered.recv_timeout(patience).ok()
    }

    /// Waits until what is said of roads ([`Live`](super::coverage::Live)) has the routes that there are
    /// by now; false where that takes longer.
    #[must_use]
    pub fn judge(&self, patience: Duration) -> bool {
        let (answer, answered) = mpsc::sync_channel(1);
        self.ask(Request::Judge(answer));
        answered.recv_timeout(patience).is_ok()
    }

    /// Has everything compared with what the kernel has, now: an audit like any other.
    pub fn audit(&self) {
        self.ask(Request::Audit);
    }

    /// Has the kernel forward until all is in force that it has told by now. To be called by the worker when
    /// it has been away, before it lives again for the steering programs.
    pub fn was_away(&self, state: &State) {
        // In this order: see `Door::go_on`.
        let gaps = self.gaps.fetch_add(1, Ordering::SeqCst) + 1;
        state.set_behind(true);
        self.ask(Request::Gap(gaps, state.clone()));
    }

    /// What it has and has done.
    #[must_use]
    pub fn status(&self) -> Status {
        lock(&self.status).clone()
    }

    /// Ends the thread.
    pub(super) fn stop(&self) {
        self.ask(Request::Stop);
    }

    fn ask(&self, request: Request) {
        // If nobody is there any more, nobody answers.
        let _ = self.requests.send(request);
        self.wake();
    }

    /// Has the thread look around.
    pub(super) fn wake(&self) {
        // A full pipe wakes as well.
        let _ = (&*self.wake).write(&[0]);
    }
}
