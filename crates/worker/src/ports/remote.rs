//! The port of a worker that has no queue of it, and hands over what leaves by it.

use tollway_dataplane::burst::Burst;
use tollway_dataplane::frame::{Descriptor, Umem};
use tollway_dataplane::id::PortId;
use tollway_dataplane::port::Port;

use super::Device;
use crate::hand_over::HandOver;

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
