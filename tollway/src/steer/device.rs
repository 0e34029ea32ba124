//! What is asked of devices beside their programs, and the TAP devices.

use std::fs::File;
use std::io;

use super::{SteerError, SteerPort, sys};
use crate::ports::tap;

/// Whether BPF programs hang on a device's way in and way out, before and behind the rest of traffic
/// control (tcx, Linux 6.6).
///
/// # Errors
/// No privilege.
pub fn tcx(ifindex: u32) -> io::Result<(bool, bool)> {
    let has = |hook| match sys::attached(ifindex, hook) {
        // A kernel without it, or a device that has gone.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENODEV)) => {
            Ok(false)
        }
        count => count.map(|count| count > 0),
    };
    Ok((has(sys::TCX_INGRESS)?, has(sys::TCX_EGRESS)?))
}

/// Makes the TAP device of a port; its name and its file.
pub(super) fn make_tap(port: &SteerPort, mtu: u16) -> Result<(String, File), SteerError> {
    // A predecessor that is about to end may still hold the first.
    let names = ["", "b", "c"].map(|last| format!("toll{}{last}", port.ifindex));
    let mut result = Err(SteerError::NoPort(port.port.0));
    for name in names {
        match tap::attach_mute(&name, mtu) {
            Ok(file) => return Ok((name, file)),
            Err((action, error)) => {
                let is_taken = error.raw_os_error() == Some(libc::EBUSY);
                result = Err(SteerError::system(&name, action)(error));
                if !is_taken {
                    break;
                }
            }
        }
    }
    result
}
