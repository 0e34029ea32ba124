//! Frames of several chunks: each chunk except the last refers to the one that follows it.
//!
//! The first chunk holds the headers; a frame's length is that of all its chunks. The Ethernet header
//! may grow or shrink at the front, and the frame may be cut at its end, without any change here.

use std::borrow::Cow;
use std::sync::atomic::Ordering::Relaxed;

use super::{Descriptor, FrameAddr, Umem};
use crate::memory::zeroed;
use crate::sync::{AtomicU64, AtomicUsize};

/// What follows a chunk.
#[derive(Clone, Copy, Debug)]
struct Link {
    /// The end of the chunk's bytes, which is not 0.
    end: u32,
    /// The first byte in the next chunk.
    next: FrameAddr,
}

impl Link {
    const fn pack(self) -> u64 {
        (self.end as u64) << 32 | self.next.0 as u64
    }

    const fn unpack(word: u64) -> Option<Self> {
        match (word >> 32) as u32 {
            0 => None,
            end => Some(Self { end, next: FrameAddr(word as u32) }),
        }
    }
}

/// The links between the chunks of frames, for all handles of an area.
///
/// Only the owner of a frame accesses its links. Whatever hands a frame over also orders the accesses of both owners,
/// so relaxed ones are enough. This holds for the count too: an owner's view of it includes the frame's own links.
pub(super) struct Chains {
    /// The number of chunks that another chunk follows.
    count: AtomicUsize,
    /// One for each chunk; 0 if no chunk follows it.
    links: Box<[AtomicU64]>,
}

impl Chains {
    /// Creates the links of so many chunks. The system provides their memory when a chain is first made.
    pub(super) fn new(chunks: usize) -> Self {
        Self { count: AtomicUsize::new(0), links: zeroed(chunks) }
    }

    #[inline(always)]
    pub(super) fn any(&self) -> bool {
        self.count.load(Relaxed) != 0
    }

    fn get(&self, chunk: usize) -> Option<Link> {
        Link::unpack(self.links.get(chunk)?.load(Relaxed))
    }

    fn set(&self, chunk: usize, link: Link) {
        let Some(slot) = self.links.get(chunk) else { return };
        if Link::unpack(slot.load(Relaxed)).is_none() {
            self.count.fetch_add(1, Relaxed);
        }
        slot.store(link.pack(), Relaxed);
    }

    fn take(&self, chunk: usize) -> Option<Link> {
        let slot = self.links.get(chunk)?;
        let link = Link::unpack(slot.load(Relaxed))?;
        slot.store(0, Relaxed);
        self.count.fetch_sub(1, Relaxed);
        Some(link)
    }
}

impl Umem {
    fn chunk_of(&self, addr: FrameAddr) -> usize {
        (addr.0 / self.chunk) as usize
    }

    /// Says whether any frame has several chunks.
    #[inline(always)]
    #[must_use]
    pub fn has_chains(&self) -> bool {
        self.chains.any()
    }

    /// Links `next` after `piece`, which no chunk follows yet.
    pub fn link(&mut self, piece: Descriptor, next: FrameAddr) {
        let link = Link { end: piece.addr.0 + piece.len, next };
        self.chains.set(self.chunk_of(piece.addr), link);
    }

    /// The number of a frame's chunks, including those after its end if the frame was cut.
    #[must_use]
    pub fn chunks_of(&self, addr: FrameAddr) -> usize {
        let next = |addr: &FrameAddr| Some(self.chains.get(self.chunk_of(*addr))?.next);
        std::iter::successors(Some(addr), next).count()
    }

    /// A frame's bytes, chunk by chunk.
    pub fn pieces(&self, frame: Descriptor) -> impl Iterator<Item = Descriptor> + use<'_> {
        let mut rest = Some(frame).filter(|frame| frame.len > 0);
        std::iter::from_fn(move || {
            let Descriptor { addr, len } = rest?;
            let link = self.chains.get(self.chunk_of(addr));
            let here = link.map_or(len, |link| link.end.saturating_sub(addr.0).min(len));
            rest = link
                .filter(|_| here < len)
                .map(|link| Descriptor { addr: link.next, len: len - here });
            Some(Descriptor { addr, len: here })
        })
    }

    /// All bytes of a frame: copied if it has several chunks.
    #[must_use]
    pub fn whole(&self, frame: Descriptor) -> Cow<'_, [u8]> {
        if !self.has_chains() || self.chains.get(self.chunk_of(frame.addr)).is_none() {
            return Cow::Borrowed(self.frame(frame.addr, frame.len as usize));
        }
        let mut bytes = Vec::with_capacity(frame.len as usize);
        for piece in self.pieces(frame) {
            bytes.extend_from_slice(self.frame(piece.addr, piece.len as usize));
        }
        Cow::Owned(bytes)
    }

    /// Makes a frame's chunks independent of each other, for a caller that frees them one by one.
    /// Chunks that hold no byte of the frame any more become free at once.
    pub fn take_apart(&mut self, frame: Descriptor, mut take: impl FnMut(Descriptor)) {
        let Descriptor { mut addr, mut len } = frame;
        loop {
            let link = self.chains.take(self.chunk_of(addr));
            let here = link.map_or(len, |link| link.end.saturating_sub(addr.0).min(len));
            match here {
                0 => self.free.push(addr.0 & !(self.chunk - 1)),
                _ => take(Descriptor { addr, len: here }),
            }
            let Some(link) = link else { return };
            (addr, len) = (link.next, len - here);
        }
    }

    /// Frees the chunks that follow the one that contains `addr`.
    #[cold]
    pub(super) fn free_rest(&mut self, mut addr: FrameAddr) {
        while let Some(link) = self.chains.take(self.chunk_of(addr)) {
            addr = link.next;
            self.free.push(addr.0 & !(self.chunk - 1));
        }
    }

    /// Makes a frame of several chunks, if frames may have them and enough chunks are free.
    pub(super) fn store_chain(&mut self, bytes: &[u8]) -> Option<Descriptor> {
        if bytes.len() > self.limit {
            return None;
        }
        let mut parts = bytes.chunks(self.room());
        let head = self.store_part(parts.next()?)?;
        let mut last = head;
        for part in parts {
            let Some(next) = self.store_part(part) else {
                self.free(head.addr);
                return None;
            };
            self.link(last, next.addr);
            last = next;
        }
        Some(Descriptor { addr: head.addr, len: bytes.len() as u32 })
    }

    /// Copies bytes into a free chunk, in which they fit.
    pub(super) fn store_part(&mut self, part: &[u8]) -> Option<Descriptor> {
        let addr = self.alloc()?;
        self.frame_mut(addr, part.len()).copy_from_slice(part);
        Some(Descriptor { addr, len: part.len() as u32 })
    }
}
