//! Properties of devices beside their programs, and the TAP devices.

use std::fs::File;
use std::io;

use super::{XdpError, XdpPort, sys};
use tollway_linux::sys::tap;

/// The BPF programs at a device's ingress and egress, before and after the rest of traffic control (tcx, Linux 6.6).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tcx {
    /// The ids of the programs at ingress, in the order in which they run.
    pub ingress: Vec<u32>,
    /// Those at egress.
    pub egress: Vec<u32>,
}

/// Lists the BPF programs at a device's ingress and egress; `None` if the kernel has no tcx.
///
/// # Errors
/// No privilege.
pub fn tcx(ifindex: u32) -> io::Result<Option<Tcx>> {
    let list = |hook| match sys::attached(ifindex, hook) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(None),
        // The device has gone.
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(Some(Vec::new())),
        ids => ids.map(Some),
    };
    let (ingress, egress) = (list(sys::TCX_INGRESS)?, list(sys::TCX_EGRESS)?);
    Ok(ingress.zip(egress).map(|(ingress, egress)| Tcx { ingress, egress }))
}

/// Creates the TAP device of a port; returns its name and its file.
pub(super) fn make_tap(port: &XdpPort, mtu: u16) -> Result<(String, File), XdpError> {
    // A predecessor that is about to end may still have the first name.
    let names = ["", "b", "c"].map(|last| format!("toll{}{last}", port.ifindex));
    let mut result = Err(XdpError::NoPort(port.port.0));
    for name in names {
        match tap::attach_mute(&name, mtu) {
            Ok(file) => return Ok((name, file)),
            Err((action, error)) => {
                let is_taken = error.raw_os_error() == Some(libc::EBUSY);
                result = Err(XdpError::system(&name, action)(error));
                if !is_taken {
                    break;
                }
            }
        }
    }
    result
}
