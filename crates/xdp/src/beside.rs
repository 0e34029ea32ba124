//! A tc program beside the XDP program of a port (`bpf/beside.h`).
//!
//! It forwards what leaves by devices whose frames the kernel makes: the XDP program leaves that to the kernel, which
//! puts packets together before. This requires tcx (Linux 6.6); without it, the kernel forwards.

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
                    return Ok(Self { hook, _reading: reading });
                }
                _ => pins.remove_beside(),
            }
        }
        let hook = Hook::attach(Mode::Tcx, program, port.ifindex);
        let hook = hook.map_err(failed("attaching a tc program"))?;
        pins.keep_beside(&hook).map_err(failed("pinning"))?;
        Ok(Self { hook, _reading: reading })
    }

    /// Whether it is still on its device.
    pub(super) fn is_there(&self) -> bool {
        self.hook.program().is_ok_and(|(_, ifindex)| ifindex != 0)
    }

    /// Detaches the program.
    pub(super) fn end(self) {
        // A device that is gone has lost its program already.
        let _ = self.hook.detach();
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
