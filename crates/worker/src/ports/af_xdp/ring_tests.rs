//! Rings in plain memory, with the test as the other side.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;

/// A ring in plain memory, for both sides.
struct Plain {
    indices: [AtomicU32; 3],
    slots: Box<[UnsafeCell<u64>]>,
}

// SAFETY: the slots are accessed by the rule of the indices.
unsafe impl Send for Plain {}
// SAFETY: as above.
unsafe impl Sync for Plain {}

/// An empty ring whose indices are about to wrap around.
fn plain(size: u32, start: u32) -> Arc<Plain> {
    let indices = [start, start, 0].map(AtomicU32::new);
    let slots = (0..size).map(|_| UnsafeCell::new(u64::MAX)).collect();
    Arc::new(Plain { indices, slots })
}

// SAFETY: the slots are a boxed slice that nothing moves; UnsafeCell<u64> is laid out as u64.
unsafe impl Memory for Arc<Plain> {
    type Item = u64;
    fn producer(&self) -> &AtomicU32 {
        &self.indices[0]
    }
    fn consumer(&self) -> &AtomicU32 {
        &self.indices[1]
    }
    fn flags(&self) -> &AtomicU32 {
        &self.indices[2]
    }
    fn slots(&self) -> NonNull<u64> {
        NonNull::from(&*self.slots).cast()
    }
    fn size(&self) -> u32 {
        self.slots.len() as u32
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Push(u64),
    Publish,
    Pop,
    Release,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => any::<u64>().prop_map(Step::Push),
        2 => Just(Step::Publish),
        4 => Just(Step::Pop),
        2 => Just(Step::Release),
    ];
    proptest::collection::vec(step, 0..if cfg!(miri) { 20 } else { 200 })
}

/// A model of a ring, made of queues.
#[derive(Default)]
struct Oracle {
    filled: VecDeque<u64>,
    visible: VecDeque<u64>,
    emptied: usize,
}

impl Oracle {
    fn used(&self) -> usize {
        self.filled.len() + self.visible.len() + self.emptied
    }
}

proptest! {
    #[test]
    fn a_ring_is_a_queue(bits in 0_u32..5, before in 0_u32..9, steps in steps()) {
        let size = 1 << bits;
        let ring = plain(size, 0_u32.wrapping_sub(before));
        let mut producer = Producer::new(Arc::clone(&ring));
        let mut consumer = Consumer::new(ring);
        let mut oracle = Oracle::default();
        for step in steps {
            match step {
                Step::Push(item) => {
                    let fits = oracle.used() < size as usize;
                    prop_assert_eq!(producer.push(item), fits);
                    if fits {
                        oracle.filled.push_back(item);
                    }
                }
                Step::Publish => {
                    producer.publish();
                    oracle.visible.append(&mut oracle.filled);
                }
                Step::Pop => {
                    let item = consumer.pop();
                    prop_assert_eq!(item, oracle.visible.pop_front());
                    oracle.emptied += usize::from(item.is_some());
                }
                Step::Release => {
                    consumer.release();
                    oracle.emptied = 0;
                }
            }
            prop_assert_eq!(producer.room(size), size - oracle.used() as u32);
            prop_assert_eq!(producer.pending() as usize, oracle.used());
            let waiting = consumer.waiting();
            prop_assert_eq!(waiting as usize, oracle.visible.len());
            let seen = (0..=waiting).map_while(|behind| consumer.peek(behind));
            prop_assert!(seen.eq(oracle.visible.iter().copied()));
        }
    }
}

#[test]
fn two_threads_pass_everything_on_in_order() {
    let count = if cfg!(miri) { 200 } else { 200_000 };
    let ring = plain(8, u32::MAX - 50);
    let mut producer = Producer::new(Arc::clone(&ring));
    let sender = std::thread::spawn(move || {
        let mut next = 0;
        while next < count {
            while next < count && producer.push(next) {
                next += 1;
            }
            producer.publish();
            std::thread::yield_now();
        }
    });
    let mut consumer = Consumer::new(ring);
    let mut expected = 0;
    while expected < count {
        while let Some(item) = consumer.pop() {
            assert_eq!(item, expected);
            expected += 1;
        }
        consumer.release();
        std::thread::yield_now();
    }
    sender.join().unwrap();
    assert_eq!(consumer.pop(), None);
}

#[test]
fn the_kernel_requests_a_wakeup_by_its_flag() {
    let ring = plain(2, 0);
    let producer = Producer::new(Arc::clone(&ring));
    assert!(!producer.needs_wakeup());
    ring.flags().store(NEED_WAKEUP, Ordering::Relaxed);
    assert!(producer.needs_wakeup());
}

#[test]
fn indices_that_make_no_sense_stay_within_the_slots() {
    let ring = plain(4, 0);
    ring.consumer().store(1000, Ordering::Relaxed);
    let mut producer = Producer::new(Arc::clone(&ring));
    assert_eq!(producer.room(4), 0, "a consumer ahead of the producer");
    let mut consumer = Consumer::new(Arc::clone(&ring));
    ring.producer().store(990, Ordering::Relaxed);
    assert_eq!(consumer.pop(), Some(u64::MAX));
}
