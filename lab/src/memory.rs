//! Memory for frames in huge pages, where the system has them.

use tollway_dataplane::frame::Umem;

/// An area for frames, see [`Umem::new`]; the system is asked for huge pages.
#[must_use]
pub fn umem(chunks: u32, chunk_bytes: u32) -> Option<Umem> {
    Umem::advised(chunks, chunk_bytes, advise)
}

/// The same for frames of up to `limit` bytes, see [`Umem::for_frames`].
#[must_use]
pub fn umem_for(chunks: u32, chunk_bytes: u32, limit: usize) -> Option<Umem> {
    Umem::for_frames(chunks, chunk_bytes, limit, advise)
}

#[allow(unsafe_code)]
fn advise(area: *mut u8, bytes: usize) {
    // SAFETY: the area was just allocated, whole; this advice changes no content. A refusal leaves
    // ordinary pages, which serve as well and slower.
    let _ = unsafe { libc::madvise(area.cast(), bytes, libc::MADV_HUGEPAGE) };
}
