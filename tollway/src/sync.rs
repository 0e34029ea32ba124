//! Locks between threads.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks what is whole at every moment, so that a thread that ended badly leaves nothing half done.
pub(crate) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
