//! The way of frames to the worker that has a port's queue, if the worker that forwards them has none.

use std::sync::{Arc, Mutex};

use tollway_dataplane::burst::Burst;
use tollway_dataplane::frame::{Descriptor, Umem};
use tollway_dataplane::hand_over::{Consumer, Producer, ring};
use tollway_dataplane::id::PortId;
use tollway_dataplane::port::Port;

use crate::WorkerMailbox;
use crate::ports::Device;
use tollway_linux::sync::lock;

/// The frames that a ring holds: as many as a TX ring.
const FRAMES: usize = 2048;

/// A worker's ring to worker 0; all its ports share it. Only that worker pushes, so the lock is always free.
#[derive(Clone)]
pub struct HandOver {
    producer: Arc<Mutex<Producer>>,
    owner: WorkerMailbox,
}

impl HandOver {
    /// Creates a ring to the worker with this mailbox.
    #[must_use]
    pub fn to(owner: &WorkerMailbox) -> (Self, Consumer) {
        let (producer, consumer) = ring(FRAMES);
        (Self { producer: Arc::new(Mutex::new(producer)), owner: owner.clone() }, consumer)
    }

    /// Hands frames over for `port`, in order; returns how many. The caller keeps the rest.
    pub fn push(&self, port: PortId, frames: &[Descriptor]) -> usize {
        let pushed = lock(&self.producer).push_all(frames, port);
        if pushed > 0 {
            self.owner.wake_sleeper();
        }
        pushed
    }
}

/// A port that only worker 0 serves, as another worker has it: what leaves by it is handed over.
pub struct RemotePort {
    port: PortId,
    hand_over: HandOver,
    handed_over: u64,
}

impl RemotePort {
    /// Creates the port of this number.
    #[must_use]
    pub const fn new(port: PortId, hand_over: HandOver) -> Self {
        Self { port, hand_over, handed_over: 0 }
    }
}

impl Port for RemotePort {
    fn receive(&mut self, _umem: &mut Umem, _burst: &mut Burst) {}

    fn transmit(&mut self, _umem: &mut Umem, frames: &[Descriptor]) -> usize {
        let pushed = self.hand_over.push(self.port, frames);
        self.handed_over += pushed as u64;
        pushed
    }
}

impl Device for RemotePort {
    fn handed_over(&self) -> u64 {
        self.handed_over
    }
}
