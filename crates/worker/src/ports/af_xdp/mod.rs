//! A network interface of this machine, through AF_XDP sockets
//! (`Documentation/networking/af_xdp.rst`).
//!
//! An XDP program on the device ([`Program`]) selects the frames for this port. The kernel gets the
//! rest, and is the host behind the port: it answers ARP and pings, and gets back what the path
//! cannot forward. Each socket serves one receive queue.
//!
//! All sockets of all ports share one memory, so forwarding copies no frame: the port puts the
//! chunk of a received frame into the egress port's TX ring, and the chunk comes back by the
//! completion ring.
//!
//! A port that has nothing to do is detached ([`State::Detached`]); its device then works as if
//! there was no Tollway.
//!
//! Limits:
//!
//! - All frames of a worker leave by the first of its queues.
//! - Packets whose checksums a sender on this machine left to a network card take the kernel path.
//!   Avoid that there with `ethtool -K DEVICE tx off`.
//! - A VLAN tag that the device has removed from a frame is lost. Avoid that with `ethtool -K
//!   DEVICE rxvlan off`.
//! - A renamed interface is still the same one. If an interface is gone, a new one with its old
//!   name replaces it.

mod custody;
mod failure;
mod loaded_port;
mod look;
mod parts;
mod queues;
mod ring;
mod socket;
mod socket_opener;
mod steps;
mod sys;
mod umem;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tollway_dataplane::burst::Burst;
use tollway_dataplane::counters::Traffic;
use tollway_dataplane::frame::{Descriptor, Umem};
use tollway_dataplane::id::PortId;
use tollway_dataplane::port::Port;

pub use failure::{Failure, list, refused};
pub use loaded_port::{LoadedPort, Plan, XdpPathOfPort};
pub use parts::{Peers, QueueChange, QueuePort};
pub use steps::{Program, Punter, Refusal, Target};
pub use umem::SharedUmem;

use super::interface::{self, Facts};
use super::{Device, QueueCounts, State};
use tollway_linux::sys::why;
use tollway_model::AfXdpMode;
use tollway_net::Mac;
use tollway_xdp::BesideState;

use crate::hand_over::HandOver;
use failure::explain;
use parts::Parts;
use queues::{OpenQueues, Queues};
use socket_opener::{Lent, Outcome, SocketOpener};
use steps::Serving;
use umem::Binding;

/// The most chunks in the rings of a device with so many queues.
#[must_use]
pub const fn chunks_held(queues: u32) -> u32 {
    chunks_received(queues) + queues * socket::RING
}

/// Chunks in which a device with so many queues receives.
const fn chunks_received(queues: u32) -> u32 {
    queues * socket::receive_chunks(socket::receive_slots(queues))
}

/// The interval between checks of a device, and between attempts to recover it.
const RETRY_NS: u64 = 1_000_000_000;
/// How long a device may still write to chunks after its sockets are closed, with a margin.
const DEVICE_STOPS: Duration = Duration::from_millis(50);
/// Bytes of Ethernet header and two VLAN tags.
const L2_ROOM: usize = 22;

/// The mode, in words, of a detached port.
const NOT_ATTACHED: &str = "not attached";

/// A port's XDP program, owned by the port.
pub trait OwnedProgram: Program {
    /// Whether the program still is where it was attached; true if that cannot be checked at once.
    fn is_attached(&self) -> bool;

    /// The tc program beside it; `None` if that cannot be checked at once.
    fn beside(&self) -> Option<BesideState> {
        Some(BesideState::Absent)
    }

    /// Attaches the tc program to a device, which needs no sockets, instead of that of XDP. Returns the mode in
    /// words.
    ///
    /// # Errors
    /// The kernel refuses, or another Tollway has the device.
    fn attach_tc(&mut self, target: Target<'_>) -> Result<&'static str, Refusal> {
        let what = format!("there is no tc program for {}", target.device);
        Err(Refusal { what, ..Refusal::default() })
    }
}

/// The device that an [`AfXdp`] opens, and how.
#[derive(Clone, Copy)]
pub struct Setup<'a> {
    /// The port's name.
    pub port: &'a str,
    /// The port's number.
    pub id: PortId,
    /// The device's name.
    pub device: &'a str,
    /// The modes to try.
    pub mode: AfXdpMode,
    /// The memory of the frames.
    pub umem: &'a SharedUmem,
    /// The workers from number 1 on.
    pub peers: &'a Peers,
    /// Why the port starts detached, if it does.
    pub idle: Option<&'a str>,
}

/// A port on a network interface, as worker 0 has it: it serves some of the queues, and gives the others to the
/// other workers.
pub struct AfXdp {
    port: String,
    /// The device's name in the configuration.
    device: String,
    /// The device's current name.
    called: String,
    mode: AfXdpMode,
    umem: SharedUmem,
    program: SocketOpener,
    /// The socket for interface requests.
    control: UnixDatagram,
    facts: Facts,
    /// The address that the port was opened with. A device that follows the port may have another,
    /// which the program learns from its plan.
    mac: Mac,
    queues: u32,
    /// The most chunks in which it receives; its share of the memory.
    chunks: u32,
    how: String,
    /// The tc program beside the XDP program.
    beside: BesideState,
    state: State,
    sockets: Sockets,
    /// Whether to open sockets as soon as there are chunks for them.
    wants_sockets: bool,
    /// The queues that worker 0 serves.
    own: Queues,
    /// Those of the other workers.
    parts: Parts,
    next_look_ns: u64,
    maintained_ns: u64,
}

/// Whether a port has sockets.
enum Sockets {
    /// It has none.
    Closed,
    /// They are bound, and the program does not direct frames to them yet. By queue.
    Bound(Binding, Vec<Arc<OwnedFd>>),
    /// The program directs frames to them.
    Serving(Binding),
}

impl Sockets {
    const fn binding(&self) -> Option<Binding> {
        match self {
            Self::Closed => None,
            Self::Bound(binding, _) | Self::Serving(binding) => Some(*binding),
        }
    }

    const fn are_open(&self) -> bool {
        !matches!(self, Self::Closed)
    }
}

/// What to attach and to bind to; `chunks` are for all queues.
fn target<'a>(
    device: &'a str,
    facts: &Facts,
    (queues, chunks): (u32, u32),
    mac: Mac,
) -> Target<'a> {
    let slots = socket::receive_slots_within(queues, chunks);
    Target { device, ifindex: facts.index as u32, queues, slots, mac, mtu: facts.mtu }
}

/// Allocates chunks for the sockets of a device, as far as there are any.
fn lend(umem: &mut Umem, own: &mut Queues, target: Target<'_>) -> Lent {
    let chunks = target.queues * socket::receive_chunks(target.slots);
    let lent: Lent = (0..chunks).map_while(|_| umem.alloc()).collect();
    lent.iter().for_each(|chunk| own.custody.give(chunk.0));
    lent
}

/// The number of a device's receive queues; 1 if unknown.
#[must_use]
pub fn queues(device: &str) -> u32 {
    UnixDatagram::unbound().map_or(1, |socket| interface::queues(socket.as_fd(), device))
}

impl AfXdp {
    /// Opens a device, with an XDP program of its own.
    ///
    /// # Errors
    /// No such interface, no Ethernet, in use by another program, no privilege, not available.
    pub fn open(
        setup: Setup<'_>,
        umem: &mut Umem,
        program: Box<dyn OwnedProgram>,
    ) -> Result<Self, Failure> {
        let Setup { port, id, device, mode, umem: shared, peers, idle } = setup;
        let fatal = |(action, error): (&'static str, io::Error)| {
            Failure::Fatal(explain(port, device, action, error))
        };
        let control = UnixDatagram::unbound().map_err(|error| fatal(("socket", error)))?;
        let facts = interface::query(control.as_fd(), device).map_err(fatal)?;
        let queues = interface::queues(control.as_fd(), device);
        let mut this = Self {
            port: port.to_owned(),
            device: device.to_owned(),
            called: device.to_owned(),
            mode,
            umem: shared.clone(),
            program: SocketOpener::new(program),
            queues,
            chunks: chunks_received(queues),
            control,
            facts,
            mac: facts.mac,
            how: String::new(),
            beside: BesideState::Absent,
            state: State::Up,
            sockets: Sockets::Closed,
            wants_sockets: false,
            own: Queues::new(umem.area()),
            parts: Parts::new(id, peers),
            next_look_ns: 0,
            maintained_ns: 0,
        };
        this.parts.set_up(true);
        // A predecessor's program is taken over first, so that it can be detached.
        if idle.is_none() || tollway_xdp::program_of(facts.index.cast_unsigned()).is_some() {
            let target = target(device, &facts, (queues, this.chunks), this.mac);
            let lent = lend(umem, &mut this.own, target);
            let outcome = this.program.open(shared, target, mode, &lent);
            if let Err(causes) = this.arrive(outcome) {
                this.own.free_orphans(umem);
                return Err(Failure::of(port, device, causes));
            }
        }
        if idle.is_some() {
            this.set_idle(idle);
        } else if !facts.up {
            this.enter(State::Down("the interface is down".to_owned()));
        }
        Ok(this)
    }

    /// Applies the outcome of opening sockets.
    fn arrive(&mut self, outcome: Outcome) -> Result<(), Vec<Refusal>> {
        match outcome {
            Ok((serving, how)) => {
                self.how = how;
                self.distribute(serving);
                Ok(())
            }
            Err(causes) => {
                // No socket has the lent chunks.
                self.own.recall(false);
                Err(causes)
            }
        }
    }

    /// Gives each worker the sockets of its queues.
    fn distribute(&mut self, Serving { bound, binding }: Serving) {
        let (workers, mut fds) = (self.parts.workers(), Vec::new());
        let (punter, zero_copy) =
            (self.program.program().and_then(|program| program.punter()), binding.zero_copy);
        let share = || OpenQueues { zero_copy, punter: punter.clone(), ..OpenQueues::default() };
        let mut shares: Vec<_> = (0..workers).map(|_| share()).collect();
        for (queue, (socket, chunks)) in bound.into_iter().enumerate() {
            fds.push(socket.shared_fd());
            for chunk in &chunks {
                self.own.custody.take(chunk.0);
            }
            shares[queue % workers].sockets.push(socket);
            shares[queue % workers].chunks.extend(chunks);
        }
        for (worker, share) in shares.into_iter().enumerate() {
            match worker {
                0 => self.own.open(share),
                _ if share.sockets.is_empty() => {}
                _ => self.parts.open(worker, share),
            }
        }
        self.sockets = Sockets::Bound(binding, fds);
    }

    /// Gives the sockets chunks first, and then frames, which would be lost without chunks.
    #[cold]
    fn serve(&mut self, umem: &mut Umem) {
        let sockets = std::mem::replace(&mut self.sockets, Sockets::Closed);
        let Sockets::Bound(binding, fds) = sockets else { return };
        self.sockets = Sockets::Serving(binding);
        self.own.refill(umem);
        for (queue, fd) in fds.iter().enumerate() {
            if let Err(refusal) = self.program.set_socket(queue as u32, fd.as_fd()) {
                self.enter(State::Down(refusal.what));
                return;
            }
        }
    }

    /// Closes the sockets; their chunks are freed at the next opportunity.
    fn close(&mut self) {
        if !self.sockets.are_open() {
            return;
        }
        self.sockets = Sockets::Closed;
        self.own.close();
        self.parts.close();
    }

    /// Ends a port that only one worker serves, and frees all its chunks, which takes some milliseconds.
    pub fn retire(mut self, umem: &mut Umem) {
        let zero_copy = self.sockets.binding().is_some_and(|binding| binding.zero_copy);
        self.close();
        self.program.detach();
        self.own.recall(true);
        if zero_copy || self.own.has_quarantine() {
            std::thread::sleep(DEVICE_STOPS);
        }
        // Once for the time from which on they count, and once after it.
        self.own.release_quarantine(0);
        self.own.release_quarantine(u64::MAX);
        self.own.free_orphans(umem);
    }

    /// Starts to attach the program and to bind the sockets.
    #[cold]
    fn open_sockets(&mut self, umem: &mut Umem) {
        self.wants_sockets = false;
        let target = target(&self.called, &self.facts, (self.queues, self.chunks), self.mac);
        let lent = lend(umem, &mut self.own, target);
        if let Err(error) = self.program.begin(&self.umem, target, self.mode, lent) {
            self.own.recall(false);
            self.enter(State::Down(format!("cannot start a thread for it: {}", why(&error))));
        }
    }
}

impl Port for AfXdp {
    #[inline]
    fn receive(&mut self, umem: &mut Umem, burst: &mut Burst) {
        self.own.free_orphans(umem);
        match self.sockets {
            Sockets::Serving(_) => {}
            Sockets::Bound(..) => self.serve(umem),
            Sockets::Closed => {
                // The queues are free when all workers have closed the earlier sockets.
                if self.wants_sockets && self.parts.are_closed() {
                    self.open_sockets(umem);
                }
                return;
            }
        }
        self.own.receive(umem, burst);
    }

    fn transmit(&mut self, umem: &mut Umem, frames: &[Descriptor]) -> usize {
        if self.state != State::Up {
            return 0;
        }
        self.own.transmit(umem, frames).unwrap_or(0)
    }

    fn oversized(&mut self) -> Traffic {
        self.own.take_oversized()
    }

    fn has_kernel(&self) -> bool {
        matches!(self.state, State::Detached(_)) || self.own.can_punt()
    }

    fn punt(&mut self, umem: &mut Umem, frame: Descriptor) -> bool {
        self.own.punt(umem, frame)
    }

    fn chunks(&self, umem: &Umem) -> usize {
        self.own.chunks(umem)
    }
}

impl Device for AfXdp {
    fn each_fd(&self, visit: &mut dyn FnMut(BorrowedFd<'_>)) {
        self.own.each_fd(visit);
    }

    fn state(&self) -> State {
        self.state.clone()
    }

    fn how(&self) -> String {
        let beside = if self.beside == BesideState::There { ", tc program (tcx)" } else { "" };
        format!("{}{beside}", self.how)
    }

    fn maintain(&mut self, now_ns: u64) {
        self.maintained_ns = now_ns;
        self.own.release_quarantine(now_ns);
        match self.program.poll() {
            Poll::Pending => return,
            Poll::Ready(None) => {}
            Poll::Ready(Some(outcome)) => match self.arrive(outcome) {
                // The device may have changed in the meantime.
                Ok(()) => self.next_look_ns = now_ns,
                Err(causes) => {
                    self.next_look_ns = now_ns + RETRY_NS;
                    self.enter(State::Down(steps::list(&causes)));
                }
            },
        }
        if self.own.has_error() || self.parts.have_failed() {
            // Usually the device has gone; `look` finds out.
            self.close();
        } else if now_ns < self.next_look_ns {
            return;
        }
        self.look();
        self.next_look_ns = now_ns + RETRY_NS;
    }

    fn look_again(&mut self) {
        self.next_look_ns = 0;
        // The time of the last tick, which is close enough.
        self.maintain(self.maintained_ns);
    }

    fn part(&self, worker: usize, hand_over: &HandOver) -> Option<Box<dyn Device>> {
        Some(Box::new(QueuePort::new(&self.parts, worker, &self.umem, hand_over.clone())))
    }

    fn set_idle(&mut self, why: Option<&str>) {
        match (why, &self.state) {
            (Some(why), State::Detached(now)) if now == why => {}
            (Some(why), _) => self.rest(why),
            (None, State::Detached(_)) => self.wake(),
            (None, _) => {}
        }
    }

    fn ifindex(&self) -> Option<u32> {
        self.sockets.binding().and_then(|_| u32::try_from(self.facts.index).ok())
    }

    fn mac(&self) -> Option<Mac> {
        Some(self.mac)
    }

    fn mtu(&self) -> Option<u16> {
        let chunk = u16::try_from(self.umem.room() - L2_ROOM).unwrap_or(u16::MAX);
        let one_chunk = self.sockets.binding().is_some_and(|binding| !binding.multi_buffer);
        Some(if one_chunk { self.facts.mtu.min(chunk) } else { self.facts.mtu })
    }

    fn missed(&mut self) -> u64 {
        self.own.missed() + self.parts.missed()
    }

    fn queues(&self) -> Vec<QueueCounts> {
        self.own.counts()
    }

    fn finish(&mut self) -> Result<(), tollway_capture::CaptureError> {
        self.program.detach();
        Ok(())
    }
}
