//! The raw memory of a [`super::Umem`].

use core::ptr::NonNull;
use std::alloc::{Layout, alloc, dealloc};

/// Alignment of the area: the size of a huge page on x86-64.
const HUGE_PAGE: usize = 2 << 20;

/// One area of memory, freed when the last reference to it is dropped.
///
/// It gives its address and sizes, but no access to the bytes: only the [`super::Umem`] and the kernel
/// have that.
#[derive(Debug)]
pub struct Area {
    base: NonNull<u8>,
    layout: Layout,
    /// Bytes of the chunks, without the guard.
    bytes: usize,
    chunk: u32,
}

#[allow(unsafe_code)]
// SAFETY: this value owns the memory; nothing in it is bound to a thread.
unsafe impl Send for Area {}
#[allow(unsafe_code)]
// SAFETY: a shared reference only returns numbers.
unsafe impl Sync for Area {}

#[allow(unsafe_code)]
impl Area {
    /// Allocates `size` zeroed bytes, of which the first `bytes` are chunks; none if the system has no
    /// such memory. Passes address and size to `advise` before it writes to them.
    pub(super) fn new(
        size: usize,
        bytes: usize,
        chunk: u32,
        advise: impl FnOnce(*mut u8, usize),
    ) -> Option<Self> {
        let layout = Layout::from_size_align(size, HUGE_PAGE).ok().filter(|_| size > 0)?;
        // SAFETY: the layout's size is not zero.
        let memory = unsafe { alloc(layout) };
        let base = NonNull::new(memory)?;
        advise(memory, size);
        // SAFETY: size bytes from there were just allocated, and only this function has access to them.
        unsafe { memory.write_bytes(0, size) };
        Some(Self { base, layout, bytes, chunk })
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The address of the area: the start of a page.
    #[must_use]
    pub fn address(&self) -> usize {
        self.base.as_ptr().expose_provenance()
    }

    /// Bytes of all its chunks.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of one chunk.
    #[must_use]
    pub fn chunk_bytes(&self) -> u32 {
        self.chunk
    }
}

#[allow(unsafe_code)]
impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: `new` allocated it with this layout; every access to the memory also needs self.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}
