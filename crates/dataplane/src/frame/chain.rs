//! Frames of several chunks: each chunk except the last refers to the one that follows it.
//!
//! The first chunk holds the headers; a frame's length is that of all its chunks. The Ethernet header
//! may grow or shrink at the front, and the frame may be cut at its end, without any change here.

use std::borrow::Cow;

use super::{Descriptor, FrameAddr, Umem};

/// What follows a chunk.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    /// The end of the chunk's bytes; 0 if no chunk follows it.
    end: u32,
    /// The first byte in the next chunk.
    next: FrameAddr,
}

/// The links between the chunks of frames.
#[derive(Clone, Debug, Default)]
pub(super) struct Chains {
    /// The number of chunks that another chunk follows.
    count: usize,
    /// One for each chunk; allocated with the first chain.
    links: Vec<Link>,
}

impl Chains {
    #[inline(always)]
    pub(super) const fn any(&self) -> bool {
        self.count != 0
    }

    fn get(&self, chunk: usize) -> Option<Link> {
        self.links.get(chunk).copied().filter(|link| link.end != 0)
    }

    fn take(&mut self, chunk: usize) -> Option<Link> {
        let link = std::mem::take(self.links.get_mut(chunk)?);
        (link.end != 0).then(|| {
            self.count -= 1;
            link
        })
    }
}

impl Umem {
    fn chunk_of(&self, addr: FrameAddr) -> usize {
        (addr.0 / self.chunk) as usize
    }

    /// Says whether any frame has several chunks.
    #[inline(always)]
    #[must_use]
    pub const fn has_chains(&self) -> bool {
        self.chains.any()
    }

    /// Links `next` after `piece`, which no chunk follows yet.
    pub fn link(&mut self, piece: Descriptor, next: FrameAddr) {
        if self.chains.links.is_empty() {
            self.chains.links = vec![Link::default(); self.chunks()];
        }
        let chunk = self.chunk_of(piece.addr);
        if let Some(link) = self.chains.links.get_mut(chunk) {
            self.chains.count += usize::from(link.end == 0);
            *link = Link { end: piece.addr.0 + piece.len, next };
        }
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
        let room = self.room();
        if bytes.len() > self.limit || bytes.len().div_ceil(room) > self.available() {
            return None;
        }
        let mut last: Option<Descriptor> = None;
        let mut head = None;
        for part in bytes.chunks(room) {
            let addr = self.alloc()?;
            self.frame_mut(addr, part.len()).copy_from_slice(part);
            if let Some(last) = last {
                self.link(last, addr);
            }
            last = Some(Descriptor { addr, len: part.len() as u32 });
            head.get_or_insert(addr);
        }
        head.map(|addr| Descriptor { addr, len: bytes.len() as u32 })
    }
}
