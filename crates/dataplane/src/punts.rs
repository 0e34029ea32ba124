//! Limits on the packets that the router punts to the kernel, and detection of ports whose packets
//! should not take the user path at all.
//!
//! The kernel *carries* a packet if it forwards, queues or delivers it. These limits never drop a
//! packet that the kernel would carry. But each punt costs several microseconds, several times what
//! the kernel needs to forward the packet. So a port is *crowded* if the kernel has to carry a large
//! share of its packets, and many in number ([`Crowd`]). The dispatcher then sends the port's packets
//! to the kernel directly.

use std::sync::atomic::Ordering::Relaxed;

use crate::counters::Traffic;
use crate::id::PortId;
use crate::memory::Apart;
use crate::sync::AtomicU64;
use crate::token_bucket::{Rate, TokenBucket};
use crate::verdict::PuntReason;

/// Packets per second for each reason that the kernel answers.
pub(crate) const PER_SECOND: u64 = 10_000;
/// Packets at once for each such reason.
pub(crate) const BURST: u64 = 1_000;
/// Nanoseconds per packet of each such reason.
const INTERVAL_NS: u64 = 1_000_000_000 / PER_SECOND;
const RATE: Rate = Rate { interval_ns: INTERVAL_NS, burst: BURST };

/// Says whether the kernel would forward, queue or deliver a packet that is punted for this reason,
/// rather than answer or drop it.
const fn is_carried(reason: PuntReason) -> bool {
    match reason {
        PuntReason::KernelLink
        | PuntReason::KernelRoute
        | PuntReason::KernelRule
        | PuntReason::KernelSource
        | PuntReason::KernelExit
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

/// Token buckets, one for each reason that the kernel answers, and counts of the packets that found
/// theirs empty. Workers share them, so that the limits hold for all together.
#[derive(Debug, Default)]
pub struct Limits {
    /// Each apart, so that packets of one reason do not slow down those of another.
    buckets: [Apart<Bucket>; PuntReason::COUNT],
}

impl Limits {
    /// Says whether one more packet may be handed over. All workers count `now_ns` from one moment, but
    /// one worker's may be older than another's.
    pub(crate) fn allow(&self, reason: PuntReason, now_ns: u64) -> bool {
        is_carried(reason) || self.buckets[reason as usize].take(now_ns)
    }

    /// Packets over the limit, by reason.
    pub fn refused(&self) -> impl Iterator<Item = (PuntReason, u64)> {
        let counts = self.buckets.iter().map(|bucket| bucket.refused.load(Relaxed));
        PuntReason::ALL.iter().copied().zip(counts)
    }
}

/// The bucket of a reason.
#[derive(Debug, Default)]
struct Bucket {
    tokens: TokenBucket,
    /// Packets that found the bucket empty.
    refused: AtomicU64,
}

impl Bucket {
    /// Takes a token; says whether there was one.
    fn take(&self, now_ns: u64) -> bool {
        let taken = self.tokens.take(RATE, now_ns);
        if !taken {
            self.refused.fetch_add(1, Relaxed);
        }
        taken
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

/// Finds ports at which the kernel has to carry too many packets. Each worker has one for the packets
/// that it receives itself.
#[derive(Debug)]
pub struct Crowd {
    bounds: Bounds,
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

/// How many of a port's packets the kernel carries before the port can be crowded.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    per_second: u64,
    at_once: u64,
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
    fn add(&mut self, bounds: Bounds, received: u64, now_ns: u64) -> bool {
        let elapsed_ns = now_ns.saturating_sub(self.at_ns).min(1_000_000_000);
        let by_time = elapsed_ns * bounds.per_second * SHARE / 1_000_000_000;
        let by_others = received.saturating_sub(self.received);
        self.fill = self.fill.saturating_sub(by_time.max(by_others)) + SHARE;
        (self.received, self.at_ns) = (received, now_ns);
        let most = bounds.at_once * SHARE;
        if self.fill <= most {
            return false;
        }
        self.fill = most;
        true
    }
}

impl Crowd {
    /// Creates the part of one among `workers` workers that share the ports. Each sees its part of a
    /// port's packets, so that part of the bounds on their number is enough for it. If a port's packets
    /// are spread unevenly, the port is crowded at fewer packets: at the fewest, which all go to one
    /// worker, at one worker's part of the bounds.
    #[must_use]
    pub fn of_workers(workers: u32) -> Self {
        let part = |bound: u64| (bound / u64::from(workers).max(1)).max(1);
        Self {
            bounds: Bounds { per_second: part(CROWD_PER_SECOND), at_once: part(CROWD_AT_ONCE) },
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
        if levels[usize::from(is_v6)].add(self.bounds, received, now_ns) {
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
    use std::thread;

    use super::*;

    #[test]
    fn each_reason_has_a_burst_and_then_its_rate() {
        let limits = Limits::default();
        let count = |reason, now| (0..3 * BURST).filter(|_| limits.allow(reason, now)).count();
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
        let limits = Limits::default();
        for reason in [PuntReason::KernelRoute, PuntReason::MtuExceeded, PuntReason::IpOptions] {
            assert!((0..1_000_000).all(|_| limits.allow(reason, 5)));
        }
    }

    /// Takes tokens until there is none; returns how many there were.
    fn drain(limits: &Limits, now_ns: u64) -> u64 {
        let mut count = 0;
        while limits.allow(PuntReason::NoRoute, now_ns) {
            count += 1;
        }
        count
    }

    #[test]
    fn workers_have_one_limit_together() {
        const START_NS: u64 = 7_000_000_000;
        const STEP_NS: u64 = 10 * INTERVAL_NS;
        let steps = if cfg!(miri) { 20 } else { 20_000 };
        let end_ns = START_NS + steps * STEP_NS;
        let limits = Limits::default();
        assert_eq!(drain(&limits, START_NS), BURST);
        // Each worker's clock differs from the others' at every step.
        let work = |late_ns: u64| {
            let now_ns = |step| START_NS + step * STEP_NS - late_ns;
            let before: u64 = (1..=steps).map(|step| drain(&limits, now_ns(step))).sum();
            before + drain(&limits, end_ns)
        };
        let total: u64 = thread::scope(|scope| {
            let workers = [0, 40, 3 * STEP_NS].map(|late_ns| scope.spawn(move || work(late_ns)));
            workers.into_iter().map(|worker| worker.join().expect("no panic")).sum()
        });
        assert_eq!(total, (end_ns - START_NS) / INTERVAL_NS);
    }

    #[test]
    fn a_worker_with_an_old_clock_finds_what_the_others_left() {
        let limits = Limits::default();
        assert!(limits.allow(PuntReason::NoRoute, 9_000_000_000));
        assert_eq!(drain(&limits, 5), BURST - 1);
        assert_eq!(drain(&limits, 9_000_000_000), 0);
        assert_eq!(drain(&limits, 9_000_000_000 + INTERVAL_NS), 1);
    }

    /// Hands over one packet in `share` of `rate` per second for one second to one of `workers` workers;
    /// returns whether the port is crowded.
    fn is_crowded(workers: u32, rate: u64, share: u64, reason: PuntReason) -> bool {
        let (mut crowd, mut rx) = (Crowd::of_workers(workers), vec![Traffic::default(); 2]);
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
        let crowded = |rate, share| is_crowded(1, rate, share, PuntReason::KernelRoute);
        assert!(crowded(600_000, 1));
        assert!(crowded(600_000, 15));
        assert!(crowded(15_000, 1));
        assert!(!crowded(9_000, 1), "too few");
        assert!(!crowded(1_000_000, 25), "too small a part");
        assert!(!is_crowded(1, 600_000, 1, PuntReason::NoRoute), "the kernel only answers");
    }

    #[test]
    fn a_worker_needs_only_its_part_of_the_packets() {
        let crowded = |rate, share| is_crowded(4, rate, share, PuntReason::KernelRoute);
        assert!(crowded(15_000 / 4, 1));
        assert!(crowded(600_000 / 4, 15));
        assert!(!crowded(9_000 / 4, 1), "too few");
        assert!(!crowded(1_000_000 / 4, 25), "too small a part");
        assert!(is_crowded(u32::MAX, 10, 1, PuntReason::KernelRoute), "the bounds are at least 1");
        assert!(!is_crowded(u32::MAX, 1, 1, PuntReason::KernelRoute));
    }
}
