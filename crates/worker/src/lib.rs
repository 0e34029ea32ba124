//! The worker: one loop over all ports, which sleeps when there is nothing to do.
//!
//! [`ports`] are what it receives from and sends to. Between two bursts it does the jobs that other threads
//! post to its mailbox: the [`installer`] swaps tables, and [`neighbours`] follows the kernel's neighbours.

// These macros panic on a closed pipe. Only `tollway-commands` prints, by functions that do not panic.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod guard;
pub mod installer;
mod losses;
mod mailbox;
pub mod neighbours;
pub mod ports;
pub mod priority;
pub mod service;
mod valve;

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use tollway_dataplane::id::PortId;
use tollway_dataplane::worker::Worker;

use crate::ports::Devices;
use crate::service::Watchdog;
use guard::Guard;
use losses::Losses;
pub use mailbox::{Job, Overdue, WorkerMailbox, WorkerMailboxReceiver, mailbox};
use priority::{Priority, Scheduling};
use tollway_firewall::log::Journal;
use tollway_linux::mailbox::{WakeReceiver, Waker};
use tollway_linux::sys;
use tollway_xdp::{CountMap, State};
use valve::Valves;

/// The number of the only worker, which serves all queues.
const WORKER: usize = 0;
/// How often the loop serves the host and checks the ports.
const TICK_NS: u64 = 100_000_000;
/// The longest time between two heartbeats for the XDP programs; these give up after 20 ms.
const PULSE_NS: u64 = 8_000_000;
/// After a gap of this length, all threads may have been stopped. It is a little less than those 20
/// ms, since the clock advances by ticks.
const PAUSE_NS: u64 = 16_000_000;
/// If no frame arrives for this long after the bypass began, none is in transit any more.
const QUIET: Duration = Duration::from_millis(3);
/// The longest time that a stop waits for frames in transit.
const DRAIN: Duration = Duration::from_millis(100);
/// While frames arrive at least this often, the loop does not sleep in between: falling asleep and
/// waking up costs several microseconds.
const SPIN_NS: u64 = 50_000;

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

/// Called before the worker's next heartbeat, after a pause so long that the XDP programs assumed the worker
/// had ended.
pub type OnPause = Box<dyn FnMut(&State)>;

/// The worker's duties beside forwarding.
#[derive(Default)]
pub struct Duties {
    /// The state in which the XDP programs expect heartbeats.
    pub pulse: Option<State>,
    /// Called after a pause of the worker.
    pub on_pause: Option<OnPause>,
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
    worker: &mut Worker,
    devices: &mut Devices,
    stop: &Stop,
    mailbox_receiver: &mut WorkerMailboxReceiver,
    duties: Duties,
) -> io::Result<()> {
    let Duties { pulse, on_pause, xdp_counts, priority, journal, mut watchdog } = duties;
    let (mut losses, mut scheduling) = (Losses::default(), Scheduling::begin(priority));
    let mut guarded = pulse.clone().zip(xdp_counts).map(|(state, (counts, names))| {
        (Guard::new(state.clone(), counts, names.len()), Valves::new(state, names))
    });
    let mut pulse = pulse.map(|state| {
        mailbox_receiver.set_bypass_state(&state);
        Pulse { state, last_ns: State::now_ns(), on_pause }
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
        let more = mailbox_receiver.work(worker, devices);
        let mut received = 0;
        for index in 0..devices.len() {
            received += worker.turn(PortId(index as u16), devices, now_ns);
        }
        // A kernel that does not configure the router may forward differently, or not at all.
        if let Some((_, valves)) = guarded.as_mut().filter(|_| worker.kernel_has_rules) {
            valves.follow(&mut worker.crowd, now_ns);
        }
        if now_ns >= next_tick {
            if let Some((guard, valves)) = &mut guarded {
                guard.tick(&mut worker.counters, now_ns);
                valves.tick(now_ns);
            }
            losses.tick(worker, now_ns);
            scheduling.tick(now_ns);
            worker.tick(devices, now_ns);
            journal.drain(&mut worker.filter);
            look_after(devices, now_ns);
            watchdog.tick(now_ns);
            next_tick = now_ns + TICK_NS;
        }
        if spin.goes_on(received > 0, now_ns) || more {
            continue;
        }
        worker.park();
        let longest = if pulse.is_some() { PULSE_NS } else { TICK_NS };
        let timeout = next_tick.saturating_sub(now()).min(longest);
        let asleep_ns = now();
        let trouble = wait(devices, stop, mailbox_receiver, timeout);
        scheduling.slept(now() - asleep_ns);
        worker.wake();
        if trouble? {
            // The turn notices what some ports report only to a reader.
            for index in 0..devices.len() {
                worker.turn(PortId(index as u16), devices, now_ns);
            }
            look_after(devices, now());
        }
    }
    watchdog.service().stopping();
    if let Some(pulse) = pulse {
        // From now on the kernel forwards; frames that came in before still have to go out.
        pulse.state.set_bypass(true);
        drain(worker, devices, now());
    }
    if let Some((guard, _)) = &mut guarded {
        guard.end(&mut worker.counters);
    }
    worker.tick(devices, now());
    journal.finish(&mut worker.filter);
    Ok(())
}

/// The heartbeat of the loop.
struct Pulse {
    state: State,
    last_ns: u64,
    on_pause: Option<OnPause>,
}

impl Pulse {
    #[inline]
    fn beat(&mut self) {
        let now_ns = State::now_ns();
        if now_ns.saturating_sub(self.last_ns) > PAUSE_NS
            && let Some(on_pause) = &mut self.on_pause
        {
            on_pause(&self.state);
        }
        self.last_ns = now_ns;
        self.state.beat_at(WORKER, now_ns);
    }
}

/// Takes turns until no more frames arrive.
fn drain(worker: &mut Worker, devices: &mut Devices, now_ns: u64) {
    let start = Instant::now();
    let mut last = start;
    while last.elapsed() < QUIET && start.elapsed() < DRAIN {
        for index in 0..devices.len() {
            if worker.turn(PortId(index as u16), devices, now_ns) > 0 {
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
    fds.push(sys::readable(mailbox_receiver.fd().as_raw_fd()));
    for device in devices {
        device.each_fd(&mut |fd| fds.push(sys::readable(fd.as_raw_fd())));
    }
    let timeout_ms = timeout_ns.div_ceil(1_000_000).min(1000);
    sys::wait(&mut fds, timeout_ms as i32)?;
    mailbox_receiver.note_wake(fds[1].revents != 0);
    Ok(fds[2..].iter().any(|fd| fd.revents & !libc::POLLIN != 0))
}

#[cfg(test)]
mod tests {
    use super::mailbox::WORK;
    use super::*;

    #[test]
    fn jobs_that_take_long_leave_turns_to_the_ports() {
        let (mailbox, mut mailbox_receiver) = mailbox().unwrap();
        let umem = tollway_dataplane::frame::Umem::new(16, 4096).unwrap();
        let (tables, host) = Default::default();
        let (mut worker, mut devices) = (Worker::alone(tables, umem, host), Devices::new());
        assert!(!mailbox_receiver.work(&mut worker, &mut devices));
        for _ in 0..3 {
            assert!(mailbox.post(|worker, _| {
                std::thread::sleep(WORK);
                worker.counters.held += 1;
            }));
        }
        for held in 1..=3 {
            assert!(mailbox_receiver.work(&mut worker, &mut devices));
            assert_eq!(worker.counters.held, held);
        }
        assert!(!mailbox_receiver.work(&mut worker, &mut devices));
    }

    #[test]
    fn a_wake_that_comes_after_its_job_ends_one_sleep() {
        let (mailbox, mut mailbox_receiver) = mailbox().unwrap();
        let umem = tollway_dataplane::frame::Umem::new(16, 4096).unwrap();
        let (tables, host) = Default::default();
        let (mut worker, mut devices) = (Worker::alone(tables, umem, host), Devices::new());
        let (waker, wakes) = Waker::pair().unwrap();
        let stop = Stop { wanted: Arc::default(), wakes, waker };
        let slept_ms = |mailbox_receiver: &mut WorkerMailboxReceiver, timeout_ms: u64| {
            let start = Instant::now();
            wait(&Devices::new(), &stop, mailbox_receiver, timeout_ms * 1_000_000).unwrap();
            u64::try_from(start.elapsed().as_millis()).unwrap()
        };
        // The sender has left the job, and the worker has done it, before the sender wakes the worker.
        mailbox.wake();
        assert!(slept_ms(&mut mailbox_receiver, 1000) < 500);
        assert!(!mailbox_receiver.work(&mut worker, &mut devices));
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
