//! The ports of a measured router: plain memory, of the kind that the row is about.

use tollway_dataplane::burst::Burst;
use tollway_dataplane::frame::{Descriptor, Umem};
use tollway_dataplane::hand_over::{self, Consumer, Outlet};
use tollway_dataplane::id::PortId;
use tollway_dataplane::port::{MemoryPort, Port};
use tollway_dataplane::worker::Worker;

use super::IN_FLIGHT;

/// The port that receives, and the one that sends.
pub(super) enum Ports {
    Memory([MemoryPort; 2]),
    WithPrefetch([MemoryPort<true>; 2]),
    Relay(Box<Relay>),
}

impl Ports {
    /// Ports that deliver at most `burst` frames at once.
    pub(super) fn memory(burst: usize) -> Self {
        Self::Memory([MemoryPort::new(burst), MemoryPort::new(burst)])
    }

    /// The same with prefetch of what arrives.
    pub(super) fn with_prefetch(burst: usize) -> Self {
        let port = || MemoryPort::with_prefetch(burst);
        Self::WithPrefetch([port(), port()])
    }

    /// The same, and every frame goes by a ring to the worker that has the egress port.
    pub(super) fn relay(burst: usize) -> Self {
        Self::Relay(Box::new(Relay::new(burst)))
    }

    /// Puts frames where the worker receives them.
    pub(super) fn inject(&mut self, frames: &[Descriptor]) {
        match self {
            Self::Memory([ingress, _]) => ingress.inject_all(frames),
            Self::WithPrefetch([ingress, _]) => ingress.inject_all(frames),
            Self::Relay(relay) => relay.with_ingress(|port| port.inject_all(frames)),
        }
    }

    /// Takes back the frames that wait to be received.
    pub(super) fn take_back(&mut self) {
        match self {
            Self::Memory([ingress, _]) => ingress.clear(),
            Self::WithPrefetch([ingress, _]) => ingress.clear(),
            Self::Relay(relay) => relay.with_ingress(MemoryPort::clear),
        }
    }

    /// Forwards all frames that wait.
    #[inline(always)]
    pub(super) fn forward(&mut self, worker: &mut Worker) {
        match self {
            Self::Memory(ports) => {
                forward(worker, ports);
                ports[1].clear();
            }
            Self::WithPrefetch(ports) => {
                forward(worker, ports);
                ports[1].clear();
            }
            Self::Relay(relay) => relay.forward(worker),
        }
    }
}

/// Forwards all frames that wait at the first port. It is the only caller of the worker's turn with such ports: the
/// compiler inlines a function that has one caller, and the bench's rows are to be the same code whoever else measures.
#[inline(never)]
pub(crate) fn forward<const PREFETCH: bool>(
    worker: &mut Worker,
    ports: &mut [MemoryPort<PREFETCH>; 2],
) {
    while worker.turn(PortId(0), ports, 0) > 0 {}
}

/// The way of frames that leave by a ring to the worker that has the egress port. Here both workers are one, so that
/// the ring's own cost is measured, without the caches of two processors.
pub(super) struct Relay {
    ports: [RelayPort; 2],
    consumer: Consumer,
    /// The ports of the worker that has the egress port.
    owner: [MemoryPort; 2],
}

/// A port of the worker that has no queue of the egress port.
enum RelayPort {
    Memory(MemoryPort),
    Outlet(Outlet),
}

impl Port for RelayPort {
    #[inline]
    fn receive(&mut self, umem: &mut Umem, burst: &mut Burst) {
        match self {
            Self::Memory(port) => port.receive(umem, burst),
            Self::Outlet(port) => port.receive(umem, burst),
        }
    }

    #[inline]
    fn transmit(&mut self, umem: &mut Umem, frames: &[Descriptor]) -> usize {
        match self {
            Self::Memory(port) => port.transmit(umem, frames),
            Self::Outlet(port) => port.transmit(umem, frames),
        }
    }
}

impl Relay {
    fn new(burst: usize) -> Self {
        let (producer, consumer) = hand_over::ring(IN_FLIGHT);
        let egress = RelayPort::Outlet(Outlet::new(PortId(1), producer));
        let port = || MemoryPort::new(burst);
        let ports = [RelayPort::Memory(port()), egress];
        Self { ports, consumer, owner: [port(), port()] }
    }

    /// The port that receives, if `work` has one to work on.
    fn with_ingress(&mut self, work: impl FnOnce(&mut MemoryPort)) {
        if let RelayPort::Memory(port) = &mut self.ports[0] {
            work(port);
        }
    }

    /// Forwards by way of the ring.
    #[inline(never)]
    fn forward(&mut self, worker: &mut Worker) {
        while worker.turn(PortId(0), &mut self.ports, 0) > 0 {
            worker.send_handed_over(&mut self.consumer, &mut self.owner);
        }
        self.owner[1].clear();
    }
}
