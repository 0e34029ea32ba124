//! The rings that an AF_XDP socket shares with the kernel: one side produces, the other consumes.
//!
//! Each side owns an index that only ever grows and stores it (Release) when slots are ready for
//! the other, which loads it (Acquire). Both sides keep a copy of the other's index and look again
//! only when that is used up, so that a burst costs one load of a foreign cache line. The code does
//! not care where the memory comes from: it runs the same on rings that no kernel knows.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// XDP_RING_NEED_WAKEUP: the kernel wants a system call before it looks at the ring.
const NEED_WAKEUP: u32 = 1;

/// Memory that a ring is in.
///
/// # Safety
/// `slots` points to `size` slots (a power of two), aligned, which live as long as the value and
/// hold no invalid bit pattern; all calls give the same; only one producer and one consumer access
/// the slots, by the rule of the indices.
pub(super) unsafe trait Memory {
    /// What is in a slot.
    type Item: Copy;
    /// Slots that were filled since the beginning, modulo 2^32.
    fn producer(&self) -> &AtomicU32;
    /// Slots that were emptied since the beginning, modulo 2^32.
    fn consumer(&self) -> &AtomicU32;
    /// What the kernel wants.
    fn flags(&self) -> &AtomicU32;
    /// The first slot.
    fn slots(&self) -> NonNull<Self::Item>;
    /// How many slots there are.
    fn size(&self) -> u32;
}

/// The slot that an index stands for.
fn slot<M: Memory>(memory: &M, index: u32) -> NonNull<M::Item> {
    let offset = index & (memory.size() - 1);
    // SAFETY: the offset is less than the size, which `Memory` says is how many slots there are.
    unsafe { memory.slots().add(offset as usize) }
}

/// The side that fills slots.
#[derive(Debug)]
pub(super) struct Producer<M> {
    memory: M,
    /// The next slot to fill.
    next: u32,
    /// Where the consumer was when it was last looked at.
    consumer: u32,
}

impl<M: Memory> Producer<M> {
    /// The producer of a ring in which both indices agree with what is in it.
    pub(super) fn new(memory: M) -> Self {
        let next = memory.producer().load(Ordering::Relaxed);
        let consumer = memory.consumer().load(Ordering::Acquire);
        Self { memory, next, consumer }
    }

    /// Slots that can be filled; looks again where fewer than `want` are known of.
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

    /// Fills the next slot, which the consumer does not see yet; false where there is none.
    #[inline]
    pub(super) fn push(&mut self, item: M::Item) -> bool {
        if self.room(1) == 0 {
            return false;
        }
        let slot = slot(&self.memory, self.next);
        // SAFETY: the slot lies in the ring, and is this side's until the index says otherwise.
        unsafe { slot.write(item) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Lets the consumer see what has been filled.
    #[inline]
    pub(super) fn publish(&self) {
        self.memory.producer().store(self.next, Ordering::Release);
    }

    /// Slots that the consumer has not emptied.
    pub(super) fn pending(&mut self) -> u32 {
        self.consumer = self.memory.consumer().load(Ordering::Acquire);
        self.next.wrapping_sub(self.consumer)
    }

    /// Says if the kernel wants a system call before it looks at the ring.
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
    /// Where the producer was when it was last looked at.
    producer: u32,
}

impl<M: Memory> Consumer<M> {
    /// The consumer of a ring in which both indices agree with what is in it.
    pub(super) fn new(memory: M) -> Self {
        let next = memory.consumer().load(Ordering::Relaxed);
        Self { memory, next, producer: next }
    }

    /// Takes what is in the next slot, which the producer does not get back yet.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<M::Item> {
        if self.next == self.producer {
            self.producer = self.memory.producer().load(Ordering::Acquire);
            if self.next == self.producer {
                return None;
            }
        }
        let slot = slot(&self.memory, self.next);
        // SAFETY: the slot lies in the ring, was filled before the producer's index was stored, and
        // is this side's until its own index says otherwise.
        let item = unsafe { slot.read() };
        self.next = self.next.wrapping_add(1);
        Some(item)
    }

    /// Slots that the producer has filled and nobody has emptied.
    pub(super) fn waiting(&mut self) -> u32 {
        self.producer = self.memory.producer().load(Ordering::Acquire);
        self.producer.wrapping_sub(self.next).min(self.memory.size())
    }

    /// Gives the slots back that were emptied.
    #[inline]
    pub(super) fn release(&self) {
        self.memory.consumer().store(self.next, Ordering::Release);
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
