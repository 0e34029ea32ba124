//! A ring by which one worker hands frames over to another, which owns them from then on.
//!
//! It has one producer and one consumer, like an `rte_ring` of DPDK with `RING_F_SP_ENQ` and `RING_F_SC_DEQ`. Each
//! side has a copy of the other's position, and looks at the real one only if the copy does not suffice (Lee, Bu and
//! Chandranmenon, "A lock-free, cache-efficient multi-core synchronization mechanism for line-rate network traffic
//! monitoring", 2010).

#[cfg(all(test, loom))]
mod models;
mod outlet;
mod sleeper;
#[cfg(all(test, not(loom)))]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::frame::{Descriptor, FrameAddr};
use crate::id::PortId;
use crate::memory::{Apart, zeroed};
use crate::sync::{AtomicU64, AtomicUsize};
pub use outlet::Outlet;
pub use sleeper::Sleeper;

/// A frame that another worker has handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandedOver {
    /// The port that the producer named.
    pub port: PortId,
    /// The frame.
    pub frame: Descriptor,
}

impl HandedOver {
    /// The item in one word, so that a cache line carries eight. No frame is longer than the 16 bits for its length
    /// ([`crate::frame::Umem::for_frames`]); a longer one would be cut.
    #[inline(always)]
    fn pack(frame: Descriptor, port: PortId) -> u64 {
        let len = frame.len.min(u32::from(u16::MAX));
        u64::from(frame.addr.0) << 32 | u64::from(len) << 16 | u64::from(port.0)
    }

    #[inline(always)]
    const fn unpack(word: u64) -> Self {
        let len = (word >> 16) as u16 as u32;
        let frame = Descriptor { addr: FrameAddr((word >> 32) as u32), len };
        Self { port: PortId(word as u16), frame }
    }
}

/// What both sides share. Positions count all items ever pushed or popped, and wrap.
struct Ring {
    /// Items, at their position modulo the number of slots (a power of two).
    slots: Box<[AtomicU64]>,
    /// The position of the next item to pop; the consumer writes it.
    head: Apart<AtomicUsize>,
    /// The position of the next item to push; the producer writes it.
    tail: Apart<AtomicUsize>,
}

impl Ring {
    /// The slots of `count` items from a position on: up to the end of the ring, and the rest from its start.
    #[inline(always)]
    fn slots(&self, position: usize, count: usize) -> (&[AtomicU64], &[AtomicU64]) {
        let (before, after) = self.slots.split_at(position & (self.slots.len() - 1));
        let here = count.min(after.len());
        (&after[..here], &before[..(count - here).min(before.len())])
    }
}

/// Creates a ring for at least `capacity` frames: the next power of two.
///
/// The ring frees no frames. When its producer is gone, the consumer has to take the rest
/// ([`Consumer::drain`]), or their chunks are lost.
#[must_use]
pub fn ring(capacity: usize) -> (Producer, Consumer) {
    let ring = Arc::new(Ring {
        slots: zeroed(capacity.next_power_of_two()),
        head: Apart(AtomicUsize::new(0)),
        tail: Apart(AtomicUsize::new(0)),
    });
    (Producer { ring: Arc::clone(&ring), tail: 0, head: 0 }, Consumer { ring, head: 0, tail: 0 })
}

/// The side of the ring that hands frames over.
pub struct Producer {
    ring: Arc<Ring>,
    tail: usize,
    /// The consumer's position when this side last looked.
    head: usize,
}

impl Producer {
    /// Hands frames over for `port`, in order, as long as there is room. Returns how many; the caller keeps the rest.
    #[inline]
    pub fn push_all(&mut self, frames: &[Descriptor], port: PortId) -> usize {
        let count = frames.len().min(self.room(frames.len()));
        if count == 0 {
            return 0;
        }
        let (here, rest) = self.ring.slots(self.tail, count);
        let (first, second) = frames[..count].split_at(here.len());
        write(here, first, port);
        write(rest, second, port);
        self.tail = self.tail.wrapping_add(count);
        // Whoever sees this tail also sees the items, and what this worker did to the frames.
        self.ring.tail.store(self.tail, Release);
        count
    }

    /// The number of frames that the ring can hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.ring.slots.len()
    }

    /// The number of free slots; looks at the consumer's position only if fewer than `wanted` seem to be free.
    #[inline(always)]
    fn room(&mut self, wanted: usize) -> usize {
        let mut room = self.room_as_seen();
        if room < wanted {
            // The consumer has read the items before this head, so their slots may be overwritten.
            self.head = self.ring.head.load(Acquire);
            room = self.room_as_seen();
        }
        room
    }

    #[inline(always)]
    fn room_as_seen(&self) -> usize {
        self.ring.slots.len() - self.tail.wrapping_sub(self.head)
    }
}

/// The side of the ring that takes frames over.
pub struct Consumer {
    ring: Arc<Ring>,
    head: usize,
    /// The producer's position when this side last looked.
    tail: usize,
}

impl Consumer {
    /// Takes frames in order, up to the length of `items`, and returns how many it has written there.
    #[inline]
    pub fn pop_all(&mut self, items: &mut [HandedOver]) -> usize {
        let count = items.len().min(self.waiting(items.len()));
        if count == 0 {
            return 0;
        }
        let (here, rest) = self.ring.slots(self.head, count);
        let (first, second) = items[..count].split_at_mut(here.len());
        read(here, first);
        read(rest, second);
        self.head = self.head.wrapping_add(count);
        // Whoever sees this head may overwrite the slots, which were read before.
        self.ring.head.store(self.head, Release);
        count
    }

    /// Takes frames one by one until none is left, for a worker that ends or clears up.
    pub fn drain(&mut self) -> impl Iterator<Item = HandedOver> + use<'_> {
        std::iter::from_fn(|| {
            let mut item = [HandedOver::default()];
            (self.pop_all(&mut item) == 1).then_some(item[0])
        })
    }

    /// The number of frames that wait now, in one load.
    #[inline(always)]
    #[must_use]
    pub fn len(&self) -> usize {
        self.ring.tail.load(Relaxed).wrapping_sub(self.head)
    }

    /// Says whether no frame waits now, in one load.
    #[inline(always)]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of items to pop; looks at the producer's position only if fewer than `wanted` seem to wait.
    #[inline(always)]
    fn waiting(&mut self, wanted: usize) -> usize {
        let mut waiting = self.tail.wrapping_sub(self.head);
        if waiting < wanted {
            self.tail = self.ring.tail.load(Acquire);
            waiting = self.tail.wrapping_sub(self.head);
        }
        waiting
    }
}

#[inline(always)]
fn write(slots: &[AtomicU64], frames: &[Descriptor], port: PortId) {
    for (slot, frame) in slots.iter().zip(frames) {
        slot.store(HandedOver::pack(*frame, port), Relaxed);
    }
}

#[inline(always)]
fn read(slots: &[AtomicU64], items: &mut [HandedOver]) {
    for (slot, item) in slots.iter().zip(items) {
        *item = HandedOver::unpack(slot.load(Relaxed));
    }
}
