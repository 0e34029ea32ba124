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
//! - All frames leave by the first queue.
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
mod ring;
mod socket;
mod socket_opener;
mod steps;
mod sys;
mod umem;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::task::Poll;
use std::time::Duration;

use tollway_dataplane::burst::{BURST, Burst};
use tollway_dataplane::counters::Traffic;
use tollway_dataplane::frame::{Descriptor, FrameAddr, Umem};
use tollway_dataplane::port::Port;

pub use failure::{Failure, list, refused};
pub use loaded_port::{LoadedPort, Plan, XdpPathOfPort};
pub use steps::{Program, Refusal, Target};
pub use umem::SharedUmem;

use super::interface::{self, Facts};
use super::{Device, State};
use tollway_linux::sys::why;
use tollway_model::AfXdpMode;
use tollway_net::Mac;

use custody::Custody;
use failure::explain;
use socket_opener::{Lent, Outcome, SocketOpener};
use steps::Open;

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
}

/// A port on a network interface.
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
    state: State,
    open: Option<Open>,
    /// Whether to open sockets as soon as there are chunks for them.
    wants_sockets: bool,
    custody: Custody,
    /// Chunks to free, which closed sockets had.
    orphans: Vec<FrameAddr>,
    /// Chunks of closed sockets, with the time before which a device may still write to them.
    quarantine: Vec<(u64, Vec<FrameAddr>)>,
    oversized: Traffic,
    /// Frames that closed sockets missed.
    missed: u64,
    next_look_ns: u64,
    maintained_ns: u64,
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
fn lend(umem: &mut Umem, custody: &mut Custody, target: Target<'_>) -> Lent {
    let chunks = target.queues * socket::receive_chunks(target.slots);
    let lent: Lent = (0..chunks).map_while(|_| umem.alloc()).collect();
    lent.iter().for_each(|chunk| custody.give(chunk.0));
    lent
}

/// The number of a device's receive queues; 1 if unknown.
#[must_use]
pub fn queues(device: &str) -> u32 {
    UnixDatagram::unbound().map_or(1, |socket| interface::queues(socket.as_fd(), device))
}

impl AfXdp {
    /// Opens `device` in `mode`, with an XDP program of its own. With a reason in `idle`, the port
    /// starts detached.
    ///
    /// # Errors
    /// No such interface, no Ethernet, in use by another program, no privilege, not available.
    pub fn open(
        (port, device): (&str, &str),
        mode: AfXdpMode,
        (shared, umem): (&SharedUmem, &mut Umem),
        program: Box<dyn OwnedProgram>,
        idle: Option<&str>,
    ) -> Result<Self, Failure> {
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
            state: State::Up,
            open: None,
            wants_sockets: false,
            custody: Custody::new(umem.area().bytes(), umem.area().chunk_bytes()),
            orphans: Vec::new(),
            quarantine: Vec::new(),
            oversized: Traffic::default(),
            missed: 0,
            next_look_ns: 0,
            maintained_ns: 0,
        };
        // A predecessor's program is taken over first, so that it can be detached.
        if idle.is_none() || tollway_xdp::program_of(facts.index.cast_unsigned()).is_some() {
            let target = target(device, &facts, (queues, this.chunks), this.mac);
            let lent = lend(umem, &mut this.custody, target);
            let outcome = this.program.open(shared, target, mode, &lent);
            if let Err(causes) = this.arrive(outcome) {
                umem.free_all(this.orphans.drain(..));
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
        let outcome = outcome.map(|(open, how)| (self.open, self.how) = (Some(open), how));
        if outcome.is_err() {
            // No socket has the lent chunks.
            self.orphans.extend(self.custody.take_all().into_iter().map(FrameAddr));
        }
        outcome
    }

    /// Gives the sockets chunks first, and then frames, which would be lost without chunks.
    #[cold]
    fn serve(&mut self, umem: &mut Umem) {
        let Some(open) = &mut self.open else { return };
        open.serves = true;
        for (queue, socket) in open.sockets.iter_mut().enumerate() {
            socket.refill(umem, &mut self.custody);
            if let Err(refusal) = self.program.set_socket(queue as u32, socket.fd()) {
                self.enter(State::Down(refusal.what));
                return;
            }
        }
    }

    /// Closes the sockets; their chunks are freed at the next opportunity.
    fn close(&mut self, now_ns: u64) {
        let Some(mut open) = self.open.take() else { return };
        let mut chunks = Vec::new();
        for socket in &mut open.sockets {
            self.missed += socket.missed() + socket.unread();
            chunks.extend(socket.take_partial());
        }
        let zero_copy = open.binding.zero_copy;
        // Before this returns, the kernel waits for pending copies.
        drop(open);
        chunks.extend(self.custody.take_all().into_iter().map(FrameAddr));
        if zero_copy {
            self.quarantine.push((now_ns + RETRY_NS, chunks));
        } else {
            self.orphans.append(&mut chunks);
        }
    }

    /// Ends the port and frees all its chunks, which takes some milliseconds.
    pub fn retire(mut self, umem: &mut Umem) {
        let zero_copy = self.open.as_ref().is_some_and(|open| open.binding.zero_copy);
        self.close(0);
        self.program.detach();
        self.recall();
        if zero_copy || !self.quarantine.is_empty() {
            std::thread::sleep(DEVICE_STOPS);
        }
        self.release_quarantine(u64::MAX);
        self.orphans.drain(..).for_each(|addr| umem.free(addr));
    }

    fn release_quarantine(&mut self, now_ns: u64) {
        let orphans = &mut self.orphans;
        self.quarantine.retain_mut(|(until_ns, chunks)| {
            let over = now_ns >= *until_ns;
            if over {
                orphans.append(chunks);
            }
            !over
        });
    }

    /// Enters a state and logs it once.
    fn enter(&mut self, state: State) {
        if self.state == state {
            return;
        }
        let (port, device) = (&self.port, &self.called);
        match &state {
            State::Up => tracing::info!("port {port}: {device} is back ({})", self.how),
            State::Down(why) | State::Gone(why) => tracing::error!(
                "port {port}: {device} passes no frames: {why}; looking for it every second"
            ),
            State::Detached(why) => tracing::info!(
                "port {port}: {device} has no XDP program, and the kernel forwards everything: no traffic there \
                 could be fast ({why}); the program is attached as soon as some can"
            ),
        }
        self.state = state;
    }

    /// Takes back the chunks of sockets that were closed before they worked.
    fn recall(&mut self) {
        let lent: Vec<_> = self.custody.take_all().into_iter().map(FrameAddr).collect();
        if !lent.is_empty() {
            self.quarantine.push((self.maintained_ns + RETRY_NS, lent));
        }
    }

    /// Detaches the program from the device, until [`Self::wake`].
    fn rest(&mut self, why: &str) {
        self.close(self.maintained_ns);
        self.program.detach();
        self.recall();
        self.wants_sockets = false;
        NOT_ATTACHED.clone_into(&mut self.how);
        self.enter(State::Detached(why.to_owned()));
    }

    /// Starts to attach the program of a detached port to its device.
    fn wake(&mut self) {
        self.look_at_rest();
        self.state = State::Down("it is being attached".to_owned());
        self.wants_sockets = true;
    }

    /// Starts to attach the program and to bind the sockets.
    #[cold]
    fn open_sockets(&mut self, umem: &mut Umem) {
        self.wants_sockets = false;
        let target = target(&self.called, &self.facts, (self.queues, self.chunks), self.mac);
        let lent = lend(umem, &mut self.custody, target);
        if let Err(error) = self.program.begin(&self.umem, target, self.mode, lent) {
            self.recall();
            self.enter(State::Down(format!("cannot start a thread for it: {}", why(&error))));
        }
    }

    fn has_error(&self) -> bool {
        let mut sockets = self.open.iter().flat_map(|open| &open.sockets);
        sockets.any(|socket| socket.error().is_some())
    }
}

impl Port for AfXdp {
    #[inline]
    fn receive(&mut self, umem: &mut Umem, burst: &mut Burst) {
        if !self.orphans.is_empty() {
            self.orphans.drain(..).for_each(|addr| umem.free(addr));
        }
        if self.open.as_ref().is_some_and(|open| !open.serves) {
            self.serve(umem);
        }
        let Some(open) = &mut self.open else {
            if self.wants_sockets {
                self.open_sockets(umem);
            }
            return;
        };
        let count = open.sockets.len();
        let first = open.turn;
        open.turn = if first + 1 >= count { 0 } else { first + 1 };
        let (before, from) = open.sockets.split_at_mut(first);
        for socket in from.iter_mut().chain(before) {
            socket.receive(umem, &mut self.custody, burst, &mut self.oversized);
            if burst.count >= BURST {
                break;
            }
        }
        if let Some(sender) = open.sockets.first_mut() {
            sender.look_after_sent(umem, &mut self.custody);
        }
    }

    fn transmit(&mut self, umem: &mut Umem, frames: &[Descriptor]) -> usize {
        if self.state != State::Up {
            return 0;
        }
        let sender = self.open.as_mut().and_then(|open| open.sockets.first_mut());
        sender.map_or(0, |sender| sender.transmit(umem, &mut self.custody, frames))
    }

    fn oversized(&mut self) -> Traffic {
        std::mem::take(&mut self.oversized)
    }

    fn has_kernel(&self) -> bool {
        let is_left = matches!(self.state, State::Detached(_));
        is_left || self.program.program().is_some_and(|program| program.can_punt())
    }

    fn punt(&mut self, umem: &mut Umem, frame: Descriptor) -> bool {
        let done = self.program.punt(&umem.whole(frame));
        if done {
            umem.free(frame.addr);
        }
        done
    }

    fn chunks(&self, umem: &Umem) -> usize {
        let sockets = self.open.iter().flat_map(|open| &open.sockets);
        let partial = sockets.filter_map(socket::Socket::partial);
        let closed = self.quarantine.iter().flat_map(|(_, chunks)| chunks).chain(&self.orphans);
        let frames = partial.chain(closed.copied()).map(|addr| umem.chunks_of(addr));
        self.custody.count() + frames.sum::<usize>()
    }
}

impl Device for AfXdp {
    fn each_fd(&self, visit: &mut dyn FnMut(BorrowedFd<'_>)) {
        for socket in self.open.iter().flat_map(|open| &open.sockets) {
            visit(socket.fd());
        }
    }

    fn state(&self) -> State {
        self.state.clone()
    }

    fn how(&self) -> String {
        self.how.clone()
    }

    fn maintain(&mut self, now_ns: u64) {
        self.maintained_ns = now_ns;
        self.release_quarantine(now_ns);
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
        if self.has_error() {
            // Usually the device has gone; `look` finds out.
            self.close(now_ns);
        } else if now_ns < self.next_look_ns {
            return;
        }
        self.look(now_ns);
        self.next_look_ns = now_ns + RETRY_NS;
    }

    fn look_again(&mut self) {
        self.next_look_ns = 0;
        // The time of the last tick, which is close enough.
        self.maintain(self.maintained_ns);
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
        self.open.as_ref().and_then(|_| u32::try_from(self.facts.index).ok())
    }

    fn mac(&self) -> Option<Mac> {
        Some(self.mac)
    }

    fn mtu(&self) -> Option<u16> {
        let chunk = u16::try_from(self.umem.room() - L2_ROOM).unwrap_or(u16::MAX);
        let one_chunk = self.open.as_ref().is_some_and(|open| !open.binding.multi_buffer);
        Some(if one_chunk { self.facts.mtu.min(chunk) } else { self.facts.mtu })
    }

    fn missed(&mut self) -> u64 {
        let sockets = self.open.iter().flat_map(|open| &open.sockets);
        self.missed + sockets.map(socket::Socket::missed).sum::<u64>()
    }

    fn finish(&mut self) -> Result<(), tollway_capture::CaptureError> {
        self.program.detach();
        Ok(())
    }
}
