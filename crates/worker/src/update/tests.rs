//! Changes return although workers hang, and the kernel forwards meanwhile.

use std::thread::ScopedJoinHandle;

use tollway_dataplane::frame::Umem;
use tollway_dataplane::worker::Worker;

use super::*;

/// Tries, of which one has to meet a bound: the machine may be busy.
const TRIES: usize = 20;
/// The longest wait for another thread.
const PATIENCE: Duration = Duration::from_secs(10);

/// A router whose only worker is awake and takes no turns.
fn hung() -> (Worker, Updater) {
    let umem = Umem::new(16, 4096).unwrap();
    let worker = Worker::alone(Default::default(), umem, Default::default());
    let updater =
        Updater::new(worker.router(), crate::mailbox().unwrap().0, Outdated::new(Arc::default()));
    (worker, updater)
}

/// Makes a change that publishes another state; returns how long it took.
fn change(updater: &Updater) -> Duration {
    let start = Instant::now();
    updater.change(|locked| locked.tables.set_multipath_seed(start.elapsed().subsec_nanos()));
    start.elapsed()
}

/// Makes a change on another thread, during which the bypass has to begin. On a busy machine, this thread may sleep
/// throughout a bypass: then it makes another change.
fn bypassed_change(worker: &Worker, updater: &Updater, meanwhile: impl FnOnce()) -> Duration {
    let mut meanwhile = Some(meanwhile);
    for _ in 0..TRIES {
        let took = std::thread::scope(|scope| {
            let changing = scope.spawn(|| change(updater));
            let is_seen = sees_bypass(updater, &changing);
            if let Some(meanwhile) = meanwhile.take_if(|_| is_seen) {
                meanwhile();
            }
            let took = changing.join().unwrap();
            is_seen.then_some(took)
        });
        match took {
            Some(took) => return took,
            None => catch_up(worker, updater),
        }
    }
    panic!("the kernel did not forward meanwhile");
}

/// Waits for the bypass; returns false if the change ended before.
fn sees_bypass<T>(updater: &Updater, changing: &ScopedJoinHandle<T>) -> bool {
    let start = Instant::now();
    while !updater.mailbox.is_bypassed() {
        if changing.is_finished() {
            return false;
        }
        assert!(start.elapsed() < PATIENCE);
        std::hint::spin_loop();
    }
    true
}

/// Lets the worker take turns again until a change has seen so.
fn catch_up(worker: &Worker, updater: &Updater) {
    worker.park();
    change(updater);
    worker.wake();
}

/// The fastest of some tries.
fn fastest(mut attempt: impl FnMut() -> Duration) -> Duration {
    (0..TRIES).map(|_| attempt()).min().unwrap()
}

#[test]
fn a_change_does_not_wait_for_a_worker_that_hangs() {
    let (worker, updater) = hung();
    let took = fastest(|| {
        let took = bypassed_change(&worker, &updater, || {});
        assert!(took >= UNSERVED);
        assert!(!updater.mailbox.is_bypassed(), "the others forward on");
        // From now on, no change waits for it.
        let next = fastest(|| change(&updater));
        assert!(next < UNSERVED / 4, "{next:?}");
        catch_up(&worker, &updater);
        took
    });
    assert!(took < UNSERVED + Duration::from_millis(10), "{took:?}");
}

#[test]
fn a_worker_that_is_late_ends_the_bypass_by_its_next_turn() {
    let (worker, updater) = hung();
    bypassed_change(&worker, &updater, || worker.park());
    assert!(!updater.mailbox.is_bypassed());
}

#[test]
fn a_change_does_not_wait_for_a_worker_that_sleeps() {
    let (worker, updater) = hung();
    worker.park();
    let took = fastest(|| change(&updater));
    assert!(took < SOON, "{took:?}");
    assert!(!updater.mailbox.is_bypassed());
}

#[test]
fn the_kernel_forwards_while_somebody_else_has_the_lock() {
    let (worker, updater) = hung();
    worker.park();
    let locked = worker.lock();
    bypassed_change(&worker, &updater, || drop(locked));
    assert!(!updater.mailbox.is_bypassed());
}
