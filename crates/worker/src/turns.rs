//! A worker's loop: turns, jobs, heartbeat, ticks, and sleep when there is nothing to do.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollway_dataplane::hand_over::Consumer;
use tollway_dataplane::id::PortId;
use tollway_dataplane::worker::Worker;

use crate::activity::LoadMeter;
use crate::losses::Losses;
use crate::mailbox::WorkerMailboxReceiver;
use crate::ports::Devices;
use crate::priority::{Priority, Scheduling};
use crate::sleep::Sleep;
use crate::valve::Valves;
use tollway_firewall::log::Journal;
use tollway_linux::pace::{self, POLL};
use tollway_linux::sys;
use tollway_xdp::State;

/// How often the loop looks after the ports.
const TICK: Duration = POLL;
/// The longest time between two heartbeats for the XDP programs, if nobody else writes them ([`Sleep`]); the programs give
/// up after 30 ms.
const PULSE_NS: u64 = 20_000_000;
/// A worker that has had no frames for so long sleeps until the next tick. Before, frames may wait to be sent, and flows to
/// enter the XDP path.
const IDLE_NS: u64 = 1_000_000_000;
/// A gap of this length counts as a pause. It is a little less than those 30 ms, since the clock advances by
/// ticks.
const PAUSE_NS: u64 = 26_000_000;
/// If no frame arrives for this long after the bypass began, none is in transit any more.
const QUIET: Duration = Duration::from_millis(3);
/// The longest time that a stop waits for frames in transit.
const DRAIN: Duration = Duration::from_millis(100);
/// While frames arrive at least this often, the loop does not sleep in between: falling asleep and
/// waking up costs several microseconds.
const SPIN_NS: u64 = 50_000;

/// The time since a moment that all workers share: limits and logs compare their times.
#[derive(Clone, Copy)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now_ns(self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// What the loops of all workers share.
#[derive(Clone)]
pub(crate) struct Common {
    pub(crate) clock: Clock,
    /// The state in which the XDP programs expect heartbeats.
    pub(crate) pulse: Option<State>,
    pub(crate) valves: Option<Valves>,
    pub(crate) journal: Journal,
    pub(crate) priority: Priority,
    /// Whether each worker waits, for who beats meanwhile.
    pub(crate) sleeps: Arc<[Sleep]>,
    /// The longest pause of a worker or of the heartbeat since worker 0 last looked, in ns.
    pub(crate) longest_pause_ns: Arc<AtomicU64>,
}

/// A worker with its ports and its mailbox.
pub(crate) struct Seat<'a> {
    /// Its number. It serves the queues that have this number modulo the number of workers.
    pub(crate) number: usize,
    pub(crate) worker: &'a mut Worker,
    pub(crate) devices: &'a mut Devices,
    pub(crate) mailbox: &'a mut WorkerMailboxReceiver,
    /// The rings by which other workers hand frames over to this one.
    pub(crate) handed_over: &'a mut [Consumer],
}

/// What a worker's loop does in each turn.
pub(crate) struct Turns {
    common: Common,
    pulse: Option<Pulse>,
    losses: Losses,
    scheduling: Scheduling,
    load: LoadMeter,
    next_tick_ns: u64,
    /// Whether others see that the worker sleeps, and beat for it.
    sleep_shows: bool,
    /// When it last had frames, or began.
    active_ns: u64,
    spin: Spin,
}

/// What a turn has found.
pub(crate) struct Turn {
    pub(crate) now_ns: u64,
    /// Whether there may be more to do at once.
    goes_on: bool,
    /// Whether a tick was due.
    pub(crate) ticked: bool,
}

impl Turns {
    /// Begins on the worker's own thread.
    pub(crate) fn begin(common: &Common, seat: &Seat<'_>) -> Self {
        let number = seat.number;
        let pulse = common.pulse.clone().map(|state| Pulse {
            state,
            number,
            last_ns: State::now_ns(),
            longest_ns: Arc::clone(&common.longest_pause_ns),
        });
        Self {
            sleep_shows: common.sleeps[number].show(),
            active_ns: common.clock.now_ns(),
            pulse,
            losses: Losses::of_worker(number),
            scheduling: Scheduling::begin(common.priority),
            load: seat.mailbox.activity().begin(),
            next_tick_ns: 0,
            spin: Spin::default(),
            common: common.clone(),
        }
    }

    /// Takes a turn at all ports.
    pub(crate) fn take(&mut self, seat: &mut Seat<'_>) -> Turn {
        let now_ns = self.common.clock.now_ns();
        if let Some(pulse) = &mut self.pulse {
            pulse.beat(&self.common.sleeps[seat.number]);
        }
        let more = seat.mailbox.work(seat.worker, seat.devices);
        let received = seat.receive(now_ns);
        if received > 0 {
            self.active_ns = now_ns;
        }
        // A kernel that does not configure the router may forward differently, or not at all.
        if let Some(valves) = &self.common.valves
            && seat.worker.kernel_has_rules
        {
            valves.follow(&mut seat.worker.crowd, now_ns);
        }
        let ticked = now_ns >= self.next_tick_ns;
        if ticked {
            self.tick(seat, now_ns);
        }
        Turn { now_ns, goes_on: self.spin.goes_on(received > 0, now_ns) || more, ticked }
    }

    fn tick(&mut self, seat: &mut Seat<'_>, now_ns: u64) {
        self.losses.tick(seat.worker, now_ns);
        self.scheduling.tick(now_ns);
        self.load.tick(seat.mailbox.activity());
        match seat.number {
            0 => seat.worker.tick(seat.devices, now_ns),
            _ => seat.worker.tick_ports(seat.devices),
        }
        self.common.journal.drain(&mut seat.worker.filter);
        look_after(seat.devices, now_ns);
        // The ports may have taken a while.
        self.next_tick_ns = self.common.clock.now_ns() + pace::until_next(TICK).as_nanos() as u64;
    }

    /// Sleeps until there is something to do, if the turn has found nothing; `stop` becomes readable with a
    /// request to stop.
    ///
    /// # Errors
    /// The system cannot wait for the ports.
    pub(crate) fn rest(
        &mut self,
        seat: &mut Seat<'_>,
        turn: &Turn,
        stop: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        if turn.goes_on {
            return Ok(());
        }
        let clock = self.common.clock;
        seat.mailbox.fall_asleep();
        // From here on, who hands frames over wakes the worker.
        if seat.handed_over.iter().any(|ring| !ring.is_empty()) {
            seat.mailbox.awake();
            return Ok(());
        }
        seat.worker.park();
        let asleep_ns = clock.now_ns();
        let timeout_ns =
            self.next_tick_ns.saturating_sub(asleep_ns).min(self.longest_ns(asleep_ns));
        let sleep = &self.common.sleeps[seat.number];
        let trouble = wait(seat.devices, stop, (seat.mailbox, sleep), timeout_ns);
        let slept_ns = clock.now_ns() - asleep_ns;
        self.scheduling.slept(slept_ns);
        seat.mailbox.activity().slept(slept_ns);
        seat.mailbox.awake();
        seat.worker.wake();
        if trouble? {
            // The turn notices what some ports report only to a reader.
            seat.receive(turn.now_ns);
            look_after(seat.devices, clock.now_ns());
        }
        Ok(())
    }

    /// The longest sleep that ports and heartbeat allow.
    fn longest_ns(&self, now_ns: u64) -> u64 {
        let is_idle = self.sleep_shows && now_ns.saturating_sub(self.active_ns) > IDLE_NS;
        if is_idle || self.pulse.is_none() { u64::MAX } else { PULSE_NS }
    }

    /// Ends the loop, after the kernel has begun to forward: frames that came in before still have to go out.
    pub(crate) fn drain(&mut self, seat: &mut Seat<'_>) {
        let start = Instant::now();
        let mut last = start;
        while last.elapsed() < QUIET && start.elapsed() < DRAIN {
            if seat.receive(self.common.clock.now_ns()) > 0 {
                last = Instant::now();
            }
            std::thread::sleep(QUIET / 10);
        }
    }
}

impl Seat<'_> {
    /// Takes a turn at each port, and sends what was handed over; returns the number of frames.
    pub(crate) fn receive(&mut self, now_ns: u64) -> usize {
        let mut received = 0;
        for index in 0..self.devices.len() {
            let count = self.worker.turn(PortId(index as u16), self.devices, now_ns);
            if count > 0 {
                self.mailbox.activity().count_burst();
            }
            received += count;
        }
        received + self.send_handed_over()
    }

    /// Sends up to a burst from each ring; returns the number of frames.
    pub(crate) fn send_handed_over(&mut self) -> usize {
        let mut sent = 0;
        for ring in &mut *self.handed_over {
            sent += self.worker.send_handed_over(ring, self.devices);
        }
        sent
    }
}

/// The heartbeat of a worker.
struct Pulse {
    state: State,
    number: usize,
    last_ns: u64,
    longest_ns: Arc<AtomicU64>,
}

impl Pulse {
    #[inline]
    fn beat(&mut self, sleep: &Sleep) {
        let now_ns = State::now_ns();
        // Others may have beaten while the worker slept.
        let last_ns = self.last_ns.max(self.state.heartbeat_ns(self.number));
        let pause_ns = now_ns.saturating_sub(last_ns);
        // Nobody waits for a worker without ports.
        if pause_ns > PAUSE_NS && sleep.has_ports() {
            self.longest_ns.fetch_max(pause_ns, Ordering::Relaxed);
        }
        self.last_ns = now_ns;
        self.state.beat_at(self.number, now_ns);
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

/// Sleeps until a port has frames, there is a job or a request to stop, or the time is over; returns whether a
/// port has failed.
fn wait(
    devices: &Devices,
    stop: Option<BorrowedFd<'_>>,
    (mailbox, sleep): (&mut WorkerMailboxReceiver, &Sleep),
    timeout_ns: u64,
) -> io::Result<bool> {
    let mut fds = Vec::with_capacity(devices.len() + 2);
    fds.push(sys::readable(mailbox.fd().as_raw_fd()));
    fds.extend(stop.map(|stop| sys::readable(stop.as_raw_fd())));
    let others = fds.len();
    for device in devices {
        device.each_fd(&mut |fd| fds.push(sys::readable(fd.as_raw_fd())));
    }
    sleep.begin(fds.len() > others);
    let waited = sys::wait_for(&mut fds, Duration::from_nanos(timeout_ns));
    sleep.end();
    waited?;
    mailbox.note_wake(fds[0].revents != 0);
    Ok(fds[others..].iter().any(|fd| fd.revents & !libc::POLLIN != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mailbox::{WORK, mailbox};

    fn idle_worker() -> (Worker, Devices) {
        let umem = tollway_dataplane::frame::Umem::new(16, 4096).unwrap();
        let (tables, host) = Default::default();
        (Worker::alone(tables, umem, host), Devices::new())
    }

    #[test]
    fn jobs_that_take_long_leave_turns_to_the_ports() {
        let (mailbox, mut mailbox_receiver) = mailbox().unwrap();
        let (mut worker, mut devices) = idle_worker();
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
        let (mut worker, mut devices) = idle_worker();
        let slept_ms = |mailbox_receiver: &mut WorkerMailboxReceiver, timeout_ms: u64| {
            let start = Instant::now();
            let waiter = (mailbox_receiver, &Sleep::default());
            wait(&Devices::new(), None, waiter, timeout_ms * 1_000_000).unwrap();
            u64::try_from(start.elapsed().as_millis()).unwrap()
        };
        // The sender has left the job, and the worker has done it, before the sender wakes the worker.
        mailbox.wake();
        assert!(slept_ms(&mut mailbox_receiver, 1000) < 500);
        assert!(!mailbox_receiver.work(&mut worker, &mut devices));
        assert!(slept_ms(&mut mailbox_receiver, 20) >= 20, "the wake still lasts");
    }

    #[test]
    fn who_hands_frames_over_wakes_a_sleeper_once() {
        let (mailbox, mut receiver) = mailbox().unwrap();
        let (hand_over, _consumer) = mailbox.ring();
        let push = || assert_eq!(hand_over.push(PortId(0), &[Default::default()]), 1);
        let is_woken = |receiver: &mut WorkerMailboxReceiver| {
            wait(&Devices::new(), None, (receiver, &Sleep::default()), 1).unwrap();
            receiver.take_wakes()
        };
        push();
        assert!(!is_woken(&mut receiver), "it was awake");
        receiver.fall_asleep();
        push();
        assert!(is_woken(&mut receiver));
        push();
        assert!(!is_woken(&mut receiver), "it is on its way");
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
