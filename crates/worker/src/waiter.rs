//! Waits for a thread that follows the kernel.

use std::sync::mpsc;
use std::time::Duration;

/// Called when what follows the kernel has all of its notifications.
pub(crate) type Waiter = Box<dyn FnOnce() + Send>;

/// Passes a waiter to a thread by `post`, and waits until the thread calls it; false if `post` fails, or that takes
/// longer than `patience`.
pub(crate) fn wait_for(post: impl FnOnce(Waiter) -> bool, patience: Duration) -> bool {
    let (answer, answered) = mpsc::sync_channel(1);
    // The requester may have gone.
    let waiter = Box::new(move || _ = answer.try_send(()));
    post(waiter) && answered.recv_timeout(patience).is_ok()
}
