//! The memory of a [`super::Umem`], apart from what is in it.

use core::ptr::NonNull;
use std::alloc::{Layout, alloc, dealloc};

/// Alignment of the area: the size of a huge page on x86-64.
const HUGE_PAGE: usize = 2 << 20;

/// One area of memory, whole; it is given back when nobody has it any more.
///
/// It tells where it is, and gives no access: that is the [`super::Umem`]'s and the kernel's.
#[derive(Debug)]
pub struct Area {
    base: NonNull<u8>,
    layout: Layout,
    /// Bytes of the chunks, without the guard.
    bytes: usize,
    chunk: u32,
}

#[allow(unsafe_code)]
// SAFETY: the memory is this value's own; nothing in it is bound to a thread.
unsafe impl Send for Area {}
#[allow(unsafe_code)]
// SAFETY: shared, it tells numbers only.
unsafe impl Sync for Area {}

#[allow(unsafe_code)]
impl Area {
    /// Memory of `size` bytes, zeroed, the first `bytes` of which are chunks, if it can be had. `advise` is told its
    /// address and size before it is written to.
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
        // SAFETY: size bytes from there were just allocated and are this function's alone.
        unsafe { memory.write_bytes(0, size) };
        Some(Self { base, layout, bytes, chunk })
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Where it begins: at a page.
    #[must_use]
    pub fn address(&self) -> usize {
        self.base.as_ptr().expose_provenance()
    }

    /// Bytes of its chunks.
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
        // SAFETY: allocated in `new` with this layout; whoever had access had self as well.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}
