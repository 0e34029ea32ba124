//! Changes of the tables that programs decide by.
//!
//! To load a program takes the kernel tens of milliseconds, and to replace one microseconds. So all programs are loaded
//! first, beside those that run and without the lock of [`XdpPrograms`]; then they replace those in one go. A program
//! that cannot be replaced runs on: its memory waits for it, and its tables decide nothing once others are active.

use std::os::fd::AsFd;
use std::sync::Arc;

use tollway_dataplane::tables::Tables;

use super::{Mode, XdpError, XdpPort, XdpPrograms};
use crate::beside::{self, Beside};
use crate::load::{Maps, PortProgram, Variant};
use crate::reading::{Reading, SharedTables};

/// The programs of all ports with the XDP path for other tables, before they run.
pub struct Renewal {
    maps: Arc<Maps>,
    tables: Option<SharedTables>,
    reading: Option<Reading>,
    wanted: Vec<Wanted>,
    loaded: Vec<LoadedProgram>,
}

/// What a program is loaded for.
#[derive(Clone, PartialEq, Eq)]
struct Wanted {
    port: XdpPort,
    mode: Mode,
    /// The port has an XDP program and a tc program beside that.
    beside: bool,
}

impl Wanted {
    /// Whether it is the tc program beside an XDP program.
    const fn is_beside(&self) -> bool {
        self.beside && self.mode.is_tc()
    }
}

/// A program that does not run yet.
struct LoadedProgram {
    of: Wanted,
    /// `None` for a tc program beside an XDP program that cannot be loaded: the kernel forwards instead.
    program: Option<PortProgram>,
}

impl Renewal {
    /// Loads the programs; this touches no device. If they cannot read the tables, they decide by flows only.
    ///
    /// # Errors
    /// The system refused: it cannot load the programs, or start the thread that waits for them.
    pub fn load(&mut self) -> Result<(), XdpError> {
        let loaded = self.try_load();
        if loaded.is_err() && self.tables.take().is_some() {
            self.reading = None;
            self.loaded.clear();
            // There are tc programs beside others only with tables.
            self.wanted.retain(|wanted| !wanted.is_beside());
            self.wanted.iter_mut().for_each(|wanted| wanted.beside = false);
            self.try_load()?;
        }
        loaded
    }

    fn try_load(&mut self) -> Result<(), XdpError> {
        if self.wanted.is_empty() {
            return Ok(());
        }
        if let (Some(tables), None) = (&self.tables, &self.reading) {
            let reading = tables.read();
            self.reading =
                Some(reading.map_err(XdpError::system("tables", "waiting for programs"))?);
        }
        let tables = self.reading.as_ref().map(Reading::tables);
        for wanted in &self.wanted {
            let Wanted { port, mode, beside } = wanted;
            let variant = Variant { mode: *mode, xdp_path: true, tables, beside: *beside };
            // The object of the attached program serves on for the TAP device.
            let program = match self.maps.program(port, variant) {
                Ok(program) => Some(PortProgram { object: None, ..program }),
                Err(error) if wanted.is_beside() => {
                    beside::warn(port, &error);
                    None
                }
                Err(error) => return Err(error),
            };
            self.loaded.push(LoadedProgram { of: wanted.clone(), program });
        }
        Ok(())
    }

    /// Whether it has a program.
    fn has(&self, wanted: &Wanted) -> bool {
        self.loaded.iter().any(|loaded| loaded.of == *wanted)
    }
}

impl XdpPrograms {
    /// Begins to let the programs of all ports with the XDP path decide by tables, or by flows only if there are none.
    #[must_use]
    pub fn renewal(&self, tables: Option<SharedTables>) -> Renewal {
        let wanted = self.readers(tables.is_some());
        let maps = Arc::clone(&self.maps);
        Renewal { maps, tables, reading: None, wanted, loaded: Vec::new() }
    }

    /// Replaces the programs that run by those of a renewal. The tables say when they may be used
    /// ([`Tables::write_engines`]).
    ///
    /// # Errors
    /// The system refused for a port; the others have their programs.
    pub fn renew(&mut self, mut renewal: Renewal) -> Result<(), XdpError> {
        // Ports may have come, or changed, while the programs were loaded.
        let readers = self.readers(renewal.tables.is_some());
        renewal.wanted = readers.into_iter().filter(|wanted| !renewal.has(wanted)).collect();
        let mut done = renewal.try_load();
        let Renewal { tables, reading, loaded, .. } = renewal;
        self.tables = tables;
        if self.tables.is_none() {
            self.end_beside();
        }
        for loaded in loaded {
            let replaced = self.replace(loaded, reading.clone());
            done = done.and(replaced);
        }
        done
    }

    /// Detaches the tc programs beside XDP programs.
    fn end_beside(&mut self) {
        let attachments = self.ports.values_mut().filter_map(|port| port.attachment.as_mut());
        attachments.for_each(|attachment| attachment.end_beside(self.maps.state.as_fd()));
    }

    /// Replaces a port's program, if it still needs this one.
    fn replace(&mut self, loaded: LoadedProgram, reading: Option<Reading>) -> Result<(), XdpError> {
        let LoadedProgram { of, program } = loaded;
        let Some(running) = self.ports.get_mut(&of.port.port) else { return Ok(()) };
        let (device, is_same) = (&running.port.device, running.port == of.port);
        let attachment =
            running.attachment.as_mut().filter(|attachment| is_same && attachment.xdp_path);
        let Some(attachment) = attachment else { return Ok(()) };
        let Some(PortProgram { program, tracked, .. }) = program else {
            // The old one would only hold its tables.
            attachment.end_beside(self.maps.state.as_fd());
            return Ok(());
        };
        let reading = reading.map(|reading| reading.with_tracked(tracked));
        if of.is_beside() {
            // As [`Attachment::replace`]: what has been detached or replaced stays so.
            let has_place = !attachment.mode.is_tc() && attachment.is_there();
            let Some(reading) = reading.filter(|_| has_place) else { return Ok(()) };
            match Beside::make(&of.port, program.as_fd(), reading) {
                Ok(beside) => attachment.beside = Some(beside),
                Err(error) => {
                    beside::warn(&of.port, &error);
                    attachment.end_beside(self.maps.state.as_fd());
                }
            }
        } else if attachment.mode == of.mode {
            let replaced = attachment.replace((program.as_fd(), reading), self.maps.state.as_fd());
            replaced.map_err(XdpError::system(device, "taking its program's place"))?;
        }
        Ok(())
    }

    /// The programs that have to be replaced.
    fn readers(&self, is_shared: bool) -> Vec<Wanted> {
        let reader = |loaded_port: &super::LoadedPort| {
            let attachment = loaded_port.attachment.as_ref()?;
            let is_reader = attachment.xdp_path && (is_shared || attachment.reading.is_some());
            let (port, mode) = (loaded_port.port.clone(), attachment.mode);
            let beside = is_shared && self.may_have_beside(&port, mode.is_tc());
            is_reader.then_some(Wanted { port, mode, beside })
        };
        let readers = self.ports.values().filter_map(reader);
        let with_beside = readers.flat_map(|wanted| {
            let beside = wanted.beside.then(|| Wanted { mode: Mode::Tcx, ..wanted.clone() });
            std::iter::once(wanted).chain(beside)
        });
        with_beside.collect()
    }

    /// Lets the programs of all ports with the XDP path decide by tables, if these lie in maps; otherwise by flows
    /// only. To hold no lock while programs are loaded, use [`XdpPrograms::renewal`].
    ///
    /// # Errors
    /// As [`Renewal::load`] and [`XdpPrograms::renew`].
    pub fn use_tables(&mut self, tables: &Tables) -> Result<(), XdpError> {
        let mut renewal = self.renewal(SharedTables::of(tables));
        let loaded = renewal.load();
        let renewed = self.renew(renewal);
        loaded.and(renewed)
    }

    /// Whether programs with the XDP path decide by tables.
    #[must_use]
    pub const fn has_tables(&self) -> bool {
        self.tables.is_some()
    }
}
