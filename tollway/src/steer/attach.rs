//! Puts the steering program on a device, in the place of a dead or willing predecessor's.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::error::SteerError;
use super::pin::{Claim, Pins};
use super::{Mode, SteerPort, sys};

/// How the program came to a device.
#[derive(Debug)]
pub struct Attached {
    /// Where it runs.
    pub mode: Mode,
    /// It took the place of another program of Tollway's, between two packets.
    pub replaced: bool,
    /// Why it does not run in a mode that was wanted before this one.
    pub step_down: Option<SteerError>,
    /// What a user should know of the device.
    pub note: Option<String>,
}

/// The program on a device.
pub(super) struct Attachment {
    link: OwnedFd,
    /// The program's number.
    program: u32,
    pins: Pins,
    /// None where the device was taken from one that holds on to it.
    claim: Option<Claim>,
    pub(super) mode: Mode,
    /// The program has the express lane.
    pub(super) express: bool,
}

impl Attachment {
    /// Attaches by the first of the modes that works; `before` is how the program is there already.
    pub(super) fn make(
        port: &SteerPort,
        modes: &[Mode],
        (before, state): (Option<&Self>, BorrowedFd<'_>),
        replace: bool,
        program: &mut dyn FnMut(Mode) -> Result<OwnedFd, SteerError>,
    ) -> Result<(Self, Attached), SteerError> {
        let device = port.device.as_str();
        let pins = Pins::of(port.ifindex)?;
        let claim = match before.and_then(|before| before.claim.as_ref()) {
            Some(claim) => claim.share().map(Some),
            None => pins.claim(),
        };
        let claim = claim.map_err(SteerError::system(device, "claiming"))?;
        if claim.is_none() && !replace {
            let device = device.to_owned();
            let alive = pins.are_alive();
            return Err(if alive {
                SteerError::Served { device }
            } else {
                SteerError::Silent { device }
            });
        }
        let made = |link: OwnedFd, mode, pins| {
            let program = sys::link_program(link.as_fd())
                .map_err(SteerError::system(device, "looking at its link"))?
                .0;
            Ok(Self { link, program, pins, claim, mode, express: false })
        };
        if let Some((mode, link)) = predecessor(port, &pins)? {
            if !pins.are_of(state) && !replace && pins.are_alive() {
                return Err(SteerError::Served { device: device.to_owned() });
            }
            if modes.first() == Some(&mode) {
                let program = program(mode)?;
                sys::replace(link.as_fd(), program.as_fd())
                    .map_err(SteerError::system(device, "taking its program's place"))?;
                pins.keep(None, state).map_err(SteerError::system(device, "pinning"))?;
                let attached = Attached { mode, replaced: true, step_down: None, note: None };
                return Ok((made(link, mode, pins)?, attached));
            }
            sys::detach(link.as_fd()).map_err(SteerError::system(device, "detaching"))?;
            pins.empty();
        }
        let mut step_down = None;
        for mode in modes {
            let program = program(*mode)?;
            match sys::attach(program.as_fd(), port.ifindex, mode.flag()) {
                Ok(link) => {
                    let keep = pins.keep(Some((*mode, link.as_fd())), state);
                    keep.map_err(SteerError::system(device, "pinning"))?;
                    let attached = Attached { mode: *mode, replaced: false, step_down, note: None };
                    return Ok((made(link, *mode, pins)?, attached));
                }
                Err(error) => step_down = Some(refused(device, *mode, error)?),
            }
        }
        Err(step_down.unwrap_or_else(|| SteerError::NoDevice { device: device.to_owned() }))
    }

    /// Takes the program off the device, unless a successor's is there by now.
    pub(super) fn end(self, state: BorrowedFd<'_>) {
        if self.pins.are_of(state) {
            // A device that is gone has lost its program already.
            let _ = sys::detach(self.link.as_fd());
            self.pins.empty();
            // Whoever had it may have ended before.
            drop(self.claim.or_else(|| self.pins.claim().ok().flatten()));
        }
    }

    /// Says if the device is still there with this program, which nobody has taken off or replaced.
    pub(super) fn is_there(&self) -> bool {
        let now = sys::link_program(self.link.as_fd());
        now.is_ok_and(|(program, ifindex)| ifindex != 0 && program == self.program)
    }
}

/// The link that somebody left on the device; names that are left of another device are removed.
fn predecessor(port: &SteerPort, pins: &Pins) -> Result<Option<(Mode, OwnedFd)>, SteerError> {
    let Some((mode, link)) = pins.link() else {
        pins.empty();
        return Ok(None);
    };
    let ifindex = sys::link_ifindex(link.as_fd())
        .map_err(SteerError::system(&port.device, "looking at its link"))?;
    if ifindex != port.ifindex {
        pins.empty();
        return Ok(None);
    }
    Ok(Some((mode, link)))
}

/// Why a mode did not work; an error if no other will.
fn refused(device: &str, mode: Mode, error: io::Error) -> Result<SteerError, SteerError> {
    match error.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => {
            Err(SteerError::OtherProgram { device: device.to_owned() })
        }
        Some(libc::EPERM | libc::ENODEV) => Err(SteerError::system(device, "attaching")(error)),
        _ if mode == Mode::Native => Ok(SteerError::NotNative { device: device.to_owned(), error }),
        _ => Err(SteerError::system(device, "attaching")(error)),
    }
}
