//! Memory of a BPF map that the steering program and this one share.

#![allow(unsafe_code)]

use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU64;

/// The words of an array map, which are numbers that anyone may change at any time.
pub(super) struct Shared(NonNull<[AtomicU64]>);

// SAFETY: the memory belongs to no thread and is only accessed by atomic operations.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Maps the first `words` words of an array map that allows it (`BPF_F_MMAPABLE`).
    ///
    /// # Errors
    /// The map has not as many, or does not allow it.
    pub(super) fn map(map: BorrowedFd<'_>, words: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let (len, fd) = (words * size_of::<AtomicU64>(), map.as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice.
        let memory = unsafe { libc::mmap(null_mut(), len, protection, libc::MAP_SHARED, fd, 0) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let first = NonNull::new(memory.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self(NonNull::slice_from_raw_parts(first, words)))
    }
}

impl Deref for Shared {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is as long, page-aligned, lives as long as this, and is accessed by
        // atomic operations only.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let len = self.0.len() * size_of::<AtomicU64>();
        // SAFETY: the mapping of `map`, to which no borrow is left. An error could only mean that
        // it is gone already.
        let _ = unsafe { libc::munmap(self.0.as_ptr().cast(), len) };
    }
}
