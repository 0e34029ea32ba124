//! The port of a worker that has no queue of the device behind it.

use super::Producer;
use crate::burst::Burst;
use crate::frame::{Descriptor, Umem};
use crate::id::PortId;
use crate::port::Port;

/// A port that hands frames over to the worker that has the device's queue. That worker sends them
/// ([`Worker::send_handed_over`](crate::worker::Worker::send_handed_over)); this port receives none.
///
/// Frames in the ring belong to no worker: check chunks while it is empty.
pub struct Outlet {
    port: PortId,
    producer: Producer,
}

impl Outlet {
    /// Creates the port of this number for the producer's worker.
    #[must_use]
    pub const fn new(port: PortId, producer: Producer) -> Self {
        Self { port, producer }
    }
}

impl Port for Outlet {
    fn receive(&mut self, _umem: &mut Umem, _burst: &mut Burst) {}

    fn transmit(&mut self, _umem: &mut Umem, frames: &[Descriptor]) -> usize {
        self.producer.push_all(frames, self.port)
    }
}
