//! The memory that frames live in: one area, cut into chunks, addressed by offset.

use core::ptr::NonNull;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};

/// Where a frame's first byte is: an offset into the [`Umem`], bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct FrameAddr(pub u32);

/// A frame as ports hand it around: where it starts and how long it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Descriptor {
    /// First byte.
    pub addr: FrameAddr,
    /// Bytes.
    pub len: u32,
}

/// Bytes free before a frame when a port receives it, for a longer Ethernet header on the way out.
///
/// Linux leaves 256 (XDP_PACKET_HEADROOM). The 16 more put the 24 bytes that `rewrite` stores into
/// the cache line that the IP header is in, instead of across the line's start.
pub const HEADROOM: u32 = 256 + 16;

/// Bytes behind the last chunk: where an access ends up whose address lies outside.
const GUARD: usize = 256;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Alignment of the area: the size of a huge page on x86-64.
const HUGE_PAGE: usize = 2 << 20;

/// Chunks of this size and more are coloured: frames begin at one of [`COLOURS`] cache lines, chunk
/// by chunk. Else all headers would fall into the same few sets of each cache.
const COLOURED_CHUNK: u32 = 4096;
const COLOURS: u32 = 16;

const fn colours(chunk_bytes: u32) -> u32 {
    if chunk_bytes >= COLOURED_CHUNK { COLOURS } else { 1 }
}

/// Chunks of one size in one area of memory, and the list of those that are free.
///
/// An access can not leave the area: its address is clamped, without a branch, to a guard zone
/// behind the last chunk. So a wrong address costs a wrong packet, never another's memory.
pub struct Umem {
    base: NonNull<u8>,
    /// Bytes, the guard included.
    size: usize,
    chunk: u32,
    colours: u32,
    free: Vec<u32>,
    layout: Layout,
}

#[allow(unsafe_code)]
// SAFETY: `base` is memory that this value alone owns; nothing in it is bound to a thread.
unsafe impl Send for Umem {}

#[allow(unsafe_code)]
impl Umem {
    /// An area of `chunks` chunks of `chunk_bytes` each (a power of two from 512 to 65,536), or
    /// none where that is more than 4 GiB or not a size as said.
    #[must_use]
    pub fn new(chunks: u32, chunk_bytes: u32) -> Option<Self> {
        Self::advised(chunks, chunk_bytes, |_, _| {})
    }

    /// The same; `advise` is told address and size of the area before anything is written there,
    /// so that it can ask the system for huge pages.
    #[must_use]
    pub fn advised(
        chunks: u32,
        chunk_bytes: u32,
        advise: impl FnOnce(*mut u8, usize),
    ) -> Option<Self> {
        if !chunk_bytes.is_power_of_two() || !(512..=65_536).contains(&chunk_bytes) {
            return None;
        }
        let bytes = chunks.checked_mul(chunk_bytes)?;
        let size = bytes as usize + GUARD;
        let layout = Layout::from_size_align(size, HUGE_PAGE).ok()?;
        // SAFETY: the layout's size is at least GUARD, so not zero.
        let memory = unsafe { alloc(layout) };
        let base = NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout));
        advise(memory, size);
        // SAFETY: size bytes from there were just allocated and are this function's alone.
        unsafe { memory.write_bytes(0, size) };
        let free = (0..chunks).rev().map(|index| index * chunk_bytes).collect();
        Some(Self { base, size, chunk: chunk_bytes, colours: colours(chunk_bytes), free, layout })
    }

    /// `N` bytes from `offset` bytes behind the frame's start (a wrapped-around negative is before).
    #[inline(always)]
    #[must_use]
    pub fn bytes<const N: usize>(&self, addr: FrameAddr, offset: usize) -> &[u8; N] {
        let at = self.clamp::<N>(addr, offset);
        // SAFETY: `at + N <= size`, see clamp.
        let pointer = unsafe { self.base.add(at) };
        // SAFETY: N bytes from there lie in the area, which is initialised and borrowed with self;
        // an array of bytes needs no alignment.
        unsafe { pointer.cast::<[u8; N]>().as_ref() }
    }

    /// `N` bytes from `offset` bytes behind the frame's start, to write.
    #[inline(always)]
    pub fn bytes_mut<const N: usize>(&mut self, addr: FrameAddr, offset: usize) -> &mut [u8; N] {
        let at = self.clamp::<N>(addr, offset);
        // SAFETY: `at + N <= size`, see clamp.
        let pointer = unsafe { self.base.add(at) };
        // SAFETY: as in `bytes`, and self is borrowed exclusively.
        unsafe { pointer.cast::<[u8; N]>().as_mut() }
    }

    /// `len` bytes from the frame's start; fewer where the area ends.
    #[must_use]
    pub fn frame(&self, addr: FrameAddr, len: usize) -> &[u8] {
        let start = (addr.0 as usize).min(self.size);
        let len = len.min(self.size - start);
        // SAFETY: start is at most size.
        let pointer = unsafe { self.base.add(start) };
        // SAFETY: start + len is at most size; the area is initialised and borrowed with self.
        unsafe { core::slice::from_raw_parts(pointer.as_ptr(), len) }
    }

    /// `len` bytes from the frame's start, to write; fewer where the area ends.
    pub fn frame_mut(&mut self, addr: FrameAddr, len: usize) -> &mut [u8] {
        let start = (addr.0 as usize).min(self.size);
        let len = len.min(self.size - start);
        // SAFETY: start is at most size.
        let pointer = unsafe { self.base.add(start) };
        // SAFETY: as in `frame`, and self is borrowed exclusively.
        unsafe { core::slice::from_raw_parts_mut(pointer.as_ptr(), len) }
    }

    /// `min(addr + offset, size - N)`: the start of N bytes that lie in the area.
    #[inline(always)]
    fn clamp<const N: usize>(&self, addr: FrameAddr, offset: usize) -> usize {
        const { assert!(N <= GUARD) };
        (addr.0 as usize).wrapping_add(offset).min(self.size - N)
    }
}

impl Umem {
    /// Takes a free chunk; the address leaves [`HEADROOM`] before the frame at least.
    #[inline(always)]
    pub fn alloc(&mut self) -> Option<FrameAddr> {
        let chunk = self.free.pop()?;
        let colour = chunk / self.chunk % self.colours;
        Some(FrameAddr(chunk + HEADROOM + colour * LINE as u32))
    }

    /// Gives back the chunk that holds `addr`.
    #[inline(always)]
    pub fn free(&mut self, addr: FrameAddr) {
        self.free.push(addr.0 & !(self.chunk - 1));
    }

    /// Gives back the chunks of many frames.
    #[inline]
    pub fn free_all(&mut self, frames: impl Iterator<Item = FrameAddr>) {
        let mask = !(self.chunk - 1);
        self.free.extend(frames.map(|addr| addr.0 & mask));
    }

    /// Chunks that are free.
    #[must_use]
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// Bytes that a frame can have.
    #[must_use]
    pub const fn room(&self) -> usize {
        Self::room_of(self.chunk)
    }

    /// Bytes that a frame can have in a chunk of that size.
    #[must_use]
    pub const fn room_of(chunk_bytes: u32) -> usize {
        (chunk_bytes - HEADROOM - (colours(chunk_bytes) - 1) * LINE as u32) as usize
    }

    /// Makes a frame of these bytes, or none where no chunk is free or it does not fit.
    pub fn store(&mut self, bytes: &[u8]) -> Option<Descriptor> {
        if bytes.len() > self.room() {
            return None;
        }
        let addr = self.alloc()?;
        self.frame_mut(addr, bytes.len()).copy_from_slice(bytes);
        Some(Descriptor { addr, len: bytes.len() as u32 })
    }
}

#[allow(unsafe_code)]
impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and no borrow outlives self.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_apart_and_come_back() {
        let mut umem = Umem::new(4, 512).unwrap();
        let mut held: Vec<_> = (0..4).map(|_| umem.alloc().unwrap()).collect();
        assert!(umem.alloc().is_none());
        held.sort_by_key(|addr| addr.0);
        assert!(held.windows(2).all(|pair| pair[1].0 - pair[0].0 == 512));
        umem.free(FrameAddr(held[2].0 - 10));
        assert_eq!(umem.alloc(), Some(held[2]));
    }

    #[test]
    fn an_access_outside_lands_in_the_guard() {
        let mut umem = Umem::new(1, 512).unwrap();
        *umem.bytes_mut::<4>(FrameAddr(u32::MAX), 7) = [1, 2, 3, 4];
        *umem.bytes_mut::<4>(FrameAddr(3), 0usize.wrapping_sub(4)) = [5; 4];
        assert_eq!(umem.frame(FrameAddr(0), 512), &[0; 512][..]);
        assert_eq!(umem.frame(FrameAddr(700), 9999).len(), 512 + GUARD - 700);
        assert!(umem.frame(FrameAddr(u32::MAX), 9).is_empty());
    }

    #[test]
    fn sizes_that_make_no_sense_are_refused() {
        assert!(Umem::new(1, 500).is_none());
        assert!(Umem::new(1, 256).is_none());
        assert!(Umem::new(1 << 20, 65_536).is_none());
    }

    #[test]
    fn store_copies_what_fits() {
        let mut umem = Umem::new(1, 512).unwrap();
        assert!(umem.store(&[7; 241]).is_none());
        let frame = umem.store(&[7; 240]).unwrap();
        assert_eq!(umem.frame(frame.addr, 240), &[7; 240]);
        assert!(umem.store(&[7]).is_none());
    }
}
