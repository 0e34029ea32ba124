//! A program that runs on frames in memory.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use super::reading::Reading;
use super::{Mode, sys};

/// The program's verdict on a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The kernel gets it.
    Pass,
    /// Another device or a socket gets it.
    Redirect,
    /// Nobody gets it.
    Drop,
    /// Anything else; the program returns this only if the kernel breaks a promise.
    Other(u32),
}

/// A port's program, attached to no device.
pub struct Program {
    program: OwnedFd,
    is_tc: bool,
    /// What it reads.
    _reading: Option<Reading>,
}

impl Program {
    pub(super) const fn new(program: OwnedFd, mode: Mode, reading: Option<Reading>) -> Self {
        Self { program, is_tc: mode.is_tc(), _reading: reading }
    }

    /// Returns the program's verdict on a frame now, and the frame as it would leave. The frame
    /// goes nowhere, but the program counts it.
    ///
    /// # Errors
    /// The frame has no complete Ethernet header, or the system refused.
    pub fn probe(&self, frame: &[u8]) -> io::Result<(Action, Vec<u8>)> {
        self.run(frame, None)
    }

    /// Does the same as [`Program::probe`] for a frame that arrives by a device, which this names by
    /// its ifindex, on one of its queues.
    ///
    /// # Errors
    /// The frame has no complete Ethernet header, there is no such device or queue, or the system
    /// refused.
    pub fn probe_on(
        &self,
        (ifindex, queue): (u32, u32),
        frame: &[u8],
    ) -> io::Result<(Action, Vec<u8>)> {
        self.run(frame, Some((ifindex, queue)))
    }

    /// Does the same for a tc program and a super-frame, of which the kernel would make segments with so many bytes
    /// of payload.
    ///
    /// # Errors
    /// As [`Program::probe_on`].
    pub fn probe_super(
        &self,
        (ifindex, segment): (u32, u32),
        frame: &[u8],
    ) -> io::Result<(Action, Vec<u8>)> {
        let (code, frame) = sys::run_tc(self.program.as_fd(), frame, (ifindex, segment))?;
        let action = match code.cast_signed() {
            // TC_ACT_UNSPEC, TC_ACT_SHOT, TC_ACT_REDIRECT.
            -1 => Action::Pass,
            2 => Action::Drop,
            7 => Action::Redirect,
            _ => Action::Other(code),
        };
        Ok((action, frame))
    }

    fn run(&self, frame: &[u8], ingress: Option<(u32, u32)>) -> io::Result<(Action, Vec<u8>)> {
        if self.is_tc {
            return self.probe_super((ingress.map_or(0, |(ifindex, _)| ifindex), 0), frame);
        }
        let (code, frame) = sys::run(self.program.as_fd(), frame, ingress)?;
        let action = match code {
            1 => Action::Drop,
            2 => Action::Pass,
            4 => Action::Redirect,
            other => Action::Other(other),
        };
        Ok((action, frame))
    }
}
