//! What the kernel's tracking is set to, which the programs have to know.

use std::fs;
use std::time::Duration;

/// The sysctls of connection tracking, for the network namespace of this thread.
const DIRECTORY: &str = "/proc/sys/net/netfilter";

/// How often the settings are read while the kernel tracks connections, since it does not notify of changes.
pub(super) const EVERY: Duration = Duration::from_millis(100);
/// The same while it does not.
pub(super) const SELDOM: Duration = Duration::from_secs(1);

/// The settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// How long the kernel keeps an established connection of UDP, in milliseconds.
    pub(super) udp_timeout_ms: u32,
    /// Whether it does not track packets with wrong checksums.
    pub(super) verifies_sums: bool,
}

impl Settings {
    /// Reads the settings; none if the kernel does not track connections.
    pub(super) fn read() -> Option<Self> {
        let seconds = number("nf_conntrack_udp_timeout_stream")?;
        // A packet prolongs a connection by this; 0 would end it.
        let udp_timeout_ms = seconds.saturating_mul(1000).max(1);
        let verifies_sums = number("nf_conntrack_checksum").is_none_or(|is_on| is_on != 0);
        Some(Self { udp_timeout_ms, verifies_sums })
    }
}

fn number(sysctl: &str) -> Option<u32> {
    let text = fs::read_to_string(format!("{DIRECTORY}/{sysctl}")).ok()?;
    text.trim().parse().ok()
}
