//! Memory for frames in huge pages, where the system has them.

use tollway_dataplane::frame::Umem;

/// An area for frames, see [`Umem::new`]; the system is asked for huge pages.
#[must_use]
pub fn umem(chunks: u32, chunk_bytes: u32) -> Option<Umem> {
    Umem::advised(chunks, chunk_bytes, advise)
}

#[allow(unsafe_code)]
fn advise(area: *mut u8, bytes: usize) {
    // SAFETY: the area was just allocated, whole; this advice changes no content. A refusal leaves
    // ordinary pages, which serve as well and slower.
    let _ = unsafe { libc::madvise(area.cast(), bytes, libc::MADV_HUGEPAGE) };
}
