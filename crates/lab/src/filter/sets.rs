//! A set of many addresses: its cost per packet, and how fast it changes while packets flow.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use tollway_dataplane::stages::filter::{
    Address, Condition, Field, Filter, LiveSet, LiveSetError, Op, Point, Rule, Rules,
};

use super::Figures;
use super::rules::{ANYTHING, unicast};
use super::testbed::{self, Trace};
use crate::bench::Bench;
use crate::frames::{Flow4, Xorshift};
use crate::stats::Summary;

/// Addresses in the set.
pub(super) const MILLION: usize = 1_000_000;

/// Number of measurements of the maximum change rate.
const RUNS: usize = 5;
const RUN_TIME: Duration = Duration::from_millis(500);

/// Number of measurements of forwarding, both with the set changing at a rate and without changes.
const ROUNDS: usize = 11;

/// Changes per second that forwarding has to bear and the set has to reach.
const RATE: u64 = 100_000;

/// Passes of one measurement.
const PASSES: usize = 256;

/// Changes in one batch.
const BATCH: usize = 64;

/// Batches in the set before the oldest is removed.
const STAYING: usize = 64;

/// Measurements that the progress bar counts.
pub(super) const STEPS: u64 = (RUNS + ROUNDS) as u64;

/// `count` different random addresses.
fn addresses(count: usize) -> Vec<u32> {
    let mut rng = Xorshift::new(0x5e75);
    let mut all: Vec<u32> = Vec::with_capacity(count + count / 64);
    while all.len() < count {
        all.extend((all.len()..count).map(|_| unicast((rng.next() >> 16) as u32)));
        all.sort_unstable();
        all.dedup();
    }
    all
}

/// A bench with one rule that drops the sources in a set, and the set.
pub(super) fn under(
    count: usize,
    trace: Trace,
    flows: usize,
) -> Result<(Bench, Arc<LiveSet>), String> {
    let addresses = addresses(count);
    let mut rng = Xorshift::new(0xf10e);
    let mut flow = || {
        let mut flow = ANYTHING.draw(&mut rng);
        match trace {
            Trace::Random => flow.src = addresses[(rng.next() >> 11) as usize % count],
            Trace::Miss => {
                while addresses.binary_search(&flow.src).is_ok() {
                    flow = ANYTHING.draw(&mut rng);
                }
            }
        }
        flow
    };
    let flows: Vec<Flow4> = (0..flows).map(|_| flow()).collect();
    let mut bench = testbed::bench(flows, false)?;
    let mut filter = Filter::new(0, Vec::new());
    let elements: Vec<_> =
        addresses.iter().map(|one| (u128::from(*one), u128::from(*one))).collect();
    let set =
        filter.add_live_set("blocklist", 4, &elements, &bench.epochs()).map_err(testbed::failed)?;
    let is_member = Condition::new(Field::InSet { set, of: Address::Source }, [(1, 1)]);
    let rules = vec![
        Rule { conditions: vec![is_member], ops: vec![Op::Drop], next: 1 },
        Rule { conditions: Vec::new(), ops: vec![Op::Accept], next: 2 },
    ];
    filter.set(Point::Forward, 4, &Rules { rules, end: 1 }).map_err(testbed::failed)?;
    let live = filter.live_sets().first().cloned().ok_or("no set")?;
    bench.filter(Arc::new(filter), trace == Trace::Random);
    Ok((bench, live))
}

/// Orders from the forwarding thread to the changing one, and its results.
#[derive(Default)]
struct Order {
    /// Changes per second; 0 for none, and the largest number for the maximum rate.
    rate: AtomicU64,
    stop: AtomicBool,
    done: AtomicU64,
}

/// Ends the changing thread when dropped, even if the forwarding one panics.
struct EndOnDrop<'a>(&'a Order);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Release);
    }
}

/// Counts changes while packets flow, and measures the packets' cost meanwhile.
pub(super) fn measure(figures: &mut Figures, bar: &ProgressBar) -> Result<(), String> {
    let (mut bench, set) = under(MILLION, Trace::Miss, 65_536)?;
    figures.insert("set-1m_memory_bytes".to_owned(), set.memory_bytes() as f64);
    let order = Order::default();
    let (measured, changed) = thread::scope(|scope| {
        let changes = scope.spawn(|| change(&set, &order));
        let end = EndOnDrop(&order);
        let measured = forward(&mut bench, &order, bar);
        drop(end);
        (measured, changes.join())
    });
    changed
        .map_err(|_| "the thread that changes the set panicked")?
        .map_err(|error| format!("cannot change the set: {error:?}"))?;
    let [free, plain, with] = measured;
    let median = |values: &[f64]| Summary::of(values).map(|summary| summary.median);
    let (Some(free), Some(plain), Some(with)) = (median(&free), median(&plain), median(&with))
    else {
        return Err("nothing was measured".to_owned());
    };
    figures.insert("set_changes_per_second".to_owned(), free);
    figures.insert("set-1m_clocks".to_owned(), plain);
    figures.insert("set-1m_clocks_while_100k_changes".to_owned(), with);
    if free < RATE as f64 {
        return Err(format!("only {free:.0} changes a second while forwarding, not {RATE}"));
    }
    Ok(())
}

/// The maximum of changes per second; clocks per packet without and with changes.
fn forward(bench: &mut Bench, order: &Order, bar: &ProgressBar) -> [Vec<f64>; 3] {
    let mut measured = [const { Vec::new() }; 3];
    bench.clocks_per_packet(PASSES);
    for _ in 0..RUNS {
        order.rate.store(u64::MAX, Release);
        let (before, start) = (order.done.load(Acquire), Instant::now());
        while start.elapsed() < RUN_TIME {
            bench.clocks_per_packet(64);
        }
        let done = order.done.load(Acquire) - before;
        measured[0].push(done as f64 / start.elapsed().as_secs_f64());
        bar.inc(1);
    }
    for _ in 0..ROUNDS {
        for (rate, clocks) in [0, RATE].into_iter().zip(&mut measured[1..]) {
            order.rate.store(rate, Release);
            bench.clocks_per_packet(64);
            clocks.push(bench.clocks_per_packet(PASSES));
        }
        bar.inc(1);
    }
    measured
}

/// Adds addresses and removes those added first, as ordered, until the end. No packet has such an
/// address as source, so every packet is forwarded.
fn change(set: &LiveSet, order: &Order) -> Result<(), LiveSetError> {
    let mut rng = Xorshift::new(0xadd5);
    let mut there = VecDeque::new();
    while !order.stop.load(Acquire) {
        let rate = order.rate.load(Acquire);
        if rate == 0 {
            thread::sleep(Duration::from_millis(1));
            continue;
        }
        let start = Instant::now();
        // Class E: no packet and no address of the set is from there.
        let mut address = || u128::from(0xf000_0000 | rng.next() as u32 >> 4);
        let mut batch: Vec<_> = (0..BATCH).map(|_| address()).map(|one| (one, one)).collect();
        // An address that is already present is no change, and would be removed twice.
        batch.retain(|(one, _)| !set.covers(*one));
        batch.sort_unstable();
        batch.dedup();
        let mut done = set.add(&batch)?;
        there.push_back(batch);
        if there.len() > STAYING
            && let Some(oldest) = there.pop_front()
        {
            done += set.remove(&oldest)?;
        }
        order.done.fetch_add(done as u64, Relaxed);
        if rate != u64::MAX {
            let due = Duration::from_nanos(done as u64 * 1_000_000_000 / rate);
            thread::sleep(due.saturating_sub(start.elapsed()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_dropped_and_others_are_not() {
        for trace in [Trace::Miss, Trace::Random] {
            let (mut bench, set) = under(5000, trace, 1024).unwrap();
            assert_eq!(set.count(), 5000);
            // Panics if a packet gets another verdict.
            bench.clocks_per_packet(2);
        }
    }
}
