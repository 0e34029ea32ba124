//! Changes of the tables that programs decide by.
//!
//! To load a program takes the kernel tens of milliseconds, and to replace one microseconds. So all programs are loaded
//! first, beside those that run and without the lock of [`XdpPrograms`]; then they replace those in one go. A program
//! that cannot be replaced runs on: its memory waits for it, and its tables decide nothing once others are active.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tollway_dataplane::id::PortId;
use tollway_dataplane::tables::Tables;

use super::{Mode, XdpError, XdpPort, XdpPrograms};
use crate::load::{Maps, Variant};
use crate::reading::{Reading, SharedTables};

/// The programs of all ports with the XDP path for other tables, before they run.
pub struct Renewal {
    maps: Arc<Maps>,
    tables: Option<SharedTables>,
    reading: Option<Reading>,
    wanted: Vec<(XdpPort, Mode)>,
    loaded: BTreeMap<PortId, LoadedProgram>,
}

/// A program that does not run yet.
struct LoadedProgram {
    port: XdpPort,
    mode: Mode,
    program: OwnedFd,
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
        for (port, mode) in &self.wanted {
            let variant = Variant { mode: *mode, xdp_path: true, tables };
            // The object of the attached program serves on for the TAP device.
            let (program, _) = self.maps.program(port, variant)?;
            let loaded = LoadedProgram { port: port.clone(), mode: *mode, program };
            self.loaded.insert(port.port, loaded);
        }
        Ok(())
    }

    /// Whether it has the program for a port.
    fn has(&self, port: &XdpPort, mode: Mode) -> bool {
        let loaded = self.loaded.get(&port.port);
        loaded.is_some_and(|loaded| loaded.port == *port && loaded.mode == mode)
    }
}

impl XdpPrograms {
    /// Begins to let the programs of all ports with the XDP path decide by tables, or by flows only if there are none.
    #[must_use]
    pub fn renewal(&self, tables: Option<SharedTables>) -> Renewal {
        let wanted = self.readers(tables.is_some());
        let maps = Arc::clone(&self.maps);
        Renewal { maps, tables, reading: None, wanted, loaded: BTreeMap::new() }
    }

    /// Replaces the programs that run by those of a renewal. The tables say when they may be used
    /// ([`Tables::write_engines`]).
    ///
    /// # Errors
    /// The system refused for a port; the others have their programs.
    pub fn renew(&mut self, mut renewal: Renewal) -> Result<(), XdpError> {
        // Ports may have come, or changed, while the programs were loaded.
        let readers = self.readers(renewal.tables.is_some());
        renewal.wanted =
            readers.into_iter().filter(|(port, mode)| !renewal.has(port, *mode)).collect();
        let mut done = renewal.try_load();
        let Renewal { tables, reading, loaded, .. } = renewal;
        self.tables = tables;
        for (port, loaded) in loaded {
            let replaced = self.replace(port, &loaded, reading.clone());
            done = done.and(replaced);
        }
        done
    }

    /// Replaces a port's program, if it still needs this one.
    fn replace(
        &mut self,
        port: PortId,
        loaded: &LoadedProgram,
        reading: Option<Reading>,
    ) -> Result<(), XdpError> {
        let Some(running) = self.ports.get_mut(&port) else { return Ok(()) };
        let (device, is_same) = (&running.port.device, running.port == loaded.port);
        let attachment = running
            .attachment
            .as_mut()
            .filter(|attachment| is_same && attachment.xdp_path && attachment.mode == loaded.mode);
        let Some(attachment) = attachment else { return Ok(()) };
        let replaced =
            attachment.replace((loaded.program.as_fd(), reading), self.maps.state.as_fd());
        replaced.map_err(XdpError::system(device, "taking its program's place"))
    }

    /// The ports whose programs have to be replaced, with their modes.
    fn readers(&self, is_shared: bool) -> Vec<(XdpPort, Mode)> {
        let reader = |loaded_port: &super::LoadedPort| {
            let attachment = loaded_port.attachment.as_ref()?;
            let is_reader = attachment.xdp_path && (is_shared || attachment.reading.is_some());
            is_reader.then(|| (loaded_port.port.clone(), attachment.mode))
        };
        self.ports.values().filter_map(reader).collect()
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
