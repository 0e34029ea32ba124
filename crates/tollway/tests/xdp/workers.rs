//! Tests that each worker's heartbeat stands for what its queues have for the sockets, and that the XDP path needs
//! confirmed tables only.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use tollway_dataplane::id::PortId;
use tollway_xdp::counts::PassReason;
use tollway_xdp::{
    Action, MOST_WORKERS, Mode, Options, PortCounts, Ruled, State, XdpPort, XdpPrograms,
};

use super::dispatcher::xdp_socket;
use super::frames::{Bench, Packet, port};
use super::namespaces::{ifindex, sh};
use super::xdp_path::{enter, flow, new_header};

/// The receive queues of the port.
const QUEUES: u32 = 6;
/// More than a tick of any kernel: the XDP program looks at a heartbeat once per tick.
const TICK: Duration = Duration::from_millis(12);
/// Older than any heartbeat and any confirmation may be.
const OLD_NS: u64 = 150_000_000;
/// A heartbeat stays fresh for longer.
const FRESH_NS: u64 = 10_000_000;
const FORWARDED: (Action, Option<PassReason>) = (Action::Redirect, None);
const STALE: (Action, Option<PassReason>) = (Action::Pass, Some(PassReason::Stale));

/// What the program did with the frames of all queues.
struct Outcome {
    /// By queue: its verdict on each frame, and why the frame passed.
    verdicts: Vec<[(Action, Option<PassReason>); 2]>,
    to_sockets: u64,
    xdp: u64,
    dropped: u64,
}

/// A program whose frames arrive by a veth with several queues, each with a socket.
struct Queues {
    bench: Bench,
    state: State,
    ifindex: u32,
    /// The frame of a flow in the XDP path, and one without a flow.
    frames: [Vec<u8>; 2],
    _sockets: Vec<OwnedFd>,
}

impl Queues {
    fn new() -> Self {
        sh("ip link set lo up");
        sh(&format!("ip link add rq numrxqueues {QUEUES} type veth peer name hq"));
        let port = XdpPort { queues: QUEUES, ..port() };
        let options = Options { flows4: 4096, flows6: 4096, ..Options::default() };
        let programs = XdpPrograms::load(&[port], &options).unwrap();
        let socket = |queue| {
            let socket = xdp_socket();
            programs.set_socket(PortId(0), queue, socket.as_fd()).unwrap();
            socket
        };
        let sockets = (0..QUEUES).map(socket).collect();
        let state = programs.state();
        state.set_bypass(false);
        let program = programs.program(PortId(0), Mode::Native, true).unwrap();
        let bench = Bench::of(programs, program);
        let (known, unknown) = (Packet::v4(), Packet::new("10.0.1.2", "10.0.3.3"));
        enter(&bench.programs.flows(), 7, &known, &flow(&bench, &new_header(&[], 0x0800)));
        let frames = [known.frame(), unknown.frame()];
        Self { bench, state, ifindex: ifindex("rq"), frames, _sockets: sockets }
    }

    /// Confirms the tables, gives the first workers heartbeats, each a fresh or an old one, and runs both frames on
    /// each queue.
    fn run(&mut self, fresh: &[bool]) -> Outcome {
        self.run_confirmed(true, fresh)
    }

    /// As [`Queues::run`]; the confirmation is fresh or old.
    fn run_confirmed(&mut self, is_confirmed: bool, fresh: &[bool]) -> Outcome {
        // On a busy machine a heartbeat may become stale in between, but not each time.
        for _ in 0..10 {
            std::thread::sleep(TICK);
            let (now_ns, before) = (State::now_ns(), self.counts());
            let at = |is_fresh| if is_fresh { now_ns } else { now_ns - OLD_NS };
            self.state.confirm_at(at(is_confirmed));
            for (worker, is_fresh) in fresh.iter().enumerate() {
                self.state.beat_at(worker, at(*is_fresh));
            }
            let verdicts = (0..QUEUES).map(|queue| self.run_on(queue)).collect();
            if State::now_ns() - now_ns < FRESH_NS {
                let after = self.counts();
                return Outcome {
                    verdicts,
                    to_sockets: after.to_user - before.to_user,
                    xdp: after.xdp_rx_packets - before.xdp_rx_packets,
                    dropped: after.closed_packets - before.closed_packets,
                };
            }
        }
        panic!("this machine is too busy for a heartbeat");
    }

    fn run_on(&mut self, queue: u32) -> [(Action, Option<PassReason>); 2] {
        [0, 1].map(|frame| {
            let frame = &self.frames[frame];
            let (action, output, reason) = self.bench.run_on((self.ifindex, queue), frame);
            let is_rewritten = output != *frame;
            assert!(!is_rewritten || action == Action::Redirect, "{queue}");
            (action, reason)
        })
    }

    fn counts(&self) -> PortCounts {
        self.bench.programs.counts().port(PortId(0)).unwrap()
    }
}

/// Asserts that the program sends frames without a flow to user space exactly from the queues for which
/// `is_served` is true, and passes those of the others to the kernel; and that it forwards by a flow from all.
#[track_caller]
fn assert_served(queues: &mut Queues, fresh: &[bool], is_served: impl Fn(usize) -> bool) {
    let outcome = queues.run(fresh);
    for (queue, verdicts) in outcome.verdicts.into_iter().enumerate() {
        let verdict = if is_served(queue) { FORWARDED } else { STALE };
        assert_eq!(verdicts, [FORWARDED, verdict], "queue {queue} with {fresh:?}");
    }
    let served = (0..QUEUES as usize).filter(|queue| is_served(*queue)).count() as u64;
    let all = u64::from(QUEUES);
    assert_eq!((outcome.to_sockets, outcome.xdp), (served, all), "with {fresh:?}");
}

/// With two workers, and with a number that is no power of two.
pub fn queues() {
    let mut queues = Queues::new();
    for workers in [2, 3, 5] {
        queues.state.set_workers(workers);
        assert_served(&mut queues, &vec![true; workers], |_| true);
        for hangs in 0..workers {
            let fresh: Vec<_> = (0..workers).map(|worker| worker != hangs).collect();
            assert_served(&mut queues, &fresh, |queue| queue % workers != hangs);
        }
        assert_served(&mut queues, &vec![false; workers], |_| false);
    }
    // A worker that is new has no heartbeat.
    queues.state.set_workers(6);
    assert_served(&mut queues, &[true; 5], |queue| queue < 5);
    for verdicts in queues.run_confirmed(false, &[true; 6]).verdicts {
        assert_eq!(verdicts, [STALE; 2], "nobody confirms the tables");
    }
    queues.state.set_workers_late(true);
    for verdicts in queues.run(&[true; 6]).verdicts {
        assert_eq!(verdicts, [FORWARDED, (Action::Pass, Some(PassReason::Bypass))]);
    }
    queues.state.set_workers_late(false);
    queues.state.set_bypass(true);
    for verdicts in queues.run(&[true; 6]).verdicts {
        assert_eq!(verdicts, [(Action::Pass, Some(PassReason::Bypass)); 2]);
    }
}

/// One worker serves all queues, before and after there were more.
pub fn one() {
    let mut queues = Queues::new();
    for workers in [None, Some(0), Some(4), Some(1)] {
        if let Some(workers) = workers {
            queues.state.set_workers(workers);
        }
        let workers = workers.unwrap_or(1).max(1);
        assert_served(&mut queues, &[true, false, false, false], |queue| queue % workers == 0);
        assert_served(&mut queues, &[false, true, true, true], |queue| queue % workers != 0);
    }
    // More than there can be: the queues have the most workers.
    queues.state.set_workers(usize::MAX);
    let mut fresh = vec![false; MOST_WORKERS + 1];
    fresh[4] = true;
    assert_served(&mut queues, &fresh, |queue| queue == 4);
}

/// With rules that the kernel does not know, frames of the worker that hangs are dropped.
pub fn closed() {
    let mut queues = Queues::new();
    queues.state.set_workers(2);
    queues.state.set_ruled(Ruled::FailClosed);
    let outcome = queues.run(&[true, false]);
    assert_eq!(outcome.dropped, u64::from(QUEUES / 2), "a frame on each second queue");
    for (queue, verdicts) in outcome.verdicts.into_iter().enumerate() {
        let action = if queue % 2 == 0 { Action::Redirect } else { Action::Drop };
        assert_eq!(verdicts, [FORWARDED, (action, None)], "{queue}");
    }
    let outcome = queues.run_confirmed(false, &[true; 2]);
    assert_eq!(outcome.dropped, 2 * u64::from(QUEUES), "all frames");
}
