//! A VLAN device's queues as OpenBSD had them: every packet enters and exits under a mutex.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Bytes before an arriving packet: room for a tag.
pub(super) const ROOM: usize = 32;

/// A packet and its state.
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

/// A packet that needs no allocation on its way: it returns after it was sent.
pub(super) type QueuedPacket = Box<Packet>;

/// Length of an input queue above which the card has to slow down, and above which all packets
/// are dropped: three and five times 2,048.
const PRESSURE: usize = 3 * 2048;
const FULL: usize = 5 * 2048;

/// Packets that an output queue accepts.
const OUTPUT: usize = 2048;

/// How often a context spins for a lock before it yields. A kernel's contexts are not interrupted
/// while they hold a lock, but these may be.
const SPINS: u32 = 200;

/// A queue of packets under a mutex that spins.
#[derive(Debug)]
pub(super) struct Queue {
    packets: Mutex<VecDeque<QueuedPacket>>,
    limit: usize,
    pressure: usize,
    /// Packets that a full queue dropped.
    pub(super) drops: AtomicU64,
    /// How often the card had to slow down.
    pub(super) livelocks: AtomicU64,
    /// How often a context had to wait for the lock.
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

    fn lock(&self) -> MutexGuard<'_, VecDeque<QueuedPacket>> {
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

    /// Adds one packet, or returns it if the queue is full. Also says whether the card has to slow
    /// down.
    pub(super) fn put(&self, packet: QueuedPacket) -> (Option<QueuedPacket>, bool) {
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

    /// Adds as many packets as fit; the rest stay in `from`. Says whether the card has to slow
    /// down.
    pub(super) fn put_all(&self, from: &mut Vec<QueuedPacket>) -> bool {
        let mut packets = self.lock();
        let len = packets.len();
        let room = self.limit.saturating_sub(len).min(from.len());
        packets.extend(from.drain(..room));
        drop(packets);
        self.drops.fetch_add(from.len() as u64, Ordering::Relaxed);
        !from.is_empty() || len > self.pressure
    }

    /// Removes one packet.
    pub(super) fn take(&self) -> Option<QueuedPacket> {
        self.lock().pop_front()
    }

    /// Removes at most `most` packets.
    pub(super) fn take_all(&self, most: usize, into: &mut Vec<QueuedPacket>) {
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
    fn a_full_queue_drops_and_one_under_pressure_reports_it() {
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
