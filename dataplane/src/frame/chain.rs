//! Frames of several chunks: each chunk but the last says which follows it.
//!
//! The first holds the headers; a frame's length is that of all its chunks. The Ethernet header may
//! grow or shrink at the front and the frame be cut at its end, and nothing here changes with that.

use std::borrow::Cow;

use super::{Descriptor, FrameAddr, Umem};

/// What follows a chunk.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    /// Where the chunk's bytes end; 0 where nothing follows it.
    end: u32,
    /// First byte in the next chunk.
    next: FrameAddr,
}

/// Which chunk follows which.
#[derive(Clone, Debug, Default)]
pub(super) struct Chains {
    /// Chunks that are followed by another.
    count: usize,
    /// One for each chunk, from the first chain on.
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

    /// Whether any frame has several chunks.
    #[inline(always)]
    #[must_use]
    pub const fn has_chains(&self) -> bool {
        self.chains.any()
    }

    /// Says that a frame goes on at `next` behind `piece`, which nothing follows yet.
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

    /// Chunks that a frame has, those included in which its end, cut off, no longer lies.
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

    /// A frame's bytes, whole: copied where it has several chunks.
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

    /// Makes a frame's chunks independent of each other, for one who gives them back one by one;
    /// those in which nothing is left of the frame are free at once.
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

    /// Gives back the chunks that follow the one of `addr`.
    #[cold]
    pub(super) fn free_rest(&mut self, mut addr: FrameAddr) {
        while let Some(link) = self.chains.take(self.chunk_of(addr)) {
            addr = link.next;
            self.free.push(addr.0 & !(self.chunk - 1));
        }
    }

    /// Makes a frame of several chunks, if frames may have them and so many are free.
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
