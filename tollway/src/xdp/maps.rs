//! What the XDP program and the program share: the types of its maps, byte for byte as in
//! `bpf/maps.h`, and handles to the maps that others than the loader use.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tollway_dataplane::id::PortId;

use super::regions::Regions;
use super::sys::{self, Page};

/// Why the XDP program left a packet to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum PassReason {
    /// The program is about to stop, or has been told to step aside.
    Bypass,
    /// The heartbeat is too old: nobody is there.
    Stale,
    /// To a group or to everyone, by its Ethernet address.
    GroupMac,
    /// For another Ethernet address than the port's.
    NotOursMac,
    /// Neither IPv4 nor IPv6: ARP, LLDP, spanning tree, ...
    Ethertype,
    /// Tagged with a VLAN that is not configured.
    VlanUnknown,
    /// The IP header is cut off, has a wrong version or wrong lengths.
    Malformed,
    /// To an address that is not routed: multicast, broadcast, loopback, reserved.
    Special,
    /// From or to an address that is only good on its link.
    LinkLocal,
    /// To one of the router's own addresses.
    Local,
    /// IPv4 options, or an IPv6 hop-by-hop header.
    Options,
    /// The last hop of its life.
    Ttl,
    /// No socket serves the queue that it arrived on.
    NoSocket,
    /// It had been handed to the kernel already.
    Punted,
    /// What arrives on its link is the kernel's.
    Offload,
    /// Its flow is the kernel's: by its route, or by a rule.
    KernelFlow,
    /// It has no flow in the XDP path, and of those that came by its port lately too many were the kernel's.
    Crowded,
    /// It is larger than the MTU where its flow leaves: the kernel's to fragment, or to answer.
    MtuExceeded,
    /// Its sender left its checksum to a network card, or it looks so.
    Checksum,
}

impl PassReason {
    /// All reasons, in the order of [`PortCounts::pass`].
    pub const ALL: [Self; PASS_REASONS] = [
        Self::Bypass,
        Self::Stale,
        Self::GroupMac,
        Self::NotOursMac,
        Self::Ethertype,
        Self::VlanUnknown,
        Self::Malformed,
        Self::Special,
        Self::LinkLocal,
        Self::Local,
        Self::Options,
        Self::Ttl,
        Self::NoSocket,
        Self::Punted,
        Self::Offload,
        Self::KernelFlow,
        Self::Crowded,
        Self::MtuExceeded,
        Self::Checksum,
    ];

    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bypass => "bypass",
            Self::Stale => "stale",
            Self::GroupMac => "group_mac",
            Self::NotOursMac => "not_ours_mac",
            Self::Ethertype => "ethertype",
            Self::VlanUnknown => "vlan_unknown",
            Self::Malformed => "malformed",
            Self::Special => "special",
            Self::LinkLocal => "link_local",
            Self::Local => "local",
            Self::Options => "options",
            Self::Ttl => "ttl",
            Self::NoSocket => "no_socket",
            Self::Punted => "punted",
            Self::Offload => "offload",
            Self::KernelFlow => "kernel_flow",
            Self::Crowded => "crowded",
            Self::MtuExceeded => "mtu_exceeded",
            Self::Checksum => "checksum",
        }
    }
}

/// Reasons of [`PassReason`].
pub const PASS_REASONS: usize = 19;

/// What the XDP program counted at a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PortCounts {
    /// Packets that came in here and went on by the XDP path.
    pub xdp_rx_packets: u64,
    /// Their bytes, from the Ethernet header on.
    pub xdp_rx_bytes: u64,
    /// Packets that the XDP path sent out here.
    pub xdp_tx_packets: u64,
    /// Their bytes, with the new Ethernet header.
    pub xdp_tx_bytes: u64,
    /// Packets given to a socket of user space.
    pub to_user: u64,
    /// Packets dropped while the rules could not be asked ([`State::set_ruled`]).
    pub closed_packets: u64,
    /// Their bytes, from the Ethernet header on.
    pub closed_bytes: u64,
    /// Packets left to the kernel, by [`PassReason`].
    pub pass: [u64; PASS_REASONS],
    /// What the XDP program keeps here for itself.
    pub(super) alive_tick: u64,
}

impl PortCounts {
    /// Packets left to the kernel for this reason.
    #[must_use]
    pub const fn passed(&self, reason: PassReason) -> u64 {
        self.pass[reason as usize]
    }

    /// Adds what another processor counted.
    fn add(&mut self, other: &Self) {
        self.xdp_rx_packets += other.xdp_rx_packets;
        self.xdp_rx_bytes += other.xdp_rx_bytes;
        self.xdp_tx_packets += other.xdp_tx_packets;
        self.xdp_tx_bytes += other.xdp_tx_bytes;
        self.to_user += other.to_user;
        self.closed_packets += other.closed_packets;
        self.closed_bytes += other.closed_bytes;
        self.pass.iter_mut().zip(other.pass).for_each(|(sum, more)| *sum += more);
    }
}

/// The few words that the XDP program reads for each packet, in memory that both share.
///
/// Cheap to clone; every clone is the same memory.
#[derive(Clone)]
pub struct State(Arc<Page>, Regions);

/// Whether a firewall that the kernel does not know is asked for every packet that is forwarded, and what
/// becomes of the packets while it cannot be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Ruled {
    /// There is none.
    #[default]
    Not = 0,
    /// The kernel forwards them meanwhile, unasked.
    FailOpen = 1,
    /// The XDP program drops them meanwhile.
    FailClosed = 3,
}

/// Bits of the bypass: nobody takes turns; the configuration changes.
pub(super) const BYPASS_IDLE: u32 = 1;
const BYPASS_HOLD: u32 = 2;
/// The worker has not done in time what it was left; it was away, and others may be behind as it is.
const BYPASS_OVERDUE: u32 = 4;
const BYPASS_BEHIND: u32 = 8;

impl State {
    pub(super) fn map(state: &OwnedFd, regions: &OwnedFd) -> io::Result<Self> {
        Ok(Self(Arc::new(Page::map(state.as_fd())?), Regions::map(regions)?))
    }

    /// Says that the worker lives; to be called in each of its turns, and every 8 ms at least. One
    /// look at the coarse clock, which is no system call, and one store.
    #[inline]
    pub fn beat(&self) {
        self.beat_at(Self::now_ns());
    }

    /// The time by the clock of heartbeats.
    #[inline]
    #[must_use]
    pub fn now_ns() -> u64 {
        sys::coarse_ns()
    }

    /// Says that the worker lived at that time, which was read just before: whoever is stopped in between
    /// does not seem to have lived since.
    #[inline]
    pub fn beat_at(&self, now_ns: u64) {
        self.0.set_heartbeat_ns(now_ns);
    }

    /// Lets the kernel forward everything (or no more): before the first turn and after the last.
    pub fn set_bypass(&self, bypass: bool) {
        self.0.set_bypass(BYPASS_IDLE, bypass);
    }

    /// Lets the kernel forward everything while the configuration changes, whatever
    /// [`State::set_bypass`] says.
    pub fn set_hold(&self, hold: bool) {
        self.0.set_bypass(BYPASS_HOLD, hold);
    }

    /// Lets the kernel forward everything while the worker has yet to change what it forwards by.
    pub fn set_overdue(&self, overdue: bool) {
        if !overdue {
            // What the path has entered meanwhile is of before the change.
            self.bump_generation();
        }
        self.0.set_bypass(BYPASS_OVERDUE, overdue);
    }

    /// Lets the kernel forward everything until all is active that it has told while the worker was
    /// away.
    pub fn set_behind(&self, behind: bool) {
        self.0.set_bypass(BYPASS_BEHIND, behind);
    }

    /// Says whether a firewall that the kernel does not know has to be asked for every packet that is
    /// forwarded: those too that the kernel would have at once, for their IPv4 options or hop-by-hop header.
    pub fn set_ruled(&self, ruled: Ruled) {
        self.0.set_ruled(ruled as u32);
    }

    /// Whether there is such a firewall, and what happens while it cannot be asked.
    #[must_use]
    pub fn ruled(&self) -> Ruled {
        match self.0.ruled() {
            0 => Ruled::Not,
            1 => Ruled::FailOpen,
            _ => Ruled::FailClosed,
        }
    }

    /// Leaves to the kernel what comes in by a port and has no flow in the XDP path, of the families that are
    /// named (IPv4, IPv6), or no more.
    pub fn set_crowded(&self, port: PortId, (v4, v6): (bool, bool)) {
        self.0.set_crowded(port, (v4, v6));
    }

    /// Says whether the kernel forwards everything.
    #[must_use]
    pub fn bypass(&self) -> bool {
        self.0.bypass(BYPASS_IDLE | BYPASS_HOLD | BYPASS_OVERDUE | BYPASS_BEHIND)
    }

    /// The XDP path's generation: a flow is active under its sum with those of the flow's regions.
    #[inline]
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.0.generation()
    }

    /// The generation of a region ([`regions`](super::regions)).
    #[inline]
    #[must_use]
    pub fn region_generation(&self, region: u32) -> u32 {
        self.1.generation(region)
    }

    /// How often regions have had the next generation.
    #[inline]
    #[must_use]
    pub fn region_changes(&self) -> u32 {
        self.0.region_changes()
    }

    /// Gives regions their next generation: no flow with a destination there is active any more, nor one
    /// with a source there of which the way back was asked for.
    pub fn bump_regions(&self, regions: impl IntoIterator<Item = u32>) {
        // Before: whoever sees the new generation of a region sees this, too.
        self.0.count_region_change();
        for region in regions {
            self.1.bump(region);
        }
    }

    /// Empties the XDP path: no flow that is in it is active any more. The new generation.
    pub fn bump_generation(&self) -> u32 {
        self.0.bump_generation()
    }
}

/// The counts of the XDP program; a handle for any thread, cheap to clone.
#[derive(Clone)]
pub struct CountMap {
    map: Arc<OwnedFd>,
    processors: usize,
}

impl CountMap {
    pub(super) fn new(map: OwnedFd) -> io::Result<Self> {
        Ok(Self { map: Arc::new(map), processors: sys::possible_processors()? })
    }

    /// What was counted at a port.
    ///
    /// # Errors
    /// There is no such port, or the system refused.
    pub fn port(&self, port: PortId) -> io::Result<PortCounts> {
        let mut sum = PortCounts::default();
        let parts = sys::lookup_each(self.map.as_fd(), u32::from(port.0), self.processors)?;
        parts.iter().for_each(|part| sum.add(part));
        Ok(sum)
    }
}
