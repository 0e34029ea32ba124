//! What the kernel's tracking is set to, which the programs have to know.

use std::path::Path;
use std::time::Duration;

use tollway_linux::kept_files::KeptFiles;
use tollway_linux::pace::POLL;
use tollway_xdp::TcpSettings;
use tollway_xdp::connections::TrackState;

/// The sysctls of connection tracking, for the network namespace of this thread.
const DIRECTORY: &str = "/proc/sys/net/netfilter";

/// How often the settings are read while the kernel does not track connections, since it does not notify of changes.
pub(super) const SELDOM: Duration = POLL.saturating_mul(12);

/// The settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// How long the kernel keeps an established connection of UDP, in milliseconds.
    pub(super) udp_timeout_ms: u32,
    /// Whether it does not track packets with wrong checksums.
    pub(super) verifies_sums: bool,
    /// How it tracks TCP; none if that is not known.
    pub(super) tcp: Option<TcpSettings>,
    /// How long it keeps connections of TCP otherwise.
    timeouts: Timeouts,
}

/// How long the kernel keeps established connections of TCP, whose other side does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Timeouts {
    /// The timeout while data is not acknowledged, in milliseconds.
    unacknowledged_ms: u32,
    /// The same after so many retransmissions, or behind a window of 0.
    retransmitted_ms: u32,
    most_retransmissions: u32,
}

impl Settings {
    /// Whether the kernel counts packets of connections, and has to do so exactly.
    pub(super) fn must_count(files: &mut KeptFiles, exact_counters: bool) -> bool {
        exact_counters && Sysctls(files).number("acct").is_some_and(|is_on| is_on != 0)
    }

    /// Reads the settings; none if the kernel does not track connections, or counts their packets and has to do so exactly
    /// (`exact_counters`).
    pub(super) fn read(files: &mut KeptFiles, exact_counters: bool) -> Option<Self> {
        files.begin();
        if Self::must_count(files, exact_counters) {
            return None;
        }
        let mut sysctls = Sysctls(files);
        // A packet prolongs a connection by this; 0 would end it.
        let udp_timeout_ms = sysctls.milliseconds("udp_timeout_stream")?.max(1);
        let verifies_sums = sysctls.number("checksum").is_none_or(|is_on| is_on != 0);
        // The programs do not log.
        let logs =
            sysctls.number("log_invalid").is_some_and(|protocol| [6, 255].contains(&protocol));
        let mut tcp = || {
            Some(TcpSettings {
                timeout_ms: sysctls.milliseconds("tcp_timeout_established")?,
                close_timeout_ms: sysctls.milliseconds("tcp_timeout_close")?,
                is_liberal: sysctls.number("tcp_be_liberal")? != 0,
                // Kernels before 5.14 have no such setting.
                ignores_invalid_resets: sysctls.number("tcp_ignore_invalid_rst").unwrap_or(0) != 0,
            })
        };
        let tcp = tcp();
        let mut timeouts = || {
            Some(Timeouts {
                unacknowledged_ms: sysctls.milliseconds("tcp_timeout_unacknowledged")?,
                retransmitted_ms: sysctls.milliseconds("tcp_timeout_max_retrans")?,
                most_retransmissions: sysctls.number("tcp_max_retrans")?,
            })
        };
        let timeouts = timeouts();
        let tcp = tcp.filter(|_| !logs && timeouts.is_some());
        Some(Self { udp_timeout_ms, verifies_sums, tcp, timeouts: timeouts.unwrap_or_default() })
    }

    /// How long the kernel would keep a connection of TCP behind its last packet, in milliseconds, if that is less than the
    /// programs have told it (`nf_conntrack_tcp_packet`).
    pub(super) fn shorter_ms(&self, track: &TrackState) -> Option<u32> {
        let Timeouts { unacknowledged_ms, retransmitted_ms, most_retransmissions } = self.timeouts;
        let established_ms = self.tcp?.timeout_ms;
        let is_retransmitted = u32::from(track.retransmissions) >= most_retransmissions;
        let applies = [
            (is_retransmitted, retransmitted_ms),
            (track.has_unacknowledged, unacknowledged_ms),
            (track.last_window == 0, retransmitted_ms),
        ];
        let mut shorter =
            applies.into_iter().filter(|(_, timeout_ms)| *timeout_ms < established_ms);
        shorter.find(|(applies, _)| *applies).map(|(_, timeout_ms)| timeout_ms)
    }
}

/// The sysctls of connection tracking.
struct Sysctls<'a>(&'a mut KeptFiles);

impl Sysctls<'_> {
    fn milliseconds(&mut self, sysctl: &str) -> Option<u32> {
        self.number(sysctl).map(|seconds| seconds.saturating_mul(1000))
    }

    fn number(&mut self, sysctl: &str) -> Option<u32> {
        self.0.number(Path::new(&format!("{DIRECTORY}/nf_conntrack_{sysctl}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_connection_has_the_timeout_that_the_kernel_would_have_set() {
        let tcp = TcpSettings {
            timeout_ms: 400,
            close_timeout_ms: 10,
            is_liberal: false,
            ignores_invalid_resets: false,
        };
        let timeouts =
            Timeouts { unacknowledged_ms: 300, retransmitted_ms: 200, most_retransmissions: 3 };
        let (udp_timeout_ms, verifies_sums) = (1, true);
        let settings = Settings { udp_timeout_ms, verifies_sums, tcp: Some(tcp), timeouts };
        let plain = TrackState {
            is_closed: false,
            has_unacknowledged: false,
            retransmissions: 2,
            last_window: 1,
            tick: 0,
            has_missed: false,
        };
        let waits = TrackState { has_unacknowledged: true, ..plain };
        assert_eq!(settings.shorter_ms(&plain), None);
        assert_eq!(settings.shorter_ms(&waits), Some(300));
        assert_eq!(settings.shorter_ms(&TrackState { retransmissions: 3, ..waits }), Some(200));
        assert_eq!(settings.shorter_ms(&TrackState { last_window: 0, ..plain }), Some(200));
        // The kernel takes no timeout that is longer than that of an established connection.
        let timeouts = Timeouts { unacknowledged_ms: 500, ..timeouts };
        assert_eq!(Settings { timeouts, ..settings }.shorter_ms(&waits), None);
    }
}
