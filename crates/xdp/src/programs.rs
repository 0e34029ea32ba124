//! The programs of all ports, and the maps that they share.

mod attachments;
mod preparation;
mod renewal;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use tollway_dataplane::id::PortId;

use crate::attach::Attachment;
use crate::connections::{ConnectionTable, Queries};
use crate::device::make_tap;
use crate::error::XdpError;
use crate::flows::FlowMaps;
use crate::load::{Maps, PortProgram, Variant};
use crate::locals::LocalBits;
use crate::maps::{CountMap, State};
use crate::page::coarse_ns;
use crate::port::{MOST_QUEUES, Place, XdpPort, place, socket_slot};
use crate::program::Program;
use crate::reading::{Reading, SharedTables};
use crate::{Mode, Options, Refusals, pin, sys};
pub use preparation::Preparation;
pub use renewal::Renewal;
use tollway_dataplane::clock::tick_of;

/// The values of own addresses in the maps; `LOCAL_TRANSLATED` is in `bpf/packet.h`.
const LOCAL: u32 = 1;
const LOCAL_TRANSLATED: u32 = 2;
/// In their place: nobody knows what the map has.
const UNSURE: u32 = 0;

/// The XDP programs of all ports, and the maps that they share.
///
/// When dropped, it makes the kernel forward: it sets the bypass first, and then detaches the
/// programs from the devices, except those that a successor has taken over.
pub struct XdpPrograms {
    maps: Arc<Maps>,
    state: State,
    flows: FlowMaps,
    counts: CountMap,
    options: Options,
    ports: BTreeMap<PortId, LoadedPort>,
    locals: BTreeMap<IpAddr, u32>,
    locals4_bits: LocalBits,
    /// The tables that programs with the XDP path decide by.
    tables: Option<SharedTables>,
    /// Whether ports with XDP programs get tc programs beside these.
    has_tc_exits: bool,
    /// Whether the programs stay attached when this is dropped.
    keeps_attached: bool,
    /// The programs for the next attachment.
    prepared: Option<Preparation>,
}

/// The state of a tc program beside an XDP program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BesideState {
    /// The port has none.
    Absent,
    /// It is on the device.
    There,
    /// Somebody has detached or replaced it; the next attachment or renewal brings another.
    Lost,
}

/// A port and the objects created for it.
struct LoadedPort {
    port: XdpPort,
    attachment: Option<Attachment>,
    /// Has the program of the TAP device, and keeps it attached.
    punt: Option<aya::Ebpf>,
}

impl XdpPrograms {
    /// Creates the maps and enters the ports. It touches no device yet, and sets the bypass: the
    /// kernel forwards everything until [`State::set_bypass`] clears it.
    ///
    /// # Errors
    /// No privilege, no BPF file system, too many ports or queues, no such device.
    pub fn load(ports: &[XdpPort], options: &Options) -> Result<Self, XdpError> {
        pin::sweep()?;
        let maps = Maps::make(options)?;
        let own = |map: &OwnedFd| {
            map.try_clone().map_err(XdpError::system("a map", "duplicating its descriptor"))
        };
        let state = State::map(&maps.state, &maps.regions);
        let state = state.map_err(XdpError::system("state", "mapping"))?;
        state.set_bypass(true);
        let counts = CountMap::new(own(&maps.counts)?);
        let mut programs = Self {
            flows: maps.flows(state.clone())?,
            state,
            counts: counts.map_err(XdpError::system("counts", "counting processors"))?,
            options: *options,
            ports: BTreeMap::new(),
            locals: BTreeMap::new(),
            locals4_bits: LocalBits::map(&maps.locals4_bits)
                .map_err(XdpError::system("locals4_bits", "mapping"))?,
            tables: None,
            has_tc_exits: false,
            keeps_attached: false,
            prepared: None,
            maps: Arc::new(maps),
        };
        ports.iter().try_for_each(|port| programs.set_port(port.clone()))?;
        Ok(programs)
    }

    /// Enters a port, or changes its device, address or links. This empties the XDP path. A program
    /// on the same device stays as it is; attach it again after a change of address or number of
    /// queues. A program on another device is detached.
    ///
    /// # Errors
    /// There is no room for the port, or no such device.
    pub fn set_port(&mut self, port: XdpPort) -> Result<(), XdpError> {
        XdpError::check_room(&port)?;
        let mut old = self.ports.remove(&port.port);
        if let Some(moved) = old.take_if(|old| old.port.ifindex != port.ifindex) {
            self.forget(moved);
        }
        // Now, so that no flow leaves by the new device with a header for the old one.
        self.state.bump_generation();
        let entered = self.enter(&port, old.as_ref().map(|old| &old.port));
        let (attachment, punt) = old.map_or((None, None), |old| (old.attachment, old.punt));
        self.ports.insert(port.port, LoadedPort { port, attachment, punt });
        self.state.bump_generation();
        // The kernel may have had all packets of a link so far.
        self.note_unserved();
        entered
    }

    /// Takes note that packets may have gone past the programs until now: tracks of TCP learn the windows again.
    fn note_unserved(&self) {
        self.state.set_unserved_tick(tick_of(coarse_ns()));
    }

    /// The port as it was entered.
    #[must_use]
    pub fn port(&self, port: PortId) -> Option<&XdpPort> {
        self.ports.get(&port).map(|loaded_port| &loaded_port.port)
    }

    /// Removes a port; the kernel alone uses its device again.
    pub fn remove_port(&mut self, port: PortId) {
        if let Some(loaded_port) = self.ports.remove(&port) {
            self.forget(loaded_port);
            self.state.bump_generation();
        }
    }

    /// Updates the maps from a port's old entries to its new ones.
    fn enter(&self, port: &XdpPort, old: Option<&XdpPort>) -> Result<(), XdpError> {
        let failed = |action| XdpError::system(&port.device, action);
        let wanted: BTreeSet<_> = port.links.iter().map(|link| place(port.port, link)).collect();
        for link in old.iter().flat_map(|old| &old.links) {
            let place = place(port.port, link);
            if !wanted.contains(&place) {
                self.take_out(place).map_err(failed("removing a link"))?;
            }
        }
        for link in &port.links {
            let (links, inner) = (self.maps.links.as_fd(), self.maps.inner_links.as_fd());
            match place(port.port, link) {
                Place::Slot(slot) => sys::update(links, &slot, &link.value()),
                Place::Inner(key) => sys::update(inner, &key, &link.value()),
            }
            .map_err(failed("adding a link"))?;
        }
        self.state.set_exit_device(port.port, port.ifindex);
        if let Some(refused) = &self.maps.refused {
            refused.enter(port).map_err(failed("adding it to the devices to watch"))?;
        }
        // `struct bpf_devmap_val`: the device, and no program to run there.
        let egress = [port.ifindex, 0];
        sys::update(self.maps.egress.as_fd(), &u32::from(port.port.0), &egress).map_err(|error| {
            match error.kind() {
                // The map reports a missing device with this error.
                io::ErrorKind::InvalidInput => XdpError::NoDevice { device: port.device.clone() },
                _ => failed("adding it as an egress device")(error),
            }
        })
    }

    /// Takes a link out of its map.
    fn take_out(&self, place: Place) -> io::Result<()> {
        match place {
            Place::Slot(slot) => sys::update(self.maps.links.as_fd(), &slot, &0_u32),
            Place::Inner(key) => sys::delete(self.maps.inner_links.as_fd(), &key).map(|_| ()),
        }
    }

    /// Destroys a port's objects and removes its entries from the maps, as far as they still exist.
    fn forget(&self, loaded_port: LoadedPort) {
        let port = &loaded_port.port;
        self.state.set_exit_device(port.port, 0);
        for link in &port.links {
            let _ = self.take_out(place(port.port, link));
        }
        let _ = sys::delete(self.maps.egress.as_fd(), &u32::from(port.port.0));
        if let Some(refused) = &self.maps.refused {
            refused.forget(port);
        }
        if let Some(attachment) = loaded_port.attachment.filter(|_| !self.keeps_attached) {
            attachment.end(self.maps.state.as_fd());
        }
    }

    fn loaded_port(&self, port: PortId) -> Result<&LoadedPort, XdpError> {
        self.ports.get(&port).ok_or(XdpError::NoPort(port.0))
    }

    /// Directs the packets of a queue to an AF_XDP socket, which must have its receive ring.
    ///
    /// # Errors
    /// There is no such port or queue, or the system refused.
    pub fn set_socket(
        &self,
        port: PortId,
        queue: u32,
        socket: BorrowedFd<'_>,
    ) -> Result<(), XdpError> {
        use std::os::fd::AsRawFd;
        let device = &self.loaded_port(port)?.port.device;
        if queue >= MOST_QUEUES {
            return Err(XdpError::TooMany { device: device.clone() });
        }
        let socket = socket.as_raw_fd() as u32;
        sys::update(self.maps.xsks.as_fd(), &socket_slot(port, queue), &socket)
            .map_err(XdpError::system(device, "assigning a queue to a socket"))
    }

    /// Returns the packets of a queue to the kernel.
    ///
    /// # Errors
    /// There is no such port, or the system refused.
    pub fn clear_socket(&self, port: PortId, queue: u32) -> Result<(), XdpError> {
        let device = &self.loaded_port(port)?.port.device;
        let cleared = sys::delete(self.maps.xsks.as_fd(), &socket_slot(port, queue));
        cleared.map(|_| ()).map_err(XdpError::system(device, "removing a socket from its queue"))
    }

    /// Sets the router's own addresses, including the broadcast addresses of its links; empties the
    /// XDP path if that changes anything.
    ///
    /// # Errors
    /// The system refused; what was entered by then stays.
    pub fn set_locals(&mut self, addresses: &[IpAddr]) -> Result<(), XdpError> {
        self.set_locals_with(addresses, &[])
    }

    /// Does the same, where rules that the kernel does not know translate what comes for some of the addresses: as long as
    /// somebody evaluates the rules, such packets are the workers'.
    ///
    /// # Errors
    /// See [`XdpPrograms::set_locals`].
    pub fn set_locals_with(
        &mut self,
        addresses: &[IpAddr],
        translated: &[IpAddr],
    ) -> Result<(), XdpError> {
        let value = |address| if translated.contains(address) { LOCAL_TRANSLATED } else { LOCAL };
        let wanted: BTreeMap<IpAddr, u32> =
            addresses.iter().map(|address| (*address, value(address))).collect();
        if wanted == self.locals {
            return Ok(());
        }
        let failed = XdpError::system("the router", "adding its addresses");
        let v4 = |addresses: &BTreeMap<IpAddr, u32>| -> Vec<_> {
            addresses.keys().filter_map(|address| only_v4(*address)).collect()
        };
        self.locals4_bits.add(v4(&wanted));
        let entered = self.enter_locals(&wanted).map_err(failed);
        if entered.is_ok() {
            self.locals4_bits.keep(v4(&wanted));
            self.locals = wanted;
        } else {
            // Some of these may have been entered: the next call enters or removes each of them.
            self.locals.extend(wanted.into_keys().map(|address| (address, UNSURE)));
        }
        self.state.bump_generation();
        entered
    }

    /// Updates the maps from the addresses that are there to those that are wanted.
    fn enter_locals(&self, wanted: &BTreeMap<IpAddr, u32>) -> io::Result<()> {
        let is_new = |(address, value): &(&IpAddr, &u32)| self.locals.get(*address) != Some(*value);
        for (address, value) in wanted.iter().filter(is_new) {
            match address {
                IpAddr::V4(v4) => sys::update(self.maps.locals4.as_fd(), &v4.octets(), value),
                IpAddr::V6(v6) => sys::update(self.maps.locals6.as_fd(), &v6.octets(), value),
            }?;
        }
        for address in self.locals.keys().filter(|address| !wanted.contains_key(*address)) {
            match address {
                IpAddr::V4(v4) => sys::delete(self.maps.locals4.as_fd(), &v4.octets()),
                IpAddr::V6(v6) => sys::delete(self.maps.locals6.as_fd(), &v6.octets()),
            }?;
        }
        Ok(())
    }

    /// Creates the TAP device that hands frames to the kernel as if an attached port had just
    /// received them: one frame per write(2). The device exists until the descriptor is closed.
    /// Create it again when the port is attached in another mode.
    ///
    /// # Errors
    /// The device cannot be created.
    pub fn punt_tap(&mut self, port: PortId, mtu: u16) -> Result<OwnedFd, XdpError> {
        let loaded_port = self.ports.get_mut(&port).ok_or(XdpError::NoPort(port.0))?;
        let (tap, file) = make_tap(&loaded_port.port, mtu)?;
        let attachment = loaded_port.attachment.as_mut();
        // Without an attachment, use the mode that always works; its overhead is small.
        let mode = attachment.as_ref().map_or(Mode::Generic, |attachment| attachment.mode);
        let mut object = match attachment.and_then(|attachment| attachment.object.take()) {
            Some(object) => object,
            None => self.maps.port_object(&loaded_port.port, mode)?,
        };
        Maps::punt(&loaded_port.port, &mut object, &tap)?;
        loaded_port.punt = Some(object);
        Ok(file.into())
    }

    /// A port's program as [`XdpPrograms::attach`] would attach it, to try frames on.
    ///
    /// # Errors
    /// There is no such port, or the system refused.
    pub fn program(&self, port: PortId, mode: Mode, xdp_path: bool) -> Result<Program, XdpError> {
        let reading = self.reading(xdp_path);
        let tables = reading.as_ref().map(Reading::tables);
        let variant = Variant { mode, xdp_path, tables, beside: false };
        let PortProgram { program, tracked, .. } =
            self.maps.program(&self.loaded_port(port)?.port, variant)?;
        let reading = reading.map(|reading| reading.with_tracked(tracked));
        Ok(Program::new(program, mode, reading))
    }

    /// The heartbeats, the bypass and the generation; for the workers' threads too.
    #[must_use]
    pub fn state(&self) -> State {
        self.state.clone()
    }

    /// The flows of the XDP path; for the worker's thread too.
    #[must_use]
    pub fn flows(&self) -> FlowMaps {
        self.flows.clone()
    }

    /// The table of connections, for the one thread that writes it, and what the programs ask it.
    ///
    /// # Errors
    /// The system refused.
    pub fn connections(&self) -> Result<(ConnectionTable, Queries), XdpError> {
        self.maps.connections(self.state.clone())
    }

    /// The program's counters; for any thread.
    #[must_use]
    pub fn counts(&self) -> CountMap {
        self.counts.clone()
    }

    /// The XDP path's frames that devices refused, where the kernel reports that; for any thread.
    #[must_use]
    pub fn refusals(&self) -> Option<Refusals> {
        self.maps.refused.as_ref().map(|refused| refused.refusals().clone())
    }

    /// Keeps the programs on the devices from now on. They pass everything to the kernel until
    /// another Tollway takes them over.
    pub fn keep_attached(&mut self) {
        self.state.set_bypass(true);
        self.keeps_attached = true;
    }
}

const fn only_v4(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(v4) => Some(v4),
        IpAddr::V6(_) => None,
    }
}

impl Drop for XdpPrograms {
    fn drop(&mut self) {
        self.state.set_bypass(true);
        if self.keeps_attached {
            return;
        }
        for loaded_port in std::mem::take(&mut self.ports).into_values() {
            self.forget(loaded_port);
        }
    }
}
