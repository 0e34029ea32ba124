//! Copies of frames.

use super::{Descriptor, FrameAddr, Umem};

/// Bytes that are copied at once. Every chunk has room for so many.
const BLOCK: usize = 64;

impl Umem {
    /// Copies a frame into free chunks; none if there are too few.
    pub fn copy(&mut self, frame: Descriptor) -> Option<Descriptor> {
        if self.has_chains() && self.chunks_of(frame.addr) > 1 {
            let bytes = self.whole(frame).into_owned();
            return self.store(&bytes);
        }
        let addr = self.alloc()?;
        self.copy_bytes(frame.addr, addr, frame.len as usize);
        Some(Descriptor { addr, len: frame.len })
    }

    /// Copies a frame's bytes, and more if that is shorter than a block. The last block overlaps the one before.
    fn copy_bytes(&mut self, from: FrameAddr, to: FrameAddr, len: usize) {
        let last = len.saturating_sub(BLOCK);
        for at in (0..last).step_by(BLOCK).chain([last]) {
            let block = *self.bytes::<BLOCK>(from, at);
            *self.bytes_mut(to, at) = block;
        }
    }
}
