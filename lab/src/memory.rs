//! Frame memory in huge pages, where the system has them.

use tollway_dataplane::frame::Umem;

/// An area for frames, see [`Umem::new`]. Requests huge pages.
#[must_use]
pub fn umem(chunks: u32, chunk_bytes: u32) -> Option<Umem> {
    Umem::advised(chunks, chunk_bytes, advise)
}

/// Like [`umem`], for frames of up to `limit` bytes, see [`Umem::for_frames`].
#[must_use]
pub fn umem_for(chunks: u32, chunk_bytes: u32, limit: usize) -> Option<Umem> {
    Umem::for_frames(chunks, chunk_bytes, limit, advise)
}

#[allow(unsafe_code)]
fn advise(area: *mut u8, bytes: usize) {
    // SAFETY: the area was just allocated as a whole, and this advice changes no content. If the
    // kernel refuses, the pages stay ordinary ones: slower, but correct.
    let _ = unsafe { libc::madvise(area.cast(), bytes, libc::MADV_HUGEPAGE) };
}
