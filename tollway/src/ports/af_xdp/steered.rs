//! The steering program as a port's own.

use std::fs::File;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, TryLockError};

use tollway_dataplane::id::PortId;

use super::Kept;
use super::steps::{Program, Refusal, Target};
use crate::express::Ports;
use crate::model::{ExpressMode, Mac};
use crate::steer::{Mode, SteerError, SteerLink, SteerPort, Steering};
use crate::sync::lock;

/// The steering program of one port.
pub struct Steered {
    steering: Arc<Mutex<Steering>>,
    port: PortId,
    plan: Arc<Mutex<Plan>>,
    /// By which frames are handed back to the kernel.
    tap: Option<File>,
    lane: LaneOfPort,
    /// Where it was last attached.
    mode: Mode,
    device: String,
}

/// What a port's program is to know, by the configuration in force.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The links on the port.
    pub links: Vec<SteerLink>,
    /// The port's address where it is not to be its device's.
    pub mac: Option<Mac>,
}

/// What a port has to do with the express lane.
#[derive(Clone)]
pub struct LaneOfPort {
    /// Whether it is to have it.
    pub wanted: ExpressMode,
    /// Where it is told that it has.
    pub ports: Arc<Ports>,
}

impl Steered {
    /// The program of a port that is to be as `plan` says at every time.
    #[must_use]
    pub fn new(
        steering: &Arc<Mutex<Steering>>,
        port: PortId,
        plan: &Arc<Mutex<Plan>>,
        lane: LaneOfPort,
    ) -> Self {
        let (steering, plan, device) = (Arc::clone(steering), Arc::clone(plan), String::new());
        Self { steering, port, plan, tap: None, lane, mode: Mode::Native, device }
    }

    fn try_attach(&mut self, target: Target<'_>, mode: Mode) -> Result<(), SteerError> {
        // The old one is to be gone before another is made under its name.
        self.tap = None;
        // Whoever changes the plan has the steering: so either this knows of it, or they find the port.
        let mut steering = lock(&self.steering);
        let plan = lock(&self.plan).clone();
        let port = SteerPort {
            port: self.port,
            device: target.device.to_owned(),
            ifindex: target.ifindex,
            mac: plan.mac.unwrap_or(target.mac),
            queues: target.queues,
            links: plan.links,
        };
        let attached = steering.serve(port, &[mode], false)?;
        if let Some(note) = attached.note {
            tracing::warn!("{}: {note}", target.device);
        }
        self.tap = Some(File::from(steering.punt_tap(self.port, target.mtu)?));
        (self.mode, self.device) = (mode, target.device.to_owned());
        Ok(())
    }
}

impl Drop for Steered {
    fn drop(&mut self) {
        self.detach();
    }
}

impl From<&SteerError> for Refusal {
    fn from(error: &SteerError) -> Self {
        let is_final = matches!(
            error,
            SteerError::OtherProgram { .. }
                | SteerError::Served { .. }
                | SteerError::Silent { .. }
                | SteerError::NoDevice { .. }
                | SteerError::TooMany { .. }
        );
        Self { what: error.to_string(), remedy: error.remedy(), is_final }
    }
}

impl Kept for Steered {
    fn is_attached(&self) -> bool {
        match self.steering.try_lock() {
            Ok(steering) => steering.is_attached(self.port),
            Err(TryLockError::Poisoned(error)) => error.into_inner().is_attached(self.port),
            // Somebody is about to attach: the worker does not wait for that.
            Err(TryLockError::WouldBlock) => true,
        }
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

    fn bound(&mut self, zero_copy: bool) {
        if !self.lane.wanted.is_on(zero_copy) {
            return;
        }
        let mut steering = lock(&self.steering);
        if zero_copy && let Some(refusals) = steering.refusals() {
            refusals.expect_bare();
        }
        match steering.attach(self.port, &[self.mode], true) {
            Ok(_) => self.lane.ports.set_entrance(self.port, true),
            Err(error) => {
                tracing::warn!("{}: there is no express lane: {error}", self.device);
            }
        }
    }

    fn detach(&mut self) {
        self.tap = None;
        self.lane.ports.set_entrance(self.port, false);
        lock(&self.steering).remove_port(self.port);
    }

    fn can_punt(&self) -> bool {
        self.tap.is_some()
    }

    fn punt(&mut self, frame: &[u8]) -> bool {
        self.tap.as_mut().is_some_and(|tap| tap.write(frame).is_ok())
    }
}
