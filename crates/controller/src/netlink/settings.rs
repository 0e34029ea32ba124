//! The settings of the source.

use std::time::Duration;

/// How to follow the kernel's notifications.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bytes of messages that may wait to be read, as the kernel counts: a changed route takes about 1000.
    pub receive_buffer: usize,
    /// The time between two audits, which compare everything known with the kernel's configuration.
    pub audit_every: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { receive_buffer: 128 << 20, audit_every: Duration::from_secs(60) }
    }
}
