//! How much faster two workers of one router are than one: threads on two processors, each with memory ports of its
//! own and other flows.
//!
//! Two routers that share nothing are measured in the same rounds. They show what the machine allows: its processors
//! share caches, memory and clock, and a virtual machine shares them with others.

use std::thread;
use std::time::{Duration, Instant};

use tollway_dataplane::worker::check_memory;

use super::super::rows::Row;
use super::side::{self, Side};
use crate::machine::Machine;
use crate::report::Report;
use crate::stats::{self, Summary};
use crate::{progress, sys};

/// Rounds; each measures every part once.
const ROUNDS: u32 = 60;

/// The fewest rounds without a disturbance.
const LEAST: usize = 11;

/// Duration of a part, and the pause before the next.
const WINDOW: Duration = Duration::from_millis(30);
const PAUSE: Duration = Duration::from_millis(2);

/// What forwards at once.
#[derive(Clone, Copy)]
enum Part {
    /// The worker on one of the two processors.
    One(usize),
    /// Both workers of the router.
    Two,
    /// Two routers, each with one worker.
    TwoApart,
}

const PARTS: [Part; 4] = [Part::One(0), Part::Two, Part::TwoApart, Part::One(1)];

/// The workers on one processor.
struct Seat {
    shared: Side,
    apart: Side,
}

/// What one processor forwards in a round, packets a clock, by part; none if it was idle or disturbed.
type Rates = [Option<f64>; PARTS.len()];

/// Packets a clock in one round.
pub(super) struct Round {
    /// By one worker: the mean of both processors.
    pub(super) one: f64,
    /// By both workers of one router.
    pub(super) two: f64,
    /// By two routers.
    pub(super) two_apart: f64,
}

/// Measures, and adds the figures.
pub(super) fn measure(processors: [usize; 2], report: &mut Report<Row>) -> Result<(), String> {
    let rounds = rounds(processors, ROUNDS)?;
    if rounds.len() < LEAST {
        return Err(format!(
            "two workers: other programs or machines took the processors away in {} of {ROUNDS} rounds; try again \
             when the machine is idle",
            ROUNDS as usize - rounds.len()
        ));
    }
    let mut add = |name: &str, value: f64| report.figures.insert(name.to_owned(), value);
    for (name, rate) in [
        ("workers_two_ratio", (|round| round.two) as fn(&Round) -> f64),
        ("workers_two_apart_ratio", |round| round.two_apart),
    ] {
        let ratios: Vec<_> = rounds.iter().map(|round| rate(round) / round.one).collect();
        let Summary { median, min, max, .. } = Summary::of(&ratios).unwrap_or_default();
        for (suffix, value) in [("", median), ("_min", min), ("_max", max)] {
            add(&format!("{name}{suffix}"), value);
        }
    }
    let mpps = 1e3 / Machine::probe().ns_per_clock();
    let median =
        |rate: fn(&Round) -> f64| stats::median(&rounds.iter().map(rate).collect::<Vec<_>>());
    add("workers_one_mpps", mpps * median(|round| round.one));
    add("workers_two_mpps", mpps * median(|round| round.two));
    add("workers_rounds", rounds.len() as f64);
    Ok(())
}

/// Runs rounds on two processors; returns those in which each worker kept its processor.
pub(super) fn rounds(processors: [usize; 2], rounds: u32) -> Result<Vec<Round>, String> {
    let [one, other] = side::of_one_router()?;
    let [apart, other_apart] = side::of_two_routers()?;
    let seats = [Seat { shared: one, apart }, Seat { shared: other, apart: other_apart }];
    let bar = progress::bar(rounds.into());
    let start = Instant::now() + PAUSE;
    let mut results = Vec::new();
    thread::scope(|scope| {
        let threads =
            seats.into_iter().zip(processors).enumerate().map(|(index, (seat, processor))| {
                let bar = (index == 0).then(|| bar.clone());
                let step = move || {
                    if let Some(bar) = &bar {
                        bar.inc(1)
                    }
                };
                scope.spawn(move || run(seat, index, processor, (start, rounds), step))
            });
        let threads: Vec<_> = threads.collect();
        results.extend(threads.into_iter().map(thread::ScopedJoinHandle::join));
    });
    bar.finish_and_clear();
    let results =
        results.into_iter().map(|result| result.map_err(|_| "a worker's thread panicked")?);
    let results: Vec<(Seat, Vec<Rates>)> = results.collect::<Result<_, String>>()?;
    let [(one, first), (other, second)] = &results[..] else { return Ok(Vec::new()) };
    check(&[&one.shared, &other.shared])?;
    check(&[&one.apart])?;
    check(&[&other.apart])?;
    Ok(first.iter().zip(second).filter_map(|(first, second)| Round::of(first, second)).collect())
}

impl Round {
    /// The round of both processors, if neither was disturbed.
    fn of(first: &Rates, second: &Rates) -> Option<Self> {
        Some(Self {
            one: f64::midpoint(first[0]?, second[3]?),
            two: first[1]? + second[1]?,
            two_apart: first[2]? + second[2]?,
        })
    }
}

/// Runs one processor's part of all rounds, by the clock: no thread waits for the other.
fn run(
    mut seat: Seat,
    index: usize,
    processor: usize,
    (start, rounds): (Instant, u32),
    step: impl Fn(),
) -> Result<(Seat, Vec<Rates>), String> {
    sys::pin(&[processor])
        .map_err(|error| format!("cannot run on processor {processor} alone: {error}"))?;
    // Only root may. Without it, other programs disturb more rounds.
    let _ = sys::set_realtime();
    let mut rates = Vec::new();
    let mut begin = start;
    for _ in 0..rounds {
        let mut round = [None; PARTS.len()];
        for (part, rate) in PARTS.iter().zip(&mut round) {
            thread::sleep(begin.saturating_duration_since(Instant::now()));
            match part {
                Part::One(active) if *active != index => (),
                Part::One(_) | Part::Two => *rate = seat.shared.forward(begin, begin + WINDOW),
                Part::TwoApart => *rate = seat.apart.forward(begin, begin + WINDOW),
            }
            begin += WINDOW + PAUSE;
        }
        rates.push(round);
        step();
    }
    Ok((seat, rates))
}

/// Checks that the workers of one router forwarded every packet and lost no chunk.
fn check(sides: &[&Side]) -> Result<(), String> {
    for side in sides {
        let counters = &side.worker.counters;
        counters.check()?;
        if counters.sent == 0 || counters.sent != counters.received_packets() {
            return Err(format!(
                "a worker forwarded {} of {} packets",
                counters.sent,
                counters.received_packets()
            ));
        }
    }
    let workers: Vec<_> = sides.iter().map(|side| (&side.worker, &side.ports[..])).collect();
    check_memory(&workers)
}
