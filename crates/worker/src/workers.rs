//! All workers of a router: worker 0 on the calling thread, the others on threads of their own.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tollway_dataplane::hand_over::Consumer;
use tollway_dataplane::worker::Worker;

use crate::cores;
use crate::guard::Guard;
use crate::heartbeat::{Heartbeat, OnPause};
use crate::mailbox::{WorkerMailbox, WorkerMailboxReceiver};
use crate::ports::Devices;
use crate::priority::Priority;
use crate::service::Watchdog;
use crate::silence::Silence;
use crate::sleep::Sleep;
use crate::stop::Stop;
use crate::turns::{Clock, Common, Seat, Turn, Turns};
use crate::valve::Valves;
use tollway_firewall::log::Journal;
use tollway_xdp::{CountMap, State};

/// The longest that a stop waits for the other workers. One that has no processor for so long is left behind.
const END: Duration = Duration::from_secs(2);
/// How often a stop looks at them.
const LOOK_EVERY: Duration = Duration::from_micros(300);

/// The workers' duties beside forwarding.
#[derive(Default)]
pub struct Duties {
    /// The state in which the XDP programs expect heartbeats.
    pub pulse: Option<State>,
    /// Called when the kernel's changes may not be in the tables.
    pub on_pause: Option<OnPause>,
    /// The XDP programs' counters, and the ports' names.
    pub xdp_counts: Option<(CountMap, Vec<String>)>,
    /// The workers' scheduling.
    pub priority: Priority,
    /// The destination of the rules' log.
    pub journal: Journal,
    /// Another receiver of heartbeats.
    pub watchdog: Watchdog,
    /// The names of the network devices, whose interrupts say where workers should run.
    pub devices: Vec<String>,
}

/// Worker 0, with its ports and its mailbox.
pub struct First<'a> {
    /// The worker.
    pub worker: &'a mut Worker,
    /// Its ports.
    pub devices: &'a mut Devices,
    /// Its mailbox.
    pub mailbox: &'a mut WorkerMailboxReceiver,
    /// The rings by which the others hand frames over to it.
    pub handed_over: &'a mut [Consumer],
}

/// A worker from number 1 on, with its ports and its mailbox.
pub struct Other {
    /// The worker.
    pub worker: Worker,
    /// Its ports.
    pub devices: Devices,
    /// Its mailbox.
    pub receiver: WorkerMailboxReceiver,
    /// The way to its mailbox.
    pub mailbox: WorkerMailbox,
}

/// Forwards between the ports until a stop is requested; runs the jobs in the mailboxes meanwhile. Afterwards all
/// workers are back, unless one of them does not answer.
///
/// # Errors
/// The system cannot wait for the ports or start threads, or a worker does not answer.
pub fn run(
    first: First<'_>,
    others: &mut Vec<Other>,
    stop: &Stop,
    duties: Duties,
) -> io::Result<()> {
    let First { worker, devices, mailbox, handed_over } = first;
    let mut seat = Seat { number: 0, worker, devices, mailbox, handed_over };
    let longest_pause_ns = Arc::default();
    let guarded = duties.pulse.clone().zip(duties.xdp_counts);
    let (guard, valves) = guarded
        .map(|(state, (counts, names))| {
            let guard =
                Guard::new(state.clone(), counts, names.len(), Arc::clone(&longest_pause_ns));
            (guard, Valves::new(state, names))
        })
        .unzip();
    if let Some(state) = &duties.pulse {
        seat.mailbox.set_bypass_state(state);
    }
    let common = Common {
        clock: Clock::start(),
        pulse: duties.pulse,
        valves,
        journal: duties.journal,
        priority: duties.priority,
        sleeps: (0..=others.len()).map(|_| Sleep::default()).collect(),
        longest_pause_ns,
    };
    let heartbeat = common.pulse.clone().map(|state| {
        let scheduling = (common.priority, Arc::clone(&common.longest_pause_ns));
        let parts = (Arc::clone(&common.sleeps), duties.watchdog.parts().to_vec());
        Heartbeat::start(state, scheduling, duties.on_pause, parts)
    });
    let _heartbeat = heartbeat.transpose()?;
    let cores = cores::of_workers(others.len() + 1, &duties.devices);
    let threads = Threads::start(others, &common, &cores)?;
    seat.mailbox.activity().set_processor(cores::pin(cores[0]));
    let silence = common.pulse.clone().map(|state| Silence::new(state, threads.mailboxes.len()));
    let mut care = Care { guard, silence, watchdog: duties.watchdog };
    seat.worker.wake();
    let mut turns = Turns::begin(&common, &seat);
    let ran = forward(&mut turns, &mut seat, stop, (&mut care, &common, &threads));
    care.watchdog.service().stopping();
    if let Some(state) = &common.pulse {
        // From now on the kernel forwards; frames that came in before still have to go out.
        state.set_bypass(true);
        threads.end();
        turns.drain(&mut seat);
    }
    let ended = threads.join(others, || _ = seat.receive(common.clock.now_ns()));
    // What the last of them have handed over.
    while seat.send_handed_over() > 0 {}
    if let Some(guard) = &mut care.guard {
        guard.end(&mut seat.worker.counters);
    }
    seat.worker.tick(seat.devices, common.clock.now_ns());
    let filters = others.iter_mut().map(|other| &mut other.worker.filter);
    common.journal.finish(filters.chain([&mut seat.worker.filter]));
    seat.worker.park();
    // Why a worker has ended says more than that it has.
    ended.and(ran)
}

/// What worker 0 does for all workers.
struct Care {
    guard: Option<Guard>,
    silence: Option<Silence>,
    watchdog: Watchdog,
}

impl Care {
    /// To be called some ten times a second.
    fn tick(&mut self, seat: &mut Seat<'_>, turn: &Turn, common: &Common) {
        if let Some(guard) = &mut self.guard {
            guard.tick(&mut seat.worker.counters, turn.now_ns);
        }
        if let Some(silence) = &mut self.silence {
            silence.tick();
        }
        if let Some(valves) = &common.valves {
            valves.tick(turn.now_ns);
        }
        self.watchdog.tick(turn.now_ns);
    }
}

/// The loop of worker 0.
fn forward(
    turns: &mut Turns,
    seat: &mut Seat<'_>,
    stop: &Stop,
    (care, common, threads): (&mut Care, &Common, &Threads),
) -> io::Result<()> {
    while !stop.is_wanted() {
        let turn = turns.take(seat);
        if turn.ticked {
            care.tick(seat, &turn, common);
            threads.check()?;
        }
        turns.rest(seat, &turn, Some(stop.fd()))?;
    }
    Ok(())
}

/// The threads of the workers from number 1 on.
struct Threads {
    ends: Arc<AtomicBool>,
    mailboxes: Vec<WorkerMailbox>,
    threads: Vec<JoinHandle<(Other, io::Result<()>)>>,
}

impl Threads {
    /// Starts the workers, which leave `others` for this time.
    fn start(
        others: &mut Vec<Other>,
        common: &Common,
        cores: &[Option<usize>],
    ) -> io::Result<Self> {
        let mailboxes = others.iter().map(|other| other.mailbox.clone()).collect();
        let mut this = Self { ends: Arc::default(), mailboxes, threads: Vec::new() };
        for (number, other) in (1..).zip(others.drain(..)) {
            let (common, ends) = (common.clone(), Arc::clone(&this.ends));
            let core = cores.get(number).copied().flatten();
            let name = std::thread::Builder::new().name(format!("worker-{number}"));
            let started = name.spawn(move || {
                other.receiver.activity().set_processor(cores::pin(core));
                serve(other, number, &common, &ends)
            });
            match started {
                Ok(thread) => this.threads.push(thread),
                Err(error) => {
                    this.end();
                    return Err(error);
                }
            }
        }
        Ok(this)
    }

    /// Checks that all are there.
    fn check(&self) -> io::Result<()> {
        match self.threads.iter().position(JoinHandle::is_finished) {
            None => Ok(()),
            Some(index) => Err(io::Error::other(format!("worker {} has ended", index + 1))),
        }
    }

    /// Tells the workers to end.
    fn end(&self) {
        // After the jobs that were posted before.
        self.ends.store(true, Ordering::Release);
        self.mailboxes.iter().for_each(WorkerMailbox::wake);
    }

    /// Ends the workers and returns them to `others`. Calls `serve` while it waits.
    fn join(self, others: &mut Vec<Other>, mut serve: impl FnMut()) -> io::Result<()> {
        self.end();
        let (start, mut result) = (Instant::now(), Ok(()));
        for (number, thread) in (1..).zip(self.threads) {
            while !thread.is_finished() && start.elapsed() < END {
                serve();
                std::thread::sleep(LOOK_EVERY);
            }
            let ended = if thread.is_finished() { thread.join().ok() } else { None };
            match ended {
                Some((other, ran)) => {
                    others.push(other);
                    result = result.and(ran);
                }
                None => {
                    result =
                        Err(io::Error::other(format!("worker {number} did not end as it should")));
                }
            }
        }
        result
    }
}

/// Runs a worker from number 1 on until it is told to end.
fn serve(
    mut other: Other,
    number: usize,
    common: &Common,
    ends: &AtomicBool,
) -> (Other, io::Result<()>) {
    let Other { worker, devices, receiver, .. } = &mut other;
    let mut seat = Seat { number, worker, devices, mailbox: receiver, handed_over: &mut [] };
    seat.worker.wake();
    let mut turns = Turns::begin(common, &seat);
    let mut ran = Ok(());
    while ran.is_ok() && !ends.load(Ordering::Acquire) {
        let turn = turns.take(&mut seat);
        ran = turns.rest(&mut seat, &turn, None);
    }
    // Sockets may be on their way, with chunks that nobody else has.
    while seat.mailbox.work(seat.worker, seat.devices) {}
    if common.pulse.is_some() {
        turns.drain(&mut seat);
    }
    seat.worker.tick_ports(seat.devices);
    seat.worker.park();
    (other, ran)
}
