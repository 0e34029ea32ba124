//! Locks between threads.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks data that is consistent at every moment, so a thread that panicked leaves nothing half
/// done.
pub fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
