//! What others can ask of a mirror that runs.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};

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
}

/// The thread's end of its [`Handle`].
pub(super) struct Door {
    pub(super) requests: Receiver<Request>,
    /// Readable when there are requests.
    pub(super) woken: UnixStream,
    pub(super) status: Arc<Mutex<Status>>,
}

/// A handle and its other end.
pub(super) fn handle() -> io::Result<(Handle, Door)> {
    let (requests, received) = mpsc::channel();
    let (wake, woken) = UnixStream::pair()?;
    wake.set_nonblocking(true)?;
    woken.set_nonblocking(true)?;
    let status = Arc::<Mutex<Status>>::default();
    let door = Door { requests: received, woken, status: Arc::clone(&status) };
    Ok((Handle { requests, wake: Arc::new(wake), status }, door))
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
