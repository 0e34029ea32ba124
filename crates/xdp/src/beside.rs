//! A tc program beside the XDP program of a port (`bpf/beside.h`).
//!
//! It forwards what leaves by devices whose frames the kernel makes: the XDP program leaves that to the kernel, which
//! puts packets together before. This requires tcx (Linux 6.6); without it, the kernel forwards.

use std::io;
use std::os::fd::BorrowedFd;

use super::Mode;
use super::error::XdpError;
use super::hook::Hook;
use super::pin::Pins;
use super::reading::Reading;
use super::{XdpPort, sys};

/// A tc program beside an XDP program.
pub(super) struct Beside {
    hook: Hook,
    /// The program's id.
    program: u32,
    /// What the program reads, as long as it runs. The end of a predecessor's waits for the last packets of that.
    _reading: Reading,
}

impl Beside {
    /// Attaches a program, or puts it into the place of a predecessor's. The process must have the device's claim.
    pub(super) fn make(
        port: &XdpPort,
        program: BorrowedFd<'_>,
        reading: Reading,
    ) -> Result<Self, XdpError> {
        let failed = |action| XdpError::system(&port.device, action);
        let pins = Pins::of(port.ifindex)?;
        if let Some(mut hook) = pins.beside() {
            match hook.program() {
                Ok((_, ifindex)) if ifindex == port.ifindex => {
                    hook.replace(program).map_err(failed("taking its tc program's place"))?;
                    return Self::of(hook, reading).map_err(failed("looking at its tc program"));
                }
                _ => pins.remove_beside(),
            }
        }
        let hook = Hook::attach(Mode::Tcx, program, port.ifindex);
        let hook = hook.map_err(failed("attaching a tc program"))?;
        let made = Self::of(hook, reading).map_err(failed("looking at its tc program"))?;
        // Without a pin, it would end with the process.
        pins.keep_beside(&made.hook).map_err(failed("pinning"))?;
        Ok(made)
    }

    fn of(hook: Hook, reading: Reading) -> io::Result<Self> {
        let (program, _) = hook.program()?;
        Ok(Self { hook, program, _reading: reading })
    }

    /// Whether it is still on its device, neither detached nor replaced.
    pub(super) fn is_there(&self) -> bool {
        let now = self.hook.program();
        now.is_ok_and(|(program, ifindex)| ifindex != 0 && program == self.program)
    }
}

/// Detaches what a predecessor has left beside its XDP program.
pub(super) fn clear(ifindex: u32) {
    if let Ok(pins) = Pins::of(ifindex) {
        pins.end_beside();
    }
}

/// Says in the log that a port's XDP program has no tc program beside it.
pub(super) fn warn(port: &XdpPort, error: &XdpError) {
    let device = &port.device;
    tracing::warn!(
        "{device}: what leaves by devices with tc programs takes the kernel path: {error}"
    );
}

/// Whether a device can have a tc program beside its XDP program.
pub(super) fn is_possible(ifindex: u32) -> bool {
    sys::attached(ifindex, sys::TCX_INGRESS).is_ok()
}
