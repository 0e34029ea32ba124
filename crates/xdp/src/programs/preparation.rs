//! Programs that are loaded before they are attached.
//!
//! To load one takes the kernel a tenth of a second, for which nobody else should wait. So a thread loads it without the
//! lock of [`XdpPrograms`], and the next attachment takes it, if it suits the port and its tables by then.

use std::sync::Arc;

use tollway_dataplane::id::PortId;

use super::{Mode, XdpPort, XdpPrograms};
use crate::attach::Attachment;
use crate::load::{Maps, PortProgram, Variant};
use crate::reading::Reading;

/// The programs of one port's attachment.
pub struct Preparation {
    maps: Arc<Maps>,
    port: XdpPort,
    mode: Mode,
    xdp_path: bool,
    /// The port gets an XDP program and a tc program beside that.
    beside: bool,
    reading: Option<Reading>,
    program: Option<PortProgram>,
    program_beside: Option<PortProgram>,
}

impl Preparation {
    /// Loads the programs; this touches no device. What the kernel refuses is loaded again by the attachment, which says
    /// why.
    #[must_use]
    pub fn load(mut self) -> Self {
        self.program = self.load_for(self.mode);
        self.program_beside = self.beside.then(|| self.load_for(Mode::Tcx)).flatten();
        self
    }

    fn load_for(&self, mode: Mode) -> Option<PortProgram> {
        let tables = self.reading.as_ref().map(Reading::tables);
        let variant = Variant { mode, xdp_path: self.xdp_path, tables, beside: self.beside };
        self.maps.program(&self.port, variant).ok()
    }

    /// Whether the programs are what an attachment of a port needs now.
    pub(super) fn suits(
        &self,
        port: &XdpPort,
        (xdp_path, beside): (bool, bool),
        reading: Option<&Reading>,
    ) -> bool {
        // A program finds the links in a map.
        let of = |port: &XdpPort| XdpPort { links: Vec::new(), ..port.clone() };
        let has_tables = match (&self.reading, reading) {
            (Some(own), Some(now)) => own.is_of_the_tables_of(now),
            (own, now) => own.is_none() && now.is_none(),
        };
        has_tables
            && (self.xdp_path, self.beside) == (xdp_path, beside)
            && of(&self.port) == of(port)
    }

    /// The program, if it is for this mode.
    pub(super) fn take(&mut self, mode: Mode) -> Option<PortProgram> {
        let kind = |mode: Mode| (mode.is_tc(), mode == Mode::Generic);
        self.program.take_if(|_| kind(self.mode) == kind(mode))
    }

    /// The tc program beside it.
    pub(super) fn take_beside(&mut self) -> Option<PortProgram> {
        self.program_beside.take()
    }
}

impl XdpPrograms {
    /// Begins to prepare an attachment of a port.
    #[must_use]
    pub fn preparation(&self, port: XdpPort, mode: Mode, xdp_path: bool) -> Preparation {
        let reading = self.reading(xdp_path);
        let beside = reading.is_some() && self.may_have_beside(&port, mode.is_tc());
        let maps = Arc::clone(&self.maps);
        let (program, program_beside) = (None, None);
        Preparation { maps, port, mode, xdp_path, beside, reading, program, program_beside }
    }

    /// Begins to prepare that a port's program is attached again ([`XdpPrograms::attach_again`]), if it is attached.
    #[must_use]
    pub fn preparation_again(&self, port: PortId) -> Option<Preparation> {
        let loaded_port = self.ports.get(&port)?;
        let Attachment { mode, xdp_path, .. } = loaded_port.attachment.as_ref()?;
        Some(self.preparation(loaded_port.port.clone(), *mode, *xdp_path))
    }

    /// Has `attach` attach a port, which takes the programs of a preparation, if there is one.
    pub fn with_prepared<T>(
        &mut self,
        preparation: Option<Preparation>,
        attach: impl FnOnce(&mut Self) -> T,
    ) -> T {
        self.prepared = preparation;
        let attached = attach(self);
        // What it did not take would hold its tables.
        self.prepared = None;
        attached
    }
}
