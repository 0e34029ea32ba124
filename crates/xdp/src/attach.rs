//! Attaches the XDP program to a device, replacing that of a predecessor that is dead or gives way.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use aya::Ebpf;

use super::error::XdpError;
use super::pin::{Claim, Pins};
use super::{Mode, XdpPort, sys};

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
    link: OwnedFd,
    /// The program's id.
    program: u32,
    pins: Pins,
    /// `None` if the device was taken from a process that still has the lock.
    claim: Option<Claim>,
    pub(super) mode: Mode,
    /// The rest of the program's object, until somebody takes it.
    pub(super) object: Option<Ebpf>,
    /// Whether the program has the XDP path.
    pub(super) xdp_path: bool,
}

impl Attachment {
    /// Attaches in the first of the modes that works; `before` is the existing attachment, if any.
    pub(super) fn make(
        port: &XdpPort,
        modes: &[Mode],
        (before, state): (Option<&Self>, BorrowedFd<'_>),
        replace: bool,
        program: &mut dyn FnMut(Mode) -> Result<(OwnedFd, Ebpf), XdpError>,
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
        let made = |link: OwnedFd, mode, pins, object| {
            let program = sys::link_program(link.as_fd())
                .map_err(XdpError::system(device, "looking at its link"))?
                .0;
            Ok(Self { link, program, pins, claim, mode, object: Some(object), xdp_path: false })
        };
        if let Some((mode, link)) = predecessor(port, &pins)? {
            if !pins.are_of(state) && !replace && pins.are_alive() {
                return Err(XdpError::Served { device: device.to_owned() });
            }
            if modes.first() == Some(&mode) {
                let (program, object) = program(mode)?;
                sys::replace(link.as_fd(), program.as_fd())
                    .map_err(XdpError::system(device, "taking its program's place"))?;
                pins.keep(None, state).map_err(XdpError::system(device, "pinning"))?;
                let attached = Attached { mode, replaced: true, step_down: None, note: None };
                return Ok((made(link, mode, pins, object)?, attached));
            }
            sys::detach(link.as_fd()).map_err(XdpError::system(device, "detaching"))?;
            pins.empty();
        }
        let mut step_down = None;
        for mode in modes {
            let (program, object) = program(*mode)?;
            match sys::attach(program.as_fd(), port.ifindex, mode.flag()) {
                Ok(link) => {
                    let keep = pins.keep(Some((*mode, link.as_fd())), state);
                    keep.map_err(XdpError::system(device, "pinning"))?;
                    let attached = Attached { mode: *mode, replaced: false, step_down, note: None };
                    return Ok((made(link, *mode, pins, object)?, attached));
                }
                Err(error) => step_down = Some(refused(device, *mode, error)?),
            }
        }
        Err(step_down.unwrap_or_else(|| XdpError::NoDevice { device: device.to_owned() }))
    }

    /// Detaches the program, unless a successor's is on the device by now.
    pub(super) fn end(self, state: BorrowedFd<'_>) {
        if self.pins.are_of(state) {
            // A device that is gone has lost its program already.
            let _ = sys::detach(self.link.as_fd());
            self.pins.empty();
            // The process that had the lock may have ended.
            drop(self.claim.or_else(|| self.pins.claim().ok().flatten()));
        }
    }

    /// Whether the device still exists with this program, neither detached nor replaced.
    pub(super) fn is_there(&self) -> bool {
        let now = sys::link_program(self.link.as_fd());
        now.is_ok_and(|(program, ifindex)| ifindex != 0 && program == self.program)
    }
}

/// The link that a predecessor left on the device; removes pins that belong to another device.
fn predecessor(port: &XdpPort, pins: &Pins) -> Result<Option<(Mode, OwnedFd)>, XdpError> {
    let Some((mode, link)) = pins.link() else {
        pins.empty();
        return Ok(None);
    };
    let ifindex = sys::link_ifindex(link.as_fd())
        .map_err(XdpError::system(&port.device, "looking at its link"))?;
    if ifindex != port.ifindex {
        pins.empty();
        return Ok(None);
    }
    Ok(Some((mode, link)))
}

/// Why a mode did not work; an error if no other mode will work.
fn refused(device: &str, mode: Mode, error: io::Error) -> Result<XdpError, XdpError> {
    match error.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => {
            Err(XdpError::OtherProgram { device: device.to_owned() })
        }
        Some(libc::EPERM | libc::ENODEV) => Err(XdpError::system(device, "attaching")(error)),
        _ if mode == Mode::Native => Ok(XdpError::NotNative { device: device.to_owned(), error }),
        _ => Err(XdpError::system(device, "attaching")(error)),
    }
}
