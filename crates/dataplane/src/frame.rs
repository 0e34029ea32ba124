//! The memory that holds frames: one area, cut into chunks, addressed by offset.

mod area;
mod chain;
mod copy;
mod pool;
#[cfg(test)]
mod tests;

use core::ptr::NonNull;
use std::sync::Arc;

pub use area::Area;
use chain::Chains;
use pool::Pool;

use crate::cpu::prefetch_second_level;

/// The position of a frame's first byte: an offset into the [`Umem`], in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct FrameAddr(pub u32);

/// A frame as ports pass it on: where it starts and how long it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Descriptor {
    /// First byte.
    pub addr: FrameAddr,
    /// Bytes.
    pub len: u32,
}

/// Free bytes before a frame when a port receives it, room for a longer Ethernet header on egress.
///
/// Linux leaves 256 (`XDP_PACKET_HEADROOM`). With the extra 16, the 24 bytes that `rewrite` stores lie
/// in the cache line of the IP header, instead of across its start.
pub const HEADROOM: u32 = 256 + 16;

/// Bytes after the last chunk: an access with an address outside the area ends up here.
const GUARD: usize = 256;

/// The guard if frames may have several chunks: a frame can then be longer than its first chunk.
const CHAIN_GUARD: usize = 1 << 16;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Chunks of this size and more are coloured: frames begin at one of [`COLOURS`] cache lines, varying
/// from chunk to chunk. Otherwise all headers would fall into the same few sets of each cache.
const COLOURED_CHUNK: u32 = 4096;
const COLOURS: u32 = 16;

/// The end of the bytes of a page in which headers lie, if a chunk begins with the page. A chunk of 2 KB in the middle
/// of a page has its headers after them.
pub(crate) const HEADERS_END: usize =
    (HEADROOM as usize + COLOURS as usize * LINE).next_multiple_of(LINE);

const fn colours(chunk_bytes: u32) -> u32 {
    if chunk_bytes >= COLOURED_CHUNK { COLOURS } else { 1 }
}

/// An area of memory, cut into chunks of one size, and the list of free chunks.
///
/// An access cannot reach outside the area: its address is clamped, without a branch, to a guard zone
/// after the last chunk. So a wrong address costs a wrong packet and never touches other memory.
///
/// A frame that does not fit one chunk takes several, if the area allows it: see [`Umem::pieces`].
///
/// Several workers can use one area, each by a handle of its own: see [`Umem::share`].
pub struct Umem {
    base: NonNull<u8>,
    /// Bytes, including the guard.
    size: usize,
    chunk: u32,
    colours: u32,
    /// Free chunks that only this handle takes: all of them, unless the area is shared.
    free: Vec<u32>,
    /// Free chunks that every handle takes.
    pool: Arc<Pool>,
    /// The maximum size of a frame in bytes, over all its chunks.
    limit: usize,
    chains: Arc<Chains>,
    area: Arc<Area>,
}

#[allow(unsafe_code)]
// SAFETY: only this value, and its other handles, give access to the memory at `base` (`area` only keeps it
// alive). Each handle accesses only bytes that no other one accesses meanwhile: whoever calls `share` promises
// that. Nothing in a handle is bound to a thread.
unsafe impl Send for Umem {}

#[allow(unsafe_code)]
impl Umem {
    /// Allocates `chunks` chunks of `chunk_bytes` each (a power of two from 512 to 65,536). Returns
    /// none if that is more than 4 GiB, not such a size, or more than the system provides.
    #[must_use]
    pub fn new(chunks: u32, chunk_bytes: u32) -> Option<Self> {
        Self::advised(chunks, chunk_bytes, |_, _| {})
    }

    /// Like [`Umem::new`], but passes the area's address and size to `advise` before anything is
    /// written there, so that it can request huge pages.
    #[must_use]
    pub fn advised(
        chunks: u32,
        chunk_bytes: u32,
        advise: impl FnOnce(*mut u8, usize),
    ) -> Option<Self> {
        Self::for_frames(chunks, chunk_bytes, 0, advise)
    }

    /// Like [`Umem::advised`], for frames of up to `limit` bytes (65,535 at most), which take several
    /// chunks if they do not fit one.
    #[must_use]
    pub fn for_frames(
        chunks: u32,
        chunk_bytes: u32,
        limit: usize,
        advise: impl FnOnce(*mut u8, usize),
    ) -> Option<Self> {
        if !chunk_bytes.is_power_of_two() || !(512..=65_536).contains(&chunk_bytes) {
            return None;
        }
        let bytes = chunks.checked_mul(chunk_bytes)?;
        let room = Self::room_of(chunk_bytes);
        let guard = if limit > room { CHAIN_GUARD } else { GUARD };
        let size = bytes as usize + guard;
        let area = Area::new(size, bytes as usize, chunk_bytes, advise)?;
        let free = (0..chunks).rev().map(|index| index * chunk_bytes).collect();
        let count = chunks as usize;
        Some(Self {
            base: area.base(),
            size,
            chunk: chunk_bytes,
            colours: colours(chunk_bytes),
            free,
            pool: Pool::new(count),
            limit: limit.clamp(room, usize::from(u16::MAX).max(room)),
            chains: Arc::new(Chains::new(count)),
            area: Arc::new(area),
        })
    }

    /// Returns a further handle of the same area, for another worker. It has no free chunks yet; handles pass
    /// them on as they need them ([`Umem::balance`]).
    ///
    /// The owner of a frame's address owns the frame, with all its chunks. Ownership moves from worker to
    /// worker with the [`Descriptor`], over something that orders what both do: a ring, a channel or a lock.
    ///
    /// # Safety
    ///
    /// While the area has several handles, each is used only with frames that its worker owns: no bytes outside
    /// their chunks are accessed, nor those of the guard after the last chunk. A frame is freed once, by its
    /// owner.
    #[must_use]
    pub unsafe fn share(&self) -> Self {
        self.pool.join();
        Self {
            base: self.base,
            size: self.size,
            chunk: self.chunk,
            colours: self.colours,
            free: Vec::new(),
            pool: Arc::clone(&self.pool),
            limit: self.limit,
            chains: Arc::clone(&self.chains),
            area: Arc::clone(&self.area),
        }
    }

    /// The memory itself, for sharing it with the kernel; it lives as long as anything refers to it.
    #[must_use]
    pub fn area(&self) -> &Arc<Area> {
        &self.area
    }

    /// `N` bytes that start `offset` bytes after the frame's start (a wrapped negative offset is
    /// before it).
    #[inline(always)]
    #[must_use]
    pub fn bytes<const N: usize>(&self, addr: FrameAddr, offset: usize) -> &[u8; N] {
        let at = self.clamp::<N>(addr, offset);
        // SAFETY: `at + N <= size`, see clamp.
        let pointer = unsafe { self.base.add(at) };
        // SAFETY: N bytes from there lie in the area, which is initialised and borrowed with self; no
        // other handle writes to them, see share. An array of bytes needs no alignment.
        unsafe { pointer.cast::<[u8; N]>().as_ref() }
    }

    /// `N` writable bytes that start `offset` bytes after the frame's start.
    #[inline(always)]
    pub fn bytes_mut<const N: usize>(&mut self, addr: FrameAddr, offset: usize) -> &mut [u8; N] {
        let at = self.clamp::<N>(addr, offset);
        // SAFETY: `at + N <= size`, see clamp.
        let pointer = unsafe { self.base.add(at) };
        // SAFETY: as in `bytes`; self is borrowed exclusively, and no other handle reads these bytes.
        unsafe { pointer.cast::<[u8; N]>().as_mut() }
    }

    /// `len` bytes from the frame's start; fewer if the area ends. Of a frame of several chunks, only
    /// the bytes in the first chunk are valid; [`Umem::whole`] returns all of them.
    #[must_use]
    pub fn frame(&self, addr: FrameAddr, len: usize) -> &[u8] {
        let start = (addr.0 as usize).min(self.size);
        let len = len.min(self.size - start);
        // SAFETY: start is at most size.
        let pointer = unsafe { self.base.add(start) };
        // SAFETY: start + len is at most size; the area is initialised and borrowed with self, and no other
        // handle writes to these bytes, see share.
        unsafe { core::slice::from_raw_parts(pointer.as_ptr(), len) }
    }

    /// `len` writable bytes from the frame's start; fewer if the area ends.
    pub fn frame_mut(&mut self, addr: FrameAddr, len: usize) -> &mut [u8] {
        let start = (addr.0 as usize).min(self.size);
        let len = len.min(self.size - start);
        // SAFETY: start is at most size.
        let pointer = unsafe { self.base.add(start) };
        // SAFETY: as in `frame`; self is borrowed exclusively, and no other handle reads these bytes.
        unsafe { core::slice::from_raw_parts_mut(pointer.as_ptr(), len) }
    }

    /// Prefetches the first cache line of a frame, in which an IPv4 header ends. A port whose card writes frames to
    /// memory calls it for those of the next burst, when it delivers a full one.
    #[inline(always)]
    pub fn prefetch(&self, addr: FrameAddr) {
        prefetch_second_level(self.base.as_ptr().wrapping_add(addr.0 as usize));
    }

    /// `min(addr + offset, size - N)`: the start of N bytes inside the area.
    #[inline(always)]
    fn clamp<const N: usize>(&self, addr: FrameAddr, offset: usize) -> usize {
        const { assert!(N <= GUARD) };
        (addr.0 as usize).wrapping_add(offset).min(self.size - N)
    }
}

impl Umem {
    /// Takes a free chunk; the address leaves at least [`HEADROOM`] before the frame.
    #[inline(always)]
    pub fn alloc(&mut self) -> Option<FrameAddr> {
        let chunk = match self.free.pop() {
            Some(chunk) => chunk,
            None => self.refill()?,
        };
        let colour = chunk / self.chunk % self.colours;
        Some(FrameAddr(chunk + HEADROOM + colour * LINE as u32))
    }

    /// Frees the frame whose first chunk contains `addr`: that chunk and any that follow it.
    #[inline(always)]
    pub fn free(&mut self, addr: FrameAddr) {
        self.free.push(addr.0 & !(self.chunk - 1));
        if self.chains.any() {
            self.free_rest(addr);
        }
    }

    /// Frees many frames, as [`Umem::free`] does for one.
    #[inline]
    pub fn free_all(&mut self, frames: impl Iterator<Item = FrameAddr>) {
        if self.chains.any() {
            return frames.for_each(|addr| self.free(addr));
        }
        let mask = !(self.chunk - 1);
        self.free.extend(frames.map(|addr| addr.0 & mask));
    }

    /// The number of free chunks that only this handle takes: all free chunks, unless the area is shared
    /// ([`Umem::pooled`]).
    #[must_use]
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// The number of chunks, free or not.
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.area.bytes() / self.chunk as usize
    }

    /// The maximum size of a frame in one chunk, in bytes.
    #[must_use]
    pub const fn room(&self) -> usize {
        Self::room_of(self.chunk)
    }

    /// The maximum size of a frame in one chunk of `chunk_bytes`, in bytes.
    #[must_use]
    pub const fn room_of(chunk_bytes: u32) -> usize {
        (chunk_bytes - HEADROOM - (colours(chunk_bytes) - 1) * LINE as u32) as usize
    }

    /// The maximum size of a frame, in bytes.
    #[must_use]
    pub const fn limit(&self) -> usize {
        self.limit
    }

    /// The size of a chunk, in bytes.
    #[must_use]
    pub const fn chunk_bytes(&self) -> u32 {
        self.chunk
    }

    /// Makes a frame of these bytes; none if no chunk is free or the frame does not fit.
    pub fn store(&mut self, bytes: &[u8]) -> Option<Descriptor> {
        if bytes.len() > self.room() {
            return self.store_chain(bytes);
        }
        self.store_part(bytes)
    }
}
