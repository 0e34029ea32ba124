//! Memory of a BPF map, shared by the XDP program and user space.

#![allow(unsafe_code)]

use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU64;

/// Types of atomic numbers without padding, which any thread may change at any time.
///
/// # Safety
/// The type must be just that.
pub(super) unsafe trait Atomics {}
// SAFETY: an atomic number.
unsafe impl Atomics for AtomicU64 {}

/// The elements of an array map.
pub(super) struct Shared<T: Atomics>(NonNull<[T]>);

// SAFETY: the memory belongs to no thread and is only accessed by atomic operations.
unsafe impl<T: Atomics> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Atomics> Sync for Shared<T> {}

impl<T: Atomics> Shared<T> {
    /// Maps the first `count` elements of an array map with `BPF_F_MMAPABLE`.
    ///
    /// # Errors
    /// The map has fewer elements, or lacks that flag.
    pub(super) fn map(map: BorrowedFd<'_>, count: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let (len, fd) = (count * size_of::<T>(), map.as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice.
        let memory = unsafe { libc::mmap(null_mut(), len, protection, libc::MAP_SHARED, fd, 0) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let first = NonNull::new(memory.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self(NonNull::slice_from_raw_parts(first, count)))
    }
}

impl<T: Atomics> Deref for Shared<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the mapping is as long, page-aligned, lives as long as this, and is accessed by
        // atomic operations only.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Atomics> Drop for Shared<T> {
    fn drop(&mut self) {
        let len = self.0.len() * size_of::<T>();
        // SAFETY: the mapping of `map`, to which no borrow is left. An error could only mean that
        // it is gone already.
        let _ = unsafe { libc::munmap(self.0.as_ptr().cast(), len) };
    }
}
