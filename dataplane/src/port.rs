//! What the path needs of a port, and the port of plain memory.

use crate::burst::{BURST, Burst};
use crate::counters::Traffic;
use crate::frame::{Descriptor, Umem};

/// A source and sink of Ethernet frames.
pub trait Port {
    /// Adds received frames to the burst, which has been reset and is empty; never waits.
    ///
    /// The frames are the burst's from then on.
    fn receive(&mut self, umem: &mut Umem, burst: &mut Burst);

    /// Takes the frames over, in order, and says how many; the rest is still the caller's.
    ///
    /// A port that has copied a frame gives its chunk back to `umem`.
    fn transmit(&mut self, umem: &mut Umem, frames: &[Descriptor]) -> usize;

    /// Frames that arrived since the last call and fit no chunk; the router counts them as received
    /// and dropped, so that nothing is lost silently.
    fn oversized(&mut self) -> Traffic {
        Traffic::default()
    }

    /// Says if the kernel stands behind the port: it is then the router's host, and takes by
    /// [`Port::punt`] what the path does not forward. Else [`crate::host`] does.
    fn has_kernel(&self) -> bool {
        false
    }

    /// Hands a received frame to the kernel as if it had just come in by this port; false where
    /// that failed, and the frame is still the caller's.
    fn punt(&mut self, umem: &mut Umem, frame: Descriptor) -> bool {
        let _ = (umem, frame);
        false
    }

    /// Chunks of `umem` that the port has now: frames that it has yet to hand over, and room for those
    /// that are to come.
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

/// A port of plain memory: a queue of frames to receive, a queue of frames sent.
///
/// For tests and benchmarks: whoever holds it fills one end and empties the other.
#[derive(Debug)]
pub struct MemoryPort {
    rx: Vec<Descriptor>,
    /// Frames of `rx` that were received.
    taken: usize,
    tx: Vec<Descriptor>,
    burst: usize,
    tx_room: usize,
}

impl MemoryPort {
    /// A port that hands out at most `burst` frames (1 to 64) at once and takes any number.
    #[must_use]
    pub fn new(burst: usize) -> Self {
        Self {
            rx: Vec::new(),
            taken: 0,
            tx: Vec::new(),
            burst: burst.clamp(1, BURST),
            tx_room: usize::MAX,
        }
    }

    /// Refuses to hold more than `room` sent frames.
    pub fn limit_tx(&mut self, room: usize) {
        self.tx_room = room;
    }

    /// Puts a frame where `receive` finds it.
    pub fn inject(&mut self, frame: Descriptor) {
        self.rx.push(frame);
    }

    /// Puts frames where `receive` finds them.
    pub fn inject_all(&mut self, frames: &[Descriptor]) {
        self.rx.extend_from_slice(frames);
    }

    /// Forgets the frames of both queues.
    pub fn clear(&mut self) {
        self.rx.clear();
        self.taken = 0;
        self.tx.clear();
    }

    /// Frames that wait to be received.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.rx.len() - self.taken
    }

    /// Frames sent and not yet taken.
    #[must_use]
    pub fn sent(&self) -> &[Descriptor] {
        &self.tx
    }

    /// Takes the frames that were sent.
    pub fn take_sent(&mut self) -> Vec<Descriptor> {
        std::mem::take(&mut self.tx)
    }
}

impl Port for MemoryPort {
    fn receive(&mut self, _umem: &mut Umem, burst: &mut Burst) {
        let waiting = self.rx.get(self.taken..).unwrap_or_default();
        let batch = &waiting[..waiting.len().min(self.burst)];
        for (lane, frame) in batch.iter().enumerate() {
            burst.addr[lane] = frame.addr;
            burst.len[lane] = frame.len as u16;
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
