//! The worker: one loop over all ports, which sleeps when there is nothing to do.

mod guard;
mod losses;
pub mod priority;
mod valve;

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use tollway_dataplane::id::PortId;
use tollway_dataplane::router::Router;

use crate::filter::log::Journal;
use crate::ports::{Devices, sys};
use crate::service::Watchdog;
use crate::steer::{CountMap, State};
use crate::sync::lock;
use guard::Guard;
use losses::Losses;
use priority::{Priority, Scheduling};
use valve::Valves;

/// The host and the ports are looked after so often.
const TICK_NS: u64 = 100_000_000;
/// A steering program hears of the loop so often at least; it gives up after 20 ms.
const PULSE_NS: u64 = 8_000_000;
/// Who has not been heard of for so long may have been stopped, with all threads: a little less than those
/// 20 ms, since the clock goes on by ticks.
const GAP_NS: u64 = 16_000_000;
/// No more comes after a steering program's bypass when nothing has come for so long.
const QUIET: Duration = Duration::from_millis(3);
/// A stop waits for frames on their way at most so long.
const DRAIN: Duration = Duration::from_millis(100);
/// While frames come at least this often, the loop does not sleep in between: falling asleep and
/// waking up costs several microseconds.
const SPIN_NS: u64 = 50_000;

/// Jobs that were left are done for so long before the ports have their turn again.
const WORK: Duration = Duration::from_micros(50);

/// What changes tables is done within this, or the kernel forwards until it is.
const SOON: Duration = Duration::from_micros(500);

/// Signals that ask for an end.
const STOPS: [i32; 2] = [SIGINT, SIGTERM];

/// The wish to stop: set by SIGINT and SIGTERM. The second such signal ends the process at once.
pub struct Stop {
    wanted: Arc<AtomicBool>,
    /// Becomes readable with the signal, so that a loop that sleeps wakes up.
    pipe: UnixStream,
    wake: Arc<UnixStream>,
}

/// Whoever holds it can stop the worker.
#[derive(Clone)]
pub struct Stopper {
    wanted: Arc<AtomicBool>,
    wake: Arc<UnixStream>,
}

impl Stopper {
    /// Stops the worker, after the turn that it takes now.
    pub fn stop(&self) {
        self.wanted.store(true, Ordering::Relaxed);
        // A full pipe wakes as well.
        let _ = (&*self.wake).write(&[0]);
    }
}

/// A flag that is set when the process is asked to end; a second time it ends at once.
///
/// # Errors
/// The system does not let signals be taken.
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
    /// Listens to the signals from now on.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn on_signals() -> io::Result<Self> {
        let (pipe, wake) = UnixStream::pair()?;
        let wanted = stop_flag()?;
        for signal in STOPS {
            signal_hook::low_level::pipe::register(signal, wake.try_clone()?)?;
        }
        // A log or a capture that reaches its largest size is an error of the write, and not the end.
        signal_hook::flag::register(SIGXFSZ, Arc::default())?;
        Ok(Self { wanted, pipe, wake: Arc::new(wake) })
    }

    /// By which others can stop the worker.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper { wanted: Arc::clone(&self.wanted), wake: Arc::clone(&self.wake) }
    }

    fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }
}

/// Work for the worker's thread, done between two bursts.
pub type Job = Box<dyn FnOnce(&mut Router, &mut Devices) + Send>;

/// Where others leave work for the worker: a route, a neighbour, new tables, a look at the counts.
#[derive(Clone)]
pub struct Post {
    jobs: Sender<Job>,
    /// There are jobs; asked once a turn, which costs less than the channel does.
    waiting: Arc<AtomicBool>,
    wake: Arc<UnixStream>,
    detour: Arc<Detour>,
}

/// The worker's end of its [`Post`].
pub struct Inbox {
    jobs: Receiver<Job>,
    waiting: Arc<AtomicBool>,
    pipe: UnixStream,
    detour: Arc<Detour>,
}

/// Has the kernel forward while jobs are overdue.
#[derive(Default)]
struct Detour {
    /// None before the worker runs, and where nothing steers.
    state: OnceLock<State>,
    /// How many wait for such a job.
    overdue: Mutex<u32>,
}

/// The kernel forwards until this is dropped; where it does not know the rules, nobody does.
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

/// A post and its inbox.
///
/// # Errors
/// The system has no descriptor left.
pub fn post() -> io::Result<(Post, Inbox)> {
    let (sender, jobs) = mpsc::channel();
    let (pipe, wake) = UnixStream::pair()?;
    pipe.set_nonblocking(true)?;
    wake.set_nonblocking(true)?;
    let waiting = Arc::new(AtomicBool::new(false));
    let detour = Arc::<Detour>::default();
    let post = Post {
        jobs: sender,
        waiting: Arc::clone(&waiting),
        wake: Arc::new(wake),
        detour: Arc::clone(&detour),
    };
    Ok((post, Inbox { jobs, waiting, pipe, detour }))
}

impl Post {
    /// Leaves a job; false where the worker has ended. It is done within one turn, asleep or not.
    pub fn leave(&self, job: impl FnOnce(&mut Router, &mut Devices) + Send + 'static) -> bool {
        let left = self.jobs.send(Box::new(job)).is_ok();
        if !self.waiting.swap(true, Ordering::Release) {
            // A full pipe wakes as well.
            let _ = (&*self.wake).write(&[0]);
        }
        left
    }

    /// Asks the worker for something and waits for it; none where the worker has ended or does not
    /// answer in time.
    pub fn ask<T: Send + 'static>(
        &self,
        patience: Duration,
        job: impl FnOnce(&mut Router, &mut Devices) -> T + Send + 'static,
    ) -> Option<T> {
        self.send(job).recv_timeout(patience).ok()
    }

    /// The same of what the kernel forwards otherwise already: where the worker does not do it at once, the
    /// kernel forwards until it has.
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

    /// Has the kernel forward for as long as somebody knows that what is in force is not what the kernel has.
    #[must_use]
    pub fn detour(&self) -> Overdue {
        Overdue::begin(&self.detour)
    }

    /// Leaves a job; what it gives comes by and by.
    pub fn send<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Router, &mut Devices) -> T + Send + 'static,
    ) -> Receiver<T> {
        let (answer, reply) = mpsc::sync_channel(1);
        self.leave(move |router, devices| {
            // Whoever asked may have gone.
            let _ = answer.send(job(router, devices));
        });
        reply
    }
}

impl Inbox {
    /// Does what has been left; between two bursts only. Says if there is more: where jobs take
    /// their time, packets have their turn in between.
    pub(crate) fn work(&mut self, router: &mut Router, devices: &mut Devices) -> bool {
        if !self.waiting.load(Ordering::Relaxed) {
            return false;
        }
        self.empty_pipe();
        self.waiting.store(false, Ordering::Release);
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

    fn empty_pipe(&mut self) {
        let mut bytes = [0; 64];
        while matches!(self.pipe.read(&mut bytes), Ok(1..)) {}
    }
}

/// Told when the worker has been away so long that the steering programs took it for gone, before they
/// hear of it again.
pub type OnGap = Box<dyn FnMut(&State)>;

/// What the worker does beside forwarding.
#[derive(Default)]
pub struct Duties {
    /// Where a steering program waits for signs of life.
    pub pulse: Option<State>,
    /// Who else is to know when the worker was away.
    pub on_gap: Option<OnGap>,
    /// What that program counts, and the ports' names.
    pub steered: Option<(CountMap, Vec<String>)>,
    /// How soon the worker is to get a processor.
    pub priority: Priority,
    /// Where what rules log goes.
    pub journal: Journal,
    /// Who else waits for signs of life.
    pub watchdog: Watchdog,
}

/// Forwards between the ports until told to stop; does meanwhile what is left in the inbox.
///
/// # Errors
/// The system can not wait for the ports.
pub fn run(
    router: &mut Router,
    devices: &mut Devices,
    stop: &Stop,
    inbox: &mut Inbox,
    duties: Duties,
) -> io::Result<()> {
    let Duties { pulse, on_gap, steered, priority, journal, mut watchdog } = duties;
    let (mut losses, mut scheduling) = (Losses::default(), Scheduling::begin(priority));
    let mut guarded = pulse.clone().zip(steered).map(|(state, (counts, names))| {
        (Guard::new(state.clone(), counts, names.len()), Valves::new(state, names))
    });
    let mut pulse = pulse.map(|state| {
        let _ = inbox.detour.state.set(state.clone());
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
        let more = inbox.work(router, devices);
        let mut received = 0;
        for index in 0..devices.len() {
            received += router.turn(PortId(index as u16), devices, now_ns);
        }
        // Another kernel than one that configures the router may forward otherwise, or not at all.
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
        let trouble = wait(devices, stop, inbox, timeout);
        scheduling.slept(now() - asleep_ns);
        router.wake();
        if trouble? {
            // The turn notices what some ports tell only to those who read.
            for index in 0..devices.len() {
                router.turn(PortId(index as u16), devices, now_ns);
            }
            look_after(devices, now());
        }
    }
    watchdog.service().stopping();
    if let Some(pulse) = pulse {
        // From now on the kernel forwards; what has come in before still has to leave.
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

/// Signs of life.
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

/// Takes turns until nothing has come for a while.
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

/// Whether to look again at once rather than to sleep.
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

/// Sleeps until a port has frames, or a signal comes, or the time is over; says if a port is in
/// trouble.
fn wait(devices: &Devices, stop: &Stop, inbox: &Inbox, timeout_ns: u64) -> io::Result<bool> {
    let mut fds = Vec::with_capacity(devices.len() + 2);
    let entry = |fd: i32| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    fds.push(entry(stop.pipe.as_fd().as_raw_fd()));
    fds.push(entry(inbox.pipe.as_fd().as_raw_fd()));
    for device in devices {
        device.each_fd(&mut |fd| fds.push(entry(fd.as_raw_fd())));
    }
    let timeout_ms = timeout_ns.div_ceil(1_000_000).min(1000);
    sys::wait(&mut fds, timeout_ms as i32)?;
    Ok(fds[2..].iter().any(|fd| fd.revents & !libc::POLLIN != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_take_long_leave_turns_to_the_ports() {
        let (post, mut inbox) = post().unwrap();
        let umem = tollway_dataplane::frame::Umem::new(16, 4096).unwrap();
        let (tables, host) = Default::default();
        let (mut router, mut devices) = (Router::new(tables, umem, host), Devices::new());
        assert!(!inbox.work(&mut router, &mut devices));
        for _ in 0..3 {
            assert!(post.leave(|router, _| {
                std::thread::sleep(WORK);
                router.counters.held += 1;
            }));
        }
        for held in 1..=3 {
            assert!(inbox.work(&mut router, &mut devices));
            assert_eq!(router.counters.held, held);
        }
        assert!(!inbox.work(&mut router, &mut devices));
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
