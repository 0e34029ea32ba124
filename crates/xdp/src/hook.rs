//! Where a program runs on a device: a BPF link, or a filter of `clsact`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{Mode, clsact, sys};

/// A program's place on a device.
pub(super) enum Hook {
    /// A link, which has the program.
    Link(OwnedFd),
    /// The filter of `clsact`, and its program.
    Filter {
        /// The program.
        program: OwnedFd,
        /// The device.
        ifindex: u32,
    },
}

impl Hook {
    /// Attaches a program to a device.
    pub(super) fn attach(mode: Mode, program: BorrowedFd<'_>, ifindex: u32) -> io::Result<Self> {
        let place = match mode {
            Mode::Native => (sys::XDP, sys::XDP_NATIVE),
            Mode::Generic => (sys::XDP, sys::XDP_GENERIC),
            Mode::Tcx => (sys::TCX_INGRESS, 0),
            Mode::Clsact => {
                clsact::attach(ifindex, program)?;
                return Ok(Self::Filter { program: program.try_clone_to_owned()?, ifindex });
            }
        };
        sys::attach(program, ifindex, place).map(Self::Link)
    }

    /// The place that a pinned object stands for.
    pub(super) fn of_pinned(mode: Mode, object: OwnedFd, ifindex: u32) -> Self {
        match mode {
            Mode::Clsact => Self::Filter { program: object, ifindex },
            _ => Self::Link(object),
        }
    }

    /// The object to pin: it leads to the place again.
    pub(super) fn object(&self) -> BorrowedFd<'_> {
        match self {
            Self::Link(link) => link.as_fd(),
            Self::Filter { program, .. } => program.as_fd(),
        }
    }

    /// Puts another program into the place, between two packets.
    pub(super) fn replace(&mut self, new: BorrowedFd<'_>) -> io::Result<()> {
        match self {
            Self::Link(link) => sys::replace(link.as_fd(), new),
            Self::Filter { program, ifindex } => {
                clsact::attach(*ifindex, new)?;
                *program = new.try_clone_to_owned()?;
                Ok(())
            }
        }
    }

    /// Empties the place, even if other processes have it.
    pub(super) fn detach(&self) -> io::Result<()> {
        match self {
            Self::Link(link) => sys::detach(link.as_fd()),
            Self::Filter { ifindex, .. } => clsact::detach(*ifindex),
        }
    }

    /// The id of the program that is there, and the device's ifindex; 0 if the device is gone, or the filter.
    pub(super) fn program(&self) -> io::Result<(u32, u32)> {
        match self {
            Self::Link(link) => sys::link_program(link.as_fd()),
            Self::Filter { ifindex, .. } => {
                Ok(clsact::program(*ifindex)?.map_or((0, 0), |program| (program, *ifindex)))
            }
        }
    }
}
