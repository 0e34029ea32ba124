//! The rings that an AF_XDP socket shares with the kernel: one side produces, the other consumes.
//!
//! Each side owns an index that only grows. It stores the index (Release) when slots are ready for
//! the other side, which loads it (Acquire). Each side keeps a copy of the other's index and loads
//! it again only when the copy is used up, so a burst costs one load of a foreign cache line. The
//! code does not depend on the source of the memory: it works the same on rings without a kernel.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// XDP_RING_NEED_WAKEUP: the kernel needs a system call before it looks at the ring.
const NEED_WAKEUP: u32 = 1;

/// The memory of a ring.
///
/// # Safety
/// `slots` points to `size` slots (a power of two), aligned. They live as long as the value and
/// hold no invalid bit pattern. All calls return the same. Only one producer and one consumer
/// access the slots, by the rule of the indices.
pub(super) unsafe trait Memory {
    /// The content of a slot.
    type Item: Copy;
    /// The number of slots filled so far, modulo 2^32.
    fn producer(&self) -> &AtomicU32;
    /// The number of slots emptied so far, modulo 2^32.
    fn consumer(&self) -> &AtomicU32;
    /// The kernel's flags.
    fn flags(&self) -> &AtomicU32;
    /// The first slot.
    fn slots(&self) -> NonNull<Self::Item>;
    /// The number of slots.
    fn size(&self) -> u32;
}

/// The slot of an index.
fn slot<M: Memory>(memory: &M, index: u32) -> NonNull<M::Item> {
    let offset = index & (memory.size() - 1);
    // SAFETY: the offset is less than the size, which by `Memory` is the number of slots.
    unsafe { memory.slots().add(offset as usize) }
}

/// The side that fills slots.
#[derive(Debug)]
pub(super) struct Producer<M> {
    memory: M,
    /// The next slot to fill.
    next: u32,
    /// The last known index of the consumer.
    consumer: u32,
}

impl<M: Memory> Producer<M> {
    /// Creates the producer of a ring whose indices match its content.
    pub(super) fn new(memory: M) -> Self {
        let next = memory.producer().load(Ordering::Relaxed);
        let consumer = memory.consumer().load(Ordering::Acquire);
        Self { memory, next, consumer }
    }

    /// The number of free slots; loads the consumer's index if fewer than `want` are known.
    #[inline]
    pub(super) fn room(&mut self, want: u32) -> u32 {
        let size = self.memory.size();
        let known = size.saturating_sub(self.next.wrapping_sub(self.consumer));
        if known >= want {
            return known;
        }
        self.consumer = self.memory.consumer().load(Ordering::Acquire);
        size.saturating_sub(self.next.wrapping_sub(self.consumer))
    }

    /// Fills the next slot, not yet visible to the consumer; returns false if there is none.
    #[inline]
    pub(super) fn push(&mut self, item: M::Item) -> bool {
        if self.room(1) == 0 {
            return false;
        }
        let slot = slot(&self.memory, self.next);
        // SAFETY: the slot lies in the ring, and this side owns it until the index says otherwise.
        unsafe { slot.write(item) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Makes the filled slots visible to the consumer.
    #[inline]
    pub(super) fn publish(&self) {
        self.memory.producer().store(self.next, Ordering::Release);
    }

    /// The number of slots that the consumer has not emptied.
    pub(super) fn pending(&mut self) -> u32 {
        self.consumer = self.memory.consumer().load(Ordering::Acquire);
        self.next.wrapping_sub(self.consumer)
    }

    /// Whether the kernel needs a system call before it looks at the ring.
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        self.memory.flags().load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }
}

/// The side that empties slots.
#[derive(Debug)]
pub(super) struct Consumer<M> {
    memory: M,
    /// The next slot to empty.
    next: u32,
    /// The last known index of the producer.
    producer: u32,
}

impl<M: Memory> Consumer<M> {
    /// Creates the consumer of a ring whose indices match its content.
    pub(super) fn new(memory: M) -> Self {
        let next = memory.consumer().load(Ordering::Relaxed);
        Self { memory, next, producer: next }
    }

    /// Takes the content of the next slot, which is not yet returned to the producer.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<M::Item> {
        if self.next == self.producer {
            self.producer = self.memory.producer().load(Ordering::Acquire);
            if self.next == self.producer {
                return None;
            }
        }
        let slot = slot(&self.memory, self.next);
        // SAFETY: the slot lies in the ring, and was filled before the producer's index was stored.
        // This side owns it until its own index says otherwise.
        let item = unsafe { slot.read() };
        self.next = self.next.wrapping_add(1);
        Some(item)
    }

    /// The content of the slot so many slots behind the next one, if it is known to be filled. Nothing is taken.
    #[inline]
    pub(super) fn peek(&self, behind: u32) -> Option<M::Item> {
        if behind >= self.producer.wrapping_sub(self.next) {
            return None;
        }
        let slot = slot(&self.memory, self.next.wrapping_add(behind));
        // SAFETY: as in `pop`: the slot was filled, and this side owns it.
        Some(unsafe { slot.read() })
    }

    /// The number of slots that are filled and not yet emptied.
    pub(super) fn waiting(&mut self) -> u32 {
        self.producer = self.memory.producer().load(Ordering::Acquire);
        self.producer.wrapping_sub(self.next).min(self.memory.size())
    }

    /// Returns the emptied slots to the producer.
    #[inline]
    pub(super) fn release(&self) {
        self.memory.consumer().store(self.next, Ordering::Release);
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
