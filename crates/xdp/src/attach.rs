//! Attaches a program to a device, replacing that of a predecessor that is dead or gives way.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use aya::Ebpf;

use super::beside::Beside;
use super::error::XdpError;
use super::hook::Hook;
use super::pin::{Claim, Pins};
use super::reading::Reading;
use super::{Mode, XdpPort};

/// How the program was attached to a device.
#[derive(Debug)]
pub struct Attached {
    /// The mode in which it runs.
    pub mode: Mode,
    /// Whether it replaced another Tollway program, between two packets.
    pub replaced: bool,
    /// Why it does not run in a mode that was preferred to this one.
    pub step_down: Option<XdpError>,
    /// A note about the device for the user.
    pub note: Option<String>,
}

/// The program on a device.
pub(super) struct Attachment {
    hook: Hook,
    /// The program's id.
    program: u32,
    pins: Pins,
    /// `None` if the device was taken from a process that still has the lock.
    claim: Option<Claim>,
    pub(super) mode: Mode,
    /// The rest of an XDP program's object, until somebody takes it.
    pub(super) object: Option<Ebpf>,
    /// Whether the program has the XDP path.
    pub(super) xdp_path: bool,
    /// What the program reads, as long as it runs.
    pub(super) reading: Option<Reading>,
    /// A tc program beside it.
    pub(super) beside: Option<Beside>,
}

impl Attachment {
    /// Attaches in the first of the modes that works; `before` is the existing attachment, if any.
    pub(super) fn make(
        port: &XdpPort,
        modes: &[Mode],
        (before, state): (Option<&Self>, BorrowedFd<'_>),
        replace: bool,
        program: &mut dyn FnMut(Mode) -> Result<(OwnedFd, Option<Ebpf>), XdpError>,
    ) -> Result<(Self, Attached), XdpError> {
        let device = port.device.as_str();
        let pins = Pins::of(port.ifindex)?;
        let claim = match before.and_then(|before| before.claim.as_ref()) {
            Some(claim) => claim.share().map(Some),
            None => pins.claim(),
        };
        let claim = claim.map_err(XdpError::system(device, "claiming"))?;
        if claim.is_none() && !replace {
            let device = device.to_owned();
            let alive = pins.are_alive();
            return Err(if alive {
                XdpError::Served { device }
            } else {
                XdpError::Silent { device }
            });
        }
        let made = |hook: Hook, mode, pins, object| {
            let program =
                hook.program().map_err(XdpError::system(device, "looking at its link"))?.0;
            let (xdp_path, reading, beside) = (false, None, None);
            Ok(Self { hook, program, pins, claim, mode, object, xdp_path, reading, beside })
        };
        if let Some((mode, mut hook)) = predecessor(port, &pins)? {
            if !pins.are_of(state) && !replace && pins.are_alive() {
                return Err(XdpError::Served { device: device.to_owned() });
            }
            // A filter is where the kernel has nothing better.
            if modes.first() == Some(&mode) || mode == Mode::Clsact && modes.contains(&mode) {
                let (program, object) = program(mode)?;
                hook.replace(program.as_fd())
                    .map_err(XdpError::system(device, "taking its program's place"))?;
                pins.keep((mode, &hook), state).map_err(XdpError::system(device, "pinning"))?;
                let attached = Attached { mode, replaced: true, step_down: None, note: None };
                return Ok((made(hook, mode, pins, object)?, attached));
            }
            hook.detach().map_err(XdpError::system(device, "detaching"))?;
            pins.empty();
        }
        let mut step_down = None;
        for mode in modes {
            let (program, object) = program(*mode)?;
            match Hook::attach(*mode, program.as_fd(), port.ifindex) {
                Ok(hook) => {
                    let keep = pins.keep((*mode, &hook), state);
                    keep.map_err(XdpError::system(device, "pinning"))?;
                    let attached = Attached { mode: *mode, replaced: false, step_down, note: None };
                    return Ok((made(hook, *mode, pins, object)?, attached));
                }
                Err(error) => step_down = Some(refused(device, *mode, error)?),
            }
        }
        Err(step_down.unwrap_or_else(|| XdpError::NoDevice { device: device.to_owned() }))
    }

    /// Replaces the program between two packets by one of the same mode, with what that reads. If the device is gone,
    /// or the program was detached or replaced, nothing happens: the port notices this itself, and attaches again.
    pub(super) fn replace(
        &mut self,
        (new, reading): (BorrowedFd<'_>, Option<Reading>),
        state: BorrowedFd<'_>,
    ) -> io::Result<()> {
        if !self.is_there() {
            return Ok(());
        }
        if let Err(error) = self.hook.replace(new) {
            // The device may have gone at this moment.
            return if self.is_there() { Err(error) } else { Ok(()) };
        }
        // The old program may still run for some packets; the end of a reading waits for these.
        self.reading = reading;
        self.program = self.hook.program()?.0;
        self.pins.keep((self.mode, &self.hook), state)
    }

    /// Detaches the program, unless a successor's is on the device by now.
    pub(super) fn end(mut self, state: BorrowedFd<'_>) {
        self.end_beside(state);
        if self.pins.are_of(state) {
            // A device that is gone has lost its program already.
            let _ = self.hook.detach();
            self.pins.empty();
            // The process that had the lock may have ended.
            drop(self.claim.or_else(|| self.pins.claim().ok().flatten()));
        }
    }

    /// Detaches the tc program beside it, unless a successor's is there by now.
    pub(super) fn end_beside(&mut self, state: BorrowedFd<'_>) {
        let beside = self.beside.take();
        if self.pins.are_of(state) {
            self.pins.end_beside();
        }
        // No packet meets it any more, so what it reads may go.
        drop(beside);
    }

    /// Whether the device still exists with this program, neither detached nor replaced.
    pub(super) fn is_there(&self) -> bool {
        let now = self.hook.program();
        now.is_ok_and(|(program, ifindex)| ifindex != 0 && program == self.program)
    }

    /// Whether somebody has detached or replaced the tc program beside it.
    pub(super) fn lacks_beside(&self) -> bool {
        self.beside.as_ref().is_some_and(|beside| !beside.is_there())
    }
}

/// The program that a predecessor left on the device; removes pins that belong to another device.
fn predecessor(port: &XdpPort, pins: &Pins) -> Result<Option<(Mode, Hook)>, XdpError> {
    let Some((mode, hook)) = pins.hook() else {
        pins.empty();
        return Ok(None);
    };
    let (_, ifindex) =
        hook.program().map_err(XdpError::system(&port.device, "looking at its link"))?;
    if ifindex != port.ifindex {
        pins.empty();
        return Ok(None);
    }
    Ok(Some((mode, hook)))
}

/// Why a mode did not work; an error if no other mode will work.
fn refused(device: &str, mode: Mode, error: io::Error) -> Result<XdpError, XdpError> {
    match error.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) if mode.is_tc() => {
            Err(XdpError::OtherFilter { device: device.to_owned() })
        }
        Some(libc::EBUSY | libc::EEXIST) => {
            Err(XdpError::OtherProgram { device: device.to_owned() })
        }
        Some(libc::EPERM | libc::ENODEV) => Err(XdpError::system(device, "attaching")(error)),
        _ if mode == Mode::Native => Ok(XdpError::NotNative { device: device.to_owned(), error }),
        // A kernel without tcx.
        Some(libc::EINVAL) if mode == Mode::Tcx => Ok(XdpError::system(device, "attaching")(error)),
        _ => Err(XdpError::system(device, "attaching")(error)),
    }
}
