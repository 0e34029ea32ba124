//! The way of frames to the worker that has a port's queue, if the worker that forwards them has none.

use std::sync::{Arc, Mutex};

use tollway_dataplane::frame::Descriptor;
use tollway_dataplane::hand_over::{Consumer, Producer, ring};
use tollway_dataplane::id::PortId;

use crate::wake::WorkerWaker;
use tollway_linux::sync::lock;

/// The frames that a ring holds: as many as a TX ring.
pub(crate) const FRAMES: u32 = 2048;

/// A worker's ring to worker 0; all its ports share it. Only that worker pushes, so the lock is always free.
#[derive(Clone)]
pub struct HandOver {
    producer: Arc<Mutex<Producer>>,
    owner: WorkerWaker,
}

impl HandOver {
    /// Creates a ring to a worker.
    #[must_use]
    pub(crate) fn to(owner: &WorkerWaker) -> (Self, Consumer) {
        let (producer, consumer) = ring(FRAMES as usize);
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
