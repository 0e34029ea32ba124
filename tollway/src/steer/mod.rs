//! Steering: the XDP program on each port, which sends to user space what the path takes, repeats
//! in the express lane what the path has decided, and leaves the rest to the kernel.
//!
//! The program (`bpf/steer.c`) leaves to the kernel, by [`PassReason`](maps::PassReason): everything
//! while nobody beats [`State`] or somebody has set its bypass; a family that a link leaves to it;
//! frames for others, groups and everyone; all but IPv4 and IPv6; VLANs that are not configured; malformed headers; addresses of
//! the router's own, and those that are not routed; options; a TTL that ends here; checksums that a sender
//! left to a network card (`bpf/checksum.h`), where senders can. The rest goes to the socket of its queue,
//! if there is one.
//!
//! A packet of a flow in [`FlowMaps`] whose generation is in force leaves by the flow's device, if it
//! has a right checksum, fits the MTU, is no fragment and has TTL to spend. The lane never drops.
//!
//! Limits: a tag that the device took off before XDP saw the frame can not be known, so devices with
//! VLAN links need `ethtool -K DEVICE rxvlan off`, and a veth needs `txvlan off` at its peer. What a
//! driver drops of redirected frames is known by [`refusals`]; where the kernel has no BTF, it is in that
//! device's statistics only.

mod attach;
mod clock;
mod device;
mod error;
mod features;
pub mod flows;
mod home;
mod links;
mod load;
pub mod maps;
mod page;
mod pin;
mod port;
mod prober;
pub mod refusals;
pub mod regions;
mod shared;
mod sys;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use tollway_dataplane::id::PortId;

use attach::Attachment;
use device::make_tap;
use load::Maps;
use port::{has_room, note, slot, socket_slot};

pub use attach::Attached;
pub use device::tcx;
pub use error::SteerError;
pub use features::{
    hashes, leaves_checksums, rx_checksums, rxvlan, sends_tags_beside, strips_tags,
};
pub use flows::FlowMaps;
pub use links::netfilter_hooks;
pub use maps::{CountMap, PortCounts, Ruled, State};
pub use pin::{clean, program_of};
pub use port::{MOST_PORTS, MOST_QUEUES, SteerLink, SteerPort};
pub use prober::Asked;
pub use refusals::Refusals;

/// What is decided for all ports when the maps are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// IPv4 flows that the express lane holds at most, 64 bytes each; at least that many, in a power of two.
    pub flows4: u32,
    /// IPv6 flows that the express lane holds at most, 128 bytes each; likewise.
    pub flows6: u32,
    /// Takes ports over from a Tollway that still serves them.
    pub replace: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { flows4: 1 << 17, flows6: 1 << 17, replace: false }
    }
}

/// Mounts the BPF file system if it is not, where that is allowed; else [`Steering::load`] says so.
pub fn prepare() {
    let _ = home::Home::make();
}

/// Where on a device the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver.
    Native,
    /// Behind the driver, in the kernel's own receive function: any device has it, slower.
    Generic,
}

impl Mode {
    /// The best mode, then the one that any device has.
    pub const ALL: [Self; 2] = [Self::Native, Self::Generic];

    const fn flag(self) -> u32 {
        match self {
            Self::Native => sys::XDP_NATIVE,
            Self::Generic => sys::XDP_GENERIC,
        }
    }
}

/// What the program does with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The kernel gets it.
    Pass,
    /// Another device or a socket gets it.
    Redirect,
    /// Anything else, which the program never says unless the kernel breaks a promise.
    Other(u32),
}

/// A port's program, on no device.
pub struct Program(OwnedFd);

impl Program {
    /// What the program would do with a frame now, and what it would make of it; the frame goes
    /// nowhere, but is counted.
    ///
    /// # Errors
    /// The frame has no whole Ethernet header, or the system refused.
    pub fn probe(&self, frame: &[u8]) -> io::Result<(Action, Vec<u8>)> {
        let (code, frame) = sys::run(self.0.as_fd(), frame)?;
        let action = match code {
            2 => Action::Pass,
            4 => Action::Redirect,
            other => Action::Other(other),
        };
        Ok((action, frame))
    }
}

/// The steering programs of all ports, and the maps that they share.
///
/// Whoever drops it makes the kernel forward, first by the bypass, and then takes the programs off
/// the devices, but for those that a successor has taken over.
pub struct Steering {
    maps: Maps,
    state: State,
    flows: FlowMaps,
    counts: CountMap,
    options: Options,
    ports: BTreeMap<PortId, Steered>,
    locals: BTreeSet<IpAddr>,
    /// The devices keep their programs when this ends.
    leaves: bool,
}

/// A port with what has been made for it.
struct Steered {
    port: SteerPort,
    attachment: Option<Attachment>,
    /// Keeps the program of the TAP device in its place.
    punt: Option<aya::Ebpf>,
}

impl Steering {
    /// Makes the maps and enters the ports. No device is touched yet, and the state is the bypass's:
    /// everything is the kernel's until [`State::set_bypass`] says otherwise.
    ///
    /// # Errors
    /// No privilege, no BPF file system, too many ports or queues, no such device.
    pub fn load(ports: &[SteerPort], options: &Options) -> Result<Self, SteerError> {
        pin::sweep()?;
        let maps = Maps::make(options)?;
        let own = |map: &OwnedFd| {
            map.try_clone().map_err(SteerError::system("a map", "keeping its descriptor"))
        };
        let state = State::map(&maps.state, &maps.regions);
        let state = state.map_err(SteerError::system("state", "mapping"))?;
        state.set_bypass(true);
        let counts = CountMap::new(own(&maps.counts)?);
        let mut steering = Self {
            flows: maps.flows(state.clone())?,
            state,
            counts: counts.map_err(SteerError::system("counts", "counting processors"))?,
            options: *options,
            ports: BTreeMap::new(),
            locals: BTreeSet::new(),
            leaves: false,
            maps,
        };
        ports.iter().try_for_each(|port| steering.set_port(port.clone()))?;
        Ok(steering)
    }

    /// Enters a port, or what has changed about it: its device, its address, its links. The express
    /// lane is emptied. A program that is on the same device stays there as it is, and has to be
    /// attached again to know another address or number of queues; one on another device ends.
    ///
    /// # Errors
    /// There is no room for it, or no such device.
    pub fn set_port(&mut self, port: SteerPort) -> Result<(), SteerError> {
        has_room(&port)?;
        let mut old = self.ports.remove(&port.port);
        if let Some(moved) = old.take_if(|old| old.port.ifindex != port.ifindex) {
            self.forget(moved);
        }
        // Before, so that no flow leaves by the new device with what is for the old one.
        self.state.bump_generation();
        let entered = self.enter(&port, old.as_ref().map(|old| &old.port));
        let (attachment, punt) = old.map_or((None, None), |old| (old.attachment, old.punt));
        self.ports.insert(port.port, Steered { port, attachment, punt });
        self.state.bump_generation();
        entered
    }

    /// A port as it was entered.
    #[must_use]
    pub fn port(&self, port: PortId) -> Option<&SteerPort> {
        self.ports.get(&port).map(|steered| &steered.port)
    }

    /// Takes a port out: its device is the kernel's alone again.
    pub fn remove_port(&mut self, port: PortId) {
        if let Some(steered) = self.ports.remove(&port) {
            self.forget(steered);
            self.state.bump_generation();
        }
    }

    /// Brings the maps from what they had of a port to what they shall have.
    fn enter(&self, port: &SteerPort, old: Option<&SteerPort>) -> Result<(), SteerError> {
        let failed = |action| SteerError::system(&port.device, action);
        let wanted: BTreeSet<u32> = port.links.iter().map(|link| slot(port.port, link)).collect();
        for link in old.iter().flat_map(|old| &old.links) {
            let slot = slot(port.port, link);
            if !wanted.contains(&slot) {
                sys::update(self.maps.links.as_fd(), &slot, &0_u32)
                    .map_err(failed("taking a link out"))?;
            }
        }
        for link in &port.links {
            sys::update(self.maps.links.as_fd(), &slot(port.port, link), &link.value())
                .map_err(failed("entering a link"))?;
        }
        if let Some(refused) = &self.maps.refused {
            refused.enter(port).map_err(failed("noting its device"))?;
        }
        // `struct bpf_devmap_val`: the device, and no program to run there.
        let way_out = [port.ifindex, 0];
        sys::update(self.maps.egress.as_fd(), &u32::from(port.port.0), &way_out).map_err(|error| {
            match error.kind() {
                // This is how the map says that there is no such device.
                io::ErrorKind::InvalidInput => SteerError::NoDevice { device: port.device.clone() },
                _ => failed("entering it as a way out")(error),
            }
        })
    }

    /// Ends what was made for a port and takes it out of the maps, as far as it is still there.
    fn forget(&self, steered: Steered) {
        let port = &steered.port;
        for link in &port.links {
            let _ = sys::update(self.maps.links.as_fd(), &slot(port.port, link), &0_u32);
        }
        let _ = sys::delete(self.maps.egress.as_fd(), &u32::from(port.port.0));
        if let Some(refused) = &self.maps.refused {
            refused.forget(port);
        }
        if let Some(attachment) = steered.attachment.filter(|_| !self.leaves) {
            attachment.end(self.maps.state.as_fd());
        }
    }

    fn steered(&self, port: PortId) -> Result<&Steered, SteerError> {
        self.ports.get(&port).ok_or(SteerError::NoPort(port.0))
    }

    /// Puts the program on a port's device, by the first of the modes that works, with or without
    /// the express lane. Where a program of Tollway's is there already, this one takes its place
    /// between two packets: so it can be called again, to switch the lane on or off.
    ///
    /// # Errors
    /// The device carries another program or is served by another Tollway, or no mode works.
    pub fn attach(
        &mut self,
        port: PortId,
        modes: &[Mode],
        express: bool,
    ) -> Result<Attached, SteerError> {
        let steered = self.steered(port)?;
        let before = steered.attachment.as_ref();
        let (attachment, attached) = self.make(&steered.port, before, (modes, express))?;
        if let Some(steered) = self.ports.get_mut(&port) {
            steered.attachment = Some(attachment);
        }
        Ok(attached)
    }

    /// Enters a port and puts the program on its device, as [`Steering::set_port`] and
    /// [`Steering::attach`] do; but where the device refuses, a port that was not there stays out, and
    /// the express lane keeps its flows.
    ///
    /// # Errors
    /// As both.
    pub fn serve(
        &mut self,
        port: SteerPort,
        modes: &[Mode],
        express: bool,
    ) -> Result<Attached, SteerError> {
        let id = port.port;
        if self.ports.contains_key(&id) {
            self.set_port(port)?;
            return self.attach(id, modes, express);
        }
        has_room(&port)?;
        // The program knows no link yet, and passes what it sees.
        let (attachment, attached) = self.make(&port, None, (modes, express))?;
        let entered = self.set_port(port);
        if let Some(steered) = self.ports.get_mut(&id) {
            steered.attachment = Some(attachment);
        }
        entered.inspect_err(|_| self.remove_port(id))?;
        Ok(attached)
    }

    fn make(
        &self,
        port: &SteerPort,
        before: Option<&Attachment>,
        (modes, express): (&[Mode], bool),
    ) -> Result<(Attachment, Attached), SteerError> {
        let (state, replace) = (self.maps.state.as_fd(), self.options.replace);
        let mut load = |mode| self.maps.steer(port, mode, express);
        let made = Attachment::make(port, modes, (before, state), replace, &mut load);
        let (mut attachment, mut attached) = made?;
        attachment.express = express;
        attached.note = note(port);
        Ok((attachment, attached))
    }

    /// Puts a port's program on its device anew, as it was, to know what has changed about the port.
    ///
    /// # Errors
    /// As [`Steering::attach`].
    pub fn attach_again(&mut self, port: PortId) -> Result<(), SteerError> {
        let Some(attachment) = &self.steered(port)?.attachment else { return Ok(()) };
        let (mode, express) = (attachment.mode, attachment.express);
        self.attach(port, &[mode], express).map(drop)
    }

    /// Says if a port's program is on its device, which it no longer is when the device has gone, or
    /// somebody has taken the program off or put another in its place.
    #[must_use]
    pub fn is_attached(&self, port: PortId) -> bool {
        let steered = self.ports.get(&port);
        steered.and_then(|steered| steered.attachment.as_ref()).is_some_and(Attachment::is_there)
    }

    /// Gives an AF_XDP socket, which has its receive ring, the packets of a queue.
    ///
    /// # Errors
    /// There is no such port or queue, or the system refused.
    pub fn set_socket(
        &self,
        port: PortId,
        queue: u32,
        socket: BorrowedFd<'_>,
    ) -> Result<(), SteerError> {
        use std::os::fd::AsRawFd;
        let device = &self.steered(port)?.port.device;
        if queue >= MOST_QUEUES {
            return Err(SteerError::TooMany { device: device.clone() });
        }
        let socket = socket.as_raw_fd() as u32;
        sys::update(self.maps.xsks.as_fd(), &socket_slot(port, queue), &socket)
            .map_err(SteerError::system(device, "giving a socket its queue"))
    }

    /// Leaves the packets of a queue to the kernel.
    ///
    /// # Errors
    /// There is no such port, or the system refused.
    pub fn clear_socket(&self, port: PortId, queue: u32) -> Result<(), SteerError> {
        let device = &self.steered(port)?.port.device;
        let cleared = sys::delete(self.maps.xsks.as_fd(), &socket_slot(port, queue));
        cleared.map(|_| ()).map_err(SteerError::system(device, "taking a socket from its queue"))
    }

    /// Says which addresses are the router's own, those for broadcasts on its links included, and
    /// empties the express lane if that changes anything.
    ///
    /// # Errors
    /// The system refused; what was entered by then stays.
    pub fn set_locals(&mut self, addresses: &[IpAddr]) -> Result<(), SteerError> {
        let wanted: BTreeSet<IpAddr> = addresses.iter().copied().collect();
        if wanted == self.locals {
            return Ok(());
        }
        let failed = || SteerError::system("the router", "entering its addresses");
        for address in wanted.difference(&self.locals) {
            match address {
                IpAddr::V4(v4) => sys::update(self.maps.locals4.as_fd(), &v4.octets(), &1_u32),
                IpAddr::V6(v6) => sys::update(self.maps.locals6.as_fd(), &v6.octets(), &1_u32),
            }
            .map_err(failed())?;
        }
        for address in self.locals.difference(&wanted) {
            match address {
                IpAddr::V4(v4) => sys::delete(self.maps.locals4.as_fd(), &v4.octets()),
                IpAddr::V6(v6) => sys::delete(self.maps.locals6.as_fd(), &v6.octets()),
            }
            .map_err(failed())?;
        }
        self.locals = wanted;
        self.state.bump_generation();
        Ok(())
    }

    /// Makes the TAP device by which frames are handed to the kernel as if they had just come in by a
    /// port that has been attached: one frame for each write(2). It is there until the descriptor is
    /// closed, and is to be made anew when the port is attached in another mode.
    ///
    /// # Errors
    /// The device can not be made.
    pub fn punt_tap(&mut self, port: PortId, mtu: u16) -> Result<OwnedFd, SteerError> {
        let steered = self.steered(port)?;
        let (tap, file) = make_tap(&steered.port, mtu)?;
        // What generic XDP needs costs little where it is not needed.
        let mode = steered.attachment.as_ref().map_or(Mode::Generic, |made| made.mode);
        let object = self.maps.punt(&steered.port, mode, &tap)?;
        if let Some(steered) = self.ports.get_mut(&port) {
            steered.punt = Some(object);
        }
        Ok(file.into())
    }

    /// A port's program as [`Steering::attach`] would put it on the device, to try frames on.
    ///
    /// # Errors
    /// There is no such port, or the system refused.
    pub fn program(&self, port: PortId, mode: Mode, express: bool) -> Result<Program, SteerError> {
        Ok(Program(self.maps.steer(&self.steered(port)?.port, mode, express)?))
    }

    /// The heartbeat, the bypass and the generation; for the worker's thread too.
    #[must_use]
    pub fn state(&self) -> State {
        self.state.clone()
    }

    /// The flows of the express lane; for the worker's thread too.
    #[must_use]
    pub fn flows(&self) -> FlowMaps {
        self.flows.clone()
    }

    /// What the program counts; for any thread.
    #[must_use]
    pub fn counts(&self) -> CountMap {
        self.counts.clone()
    }

    /// What devices refuse of the lane's frames, where the kernel tells; for any thread.
    #[must_use]
    pub fn refusals(&self) -> Option<Refusals> {
        self.maps.refused.as_ref().map(|refused| refused.refusals().clone())
    }

    /// From now on leaves the programs on the devices, which pass everything to the kernel until
    /// another Tollway takes them over.
    pub fn leave(&mut self) {
        self.state.set_bypass(true);
        self.leaves = true;
    }
}

impl Drop for Steering {
    fn drop(&mut self) {
        self.state.set_bypass(true);
        if self.leaves {
            return;
        }
        for steered in std::mem::take(&mut self.ports).into_values() {
            self.forget(steered);
        }
    }
}
