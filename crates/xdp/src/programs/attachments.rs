//! Attaches the programs of ports to their devices.

use std::os::fd::AsFd;

use tollway_dataplane::id::PortId;

use super::{BesideState, Mode, Preparation, XdpError, XdpPort, XdpPrograms};
use crate::attach::{Attached, Attachment};
use crate::beside::{self, Beside};
use crate::load::{PortProgram, Variant};
use crate::port::vlan_note;
use crate::reading::Reading;

impl XdpPrograms {
    /// Attaches the program to a port's device, in the first of the modes that works, with or
    /// without the XDP path.
    ///
    /// If a Tollway program is already attached, this one replaces it between two packets. So call
    /// it again to switch the XDP path on or off.
    ///
    /// # Errors
    /// The device carries another program or is served by another Tollway, or no mode works.
    pub fn attach(
        &mut self,
        port: PortId,
        modes: &[Mode],
        xdp_path: bool,
    ) -> Result<Attached, XdpError> {
        let prepared = self.prepared.take();
        let loaded_port = self.loaded_port(port)?;
        let before = loaded_port.attachment.as_ref();
        let mode = before.map(|before| before.mode);
        let (mut attachment, attached) =
            self.make(&loaded_port.port, before, (modes, xdp_path), prepared)?;
        // The program of the TAP device stays as it is if it is right for this mode.
        if loaded_port.punt.is_some() && mode == Some(attachment.mode) {
            attachment.object = None;
        }
        // Of what the program before has decided, that of another mode may decide otherwise.
        let is_other = mode.is_some_and(|mode| mode != attachment.mode);
        if let Some(loaded_port) = self.ports.get_mut(&port) {
            loaded_port.attachment = Some(attachment);
        }
        if is_other {
            self.state.bump_generation();
        }
        // Until now, packets may have met no program.
        self.note_unserved();
        Ok(attached)
    }

    /// Enters a port and attaches the program to its device, as [`XdpPrograms::set_port`] and
    /// [`XdpPrograms::attach`] do. If the device refuses, a new port stays out, and the XDP path
    /// keeps its flows.
    ///
    /// # Errors
    /// As both.
    pub fn serve(
        &mut self,
        port: XdpPort,
        modes: &[Mode],
        xdp_path: bool,
    ) -> Result<Attached, XdpError> {
        let id = port.port;
        if self.ports.contains_key(&id) {
            self.set_port(port)?;
            return self.attach(id, modes, xdp_path);
        }
        XdpError::check_room(&port)?;
        // The program does not know any link yet, so it passes every frame.
        let prepared = self.prepared.take();
        let (attachment, attached) = self.make(&port, None, (modes, xdp_path), prepared)?;
        let entered = self.set_port(port);
        if let Some(loaded_port) = self.ports.get_mut(&id) {
            loaded_port.attachment = Some(attachment);
        }
        entered.inspect_err(|_| self.remove_port(id))?;
        Ok(attached)
    }

    fn make(
        &self,
        port: &XdpPort,
        before: Option<&Attachment>,
        (modes, xdp_path): (&[Mode], bool),
        prepared: Option<Preparation>,
    ) -> Result<(Attachment, Attached), XdpError> {
        let (state, replace) = (self.maps.state.as_fd(), self.options.replace);
        let reading = self.reading(xdp_path);
        let tables = reading.as_ref().map(Reading::tables);
        let is_tc = modes.iter().any(|mode| mode.is_tc());
        let beside = tables.is_some() && self.may_have_beside(port, is_tc);
        let suits =
            |prepared: &Preparation| prepared.suits(port, (xdp_path, beside), reading.as_ref());
        let mut prepared = prepared.filter(suits);
        let mut tracked = None;
        let mut load = |mode| {
            let loaded = match prepared.as_mut().and_then(|prepared| prepared.take(mode)) {
                Some(loaded) => loaded,
                None => self.maps.program(port, Variant { mode, xdp_path, tables, beside })?,
            };
            tracked = loaded.tracked;
            Ok((loaded.program, loaded.object))
        };
        let made = Attachment::make(port, modes, (before, state), replace, &mut load);
        let (mut attachment, mut attached) = made?;
        attachment.beside = reading.clone().filter(|_| beside).and_then(|reading| {
            let ready = prepared.as_mut().and_then(Preparation::take_beside);
            let made = self.make_beside(port, reading, ready);
            made.inspect_err(|error| beside::warn(port, error)).ok()
        });
        if attachment.beside.is_none() {
            beside::clear(port.ifindex);
        }
        attachment.xdp_path = xdp_path;
        attachment.reading = reading.map(|reading| reading.with_tracked(tracked));
        attached.note = vlan_note(port).filter(|_| !attached.mode.is_tc());
        Ok((attachment, attached))
    }

    fn make_beside(
        &self,
        port: &XdpPort,
        reading: Reading,
        ready: Option<PortProgram>,
    ) -> Result<Beside, XdpError> {
        let tables = Some(reading.tables());
        let variant = Variant { mode: Mode::Tcx, xdp_path: true, tables, beside: true };
        let loaded = ready.map_or_else(|| self.maps.program(port, variant), Ok)?;
        let PortProgram { program, tracked, .. } = loaded;
        Beside::make(port, program.as_fd(), reading.with_tracked(tracked))
    }

    /// Whether a port whose program decides by tables gets a tc program beside that.
    pub(super) fn may_have_beside(&self, port: &XdpPort, is_tc: bool) -> bool {
        self.has_tc_exits && !is_tc && beside::is_possible(port.ifindex)
    }

    /// Lets ports with XDP programs have tc programs beside these, from their next attachment on: some port has a tc
    /// program, and the kernel knows all rules.
    pub fn expect_tc_exits(&mut self) {
        self.has_tc_exits = true;
    }

    /// What a program reads, if it can decide by tables.
    pub(super) fn reading(&self, xdp_path: bool) -> Option<Reading> {
        let tables = self.tables.as_ref().filter(|_| xdp_path)?;
        let reading = tables.read().inspect_err(|error| {
            tracing::warn!(
                "a program decides by flows only, since nothing can wait for it: {error}"
            );
        });
        reading.ok()
    }

    /// Reloads a port's program onto its device in the same mode, to apply changes of the port.
    ///
    /// # Errors
    /// As [`XdpPrograms::attach`].
    pub fn attach_again(&mut self, port: PortId) -> Result<(), XdpError> {
        let Some(attachment) = &self.loaded_port(port)?.attachment else { return Ok(()) };
        let (mode, xdp_path) = (attachment.mode, attachment.xdp_path);
        self.attach(port, &[mode], xdp_path).map(drop)
    }

    /// Whether a port's program is on its device. It no longer is when the device has gone, or when
    /// the program was detached or replaced.
    #[must_use]
    pub fn is_attached(&self, port: PortId) -> bool {
        let loaded_port = self.ports.get(&port);
        loaded_port
            .and_then(|loaded_port| loaded_port.attachment.as_ref())
            .is_some_and(Attachment::is_there)
    }

    /// The state of the tc program beside a port's XDP program.
    #[must_use]
    pub fn beside(&self, port: PortId) -> BesideState {
        let attachment = self.ports.get(&port).and_then(|port| port.attachment.as_ref());
        match attachment {
            Some(attachment) if attachment.lacks_beside() => BesideState::Lost,
            Some(attachment) if attachment.beside.is_some() => BesideState::There,
            _ => BesideState::Absent,
        }
    }
}
