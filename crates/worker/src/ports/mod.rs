//! Ports: where frames come from and go to, and what the worker needs to know about them.

pub mod af_packet;
pub mod af_xdp;
pub mod capture;
mod checksum;
pub mod dispatcher;
mod error;
mod interface;
mod memory;
pub mod redirect;
mod remote;
mod table_memory;
pub mod tap;
mod tc;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use tollway_dataplane::burst::Burst;
use tollway_dataplane::frame::{Descriptor, Umem};
use tollway_dataplane::id::PortId;
use tollway_dataplane::port::{MemoryPort, Port};

use crate::hand_over::HandOver;
use af_packet::AfPacket;
use af_xdp::{AfXdp, Failure, OwnedProgram, Peers, QueueChange, Refusal, Setup, SharedUmem};
use capture::CapturePort;
pub use error::PortError;
pub use memory::{LARGEST_HEADER, MOST_MTU, chunk_bytes, most_workers, share, umem};
use remote::RemotePort;
use tap::Tap;
use tc::Tc;
use tollway_capture::CaptureError;
use tollway_model::{AfXdpMode, Engine, LinkKind, Model, PortIndex, PortKind};
use tollway_net::{Mac, VlanProtocol};

/// Whether a port works.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// It works.
    #[default]
    Up,
    /// The device exists but passes no frames, for this reason; the port checks again every second.
    Down(String),
    /// The device has gone; the port looks for it by name every second.
    Gone(String),
    /// The port is detached from its device, for this reason ([`Device::set_idle`]): the kernel
    /// forwards there.
    Detached(String),
}

/// What a receive queue of a port has received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// The queue's number.
    pub queue: u32,
    /// Frames that the worker has read, those that fit no chunk included.
    pub received: u64,
    /// Frames that the kernel dropped before they could be read.
    pub missed: u64,
}

/// A port as a worker sees it.
pub trait Device: Port + Send {
    /// The descriptor to poll for frames; `None` for a port that never waits, or is down.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Calls `visit` for each descriptor to poll; there may be several, or none.
    fn each_fd(&self, visit: &mut dyn FnMut(BorrowedFd<'_>)) {
        if let Some(fd) = self.fd() {
            visit(fd);
        }
    }

    /// How the port works, in words, and why not in a better way.
    fn how(&self) -> String {
        "plain memory".to_owned()
    }

    /// Whether it works.
    fn state(&self) -> State {
        State::Up
    }

    /// Maintains the port: notices failures and tries to recover. It is cheap enough for every
    /// tick; the worker also calls it when polling the port reports an error.
    fn maintain(&mut self, now_ns: u64) {
        let _ = now_ns;
    }

    /// Checks the port at once, after an event at its device.
    fn look_again(&mut self) {}

    /// Sets the reason why the port has nothing to do. A port with a kernel behind it then detaches
    /// from its device, until this is called with `None`.
    fn set_idle(&mut self, why: Option<&str>) {
        let _ = why;
    }

    /// The ifindex of the device that the port uses now.
    fn ifindex(&self) -> Option<u32> {
        None
    }

    /// The Ethernet address of the device behind the port, if the router is to use it.
    fn mac(&self) -> Option<Mac> {
        None
    }

    /// The largest layer-3 packet that the device behind the port accepts, in bytes.
    fn mtu(&self) -> Option<u16> {
        None
    }

    /// Sets the largest layer-3 packet in bytes, for a device that follows the port.
    fn set_mtu(&mut self, mtu: u16) {
        let _ = mtu;
    }

    /// The number of frames that the kernel dropped before the port could read them.
    fn missed(&mut self) -> u64 {
        0
    }

    /// The receive queues that the worker serves, or has served, with their counts; none if the port has no queues.
    fn queues(&self) -> Vec<QueueCounts> {
        Vec::new()
    }

    /// The number of frames that the worker has handed over to another worker, which has the port's queues.
    fn handed_over(&self) -> u64 {
        0
    }

    /// The port as another worker has it, if that worker can serve some of its queues. `hand_over` leads to this
    /// one.
    fn part(&self, worker: usize, hand_over: &HandOver) -> Option<Box<dyn Device>> {
        let _ = (worker, hand_over);
        None
    }

    /// Takes the sockets of the queues that the worker serves, or closes them.
    fn take_queues(&mut self, change: QueueChange) {
        let _ = change;
    }

    /// Ends the port's work; everything is written to its file when this returns.
    ///
    /// # Errors
    /// The first error of the port's files.
    fn finish(&mut self) -> Result<(), CaptureError> {
        Ok(())
    }
}

impl Device for MemoryPort {}

/// Ports of any kind; the index is the port's number.
pub type Devices = Vec<Box<dyn Device>>;

/// A job for the thread of a worker, at its ports.
pub type PortJob = Box<dyn FnOnce(&mut Devices) + Send>;

/// Another worker, to which a port gives some of its queues.
pub trait Peer: Send + Sync {
    /// Has the worker do a job between two bursts; returns false if it has ended.
    fn post(&self, job: PortJob) -> bool;
}

/// The properties of a device that its links adopt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Its Ethernet address, for links without a configured one.
    pub mac: Option<Mac>,
    /// The largest layer-3 packet that it accepts, in bytes.
    pub mtu: Option<u16>,
}

impl Facts {
    /// The properties of a port's device.
    #[must_use]
    pub fn of(device: &dyn Device) -> Self {
        Self { mac: device.mac(), mtu: device.mtu() }
    }
}

/// Creates the XDP program of a port, or returns why there is none.
pub type Programs<'a> = dyn FnMut(&Model, PortIndex) -> Result<Box<dyn OwnedProgram>, Refusal> + 'a;

/// What ports are opened with.
pub struct Opening<'a> {
    /// Creates the XDP programs.
    pub programs: &'a mut Programs<'a>,
    /// By port: why it starts detached, if it does.
    pub idle: &'a [Option<String>],
    /// The workers from number 1 on, and their rings to worker 0.
    pub others: &'a [(Arc<dyn Peer>, HandOver)],
}

/// Opens every port of a model, for frames in `umem`; returns the ports of worker 0, and those of the others.
///
/// Adopts the devices' properties into the model: the Ethernet address of links without a
/// configured one, and a smaller MTU. Call this before compiling the model.
///
/// # Errors
/// The first port that cannot be opened.
pub fn open(
    model: &mut Model,
    umem: &mut Umem,
    opening: Opening<'_>,
) -> Result<(Devices, Vec<Devices>), PortError> {
    let Opening { programs, idle, others } = opening;
    let shared = SharedUmem::new(umem);
    let peers: Peers = others.iter().map(|(peer, _)| Arc::clone(peer)).collect();
    let mut devices = Devices::new();
    let mut of_others: Vec<Devices> = others.iter().map(|_| Devices::new()).collect();
    for index in 0..model.ports.len() {
        let id = PortId(u16::try_from(index).unwrap_or(u16::MAX));
        let port = &model.ports[index];
        let name = port.name.clone();
        let mtu = model.links.get(index).map_or(1500, |link| link.mtu);
        let device: Box<dyn Device> = match &port.kind {
            PortKind::Memory => Box::new(MemoryPort::new(64)),
            PortKind::Capture { input, output } => {
                let failed = |error| PortError::Capture { port: name.clone(), error };
                let port = CapturePort::open(input.as_deref(), output.as_deref());
                Box::new(port.map_err(failed)?)
            }
            PortKind::Tap { device } => Box::new(Tap::open(&name, device, mtu)?),
            PortKind::AfPacket { device } => Box::new(AfPacket::open(&name, device, umem.limit())?),
            PortKind::AfXdp { device, engine: Engine::Tc, .. } => {
                let program = programs(model, PortIndex(index));
                let program = program.map_err(|refusal| tc::refused(&name, device, &refusal))?;
                let idle = idle.get(index).and_then(Option::as_deref);
                let opened = Tc::open((&name, device), program, idle)?;
                // A file gives its ports Ethernet addresses, and their neighbours.
                if model.kernel_rules.is_none() && opened.mac() == Some(Mac::NONE) {
                    return Err(PortError::NotEthernet { port: name, device: device.clone() });
                }
                Box::new(opened)
            }
            PortKind::AfXdp { device, mode, .. } => {
                let program = programs(model, PortIndex(index));
                let idle = idle.get(index).and_then(Option::as_deref);
                let (peers, umem_of) = (&peers, &shared);
                let setup =
                    Setup { port: &name, id, device, mode: *mode, umem: umem_of, peers, idle };
                open_af_xdp(setup, umem, program)?
            }
        };
        for (worker, (of_other, (_, hand_over))) in (1..).zip(of_others.iter_mut().zip(others)) {
            let part = device.part(worker, hand_over);
            of_other.push(part.unwrap_or_else(|| Box::new(RemotePort::new(id, hand_over.clone()))));
        }
        adopt(model, PortIndex(index), Facts::of(device.as_ref()));
        devices.push(device);
    }
    Ok((devices, of_others))
}

/// Opens an AF_XDP port; or a packet socket, if that is permitted and AF_XDP is not available.
fn open_af_xdp(
    setup: Setup<'_>,
    umem: &mut Umem,
    program: Result<Box<dyn OwnedProgram>, Refusal>,
) -> Result<Box<dyn Device>, PortError> {
    let Setup { port, device, mode, .. } = setup;
    let opened = match program {
        Ok(program) => AfXdp::open(setup, umem, program),
        Err(refusal) => Err(Failure::of(port, device, vec![refusal])),
    };
    let causes = match opened {
        Ok(opened) => return Ok(Box::new(opened)),
        Err(Failure::Fatal(error)) => return Err(error),
        Err(Failure::NotOffered(causes)) => causes,
    };
    if mode != AfXdpMode::Auto {
        let last = causes.last().cloned().unwrap_or_default();
        let refusal = Refusal { what: af_xdp::list(&causes), ..last };
        return Err(af_xdp::refused(port, device, &refusal));
    }
    if interface::kernel_forwards(device) {
        return Err(PortError::Twice {
            port: port.to_owned(),
            device: device.to_owned(),
            causes: af_xdp::list(&causes),
        });
    }
    let packet = AfPacket::open(port, device, umem.limit())?;
    Ok(Box::new(packet.instead_of(&af_xdp::list(&causes))))
}

/// An Ethernet device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ethernet {
    /// Its address.
    pub mac: Mac,
    /// The largest layer-3 packet that it accepts, in bytes.
    pub mtu: u16,
    /// Whether it is up.
    pub up: bool,
}

/// The properties of a device in the calling thread's network namespace. `None` for an interface
/// that is not Ethernet.
///
/// # Errors
/// There is no such interface, or it cannot be queried.
pub fn ethernet_of(device: &str) -> std::io::Result<Option<Ethernet>> {
    let socket = std::os::unix::net::UnixDatagram::unbound()?;
    match interface::query(std::os::fd::AsFd::as_fd(&socket), device) {
        Ok(facts) => Ok(Some(Ethernet { mac: facts.mac, mtu: facts.mtu, up: facts.up })),
        Err((_, error)) if error.kind() == std::io::ErrorKind::Unsupported => Ok(None),
        Err((_, error)) => Err(error),
    }
}

/// Adopts the properties of a port's device into a model.
pub fn adopt(model: &mut Model, port: PortIndex, facts: Facts) {
    if let Some(mac) = facts.mac {
        model.adopt_mac(port, mac);
    }
    let Some(limit) = facts.mtu else { return };
    for index in 0..model.links.len() {
        let (bottom, tags) = below(model, index);
        let limit = room_beside(&tags, limit);
        let link = &mut model.links[index];
        if bottom == port && link.mtu > limit {
            let name = &link.name;
            tracing::warn!(
                "{name}: MTU {} is lowered to {limit}, the most that the device accepts with its tags",
                link.mtu
            );
            link.mtu = limit;
        }
    }
}

/// The port below a link, which no link of a bridge has, and the tags of its frames, innermost first. Parents precede
/// their VLAN links.
fn below(model: &Model, mut index: usize) -> (PortIndex, Vec<VlanProtocol>) {
    let mut tags = Vec::new();
    loop {
        match model.links[index].kind {
            LinkKind::Port(port) => return (port, tags),
            LinkKind::Vlan { parent, protocol, .. } if parent.0 < index => {
                tags.push(protocol);
                index = parent.0;
            }
            LinkKind::Bridge { .. } | LinkKind::Vlan { .. } => {
                return (PortIndex(usize::MAX), tags);
            }
        }
    }
}

/// The largest packet for a device of this MTU under these tags. The kernel allows one more tag
/// than fits, if the outermost is 802.1Q (`packet_extra_vlan_len_allowed` in
/// `net/packet/af_packet.c`).
fn room_beside(tags: &[VlanProtocol], mtu: u16) -> u16 {
    let free = usize::from(tags.last() == Some(&VlanProtocol::Dot1q));
    mtu.saturating_sub(4 * (tags.len() - free) as u16)
}

/// Copies frames out by `send`, which returns whether it accepted a frame, and frees the accepted
/// ones.
fn send_each(umem: &mut Umem, frames: &[Descriptor], mut send: impl FnMut(&[u8]) -> bool) -> usize {
    for (taken, frame) in frames.iter().enumerate() {
        if !send(&umem.whole(*frame)) {
            return taken;
        }
        umem.free(frame.addr);
    }
    frames.len()
}

/// Copies a frame into the burst; returns false if the caller must offer it again later.
fn push_copy(umem: &mut Umem, burst: &mut Burst, bytes: &[u8]) -> bool {
    if burst.count >= tollway_dataplane::burst::BURST {
        return false;
    }
    let Some(frame) = umem.store(bytes) else { return false };
    // There is room: checked above.
    let pushed = burst.push(frame.addr, frame.len as u16);
    debug_assert!(pushed);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use VlanProtocol::{Dot1ad, Dot1q};

    #[test]
    fn one_tag_is_free_if_it_is_of_the_usual_kind() {
        for (tags, room) in [
            (&[][..], 1500),
            (&[Dot1q], 1500),
            (&[Dot1ad], 1496),
            (&[Dot1q, Dot1q], 1496),
            (&[Dot1ad, Dot1q], 1496),
            (&[Dot1q, Dot1ad], 1492),
        ] {
            assert_eq!(room_beside(tags, 1500), room, "{tags:?}, innermost first");
        }
    }

    #[test]
    fn links_have_the_tags_of_those_below() {
        let text = "[ports.p]\nkind = \"memory\"\n[vlans.a]\nparent = \"b\"\nvid = 1\n\
                    [vlans.b]\nparent = \"p\"\nvid = 2\nprotocol = \"802.1ad\"\n";
        let model = tollway_model::config::parse(text, "t.toml").unwrap().model;
        let tags = |name| {
            let index = model.links.iter().position(|link| link.name == name).unwrap();
            below(&model, index)
        };
        assert_eq!(tags("p"), (PortIndex(0), vec![]));
        assert_eq!(tags("b"), (PortIndex(0), vec![Dot1ad]));
        assert_eq!(tags("a"), (PortIndex(0), vec![Dot1q, Dot1ad]));
    }
}
