//! The worker's mailbox: jobs that other threads post for the pause between two bursts.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use tollway_dataplane::hand_over::{Consumer, Sleeper};
use tollway_dataplane::worker::Worker;
use tollway_linux::mailbox::{WakeReceiver, Waker};
use tollway_linux::sync::lock;
use tollway_xdp::State;

use crate::activity::Activity;
use crate::hand_over::HandOver;
use crate::ports::{Devices, Peer, PortJob};
use crate::wake::WorkerWaker;

/// The longest that the worker runs jobs before the ports have their turn again.
pub(crate) const WORK: Duration = Duration::from_micros(50);

/// A change is active within this time, or the kernel forwards until it is.
pub(super) const SOON: Duration = Duration::from_micros(500);

/// Work for the worker's thread, done between two bursts.
pub type Job = Box<dyn FnOnce(&mut Worker, &mut Devices) + Send>;

/// The worker's mailbox, in which other threads post jobs: new tables, a look at the counters, what the
/// ports need.
#[derive(Clone)]
pub struct WorkerMailbox {
    jobs: Sender<Job>,
    /// Whether there are jobs; the worker checks this once per turn, which costs less than the
    /// channel does.
    waiting: Arc<AtomicBool>,
    waker: WorkerWaker,
    bypass: Arc<OverdueBypass>,
    activity: Arc<Activity>,
}

/// The worker's side of its [`WorkerMailbox`].
pub struct WorkerMailboxReceiver {
    jobs: Receiver<Job>,
    waiting: Arc<AtomicBool>,
    wakes: WakeReceiver,
    /// A wake ended the last sleep, and its descriptor is not drained yet. If the worker has found a job by
    /// itself, that job's wake may come after the job.
    is_woken: bool,
    sleeper: Arc<Sleeper>,
    bypass: Arc<OverdueBypass>,
    activity: Arc<Activity>,
}

/// Makes the kernel forward while changes are overdue.
#[derive(Default)]
struct OverdueBypass {
    /// Empty until the worker runs, and without a dispatcher.
    state: OnceLock<State>,
    /// The number of callers that wait, by [`Late`].
    overdue: Mutex<[u32; 2]>,
}

/// What is late.
#[derive(Clone, Copy)]
enum Late {
    /// The tables: the kernel forwards everything.
    Tables,
    /// The workers: the kernel forwards what is for them.
    Workers,
}

/// The kernel forwards until this is dropped. Where the kernel does not know the rules, nothing
/// forwards.
pub struct Overdue(Arc<OverdueBypass>, Late);

impl Overdue {
    fn begin(bypass: &Arc<OverdueBypass>, late: Late) -> Self {
        let mut overdue = lock(&bypass.overdue);
        let count = &mut overdue[late as usize];
        *count += 1;
        if let (1, Some(state)) = (*count, bypass.state.get()) {
            late.set(state, true);
        }
        Self(Arc::clone(bypass), late)
    }
}

impl Drop for Overdue {
    fn drop(&mut self) {
        let mut overdue = lock(&self.0.overdue);
        let count = &mut overdue[self.1 as usize];
        *count -= 1;
        if let (0, Some(state)) = (*count, self.0.state.get()) {
            self.1.set(state, false);
        }
    }
}

impl Late {
    fn set(self, state: &State, is_late: bool) {
        match self {
            Self::Tables => state.set_overdue(is_late),
            Self::Workers => state.set_workers_late(is_late),
        }
    }
}

/// Creates a mailbox and its receiver.
///
/// # Errors
/// The system has no descriptor left.
pub fn mailbox() -> io::Result<(WorkerMailbox, WorkerMailboxReceiver)> {
    let (sender, jobs) = mpsc::channel();
    let (waker, wakes) = Waker::pair()?;
    let waker = WorkerWaker::new(waker);
    let sleeper = Arc::clone(waker.sleeper());
    let waiting = Arc::new(AtomicBool::new(false));
    let bypass = Arc::<OverdueBypass>::default();
    let activity = Arc::<Activity>::default();
    let mailbox = WorkerMailbox {
        jobs: sender,
        waiting: Arc::clone(&waiting),
        waker,
        bypass: Arc::clone(&bypass),
        activity: Arc::clone(&activity),
    };
    let is_woken = false;
    let receiver =
        WorkerMailboxReceiver { jobs, waiting, wakes, is_woken, sleeper, bypass, activity };
    Ok((mailbox, receiver))
}

impl WorkerMailbox {
    /// How busy the worker is, and where it runs.
    #[must_use]
    pub const fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    /// Wakes the worker without a job.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// Creates a ring by which another worker hands frames over to this one.
    #[must_use]
    pub fn ring(&self) -> (HandOver, Consumer) {
        HandOver::to(&self.waker)
    }

    /// Posts a job; returns false if the worker has ended. The worker runs the job within one
    /// turn, even if it sleeps.
    pub fn post(&self, job: impl FnOnce(&mut Worker, &mut Devices) + Send + 'static) -> bool {
        let is_posted = self.jobs.send(Box::new(job)).is_ok();
        if !self.waiting.swap(true, Ordering::Release) {
            self.waker.wake();
        }
        is_posted
    }

    /// Has the worker run a job and waits for its result; `None` if the worker has ended or does
    /// not answer in time.
    pub fn call<T: Send + 'static>(
        &self,
        patience: Duration,
        job: impl FnOnce(&mut Worker, &mut Devices) -> T + Send + 'static,
    ) -> Option<T> {
        self.send(job).recv_timeout(patience).ok()
    }

    /// As [`WorkerMailbox::call`], for a change that the kernel has already made to its own forwarding. If
    /// the worker does not run the job at once, the kernel forwards until it has.
    pub fn change<T: Send + 'static>(
        &self,
        patience: Duration,
        job: impl FnOnce(&mut Worker, &mut Devices) -> T + Send + 'static,
    ) -> Option<T> {
        let reply = self.send(job);
        match reply.recv_timeout(SOON) {
            Err(RecvTimeoutError::Timeout) => {
                let _overdue = self.bypass();
                reply.recv_timeout(patience).ok()
            }
            done => done.ok(),
        }
    }

    /// The state of the dispatcher; none until the worker runs, and without a dispatcher.
    pub(super) fn dispatcher_state(&self) -> Option<&State> {
        self.bypass.state.get()
    }

    /// Voids all flows of the XDP path after a change that a sleeping worker would notice later.
    pub fn void_flows(&self) {
        if let Some(state) = self.dispatcher_state() {
            state.bump_generation();
        }
    }

    /// Whether somebody holds the bypass.
    #[cfg(test)]
    pub(super) fn is_bypassed(&self) -> bool {
        *lock(&self.bypass.overdue) != [0; 2]
    }

    /// Makes the kernel forward as long as a caller knows that the active tables differ from the
    /// kernel's.
    #[must_use]
    pub fn bypass(&self) -> Overdue {
        Overdue::begin(&self.bypass, Late::Tables)
    }

    /// As [`WorkerMailbox::bypass`], for as long as workers may work by older tables than the active ones: what the
    /// programs decide goes on.
    #[must_use]
    pub fn bypass_workers(&self) -> Overdue {
        Overdue::begin(&self.bypass, Late::Workers)
    }

    /// Posts a job; the receiver gets its result.
    pub fn send<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Worker, &mut Devices) -> T + Send + 'static,
    ) -> Receiver<T> {
        let (answer, reply) = mpsc::sync_channel(1);
        self.post(move |worker, devices| {
            // The caller may have stopped waiting.
            let _ = answer.send(job(worker, devices));
        });
        reply
    }
}

impl Peer for WorkerMailbox {
    fn post(&self, job: PortJob) -> bool {
        Self::post(self, move |_, devices| job(devices))
    }
}

impl WorkerMailboxReceiver {
    /// Where the worker reports how busy it is.
    pub(crate) fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Sets the state by which the kernel forwards while jobs are overdue.
    pub(crate) fn set_bypass_state(&self, state: &State) {
        let _ = self.bypass.state.set(state.clone());
    }

    /// Says that the worker falls asleep; see [`Sleeper`].
    pub(crate) fn fall_asleep(&self) {
        self.sleeper.fall_asleep();
    }

    /// Says that the worker is awake.
    pub(crate) fn awake(&self) {
        self.sleeper.awake();
    }

    /// The descriptor that is readable when a job has been posted.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.wakes.as_fd()
    }

    /// Notes whether the last sleep has ended by a wake.
    pub(crate) fn note_wake(&mut self, is_woken: bool) {
        self.is_woken = is_woken;
    }

    /// Takes the wakes that have arrived; says whether there were any.
    #[cfg(test)]
    pub(crate) fn take_wakes(&mut self) -> bool {
        let _ = self.wakes.drain();
        std::mem::take(&mut self.is_woken)
    }

    /// Runs the jobs in the mailbox; to be called between two bursts only. Returns whether there
    /// are more: packets have their turn between jobs that take long.
    pub fn work(&mut self, worker: &mut Worker, devices: &mut Devices) -> bool {
        if !self.waiting.load(Ordering::Relaxed) && !self.is_woken {
            return false;
        }
        self.is_woken = false;
        // The worker ends by `Stop`, not with its senders.
        let _ = self.wakes.drain();
        // A sender that finds the flag set does not wake the worker. The swap acquires what such a sender
        // has done before, so that the loop below sees its job; a store would not.
        self.waiting.swap(false, Ordering::AcqRel);
        let start = Instant::now();
        while let Ok(job) = self.jobs.try_recv() {
            // A job sees what the one before it has changed.
            worker.look();
            job(worker, devices);
            if start.elapsed() >= WORK {
                self.waiting.store(true, Ordering::Release);
                return true;
            }
        }
        false
    }
}
