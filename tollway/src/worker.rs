//! The worker: one loop over all ports, which sleeps when there is nothing to do.

mod guard;
mod losses;
pub mod priority;
mod valve;

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use tollway_dataplane::id::PortId;
use tollway_dataplane::router::Router;

use crate::filter::log::Journal;
use crate::mailbox::{WakeReceiver, Waker};
use crate::ports::Devices;
use crate::service::Watchdog;
use crate::sync::lock;
use crate::sys;
use crate::xdp::{CountMap, State};
use guard::Guard;
use losses::Losses;
use priority::{Priority, Scheduling};
use valve::Valves;

/// How often the loop serves the host and checks the ports.
const TICK_NS: u64 = 100_000_000;
/// The longest time between two heartbeats for the XDP programs; these give up after 20 ms.
const PULSE_NS: u64 = 8_000_000;
/// After a gap of this length, all threads may have been stopped. It is a little less than those 20
/// ms, since the clock advances by ticks.
const GAP_NS: u64 = 16_000_000;
/// After this time without a frame, no more frames come after an XDP program's bypass.
const QUIET: Duration = Duration::from_millis(3);
/// The longest time that a stop waits for frames in transit.
const DRAIN: Duration = Duration::from_millis(100);
/// While frames arrive at least this often, the loop does not sleep in between: falling asleep and
/// waking up costs several microseconds.
const SPIN_NS: u64 = 50_000;

/// The longest that the worker runs jobs before the ports have their turn again.
const WORK: Duration = Duration::from_micros(50);

/// A job that changes tables finishes within this time, or the kernel forwards until it does.
const SOON: Duration = Duration::from_micros(500);

/// The signals that request a stop.
const STOPS: [i32; 2] = [SIGINT, SIGTERM];

/// The request to stop, set by SIGINT and SIGTERM. The second such signal ends the process at once.
pub struct Stop {
    wanted: Arc<AtomicBool>,
    /// Becomes readable with the signal, so that a sleeping loop wakes up.
    wakes: WakeReceiver,
    waker: Waker,
}

/// A handle that stops the worker.
#[derive(Clone)]
pub struct Stopper {
    wanted: Arc<AtomicBool>,
    waker: Waker,
}

impl Stopper {
    /// Stops the worker after its current turn.
    pub fn stop(&self) {
        self.wanted.store(true, Ordering::Relaxed);
        self.waker.wake();
    }
}

/// Returns a flag that the first stop signal sets; the second signal ends the process at once.
///
/// # Errors
/// The system does not permit signal handlers.
pub fn stop_flag() -> io::Result<Arc<AtomicBool>> {
    let wanted = Arc::new(AtomicBool::new(false));
    for signal in STOPS {
        let code = 128 + signal;
        // The order matters: the first signal must find the flag not yet set.
        signal_hook::flag::register_conditional_shutdown(signal, code, Arc::clone(&wanted))?;
        signal_hook::flag::register(signal, Arc::clone(&wanted))?;
    }
    Ok(wanted)
}

impl Stop {
    /// Installs the signal handlers.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn on_signals() -> io::Result<Self> {
        let (waker, wakes) = Waker::pair()?;
        let wanted = stop_flag()?;
        for signal in STOPS {
            signal_hook::low_level::pipe::register(signal, waker.socket()?)?;
        }
        // A log or a capture at its size limit makes the write fail, instead of ending the process.
        signal_hook::flag::register(SIGXFSZ, Arc::default())?;
        Ok(Self { wanted, wakes, waker })
    }

    /// A handle with which other threads stop the worker.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper { wanted: Arc::clone(&self.wanted), waker: self.waker.clone() }
    }

    fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }
}

/// Work for the worker's thread, done between two bursts.
pub type Job = Box<dyn FnOnce(&mut Router, &mut Devices) + Send>;

/// The worker's mailbox, in which other threads leave jobs: a route, a neighbour, new tables, a
/// look at the counters.
#[derive(Clone)]
pub struct WorkerMailbox {
    jobs: Sender<Job>,
    /// Whether there are jobs; the worker checks this once per turn, which costs less than the
    /// channel does.
    waiting: Arc<AtomicBool>,
    waker: Waker,
    detour: Arc<Detour>,
}

/// The worker's end of its [`WorkerMailbox`].
pub struct WorkerMailboxReceiver {
    jobs: Receiver<Job>,
    waiting: Arc<AtomicBool>,
    wakes: WakeReceiver,
    /// The last sleep has ended by a wake that is not taken in yet. The wake of a job that the worker
    /// has found by itself may come after the job.
    is_woken: bool,
    detour: Arc<Detour>,
}

/// Makes the kernel forward while jobs are overdue.
#[derive(Default)]
struct Detour {
    /// Empty until the worker runs, and without a dispatcher.
    state: OnceLock<State>,
    /// The number of callers that wait for an overdue job.
    overdue: Mutex<u32>,
}

/// The kernel forwards until this is dropped. Where the kernel does not know the rules, nothing
/// forwards.
pub struct Overdue(Arc<Detour>);

impl Overdue {
    fn begin(detour: &Arc<Detour>) -> Self {
        let mut overdue = lock(&detour.overdue);
        *overdue += 1;
        if let (1, Some(state)) = (*overdue, detour.state.get()) {
            state.set_overdue(true);
        }
        Self(Arc::clone(detour))
    }
}

impl Drop for Overdue {
    fn drop(&mut self) {
        let mut overdue = lock(&self.0.overdue);
        *overdue -= 1;
        if let (0, Some(state)) = (*overdue, self.0.state.get()) {
            state.set_overdue(false);
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
    let waiting = Arc::new(AtomicBool::new(false));
    let detour = Arc::<Detour>::default();
    let mailbox = WorkerMailbox {
        jobs: sender,
        waiting: Arc::clone(&waiting),
        waker,
        detour: Arc::clone(&detour),
    };
    Ok((mailbox, WorkerMailboxReceiver { jobs, waiting, wakes, is_woken: false, detour }))
}

impl WorkerMailbox {
    /// Leaves a job; returns false if the worker has ended. The worker runs the job within one
    /// turn, even if it sleeps.
    pub fn leave(&self, job: impl FnOnce(&mut Router, &mut Devices) + Send + 'static) -> bool {
        let left = self.jobs.send(Box::new(job)).is_ok();
        if !self.waiting.swap(true, Ordering::Release) {
            self.waker.wake();
        }
        left
    }

    /// Has the worker run a job and waits for its result; `None` if the worker has ended or does
    /// not answer in time.
    pub fn call<T: Send + 'static>(
        &self,
        patience: Duration,
        job: impl FnOnce(&mut Router, &mut Devices) -> T + Send + 'static,
    ) -> Option<T> {
        self.send(job).recv_timeout(patience).ok()
    }

    /// As [`WorkerMailbox::call`], for a change that the kernel has already made to its own forwarding. If
    /// the worker does not run the job at once, the kernel forwards until it has.
    pub fn change<T: Send + 'static>(
        &self,
        patience: Duration,
        job: impl FnOnce(&mut Router, &mut Devices) -> T + Send + 'static,
    ) -> Option<T> {
        let reply = self.send(job);
        match reply.recv_timeout(SOON) {
            Err(RecvTimeoutError::Timeout) => {
                let _overdue = self.detour();
                reply.recv_timeout(patience).ok()
            }
            done => done.ok(),
        }
    }

    /// Makes the kernel forward as long as a caller knows that the active tables differ from the
    /// kernel's.
    #[must_use]
    pub fn detour(&self) -> Overdue {
        Overdue::begin(&self.detour)
    }

    /// Leaves a job; the receiver gets its result.
    pub fn send<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Router, &mut Devices) -> T + Send + 'static,
    ) -> Receiver<T> {
        let (answer, reply) = mpsc::sync_channel(1);
        self.leave(move |router, devices| {
            // The caller may have stopped waiting.
            let _ = answer.send(job(router, devices));
        });
        reply
    }
}

impl WorkerMailboxReceiver {
    /// Runs the jobs in the mailbox; to be called between two bursts only. Returns whether there
    /// are more: packets have their turn between jobs that take long.
    pub(crate) fn work(&mut self, router: &mut Router, devices: &mut Devices) -> bool {
        if !self.waiting.load(Ordering::Relaxed) && !self.is_woken {
            return false;
        }
        self.is_woken = false;
        // The worker ends by `Stop`, not with its senders.
        let _ = self.wakes.drain();
        // Not a mere store: who finds the flag set wakes nobody, so its job must be seen from here on.
        self.waiting.swap(false, Ordering::AcqRel);
        let start = Instant::now();
        while let Ok(job) = self.jobs.try_recv() {
            job(router, devices);
            if start.elapsed() >= WORK {
                self.waiting.store(true, Ordering::Release);
                return true;
            }
        }
        false
    }
}

/// Called when the worker was away so long that the XDP programs took it for gone, before its next
/// heartbeat.
pub type OnGap = Box<dyn FnMut(&State)>;

/// The worker's duties beside forwarding.
#[derive(Default)]
pub struct Duties {
    /// The state in which the XDP programs expect heartbeats.
    pub pulse: Option<State>,
    /// Called when the worker was away.
    pub on_gap: Option<OnGap>,
    /// The XDP programs' counters, and the ports' names.
    pub xdp_counts: Option<(CountMap, Vec<String>)>,
    /// The worker's scheduling.
    pub priority: Priority,
    /// The destination of the rules' log.
    pub journal: Journal,
    /// Another receiver of heartbeats.
    pub watchdog: Watchdog,
}

/// Forwards between the ports until a stop is requested; runs the jobs in the mailbox meanwhile.
///
/// # Errors
/// The system cannot wait for the ports.
pub fn run(
    router: &mut Router,
    devices: &mut Devices,
    stop: &Stop,
    mailbox_receiver: &mut WorkerMailboxReceiver,
    duties: Duties,
) -> io::Result<()> {
    let Duties { pulse, on_gap, xdp_counts, priority, journal, mut watchdog } = duties;
    let (mut losses, mut scheduling) = (Losses::default(), Scheduling::begin(priority));
    let mut guarded = pulse.clone().zip(xdp_counts).map(|(state, (counts, names))| {
        (Guard::new(state.clone(), counts, names.len()), Valves::new(state, names))
    });
    let mut pulse = pulse.map(|state| {
        let _ = mailbox_receiver.detour.state.set(state.clone());
        Pulse { state, last_ns: State::now_ns(), on_gap }
    });
    let start = Instant::now();
    let now = || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let (mut next_tick, mut spin) = (0, Spin::default());
    while !stop.is_wanted() {
        let now_ns = now();
        if let Some(pulse) = &mut pulse {
            pulse.beat();
        }
        if let Some((guard, _)) = &mut guarded {
            guard.turn(now_ns);
        }
        let more = mailbox_receiver.work(router, devices);
        let mut received = 0;
        for index in 0..devices.len() {
            received += router.turn(PortId(index as u16), devices, now_ns);
        }
        // A kernel that does not configure the router may forward differently, or not at all.
        if let Some((_, valves)) = guarded.as_mut().filter(|_| router.kernel_has_rules) {
            valves.follow(&mut router.crowd, now_ns);
        }
        if now_ns >= next_tick {
            if let Some((guard, valves)) = &mut guarded {
                guard.tick(&mut router.counters, now_ns);
                valves.tick(now_ns);
            }
            losses.tick(router, now_ns);
            scheduling.tick(now_ns);
            router.tick(devices, now_ns);
            journal.drain(&mut router.filter);
            look_after(devices, now_ns);
            watchdog.tick(now_ns);
            next_tick = now_ns + TICK_NS;
        }
        if spin.goes_on(received > 0, now_ns) || more {
            continue;
        }
        router.park();
        let longest = if pulse.is_some() { PULSE_NS } else { TICK_NS };
        let timeout = next_tick.saturating_sub(now()).min(longest);
        let asleep_ns = now();
        let trouble = wait(devices, stop, mailbox_receiver, timeout);
        scheduling.slept(now() - asleep_ns);
        router.wake();
        if trouble? {
            // The turn notices what some ports report only to a reader.
            for index in 0..devices.len() {
                router.turn(PortId(index as u16), devices, now_ns);
            }
            look_after(devices, now());
        }
    }
    watchdog.service().stopping();
    if let Some(pulse) = pulse {
        // From now on the kernel forwards; frames that came in before still have to go out.
        pulse.state.set_bypass(true);
        drain(router, devices, now());
    }
    if let Some((guard, _)) = &mut guarded {
        guard.end(&mut router.counters);
    }
    router.tick(devices, now());
    journal.finish(&mut router.filter);
    Ok(())
}

/// The heartbeat of the loop.
struct Pulse {
    state: State,
    last_ns: u64,
    on_gap: Option<OnGap>,
}

impl Pulse {
    #[inline]
    fn beat(&mut self) {
        let now_ns = State::now_ns();
        if now_ns.saturating_sub(self.last_ns) > GAP_NS
            && let Some(on_gap) = &mut self.on_gap
        {
            on_gap(&self.state);
        }
        self.last_ns = now_ns;
        self.state.beat_at(now_ns);
    }
}

/// Takes turns until no more frames arrive.
fn drain(router: &mut Router, devices: &mut Devices, now_ns: u64) {
    let start = Instant::now();
    let mut last = start;
    while last.elapsed() < QUIET && start.elapsed() < DRAIN {
        for index in 0..devices.len() {
            if router.turn(PortId(index as u16), devices, now_ns) > 0 {
                last = Instant::now();
            }
        }
        std::thread::sleep(QUIET / 10);
    }
}

fn look_after(devices: &mut Devices, now_ns: u64) {
    for device in devices {
        device.maintain(now_ns);
    }
}

/// Decides whether to poll again at once rather than sleep.
#[derive(Default)]
struct Spin {
    last_ns: u64,
    busy: bool,
}

impl Spin {
    fn goes_on(&mut self, received: bool, now_ns: u64) -> bool {
        let gap = now_ns.saturating_sub(self.last_ns);
        if received {
            (self.last_ns, self.busy) = (now_ns, gap <= SPIN_NS);
            return true;
        }
        self.busy && gap <= SPIN_NS
    }
}

/// Sleeps until a port has frames, a signal arrives or the time is over; returns whether a port has
/// failed.
fn wait(
    devices: &Devices,
    stop: &Stop,
    mailbox_receiver: &mut WorkerMailboxReceiver,
    timeout_ns: u64,
) -> io::Result<bool> {
    let mut fds = Vec::with_capacity(devices.len() + 2);
    fds.push(sys::readable(stop.wakes.as_fd().as_raw_fd()));
    fds.push(sys::readable(mailbox_receiver.wakes.as_fd().as_raw_fd()));
    for device in devices {
        device.each_fd(&mut |fd| fds.push(sys::readable(fd.as_raw_fd())));
    }
    let timeout_ms = timeout_ns.div_ceil(1_000_000).min(1000);
    sys::wait(&mut fds, timeout_ms as i32)?;
    mailbox_receiver.is_woken = fds[1].revents != 0;
    Ok(fds[2..].iter().any(|fd| fd.revents & !libc::POLLIN != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_take_long_leave_turns_to_the_ports() {
        let (mailbox, mut mailbox_receiver) = mailbox().unwrap();
        let umem = tollway_dataplane::frame::Umem::new(16, 4096).unwrap();
        let (tables, host) = Default::default();
        let (mut router, mut devices) = (Router::new(tables, umem, host), Devices::new());
        assert!(!mailbox_receiver.work(&mut router, &mut devices));
        for _ in 0..3 {
            assert!(mailbox.leave(|router, _| {
                std::thread::sleep(WORK);
                router.counters.held += 1;
            }));
        }
        for held in 1..=3 {
            assert!(mailbox_receiver.work(&mut router, &mut devices));
            assert_eq!(router.counters.held, held);
        }
        assert!(!mailbox_receiver.work(&mut router, &mut devices));
    }

    #[test]
    fn a_wake_that_comes_after_its_job_ends_one_sleep() {
        let (mailbox, mut mailbox_receiver) = mailbox().unwrap();
        let umem = tollway_dataplane::frame::Umem::new(16, 4096).unwrap();
        let (tables, host) = Default::default();
        let (mut router, mut devices) = (Router::new(tables, umem, host), Devices::new());
        let (waker, wakes) = Waker::pair().unwrap();
        let stop = Stop { wanted: Arc::default(), wakes, waker };
        let slept_ms = |mailbox_receiver: &mut WorkerMailboxReceiver, timeout_ms: u64| {
            let start = Instant::now();
            wait(&Devices::new(), &stop, mailbox_receiver, timeout_ms * 1_000_000).unwrap();
            u64::try_from(start.elapsed().as_millis()).unwrap()
        };
        // The sender has left the job, and the worker has done it, before the sender wakes the worker.
        mailbox.waker.wake();
        assert!(slept_ms(&mut mailbox_receiver, 1000) < 500);
        assert!(!mailbox_receiver.work(&mut router, &mut devices));
        assert!(slept_ms(&mut mailbox_receiver, 20) >= 20, "the wake still lasts");
    }

    #[test]
    fn the_loop_sleeps_unless_frames_follow_each_other() {
        let mut spin = Spin::default();
        assert!(!spin.goes_on(false, 1_000_000));
        assert!(spin.goes_on(true, 1_000_000), "there may be more");
        assert!(!spin.goes_on(false, 1_000_001), "one frame after a pause");
        assert!(spin.goes_on(true, 1_010_000));
        assert!(spin.goes_on(false, 1_050_000), "frames every 10 us");
        assert!(!spin.goes_on(false, 1_070_000));
    }
}
