//! The kernel's neighbours, for ports behind which the kernel is the host.
//!
//! There the kernel speaks ARP and ND, and Tollway follows what comes of it by rtnetlink
//! (rtnetlink(7), `RTM_NEWNEIGH`, `net/core/neighbour.c`): a neighbour in a state in which the kernel
//! would send to it is put into the tables, any other is taken out. A packet for one that is not
//! there is punted, the kernel resolves it, and its message brings it here. So the kernel decides;
//! nothing is asked for by Tollway itself.
//!
//! At first, and whenever messages were lost, everything is listed; what the list does not have goes,
//! while packets flow. The kernel sees no packets of the fast road, so it is asked to confirm neighbours as
//! soon as they are stale, and now and then those that still are, as if it had sent to them (`NTF_USE`): one
//! that moved or went is noticed as soon as the kernel alone would, and one that is used is not collected.
//!
//! The kernel sends to where a neighbour is from the moment that it knows; what is told of that may be read later. Where
//! more is told than is read within milliseconds, where messages were lost, and where the worker was away ([`Gaps`]),
//! the kernel forwards until the worker knows all; with a configuration's rules, which the kernel does not know, nobody
//! does.
//!
//! Limits: a VLAN link's neighbours are those of the kernel's VLAN device with its tag, or where
//! there is none, of the device with its name. Neighbours with a group's Ethernet address are left
//! to the kernel. Which neighbours are in use is not known, so all stale ones are confirmed.

mod event;
mod follow;
mod socket;
mod state;
mod sweep;
mod watch;

use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::compile::Compiled;
use crate::model::PortIndex;
use crate::ports::Facts;
use crate::steer;
use crate::sync::lock;
use crate::worker::Post;
use follow::Follow;
pub use state::Before;
use state::State;
pub use watch::Watch;

/// How the kernel is followed.
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

/// Told when the device behind a port has another address or MTU than before, and at first.
pub type OnDevice = Box<dyn Fn(PortIndex, Facts) + Send>;

/// What was done so far.
#[derive(Debug, Default)]
struct Counts {
    lists: AtomicU64,
    lost: AtomicU64,
    changes: AtomicU64,
    confirmed: AtomicU64,
}

/// What a [`Follower`] has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// How often everything was listed, without a loss meanwhile.
    pub lists: u64,
    /// How often the receive buffer was full and messages were lost.
    pub lost: u64,
    /// Changes that the worker was told.
    pub changes: u64,
    /// Stale neighbours that the kernel was asked to confirm.
    pub confirmed: u64,
}

/// Follows the kernel's neighbours, on a thread of its own, until it is dropped.
pub struct Follower {
    state: Arc<Mutex<State>>,
    counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
    bell: Bell,
    post: Post,
}

/// What is called when the worker was told all that the kernel had said.
type Waiter = Box<dyn FnOnce() + Send>;

/// By which the thread is asked; cheap to clone.
#[derive(Clone)]
struct Bell {
    asks: Sender<Waiter>,
    /// Shut down, it ends the thread.
    wake: Arc<UnixStream>,
}

impl Bell {
    /// Asks; false where nobody is there any more.
    fn ask(&self, waiter: Waiter) -> bool {
        let is_asked = self.asks.send(waiter).is_ok();
        // A full pipe wakes as well.
        let _ = (&*self.wake).write(&[0]);
        is_asked
    }
}

/// By which the worker says that it was away; cheap to clone.
#[derive(Clone)]
pub struct Gaps {
    bell: Bell,
    post: Post,
    count: Arc<AtomicU64>,
}

impl Gaps {
    /// Has the kernel forward until the worker has done all that the kernel has told by now. To be called by the
    /// worker when it has been away, before it lives again for the steering programs.
    pub fn was_away(&self, state: &steer::State) {
        let gaps = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        state.set_behind(true);
        let (post, count, of_job) = (self.post.clone(), Arc::clone(&self.count), state.clone());
        let is_asked = self.bell.ask(Box::new(move || {
            post.leave(move |_, _| {
                // It may have been away again.
                if count.load(Ordering::SeqCst) == gaps {
                    of_job.bump_generation();
                    of_job.set_behind(false);
                }
            });
        }));
        if !is_asked {
            state.set_behind(false);
        }
    }
}

impl Follower {
    /// Begins to follow the neighbours of some links of the worker's tables.
    ///
    /// # Errors
    /// The system gives no netlink socket or no thread.
    pub fn start(
        watch: Watch,
        post: Post,
        on_device: OnDevice,
        settings: Settings,
    ) -> io::Result<Self> {
        let own_post = post.clone();
        let state = Arc::new(Mutex::new(State::new(watch)));
        let counts = Arc::new(Counts::default());
        let (wake, woken) = UnixStream::pair()?;
        let (asks, asked) = mpsc::channel();
        let follow = Follow::new(
            Arc::clone(&state),
            (post, on_device),
            settings,
            Arc::clone(&counts),
            (woken, asked),
        )?;
        let thread = std::thread::Builder::new().name("neighbours".to_owned());
        let thread = Some(thread.spawn(move || follow.run())?);
        let bell = Bell { asks, wake: Arc::new(wake) };
        Ok(Self { state, counts, thread, bell, post: own_post })
    }

    /// Waits until the worker has been left all changes that the kernel has told of by now; false
    /// where that takes longer.
    #[must_use]
    pub fn catch_up(&self, patience: Duration) -> bool {
        let (answer, answered) = mpsc::sync_channel(1);
        // Whoever asked may have gone.
        let is_asked = self.bell.ask(Box::new(move || _ = answer.try_send(())));
        is_asked && answered.recv_timeout(patience).is_ok()
    }

    /// For a worker without a [mirror](crate::mirror), which looks after that itself.
    #[must_use]
    pub fn gaps(&self) -> Gaps {
        Gaps { bell: self.bell.clone(), post: self.post.clone(), count: Arc::default() }
    }

    /// What was done so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { lists, lost, changes, confirmed } = &*self.counts;
        Stats {
            lists: read(lists),
            lost: read(lost),
            changes: read(changes),
            confirmed: read(confirmed),
        }
    }

    /// Goes over to other tables: puts all neighbours in, and hands them to `leave`, which leaves
    /// them to the worker. No change can get lost or overtaken on the way. What it returns is for
    /// [`Follower::go_back`].
    pub fn hand_over(
        &self,
        watch: Watch,
        mut compiled: Compiled,
        leave: impl FnOnce(Compiled),
    ) -> Before {
        let mut state = lock(&self.state);
        let Compiled { tables, host } = &mut compiled;
        let is_static = |link, address| host.has_static(link, address);
        let (failed, before) = state.rebind(watch, tables, is_static);
        if failed > 0 {
            tracing::warn!("{failed} neighbours found no room in the tables");
        }
        leave(compiled);
        before
    }

    /// Follows the tables from before again, if those that were handed over are never in force. The
    /// worker hears within a second of what has changed meanwhile.
    pub fn go_back(&self, before: Before) {
        lock(&self.state).go_back(before);
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.bell.wake.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
