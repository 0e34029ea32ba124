//! Frame memory in huge pages, where the system has them.

use tollway_dataplane::frame::Umem;
use tollway_linux::sys::advise_huge_pages;

/// An area for frames, see [`Umem::new`]. Requests huge pages.
#[must_use]
pub fn umem(chunks: u32, chunk_bytes: u32) -> Option<Umem> {
    Umem::advised(chunks, chunk_bytes, advise_huge_pages)
}
