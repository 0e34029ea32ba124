//! Route changes during forwarding: one thread forwards, another withdraws and announces prefixes.
//!
//! Two threads share caches and clock, whatever they do. So the slowdown has a control: the same
//! changes to tables that no thread forwards with.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use tollway_dataplane::fib::{Fib, FibError, Root};
use tollway_dataplane::id::NextHopId;
use tollway_dataplane::prefix::Prefix;

use super::scene::{self, Family};
use super::{Figures, Internet};
use crate::bench::Bench;
use crate::frames::Xorshift;
use crate::stats::Summary;

/// Changes per second that forwarding has to bear.
pub(super) const RATE: u64 = 500_000;

/// Prefixes that are withdrawn at a time, until they are announced again.
const MOST_WITHDRAWN: usize = 1000;

/// Rounds of measurements: without changes, with changes, with changes to other tables.
const ROUNDS: usize = 15;

/// Passes of one measurement: some 100 ms, so that it covers many changes.
const PASSES: usize = 1536;

/// Passes before each measurement that do not count: the previous work leaves the caches in a state
/// that no router meets.
const FIRST_PASSES: usize = 64;

/// Number of measurements of the maximum change rate.
const UNLIMITED_RUNS: usize = 3;
const UNLIMITED_TIME: Duration = Duration::from_millis(700);

/// Measurements that the progress bar counts.
pub(super) const STEPS: u64 = (ROUNDS + UNLIMITED_RUNS) as u64;

/// Orders for the changing thread: idle, a number of changes per second, as many as possible, end.
const IDLE: u64 = 0;
const UNLIMITED: u64 = u64::MAX - 1;
const END: u64 = u64::MAX;

/// Measures with the whole IPv4 table.
pub(super) fn measure(
    table: &Internet,
    figures: &mut Figures,
    bar: &ProgressBar,
) -> Result<(), String> {
    let prefixes = scene::sample(&table.v4, usize::MAX);
    let mut tables = scene::tables(Family::V4, &prefixes)?;
    // Every packet is forwarded, whatever is withdrawn at the moment.
    scene::add_default(&mut tables)?;
    let in_use = (Arc::clone(&tables.routes.fib4), tables.routes.vrfs[0].root4);
    let mut others = scene::tables(Family::V4, &prefixes)?;
    scene::add_default(&mut others)?;
    let others = (Arc::clone(&others.routes.fib4), others.routes.vrfs[0].root4);
    let frames = scene::frames(Family::V4, &prefixes);
    let mut bench = Bench::over(tables, frames, 64)?;
    let order = Order::default();
    let (done, outcome) = thread::scope(|scope| {
        let changes = scope.spawn(|| {
            let [in_use, others] =
                [&in_use, &others].map(|(fib, root)| Replay::new(fib, *root, &prefixes));
            change(in_use, others, &order)
        });
        let end = EndOnDrop(&order);
        let done = forward(&mut bench, &order, bar);
        drop(end);
        (done, changes.join())
    });
    outcome
        .map_err(|_| "the thread that changes routes panicked")?
        .map_err(|error| format!("cannot change a route of the FIB: {error:?}"))?;
    let [done_unlimited, ns] =
        [&order.unlimited_done, &order.unlimited_ns].map(|count| count.load(Relaxed) as f64);
    if ns > 0.0 {
        let rate = done_unlimited * 1e9 / ns;
        figures.insert("updates_per_processor_second".to_owned(), rate);
    }
    let median = |values: &[f64]| Summary::of(values).map(|summary| summary.median);
    let Measured { unlimited, throttled, slowdown, control } = done;
    figures.extend(median(&unlimited).map(|value| ("updates_per_second".to_owned(), value)));
    figures
        .extend(median(&throttled).map(|value| ("updates_per_second_throttled".to_owned(), value)));
    let control = median(&control);
    figures.extend(control.map(|value| ("update_slowdown_control_percent".to_owned(), value)));
    if let Some(Summary { median, min, max, .. }) = Summary::of(&slowdown) {
        figures.insert("update_slowdown_percent".to_owned(), median);
        figures.insert("update_slowdown_percent_min".to_owned(), min);
        figures.insert("update_slowdown_percent_max".to_owned(), max);
    }
    Ok(())
}

/// Orders from the forwarding thread to the changing one, and its results.
#[derive(Default)]
struct Order {
    rate: AtomicU64,
    /// Whether to change the tables that no thread forwards with. Set before the rate.
    others: AtomicBool,
    done: AtomicU64,
    /// Changes made at the maximum rate, and the processor time they took.
    unlimited_done: AtomicU64,
    unlimited_ns: AtomicU64,
}

/// Ends the changing thread when dropped, even if the forwarding one panics.
struct EndOnDrop<'a>(&'a Order);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.rate.store(END, Relaxed);
    }
}

#[derive(Default)]
struct Measured {
    unlimited: Vec<f64>,
    throttled: Vec<f64>,
    slowdown: Vec<f64>,
    control: Vec<f64>,
}

/// What the other thread does during a measurement of the slowdown.
#[derive(Clone, Copy)]
enum Meanwhile {
    Nothing,
    Changes,
    ChangesOfOthers,
}

fn forward(bench: &mut Bench, order: &Order, bar: &ProgressBar) -> Measured {
    let mut measured = Measured::default();
    bench.clocks_per_packet(PASSES);
    for _ in 0..UNLIMITED_RUNS {
        let work = || {
            let start = Instant::now();
            while start.elapsed() < UNLIMITED_TIME {
                bench.clocks_per_packet(64);
            }
        };
        let ((), rate) = while_changing(order, UNLIMITED, work);
        measured.unlimited.push(rate);
        bar.inc(1);
    }
    let mut turns = [Meanwhile::Nothing, Meanwhile::Changes, Meanwhile::ChangesOfOthers];
    for _ in 0..ROUNDS {
        let (mut without, mut with, mut control) = (f64::NAN, f64::NAN, f64::NAN);
        for meanwhile in turns {
            let mut work = || {
                bench.clocks_per_packet(FIRST_PASSES);
                bench.clocks_per_packet(PASSES)
            };
            match meanwhile {
                Meanwhile::Nothing => without = work(),
                Meanwhile::Changes => {
                    let (clocks, rate) = while_changing(order, RATE, work);
                    with = clocks;
                    measured.throttled.push(rate);
                }
                Meanwhile::ChangesOfOthers => {
                    order.others.store(true, Relaxed);
                    (control, _) = while_changing(order, RATE, work);
                    order.others.store(false, Relaxed);
                }
            }
        }
        measured.slowdown.push(100.0 * (with / without - 1.0));
        measured.control.push(100.0 * (control / without - 1.0));
        turns.rotate_left(1);
        bar.inc(1);
    }
    measured
}

/// Runs `work` while routes change at a rate. Also returns the actual changes per second.
fn while_changing<T>(order: &Order, rate: u64, work: impl FnOnce() -> T) -> (T, f64) {
    order.rate.store(rate, Release);
    // Wait until the other thread wakes and reaches the rate.
    thread::sleep(Duration::from_millis(3));
    let (before, start) = (order.done.load(Relaxed), Instant::now());
    let result = work();
    let done = order.done.load(Relaxed) - before;
    let time = start.elapsed();
    order.rate.store(IDLE, Relaxed);
    // Wait until the last changes are over before the next measurement.
    thread::sleep(Duration::from_millis(3));
    (result, done as f64 / time.as_secs_f64())
}

/// Processor time of this thread in ns, which excludes the time of other work.
fn processor_ns() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// Changes routes as ordered, until the end.
fn change<'a>(
    mut in_use: Replay<'a>,
    mut others: Replay<'a>,
    order: &Order,
) -> Result<(), FibError> {
    loop {
        let rate = order.rate.load(Acquire);
        let replay = if order.others.load(Relaxed) { &mut others } else { &mut in_use };
        match rate {
            END => return Ok(()),
            IDLE => thread::sleep(Duration::from_millis(1)),
            _ => {
                let (start, before, mut done) = (Instant::now(), processor_ns(), 0);
                while order.rate.load(Relaxed) == rate {
                    let due = match rate {
                        UNLIMITED => done + 64,
                        _ => (start.elapsed().as_micros() as u64 * rate / 1_000_000).min(done + 64),
                    };
                    if due == done {
                        thread::sleep(Duration::from_micros(50));
                    }
                    for _ in done..due {
                        replay.step()?;
                    }
                    order.done.fetch_add(due - done, Relaxed);
                    done = due;
                }
                if rate == UNLIMITED
                    && let (Some(before), Some(after)) = (before, processor_ns())
                {
                    order.unlimited_done.fetch_add(done, Relaxed);
                    order.unlimited_ns.fetch_add(after - before, Relaxed);
                }
            }
        }
    }
}

/// Alternately withdraws a random prefix, and announces the longest-withdrawn one with another next
/// hop.
struct Replay<'a> {
    fib: &'a Fib,
    root: Root,
    prefixes: &'a [Prefix],
    next_hops: Vec<NextHopId>,
    withdrawn: std::collections::VecDeque<Prefix>,
    rng: Xorshift,
}

impl<'a> Replay<'a> {
    fn new(fib: &'a Fib, root: Root, prefixes: &'a [Prefix]) -> Self {
        let next_hops = prefixes.iter().take(1000).filter_map(|prefix| fib.get(root, *prefix));
        let next_hops = next_hops.collect();
        let rng = Xorshift::new(0xcafe);
        Self { fib, root, prefixes, next_hops, withdrawn: std::collections::VecDeque::new(), rng }
    }

    fn step(&mut self) -> Result<(), FibError> {
        let mut draw = |count: usize| (self.rng.next() % count.max(1) as u64) as usize;
        if self.withdrawn.len() > MOST_WITHDRAWN
            && let Some(prefix) = self.withdrawn.pop_front()
        {
            let next = self.next_hops[draw(self.next_hops.len())];
            return self.fib.insert(self.root, prefix, next);
        }
        loop {
            let prefix = self.prefixes[draw(self.prefixes.len())];
            // Withdrawing a prefix that is already withdrawn is no change.
            if self.fib.remove(self.root, prefix)? {
                self.withdrawn.push_back(prefix);
                return Ok(());
            }
        }
    }
}
