//! A VLAN device's queues as OpenBSD had them: every packet goes in and out under a mutex.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Bytes before a packet when it comes in: room for a tag.
pub(super) const ROOM: usize = 32;

/// A packet and what is known of it.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) data: [u8; 128],
    /// Where the frame begins.
    pub(super) start: usize,
    pub(super) vid: u16,
}

impl Packet {
    pub(super) const fn new() -> Self {
        Self { data: [0; 128], start: ROOM, vid: 0 }
    }
}

/// A packet, on whose way nothing is allocated: it comes back when it was sent.
pub(super) type Parcel = Box<Packet>;

/// Packets in an input queue beyond which the card is told to slow down, and beyond which all are dropped:
/// three and five times 2,048.
const PRESSURE: usize = 3 * 2048;
const FULL: usize = 5 * 2048;

/// Packets that an output queue takes.
const OUTPUT: usize = 2048;

/// Turns that a context spins for a lock before it lets others run: a kernel's contexts are not interrupted
/// while they hold one, but these may be.
const SPINS: u32 = 200;

/// A queue of packets under a mutex that spins.
#[derive(Debug)]
pub(super) struct Queue {
    packets: Mutex<VecDeque<Parcel>>,
    limit: usize,
    pressure: usize,
    /// Packets that were dropped since it was full.
    pub(super) drops: AtomicU64,
    /// How often it told the card to slow down.
    pub(super) livelocks: AtomicU64,
    /// How often somebody had to wait for the lock.
    pub(super) contended: AtomicU64,
}

impl Queue {
    pub(super) fn input() -> Self {
        Self::new(FULL, PRESSURE)
    }

    pub(super) fn output() -> Self {
        Self::new(OUTPUT, usize::MAX)
    }

    fn new(limit: usize, pressure: usize) -> Self {
        Self {
            packets: Mutex::new(VecDeque::with_capacity(limit + 64)),
            limit,
            pressure,
            drops: AtomicU64::new(0),
            livelocks: AtomicU64::new(0),
            contended: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Parcel>> {
        let mut tries = 0_u32;
        loop {
            match self.packets.try_lock() {
                Ok(guard) => return guard,
                Err(TryLockError::Poisoned(guard)) => return guard.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
            if tries == 0 {
                self.contended.fetch_add(1, Ordering::Relaxed);
            }
            tries += 1;
            if tries.is_multiple_of(SPINS) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }

    /// Puts one packet in, or gives it back where the queue is full; and whether the card is to slow down.
    pub(super) fn put(&self, packet: Parcel) -> (Option<Parcel>, bool) {
        let mut packets = self.lock();
        let len = packets.len();
        if len >= self.limit {
            drop(packets);
            self.drops.fetch_add(1, Ordering::Relaxed);
            return (Some(packet), true);
        }
        packets.push_back(packet);
        (None, len > self.pressure)
    }

    /// Puts packets in, as many as there is room for; those that are left are the caller's. Whether the card
    /// is to slow down.
    pub(super) fn put_all(&self, from: &mut Vec<Parcel>) -> bool {
        let mut packets = self.lock();
        let len = packets.len();
        let room = self.limit.saturating_sub(len).min(from.len());
        packets.extend(from.drain(..room));
        drop(packets);
        self.drops.fetch_add(from.len() as u64, Ordering::Relaxed);
        !from.is_empty() || len > self.pressure
    }

    /// Takes one packet out.
    pub(super) fn take(&self) -> Option<Parcel> {
        self.lock().pop_front()
    }

    /// Takes so many packets out at most.
    pub(super) fn take_all(&self, most: usize, into: &mut Vec<Parcel>) {
        let mut packets = self.lock();
        let count = packets.len().min(most);
        into.extend(packets.drain(..count));
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_drops_and_one_under_pressure_says_so() {
        let queue = Queue::new(3, 1);
        let packet = || Box::new(Packet::new());
        assert!(!queue.put(packet()).1 && !queue.put(packet()).1);
        assert!(queue.put(packet()).1, "two were in it");
        let (back, slow) = queue.put(packet());
        assert!(back.is_some() && slow);
        let mut more = vec![packet(), packet()];
        assert!(queue.put_all(&mut more));
        assert_eq!((more.len(), queue.drops.load(Ordering::Relaxed), queue.len()), (2, 3, 3));
        assert!(queue.take().is_some());
        let mut all = Vec::new();
        queue.take_all(64, &mut all);
        assert_eq!((all.len(), queue.len()), (2, 0));
    }
}
