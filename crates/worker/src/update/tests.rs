//! Changes return although workers hang, and the kernel forwards meanwhile.

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

/// Makes a change on another thread, during which the bypass has to begin.
fn bypassed_change(updater: &Updater, meanwhile: impl FnOnce()) -> Duration {
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| change(updater));
        let start = Instant::now();
        while !updater.mailbox.is_bypassed() {
            assert!(!changing.is_finished(), "the kernel did not forward meanwhile");
            assert!(start.elapsed() < PATIENCE);
            std::hint::spin_loop();
        }
        meanwhile();
        changing.join().unwrap()
    })
}

/// The fastest of some tries.
fn fastest(mut attempt: impl FnMut() -> Duration) -> Duration {
    (0..TRIES).map(|_| attempt()).min().unwrap()
}

#[test]
fn a_change_does_not_wait_for_a_worker_that_hangs() {
    let (worker, updater) = hung();
    let took = fastest(|| {
        let took = bypassed_change(&updater, || {});
        assert!(took >= UNSERVED);
        assert!(!updater.mailbox.is_bypassed(), "the others forward on");
        // From now on, no change waits for it.
        let next = fastest(|| change(&updater));
        assert!(next < UNSERVED / 4, "{next:?}");
        // Until it takes turns again.
        worker.park();
        change(&updater);
        worker.wake();
        took
    });
    assert!(took < UNSERVED + Duration::from_millis(10), "{took:?}");
}

#[test]
fn a_worker_that_is_late_ends_the_bypass_by_its_next_turn() {
    let (worker, updater) = hung();
    bypassed_change(&updater, || worker.park());
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
    bypassed_change(&updater, || drop(locked));
    assert!(!updater.mailbox.is_bypassed());
}

#[test]
fn the_kernel_forwards_while_a_change_waits_for_memory() {
    let (worker, updater) = hung();
    let epochs = Arc::clone(&worker.lock().tables.epochs);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| updater.wait_for_memory(&epochs));
        let start = Instant::now();
        while !updater.mailbox.is_bypassed() {
            assert!(start.elapsed() < PATIENCE);
        }
        worker.park();
        assert!(waiting.join().unwrap());
    });
    assert!(!updater.mailbox.is_bypassed());
    worker.wake();
    assert!(!updater.wait_for_memory(&epochs), "a worker that hangs may still use it");
}
