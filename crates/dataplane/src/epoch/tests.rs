use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread;

use super::Epochs;

#[test]
fn memory_that_no_reader_saw_is_free_at_once() {
    let epochs = Epochs::new();
    assert!(epochs.passed() >= epochs.advance());
}

#[test]
fn an_epoch_is_passed_when_the_last_reader_has_passed() {
    let epochs = Epochs::new();
    let (first, second) = (epochs.join(), epochs.join());
    let epoch = epochs.advance();
    assert!(epochs.passed() < epoch);
    first.pass();
    assert!(epochs.passed() < epoch);
    second.pass();
    assert!(epochs.passed() >= epoch);
    assert!(epochs.passed() < epochs.advance());
}

#[test]
fn one_that_sleeps_or_left_is_not_waited_for() {
    let epochs = Epochs::new();
    let (first, second) = (epochs.join(), epochs.join());
    let epoch = epochs.advance();
    first.park();
    assert!(epochs.passed() < epoch);
    drop(second);
    assert!(epochs.passed() >= epoch);
    first.wake();
    assert!(epochs.passed() >= epoch, "it wakes in the present");
    assert!(epochs.passed() < epochs.advance());
}

/// Places are reused as soon as readers have passed: a reader that finds a place must find in it the
/// value it was inserted for.
#[test]
fn memory_that_a_reader_may_see_is_not_reused() {
    let rounds = if cfg!(miri) { 40 } else { 20_000 };
    let epochs = Epochs::new();
    let table = [const { AtomicU32::new(0) }; 4];
    let entry = AtomicU32::new(0);
    thread::scope(|scope| {
        for seed in 1..3 {
            let (epochs, table, entry) = (Arc::clone(&epochs), &table, &entry);
            scope.spawn(move || {
                let reader = epochs.join();
                for round in 0..rounds {
                    let found = entry.load(Acquire);
                    assert_eq!(table[found as usize % 4].load(Relaxed), found);
                    reader.pass();
                    if (round + seed) % 7 == 0 {
                        reader.park();
                        thread::yield_now();
                        reader.wake();
                    }
                }
            });
        }
        let mut retired = Vec::new();
        for number in 1..rounds {
            // The place's last user was taken out three changes ago.
            while retired.len() > 2 && epochs.passed() < retired[retired.len() - 3] {
                thread::yield_now();
            }
            table[number as usize % 4].store(number, Relaxed);
            entry.store(number, Release);
            retired.push(epochs.advance());
        }
    });
}

/// What workers wait for does not take as long as a grace period, but memory waits for both.
#[test]
fn only_memory_waits_for_programs() {
    let epochs = Epochs::new();
    let (worker, programs) = (epochs.join(), epochs.join_programs());
    worker.pass();
    let before = epochs.advance();
    worker.pass();
    assert_eq!(programs.due(), None, "programs find nothing yet");
    assert!(epochs.passed() >= before);
    epochs.wake_programs();
    assert_eq!(programs.due(), None, "it wakes in the present");
    assert!(epochs.passed() >= before);
    let first = epochs.advance();
    assert_eq!(programs.due(), Some(first));
    assert!(epochs.passed_by_workers() < first);
    worker.pass();
    assert!(epochs.passed_by_workers() >= first && epochs.passed() < first);
    // Another epoch begins while the programs are waited for.
    let second = epochs.advance();
    programs.pass_epoch(first);
    assert!(epochs.passed() >= first && epochs.passed() < second);
    assert_eq!(programs.due(), Some(second));
    worker.pass();
    assert!(epochs.passed() < second);
    programs.pass_epoch(second);
    assert!(epochs.passed() >= second);
    assert_eq!(programs.due(), None);
    let third = epochs.advance();
    drop(programs);
    worker.pass();
    assert!(epochs.passed() >= third, "nobody reads the tables any more");
    // Others find something at once.
    let (others, fourth) = (epochs.join_programs(), epochs.advance());
    worker.pass();
    assert!(epochs.passed() < fourth);
    assert_eq!(others.due(), Some(fourth));
}
