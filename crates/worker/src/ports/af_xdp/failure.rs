//! Why a port has no AF_XDP socket, as an error of the port.

use std::io;

use super::steps::{self, Refusal};
use crate::ports::PortError;
use crate::ports::interface::is_absent;

/// Why a port has no AF_XDP socket.
pub enum Failure {
    /// An error to report.
    Fatal(PortError),
    /// AF_XDP is not available; another kind of port may work.
    NotOffered(Vec<Refusal>),
}

impl Failure {
    /// The failure that follows from these refusals.
    pub(in crate::ports) fn of(port: &str, device: &str, causes: Vec<Refusal>) -> Self {
        match causes.last() {
            Some(last) if last.is_final => Self::Fatal(refused(port, device, last)),
            _ => Self::NotOffered(causes),
        }
    }
}

/// The error if AF_XDP is required and not available.
#[must_use]
pub fn refused(port: &str, device: &str, refusal: &Refusal) -> PortError {
    PortError::NoXdp {
        port: port.to_owned(),
        device: device.to_owned(),
        what: refusal.what.clone(),
        remedy: refusal.remedy.clone(),
    }
}

/// Joins several refusals to one line.
#[must_use]
pub fn list(causes: &[Refusal]) -> String {
    steps::list(causes)
}

/// The error of a query of the device.
pub(super) fn explain(
    port: &str,
    device: &str,
    action: &'static str,
    error: io::Error,
) -> PortError {
    let (port, device) = (port.to_owned(), device.to_owned());
    match error.kind() {
        io::ErrorKind::Unsupported => PortError::NotEthernet { port, device },
        _ if is_absent(&error) => PortError::NoDevice { port, device },
        _ => PortError::System { port, device, action, error },
    }
}
