//! The XDP program as owned by its port.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, TryLockError};

use tollway_dataplane::id::PortId;

use super::OwnedProgram;
use super::steps::{Program, Punter, Refusal, Target};
use tollway_linux::sync::lock;
use tollway_model::XdpPathMode;
use tollway_net::Mac;
use tollway_xdp::xdp_path::Ports;
use tollway_xdp::{BesideState, Mode, Preparation, XdpError, XdpLink, XdpPort, XdpPrograms};

/// The XDP program of one port.
pub struct LoadedPort {
    programs: Arc<Mutex<XdpPrograms>>,
    port: PortId,
    plan: Arc<Mutex<Plan>>,
    /// The TAP device that hands frames back to the kernel.
    tap: Option<Arc<File>>,
    xdp_path: XdpPathOfPort,
    /// The mode of the last attachment.
    mode: Mode,
    device: String,
}

/// The configuration of a port's program, from the active model.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The links on the port.
    pub links: Vec<XdpLink>,
    /// The port's address, if it differs from its device's.
    pub mac: Option<Mac>,
    /// Whether its device belongs to a bridge.
    pub is_bridge_port: bool,
}

/// A port's relation to the XDP path.
#[derive(Clone)]
pub struct XdpPathOfPort {
    /// Whether the port is to have it.
    pub wanted: XdpPathMode,
    /// Where the port registers that it has it.
    pub ports: Arc<Ports>,
}

impl LoadedPort {
    /// Creates the program of a port, which always follows `plan`.
    #[must_use]
    pub fn new(
        programs: &Arc<Mutex<XdpPrograms>>,
        port: PortId,
        plan: &Arc<Mutex<Plan>>,
        xdp_path: XdpPathOfPort,
    ) -> Self {
        let (programs, plan, device) = (Arc::clone(programs), Arc::clone(plan), String::new());
        Self { programs, port, plan, tap: None, xdp_path, mode: Mode::Native, device }
    }

    fn try_attach(&mut self, target: Target<'_>, mode: Mode) -> Result<(), XdpError> {
        // The old device must be gone before another is created under its name.
        self.tap = None;
        let prepared = self.prepared(self.port_on(target), mode, false);
        // A writer of the plan holds this lock. So either this sees the new plan, or the writer
        // finds the port.
        let mut programs = lock(&self.programs);
        let attached = programs.with_prepared(Some(prepared), |programs| {
            programs.serve(self.port_on(target), &[mode], false)
        })?;
        if let Some(note) = attached.note {
            tracing::warn!("{}: {note}", target.device);
        }
        self.tap = Some(Arc::new(File::from(programs.punt_tap(self.port, target.mtu)?)));
        (self.mode, self.device) = (mode, target.device.to_owned());
        Ok(())
    }

    /// Loads the programs of an attachment while others may have the lock.
    fn prepared(&self, port: XdpPort, mode: Mode, xdp_path: bool) -> Preparation {
        let preparation = lock(&self.programs).preparation(port, mode, xdp_path);
        preparation.load()
    }

    /// Asks something, unless another thread is attaching a program: the worker does not wait for that.
    fn ask<T>(&self, question: impl FnOnce(&XdpPrograms) -> T) -> Option<T> {
        match self.programs.try_lock() {
            Ok(programs) => Some(question(&programs)),
            Err(TryLockError::Poisoned(error)) => Some(question(&error.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The port by its plan, on a device.
    fn port_on(&self, target: Target<'_>) -> XdpPort {
        let plan = lock(&self.plan).clone();
        XdpPort {
            port: self.port,
            device: target.device.to_owned(),
            ifindex: target.ifindex,
            mac: plan.mac.unwrap_or(target.mac),
            queues: target.queues,
            links: plan.links,
            is_bridge_port: plan.is_bridge_port,
        }
    }
}

impl Drop for LoadedPort {
    fn drop(&mut self) {
        self.detach();
    }
}

impl From<&XdpError> for Refusal {
    fn from(error: &XdpError) -> Self {
        let is_final = matches!(
            error,
            XdpError::OtherProgram { .. }
                | XdpError::Served { .. }
                | XdpError::Silent { .. }
                | XdpError::NoDevice { .. }
                | XdpError::TooMany { .. }
        );
        Self { what: error.to_string(), remedy: error.remedy(), is_final }
    }
}

impl OwnedProgram for LoadedPort {
    fn attach_tc(&mut self, target: Target<'_>) -> Result<&'static str, Refusal> {
        let prepared = self.prepared(self.port_on(target), Mode::Tcx, true);
        let mut programs = lock(&self.programs);
        let attached = programs.with_prepared(Some(prepared), |programs| {
            programs.serve(self.port_on(target), &Mode::TC, true)
        });
        let mode = attached.map_err(|error| Refusal::from(&error))?.mode;
        self.xdp_path.ports.set_entrance(self.port, true);
        Ok(if mode == Mode::Tcx { "tc program (tcx)" } else { "tc program (clsact)" })
    }

    fn is_attached(&self) -> bool {
        self.ask(|programs| programs.is_attached(self.port)).unwrap_or(true)
    }

    fn beside(&self) -> Option<BesideState> {
        self.ask(|programs| programs.beside(self.port))
    }
}

impl Program for LoadedPort {
    fn attach(&mut self, target: Target<'_>, generic: bool) -> Result<(), Refusal> {
        let mode = if generic { Mode::Generic } else { Mode::Native };
        self.try_attach(target, mode).map_err(|error| {
            self.detach();
            Refusal::from(&error)
        })
    }

    fn set_socket(&mut self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), Refusal> {
        let set = lock(&self.programs).set_socket(self.port, queue, socket);
        set.map_err(|error| Refusal::from(&error))
    }

    fn bound(&mut self, zero_copy: bool, multi_buffer: bool) {
        if !self.xdp_path.wanted.is_on(zero_copy) {
            return;
        }
        if zero_copy && multi_buffer {
            // The kernel would redirect the first piece of a frame only (`xdp_convert_zc_to_xdp_frame`).
            tracing::warn!(
                "{}: there is no XDP path for what arrives there: frames may have several pieces, of \
                 which zero-copy sockets lose all but the first; copy mode and smaller MTUs have one",
                self.device
            );
            return;
        }
        let port = lock(&self.programs).port(self.port).cloned();
        let prepared = port.map(|port| self.prepared(port, self.mode, true));
        let mut programs = lock(&self.programs);
        if zero_copy && let Some(refusals) = programs.refusals() {
            refusals.expect_bare();
        }
        let attached = programs
            .with_prepared(prepared, |programs| programs.attach(self.port, &[self.mode], true));
        match attached {
            Ok(_) => self.xdp_path.ports.set_entrance(self.port, true),
            Err(error) => {
                tracing::warn!("{}: there is no XDP path: {error}", self.device);
            }
        }
    }

    fn detach(&mut self) {
        self.tap = None;
        self.xdp_path.ports.set_entrance(self.port, false);
        lock(&self.programs).remove_port(self.port);
    }

    fn punter(&self) -> Option<Punter> {
        self.tap.as_ref().map(Punter::new)
    }
}
