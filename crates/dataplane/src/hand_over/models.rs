//! A ring of two slots between two threads, in every order with at most two preemptions.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use loom::model::Builder;
use loom::sync::atomic::AtomicU32;
use loom::thread;

use super::{Consumer, HandedOver, Producer, Sleeper, ring};
use crate::frame::{Descriptor, FrameAddr};
use crate::id::PortId;

/// The ring's slots.
const SLOTS: usize = 2;

/// Items that go through the ring: each slot is used twice.
const ITEMS: u32 = 4;

/// What the threads do beside the ring. The ring orders it, or one of them misses what the other has done.
struct Work {
    /// The last item that the producer has prepared.
    prepared: AtomicU32,
    /// The last item that the consumer has done with, before it popped others.
    done: AtomicU32,
}

const fn item(number: u32) -> HandedOver {
    HandedOver { port: PortId(3), frame: Descriptor { addr: FrameAddr(number), len: 9 } }
}

/// Hands items over, from 1 on, in batches; the consumer pops batches of at most `popped`.
fn push(mut producer: Producer, work: &Work, batch: usize, popped: usize) {
    let frames: Vec<_> = (1..=ITEMS).map(|number| item(number).frame).collect();
    let mut pushed = 0;
    while pushed < frames.len() {
        let end = frames.len().min(pushed + batch);
        work.prepared.store(end as u32, Relaxed);
        pushed += loop {
            match producer.push_all(&frames[pushed..end], PortId(3)) {
                0 => thread::yield_now(),
                count => break count,
            }
        };
    }
    // There was room, so the consumer had popped others, and done with all before those.
    let done = work.done.load(Relaxed) as usize;
    assert!(done + SLOTS + popped >= pushed, "{pushed} pushed, {done} done");
}

/// Takes all items over and checks that each comes once, in order.
fn pop(mut consumer: Consumer, work: &Work, batch: usize) {
    let mut items = [HandedOver::default(); SLOTS];
    let mut last = 0;
    while last < ITEMS {
        let count = consumer.pop_all(&mut items[..batch]);
        if count == 0 {
            thread::yield_now();
            continue;
        }
        for popped in &items[..count] {
            last += 1;
            assert_eq!(*popped, item(last));
        }
        assert!(work.prepared.load(Relaxed) >= last);
        work.done.store(last, Relaxed);
    }
    assert!(consumer.is_empty());
}

fn explore(pushed: usize, popped: usize) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(move || {
        let (producer, consumer) = ring(SLOTS);
        let work = Arc::new(Work { prepared: AtomicU32::new(0), done: AtomicU32::new(0) });
        let theirs = Arc::clone(&work);
        let thread = thread::spawn(move || push(producer, &theirs, pushed, popped));
        pop(consumer, &work, popped);
        thread.join().expect("no panic");
    });
}

#[test]
fn items_one_by_one() {
    explore(1, 1);
}

#[test]
fn batches_as_large_as_the_ring() {
    explore(2, 2);
}

#[test]
fn large_batches_pushed_and_single_items_popped() {
    explore(2, 1);
}

#[test]
fn single_items_pushed_and_large_batches_popped() {
    explore(1, 2);
}

/// A producer that pushes while the consumer falls asleep wakes it, or the consumer sees the item.
#[test]
fn no_item_waits_for_a_sleeper() {
    loom::model(|| {
        let sleeper = Arc::new(Sleeper::default());
        let (mut producer, consumer) = ring(SLOTS);
        let pushing = {
            let sleeper = Arc::clone(&sleeper);
            thread::spawn(move || {
                producer.push_all(&[item(1).frame], PortId(3));
                sleeper.must_be_woken()
            })
        };
        sleeper.fall_asleep();
        let sleeps = consumer.is_empty();
        let is_woken = pushing.join().unwrap();
        assert!(!sleeps || is_woken, "the item waits, and the consumer sleeps");
    });
}
