//! The interface of a port, and a port of plain memory.

use crate::burst::{BURST, Burst};
use crate::counters::Traffic;
use crate::frame::{Descriptor, Umem};

/// A source and sink of Ethernet frames.
pub trait Port {
    /// Adds received frames to the burst, which is empty; never waits.
    ///
    /// The burst owns the frames from then on.
    fn receive(&mut self, umem: &mut Umem, burst: &mut Burst);

    /// Takes frames in order and returns how many; the caller keeps the rest.
    ///
    /// A port that has copied a frame returns its chunk to `umem`.
    fn transmit(&mut self, umem: &mut Umem, frames: &[Descriptor]) -> usize;

    /// Counts the frames that have arrived since the last call and do not fit a chunk. The router
    /// counts them as received and dropped, so that no loss is silent.
    fn oversized(&mut self) -> Traffic {
        Traffic::default()
    }

    /// Says whether the kernel is behind the port. If so, it is the router's host and receives through
    /// [`Port::punt`] what the path does not forward. Otherwise [`crate::host`] does.
    fn has_kernel(&self) -> bool {
        false
    }

    /// Hands a received frame to the kernel as if it had just arrived on this port. False if that
    /// failed; the caller then keeps the frame.
    fn punt(&mut self, umem: &mut Umem, frame: Descriptor) -> bool {
        let _ = (umem, frame);
        false
    }

    /// Chunks of `umem` that the port owns now: frames that it has yet to deliver, and room for those
    /// to come.
    fn chunks(&self, umem: &Umem) -> usize {
        let _ = umem;
        0
    }
}

impl<P: Port + ?Sized> Port for Box<P> {
    fn receive(&mut self, umem: &mut Umem, burst: &mut Burst) {
        (**self).receive(umem, burst);
    }

    fn transmit(&mut self, umem: &mut Umem, frames: &[Descriptor]) -> usize {
        (**self).transmit(umem, frames)
    }

    fn oversized(&mut self) -> Traffic {
        (**self).oversized()
    }

    fn has_kernel(&self) -> bool {
        (**self).has_kernel()
    }

    fn punt(&mut self, umem: &mut Umem, frame: Descriptor) -> bool {
        (**self).punt(umem, frame)
    }

    fn chunks(&self, umem: &Umem) -> usize {
        (**self).chunks(umem)
    }
}

/// A port of plain memory: a queue of frames to receive and a queue of frames sent.
///
/// It is for tests and benchmarks, which fill one end and empty the other. If `PREFETCH` is true, it prefetches the
/// headers of the frames behind a full burst, like a port of a card that writes frames to memory. Otherwise it is like
/// a port to which the kernel has just copied them.
#[derive(Debug)]
pub struct MemoryPort<const PREFETCH: bool = false> {
    rx: Vec<Descriptor>,
    /// Frames of `rx` that were received.
    taken: usize,
    tx: Vec<Descriptor>,
    burst: usize,
    tx_room: usize,
}

impl MemoryPort {
    /// Creates a port that delivers at most `burst` frames (1 to 64) at once and accepts any number.
    #[must_use]
    pub fn new(burst: usize) -> Self {
        Self::of(burst)
    }
}

impl MemoryPort<true> {
    /// Like [`MemoryPort::new`], for frames that are in memory and in no cache.
    #[must_use]
    pub fn with_prefetch(burst: usize) -> Self {
        Self::of(burst)
    }
}

impl<const PREFETCH: bool> MemoryPort<PREFETCH> {
    fn of(burst: usize) -> Self {
        Self {
            rx: Vec::new(),
            taken: 0,
            tx: Vec::new(),
            burst: burst.clamp(1, BURST),
            tx_room: usize::MAX,
        }
    }

    /// Limits the number of sent frames that the port accepts to `room`.
    pub fn limit_tx(&mut self, room: usize) {
        self.tx_room = room;
    }

    /// Queues a frame for `receive`.
    pub fn inject(&mut self, frame: Descriptor) {
        self.rx.push(frame);
    }

    /// Queues frames for `receive`.
    pub fn inject_all(&mut self, frames: &[Descriptor]) {
        self.rx.extend_from_slice(frames);
    }

    /// Drops the frames of both queues.
    pub fn clear(&mut self) {
        self.rx.clear();
        self.taken = 0;
        self.tx.clear();
    }

    /// The number of frames that wait to be received.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.rx.len() - self.taken
    }

    /// The frames sent and not yet taken.
    #[must_use]
    pub fn sent(&self) -> &[Descriptor] {
        &self.tx
    }

    /// Takes the frames that were sent.
    pub fn take_sent(&mut self) -> Vec<Descriptor> {
        std::mem::take(&mut self.tx)
    }
}

impl<const PREFETCH: bool> Port for MemoryPort<PREFETCH> {
    fn receive(&mut self, umem: &mut Umem, burst: &mut Burst) {
        let waiting = self.rx.get(self.taken..).unwrap_or_default();
        let batch = &waiting[..waiting.len().min(self.burst)];
        for (lane, frame) in batch.iter().enumerate() {
            burst.addr[lane] = frame.addr;
            burst.len[lane] = frame.len as u16;
        }
        // The frames behind a smaller burst stand for frames that have not arrived yet.
        if PREFETCH && batch.len() == BURST {
            for frame in waiting.iter().skip(BURST).take(BURST) {
                umem.prefetch(frame.addr);
            }
        }
        burst.count = batch.len();
        self.taken += batch.len();
        if self.taken == self.rx.len() {
            self.rx.clear();
            self.taken = 0;
        }
    }

    fn transmit(&mut self, _umem: &mut Umem, frames: &[Descriptor]) -> usize {
        let n = frames.len().min(self.tx_room.saturating_sub(self.tx.len()));
        self.tx.extend_from_slice(&frames[..n]);
        n
    }

    fn chunks(&self, umem: &Umem) -> usize {
        let waiting = self.rx.get(self.taken..).unwrap_or_default();
        waiting.iter().chain(&self.tx).map(|frame| umem.chunks_of(frame.addr)).sum()
    }
}
