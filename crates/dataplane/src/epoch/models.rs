//! Explores every interleaving, and every order that the memory model allows, of a writer and readers.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::atomic::AtomicU64;
use loom::thread;

use super::{Epochs, Reader, Retired};

/// The content of memory that is reused for something else.
const REUSED: u64 = 99;

/// A table of one entry, which points to one of two places. The places are plain memory, so that loom
/// reports every access that is not ordered before or after another.
struct Table {
    entry: AtomicU64,
    places: [UnsafeCell<u64>; 2],
}

#[allow(unsafe_code)]
// SAFETY: the test explores whether threads share the places correctly.
unsafe impl Sync for Table {}

impl Table {
    fn new() -> Arc<Self> {
        let places = [UnsafeCell::new(0), UnsafeCell::new(1)];
        Arc::new(Self { entry: AtomicU64::new(0), places })
    }

    #[allow(unsafe_code)]
    fn lookup(&self) -> u64 {
        let place = self.entry.load(Acquire);
        let value = self.places[place as usize].with(|value| {
            // SAFETY: loom ends the test if another thread writes at the same time.
            unsafe { *value }
        });
        assert_eq!(value, place, "memory was used again under a reader's eyes");
        value
    }

    /// Reuses the first place for something else.
    #[allow(unsafe_code)]
    fn reuse(&self) {
        self.places[0].with_mut(|value| {
            // SAFETY: loom ends the test if another thread reads at the same time.
            unsafe { *value = REUSED }
        });
    }
}

/// Runs readers as given while a writer takes something out and reuses its memory as soon as it may.
/// Returns whether the writer ever reused it.
fn explore(
    readers: usize,
    preemptions: Option<usize>,
    read: fn(&Table, &Arc<Epochs>, &Reader),
) -> bool {
    static REUSE: AtomicBool = AtomicBool::new(false);
    REUSE.store(false, SeqCst);
    let mut builder = Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(move || {
        let (epochs, table) = (Epochs::new(), Table::new());
        let threads = (0..readers).map(|_| {
            let (epochs, table) = (Arc::clone(&epochs), Arc::clone(&table));
            let reader = epochs.join();
            thread::spawn(move || read(&table, &epochs, &reader))
        });
        let threads: Vec<_> = threads.collect();
        table.entry.store(1, Release);
        let mut retired = Retired::new(epochs);
        retired.push(&table);
        for _ in 0..2 {
            retired.reclaim(|table| {
                table.reuse();
                REUSE.store(true, SeqCst);
            });
            thread::yield_now();
        }
        for thread in threads {
            thread.join().expect("no panic");
        }
    });
    REUSE.load(SeqCst)
}

#[test]
fn a_reader_that_passes() {
    let reuse = explore(1, None, |table, _, reader| {
        table.lookup();
        reader.pass();
        table.lookup();
        reader.pass();
        table.lookup();
    });
    assert!(reuse);
}

#[test]
fn a_reader_that_sleeps() {
    let reuse = explore(1, None, |table, _, reader| {
        table.lookup();
        reader.park();
        reader.wake();
        table.lookup();
        reader.pass();
        table.lookup();
    });
    assert!(reuse);
}

#[test]
fn two_readers() {
    let reuse = explore(2, Some(2), |table, _, reader| {
        table.lookup();
        reader.pass();
        table.lookup();
        reader.park();
    });
    assert!(reuse);
}

/// Loom explores the list's lock, and that an entry is filled before it is inserted.
#[test]
fn a_reader_that_joins_meanwhile_and_one_that_leaves() {
    let reuse = explore(1, Some(3), |table, epochs, reader| {
        reader.park();
        let late = epochs.join();
        table.lookup();
        drop(late);
        reader.wake();
        table.lookup();
        reader.park();
    });
    assert!(reuse);
}
