//! Limits on the packets that the router punts to the kernel, and detection of ports whose packets
//! should not take the user path at all.
//!
//! The kernel *carries* a packet if it forwards, queues or delivers it. These limits never drop a
//! packet that the kernel would carry. But each punt costs several microseconds, several times what
//! the kernel needs to forward the packet. So a port is *crowded* if the kernel has to carry a large
//! share of its packets, and many in number ([`Crowd`]). The dispatcher then sends the port's packets
//! to the kernel directly.

use crate::counters::Traffic;
use crate::id::PortId;
use crate::verdict::PuntReason;

/// Packets per second for each reason that the kernel answers.
pub(crate) const PER_SECOND: u64 = 10_000;
/// Packets at once for each such reason.
pub(crate) const BURST: u64 = 1_000;

/// Says whether the kernel would forward, queue or deliver a packet that is punted for this reason,
/// rather than answer or drop it.
const fn is_carried(reason: PuntReason) -> bool {
    match reason {
        PuntReason::KernelLink
        | PuntReason::KernelRoute
        | PuntReason::KernelRule
        | PuntReason::KernelSource
        | PuntReason::Redirect
        | PuntReason::FilterUnsupported
        | PuntReason::MtuExceeded
        | PuntReason::IpOptions
        | PuntReason::HopByHop
        | PuntReason::NeighUnresolved => true,
        PuntReason::TtlExpired
        | PuntReason::NoRoute
        | PuntReason::Unreachable
        | PuntReason::Prohibit
        | PuntReason::LinkLocalSource
        | PuntReason::Reject
        | PuntReason::Martian => false,
    }
}

/// One token bucket for each reason that the kernel answers, and counts of the packets that found it
/// empty.
#[derive(Debug)]
pub struct Limits {
    /// The time from which each bucket is full, in ns.
    full_at: [u64; PuntReason::COUNT],
    refused: [u64; PuntReason::COUNT],
}

impl Limits {
    pub(crate) const fn new() -> Self {
        Self { full_at: [0; PuntReason::COUNT], refused: [0; PuntReason::COUNT] }
    }

    /// Says whether one more packet may be handed over.
    pub(crate) fn allow(&mut self, reason: PuntReason, now_ns: u64) -> bool {
        // Nanoseconds per packet.
        const INTERVAL_NS: u64 = 1_000_000_000 / PER_SECOND;
        if is_carried(reason) {
            return true;
        }
        let full_at = self.full_at[reason as usize].max(now_ns);
        if full_at - now_ns > INTERVAL_NS * (BURST - 1) {
            self.refused[reason as usize] += 1;
            return false;
        }
        self.full_at[reason as usize] = full_at + INTERVAL_NS;
        true
    }

    /// Packets over the limit, by reason.
    pub fn refused(&self) -> impl Iterator<Item = (PuntReason, u64)> {
        PuntReason::ALL.iter().copied().zip(self.refused)
    }
}

/// The number of ports that can be crowded: as many as can have an XDP program.
pub const MOST_PORTS: usize = 64;
/// A port can be crowded only if the kernel carries more than one in `SHARE` of its packets.
const SHARE: u64 = 20;
/// A port can be crowded only if the kernel carries more than this many of its packets per second.
const CROWD_PER_SECOND: u64 = 10_000;
/// A port can be crowded only if the kernel carries more than this many of its packets at once.
const CROWD_AT_ONCE: u64 = 1_000;

/// Finds ports at which the kernel has to carry too many packets.
#[derive(Debug)]
pub struct Crowd {
    levels: Box<[[Level; 2]; MOST_PORTS]>,
    ports: CrowdedPorts,
}

/// Crowded ports, one bit each, by the packets' family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrowdedPorts {
    /// Ports crowded with IPv4 packets.
    pub v4: u64,
    /// Ports crowded with IPv6 packets.
    pub v6: u64,
}

/// A leaky bucket of the packets that were handed over. Each adds [`SHARE`]; each packet that the port
/// receives takes one out, and so does time.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    fill: u64,
    received: u64,
    at_ns: u64,
}

impl Level {
    /// Adds a packet; says whether the bucket overflows.
    fn add(&mut self, received: u64, now_ns: u64) -> bool {
        const PER_SECOND: u64 = CROWD_PER_SECOND * SHARE;
        let elapsed_ns = now_ns.saturating_sub(self.at_ns).min(1_000_000_000);
        let by_time = elapsed_ns * PER_SECOND / 1_000_000_000;
        let by_others = received.saturating_sub(self.received);
        self.fill = self.fill.saturating_sub(by_time.max(by_others)) + SHARE;
        (self.received, self.at_ns) = (received, now_ns);
        if self.fill <= CROWD_AT_ONCE * SHARE {
            return false;
        }
        self.fill = CROWD_AT_ONCE * SHARE;
        true
    }
}

impl Crowd {
    pub(crate) fn new() -> Self {
        Self {
            levels: Box::new([[Level::default(); 2]; MOST_PORTS]),
            ports: CrowdedPorts::default(),
        }
    }

    /// Records a packet that is handed over, one of those that its port received.
    pub(crate) fn note(
        &mut self,
        (port, is_v6): (PortId, bool),
        reason: PuntReason,
        received: &[Traffic],
        now_ns: u64,
    ) {
        let index = usize::from(port.0);
        let Some(levels) = self.levels.get_mut(index).filter(|_| is_carried(reason)) else {
            return;
        };
        let received = received.get(index).map_or(0, |traffic| traffic.packets);
        if levels[usize::from(is_v6)].add(received, now_ns) {
            let ports = if is_v6 { &mut self.ports.v6 } else { &mut self.ports.v4 };
            *ports |= 1 << index;
        }
    }

    /// Returns the ports that became crowded since the last call, and starts over.
    pub fn take_ports(&mut self) -> CrowdedPorts {
        let ports = std::mem::take(&mut self.ports);
        for (index, levels) in self.levels.iter_mut().enumerate() {
            for (level, ports) in levels.iter_mut().zip([ports.v4, ports.v6]) {
                if ports >> index & 1 != 0 {
                    level.fill = 0;
                }
            }
        }
        ports
    }

    /// Says whether any port is crowded.
    #[inline]
    #[must_use]
    pub fn has_ports(&self) -> bool {
        self.ports != CrowdedPorts::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_burst_and_then_its_rate() {
        const INTERVAL_NS: u64 = 1_000_000_000 / PER_SECOND;
        let mut limits = Limits::new();
        let mut count = |reason, now| (0..3 * BURST).filter(|_| limits.allow(reason, now)).count();
        assert_eq!(count(PuntReason::NoRoute, 5), BURST as usize);
        assert_eq!(count(PuntReason::Martian, 5), BURST as usize, "a bucket of its own");
        assert_eq!(count(PuntReason::NoRoute, 5 + 10 * INTERVAL_NS), 10);
        assert_eq!(count(PuntReason::NoRoute, 3_000_000_000), BURST as usize);
        let refused: Vec<_> = limits.refused().filter(|(_, count)| *count > 0).collect();
        let expected = [(PuntReason::NoRoute, 7 * BURST - 10), (PuntReason::Martian, 2 * BURST)];
        assert_eq!(refused, expected);
    }

    #[test]
    fn packets_that_the_kernel_forwards_have_no_limit() {
        let mut limits = Limits::new();
        for reason in [PuntReason::KernelRoute, PuntReason::MtuExceeded, PuntReason::IpOptions] {
            assert!((0..1_000_000).all(|_| limits.allow(reason, 5)));
        }
    }

    /// Hands over one packet in `share` of `rate` per second for one second; returns whether the port
    /// is crowded.
    fn is_crowded(rate: u64, share: u64, reason: PuntReason) -> bool {
        let (mut crowd, mut rx) = (Crowd::new(), vec![Traffic::default(); 2]);
        for packet in 0..rate {
            rx[1].packets += 1;
            if packet % share == 0 {
                crowd.note((PortId(1), true), reason, &rx, packet * 1_000_000_000 / rate);
            }
        }
        let ports = crowd.take_ports();
        assert_eq!(ports.v4, 0);
        assert_eq!(crowd.take_ports(), CrowdedPorts::default(), "reported once");
        assert!([0, 1 << 1].contains(&ports.v6));
        ports.v6 != 0
    }

    #[test]
    fn a_port_is_crowded_if_the_kernel_path_has_many_packets() {
        let crowded = |rate, share| is_crowded(rate, share, PuntReason::KernelRoute);
        assert!(crowded(600_000, 1));
        assert!(crowded(600_000, 15));
        assert!(crowded(15_000, 1));
        assert!(!crowded(9_000, 1), "too few");
        assert!(!crowded(1_000_000, 25), "too small a part");
        assert!(!is_crowded(600_000, 1, PuntReason::NoRoute), "the kernel only answers");
    }
}
