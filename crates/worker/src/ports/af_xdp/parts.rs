//! The queues of a port that other workers serve: the port of such a worker, and what it and the port itself tell
//! each other.
//!
//! With N workers, worker `q % N` serves queue `q` of each device. The [`AfXdp`](super::AfXdp) of worker 0 follows the
//! device, opens all sockets and closes them; it sends each worker its sockets in a job.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tollway_dataplane::burst::Burst;
use tollway_dataplane::counters::Traffic;
use tollway_dataplane::frame::{Descriptor, Umem};
use tollway_dataplane::id::PortId;
use tollway_dataplane::port::Port;

use super::queues::{OpenQueues, Queues};
use super::umem::SharedUmem;
use crate::hand_over::HandOver;
use crate::ports::remote::RemotePort;
use crate::ports::{Device, Peer, QueueCounts};

/// The workers from number 1 on.
pub type Peers = Arc<[Arc<dyn Peer>]>;

/// What a port and the workers that serve some of its queues tell each other.
#[derive(Clone)]
pub(super) struct Parts {
    port: PortId,
    shared: Arc<Shared>,
}

struct Shared {
    /// Whether frames can leave by the port.
    is_up: AtomicBool,
    /// By worker, from number 1 on.
    parts: Box<[Part]>,
}

/// What a worker tells the port.
struct Part {
    peer: Arc<dyn Peer>,
    /// The worker has sockets, or they are on their way. The port sets it, the worker clears it.
    is_open: AtomicBool,
    /// A socket does not work any more.
    has_failed: AtomicBool,
    /// Frames that the kernel dropped before they could be read.
    missed: AtomicU64,
}

/// Sockets on their way to their worker, or the order to close them.
pub struct QueueChange(Content);

enum Content {
    Open(OpenQueues),
    Close,
}

impl Parts {
    pub(super) fn new(port: PortId, peers: &Peers) -> Self {
        let part = |peer: &Arc<dyn Peer>| Part {
            peer: Arc::clone(peer),
            is_open: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            missed: AtomicU64::new(0),
        };
        let parts = peers.iter().map(part).collect();
        Self { port, shared: Arc::new(Shared { is_up: AtomicBool::new(false), parts }) }
    }

    /// The number of workers that serve the port.
    pub(super) fn workers(&self) -> usize {
        self.shared.parts.len() + 1
    }

    /// Says whether frames can leave by the port.
    pub(super) fn set_up(&self, is_up: bool) {
        self.shared.is_up.store(is_up, Ordering::Relaxed);
    }

    /// Sends a worker (from 1 on) its sockets.
    pub(super) fn open(&self, worker: usize, queues: OpenQueues) {
        let Some(part) = self.shared.parts.get(worker - 1) else { return };
        part.is_open.store(true, Ordering::Relaxed);
        part.has_failed.store(false, Ordering::Relaxed);
        self.post(part, Content::Open(queues));
    }

    /// Has the workers close their sockets; see [`Self::are_closed`].
    pub(super) fn close(&self) {
        let open = |part: &&Part| part.is_open.load(Ordering::Relaxed);
        self.shared.parts.iter().filter(open).for_each(|part| self.post(part, Content::Close));
    }

    fn post(&self, part: &Part, content: Content) {
        let port = usize::from(self.port.0);
        let is_posted = part.peer.post(Box::new(move |devices| {
            if let Some(device) = devices.get_mut(port) {
                device.take_queues(QueueChange(content));
            }
        }));
        if !is_posted {
            // The worker has ended, and its sockets with it.
            part.is_open.store(false, Ordering::Relaxed);
        }
    }

    /// Says whether no worker has sockets any more.
    pub(super) fn are_closed(&self) -> bool {
        self.shared.parts.iter().all(|part| !part.is_open.load(Ordering::Acquire))
    }

    /// Says whether a worker has a socket that does not work any more.
    pub(super) fn have_failed(&self) -> bool {
        let has_failed = |part: &Part| {
            part.is_open.load(Ordering::Relaxed) && part.has_failed.load(Ordering::Relaxed)
        };
        self.shared.parts.iter().any(has_failed)
    }

    /// The number of frames that the kernel dropped before the workers could read them, as of their last ticks.
    pub(super) fn missed(&self) -> u64 {
        self.shared.parts.iter().map(|part| part.missed.load(Ordering::Relaxed)).sum()
    }
}

/// A port as a worker from number 1 on has it: with some of the queues, or none.
pub struct QueuePort {
    parts: Parts,
    worker: usize,
    queues: Queues,
    /// The way out without a queue: worker 0 has one of every device.
    remote: RemotePort,
}

impl QueuePort {
    pub(super) fn new(
        parts: &Parts,
        worker: usize,
        umem: &SharedUmem,
        hand_over: HandOver,
    ) -> Self {
        let (queues, remote) = (Queues::new(umem.area()), RemotePort::new(parts.port, hand_over));
        Self { parts: parts.clone(), worker, queues, remote }
    }

    fn part(&self) -> Option<&Part> {
        self.parts.shared.parts.get(self.worker - 1)
    }
}

impl Port for QueuePort {
    #[inline]
    fn receive(&mut self, umem: &mut Umem, burst: &mut Burst) {
        self.queues.free_orphans(umem);
        self.queues.receive(umem, burst);
    }

    fn transmit(&mut self, umem: &mut Umem, frames: &[Descriptor]) -> usize {
        if !self.parts.shared.is_up.load(Ordering::Relaxed) {
            return 0;
        }
        let sent = self.queues.transmit(umem, frames);
        sent.unwrap_or_else(|| self.remote.transmit(umem, frames))
    }

    fn oversized(&mut self) -> Traffic {
        self.queues.take_oversized()
    }

    fn has_kernel(&self) -> bool {
        self.queues.can_punt()
    }

    fn punt(&mut self, umem: &mut Umem, frame: Descriptor) -> bool {
        self.queues.punt(umem, frame)
    }

    fn chunks(&self, umem: &Umem) -> usize {
        self.queues.chunks(umem)
    }
}

impl Device for QueuePort {
    fn each_fd(&self, visit: &mut dyn FnMut(BorrowedFd<'_>)) {
        self.queues.each_fd(visit);
    }

    fn maintain(&mut self, now_ns: u64) {
        self.queues.release_quarantine(now_ns);
        let (missed, has_error) = (self.queues.missed(), self.queues.has_error());
        let Some(part) = self.part() else { return };
        part.missed.store(missed, Ordering::Relaxed);
        if has_error {
            // Worker 0 looks at it in its next tick, and has the sockets closed.
            part.has_failed.store(true, Ordering::Relaxed);
        }
    }

    fn missed(&mut self) -> u64 {
        self.queues.missed()
    }

    fn queues(&self) -> Vec<QueueCounts> {
        self.queues.counts()
    }

    fn handed_over(&self) -> u64 {
        self.remote.handed_over()
    }

    fn take_queues(&mut self, QueueChange(content): QueueChange) {
        match content {
            Content::Open(queues) => self.queues.open(queues),
            Content::Close => {
                self.queues.close();
                let missed = self.queues.missed();
                if let Some(part) = self.part() {
                    part.missed.store(missed, Ordering::Relaxed);
                    part.has_failed.store(false, Ordering::Relaxed);
                    part.is_open.store(false, Ordering::Release);
                }
            }
        }
    }
}
