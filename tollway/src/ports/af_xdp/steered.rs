//! The steering program as a port's own.

use std::fs::File;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollway_dataplane::id::PortId;

use super::steps::{Program, Refusal, Target};
use crate::model::Mac;
use crate::steer::{Mode, SteerError, SteerLink, SteerPort, Steering};

/// The steering program of one port.
pub struct Steered {
    steering: Arc<Mutex<Steering>>,
    port: PortId,
    links: Vec<SteerLink>,
    /// The port's address where it is not to be its device's.
    mac: Option<Mac>,
    /// By which frames are handed back to the kernel.
    tap: Option<File>,
}

impl Steered {
    /// The program of a port with these links, whose address is `mac`, or else its device's.
    #[must_use]
    pub fn new(
        steering: &Arc<Mutex<Steering>>,
        port: PortId,
        links: Vec<SteerLink>,
        mac: Option<Mac>,
    ) -> Self {
        Self { steering: Arc::clone(steering), port, links, mac, tap: None }
    }

    fn try_attach(&mut self, target: Target<'_>, mode: Mode) -> Result<(), SteerError> {
        let port = SteerPort {
            port: self.port,
            device: target.device.to_owned(),
            ifindex: target.ifindex,
            mac: self.mac.unwrap_or(target.mac),
            queues: target.queues,
            links: self.links.clone(),
        };
        // The old one is to be gone before another is made under its name.
        self.tap = None;
        let mut steering = lock(&self.steering);
        steering.set_port(port)?;
        let attached = steering.attach(self.port, &[mode], false)?;
        if let Some(note) = attached.note {
            tracing::warn!("{}: {note}", target.device);
        }
        self.tap = Some(File::from(steering.punt_tap(self.port, target.mtu)?));
        Ok(())
    }
}

fn lock(steering: &Mutex<Steering>) -> MutexGuard<'_, Steering> {
    steering.lock().unwrap_or_else(PoisonError::into_inner)
}

impl From<&SteerError> for Refusal {
    fn from(error: &SteerError) -> Self {
        let is_final = matches!(
            error,
            SteerError::OtherProgram { .. }
                | SteerError::Served { .. }
                | SteerError::NoDevice { .. }
                | SteerError::TooMany { .. }
        );
        Self { what: error.to_string(), remedy: error.remedy(), is_final }
    }
}

impl Program for Steered {
    fn attach(&mut self, target: Target<'_>, generic: bool) -> Result<(), Refusal> {
        let mode = if generic { Mode::Generic } else { Mode::Native };
        self.try_attach(target, mode).map_err(|error| {
            self.detach();
            Refusal::from(&error)
        })
    }

    fn set_socket(&mut self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), Refusal> {
        let set = lock(&self.steering).set_socket(self.port, queue, socket);
        set.map_err(|error| Refusal::from(&error))
    }

    fn detach(&mut self) {
        self.tap = None;
        lock(&self.steering).remove_port(self.port);
    }

    fn can_punt(&self) -> bool {
        self.tap.is_some()
    }

    fn punt(&mut self, frame: &[u8]) -> bool {
        self.tap.as_mut().is_some_and(|tap| tap.write(frame).is_ok())
    }
}
