//! The atomics and locks of shared tables: the standard library's, or loom's where loom explores them.

#[cfg(loom)]
pub use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, fence},
};
#[cfg(not(loom))]
pub use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, fence},
};
