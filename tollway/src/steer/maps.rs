//! What the steering program and the program share: the types of its maps, byte for byte as in
//! `bpf/maps.h`, and handles to the maps that others than the loader use.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tollway_dataplane::id::{LinkId, PortId};

use super::sys::{self, Page};

/// A flow of IPv4, as the steering program looks it up: numbers are big-endian, as on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Flow4Key {
    /// Source address.
    pub src_be: [u8; 4],
    /// Destination address.
    pub dst_be: [u8; 4],
    /// Source port; 0 for ICMP.
    pub sport_be: [u8; 2],
    /// Destination port; 0 for ICMP.
    pub dport_be: [u8; 2],
    /// TCP, UDP or ICMP.
    pub protocol: u8,
    /// Zero.
    pub pad: u8,
    /// The [`LinkId`] that its packets arrive on.
    pub link: u16,
}

impl Flow4Key {
    /// The key of a flow; ports are 0 for ICMP.
    #[must_use]
    pub fn new(link: LinkId, protocol: u8, src: (Ipv4Addr, u16), dst: (Ipv4Addr, u16)) -> Self {
        Self {
            src_be: src.0.octets(),
            dst_be: dst.0.octets(),
            sport_be: src.1.to_be_bytes(),
            dport_be: dst.1.to_be_bytes(),
            protocol,
            pad: 0,
            link: link.0,
        }
    }
}

/// A flow of IPv6, as the steering program looks it up: numbers are big-endian, as on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Flow6Key {
    /// Source address.
    pub src_be: [u8; 16],
    /// Destination address.
    pub dst_be: [u8; 16],
    /// Source port; 0 for ICMPv6.
    pub sport_be: [u8; 2],
    /// Destination port; 0 for ICMPv6.
    pub dport_be: [u8; 2],
    /// TCP, UDP or ICMPv6.
    pub protocol: u8,
    /// Zero.
    pub pad: u8,
    /// The [`LinkId`] that its packets arrive on.
    pub link: u16,
}

impl Flow6Key {
    /// The key of a flow; ports are 0 for ICMPv6.
    #[must_use]
    pub fn new(link: LinkId, protocol: u8, src: (Ipv6Addr, u16), dst: (Ipv6Addr, u16)) -> Self {
        Self {
            src_be: src.0.octets(),
            dst_be: dst.0.octets(),
            sport_be: src.1.to_be_bytes(),
            dport_be: dst.1.to_be_bytes(),
            protocol,
            pad: 0,
            link: link.0,
        }
    }
}

/// What the express lane does with a flow's packets. One cache line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Flow {
    /// In force while it equals that of [`State`].
    pub generation: u32,
    /// The device that packets leave by.
    pub egress_ifindex: u32,
    /// Largest layer-3 packet, bytes.
    pub mtu: u16,
    /// The [`PortId`] that packets leave by, where they are counted as sent.
    pub egress_port: u16,
    /// Bytes of the new Ethernet header: 14, 18 or 22.
    pub l2_len: u8,
    /// Zero.
    pub pad: [u8; 3],
    /// The new Ethernet header, tags included, from the start.
    pub l2: [u8; 24],
    /// Packets that went this way. Exact while one processor at a time serves the flow, which
    /// receive queues see to; the counts of ports are always exact.
    pub packets: u64,
    /// Their bytes, from the Ethernet header on, as received.
    pub bytes: u64,
    /// Where its packets are counted for the firewall's rules that they met; 0 for nowhere.
    pub tally: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<Flow4Key>() == 16 && size_of::<Flow6Key>() == 40);
const _: () = assert!(size_of::<Flow>() == 64);

/// Why the steering program left a packet to the kernel.
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
        }
    }
}

/// Reasons of [`PassReason`].
pub const PASS_REASONS: usize = 14;

/// What the steering program counted at a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PortCounts {
    /// Packets that came in here and went on by the express lane.
    pub express_rx_packets: u64,
    /// Their bytes, from the Ethernet header on.
    pub express_rx_bytes: u64,
    /// Packets that the express lane sent out here.
    pub express_tx_packets: u64,
    /// Their bytes, with the new Ethernet header.
    pub express_tx_bytes: u64,
    /// Packets given to a socket of user space.
    pub to_user: u64,
    /// Packets left to the kernel, by [`PassReason`].
    pub pass: [u64; PASS_REASONS],
    /// What the steering program keeps here for itself.
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
        self.express_rx_packets += other.express_rx_packets;
        self.express_rx_bytes += other.express_rx_bytes;
        self.express_tx_packets += other.express_tx_packets;
        self.express_tx_bytes += other.express_tx_bytes;
        self.to_user += other.to_user;
        self.pass.iter_mut().zip(other.pass).for_each(|(sum, more)| *sum += more);
    }
}

/// The few words that the steering program reads for each packet, in memory that both share.
///
/// Cheap to clone; every clone is the same memory.
#[derive(Clone)]
pub struct State(Arc<Page>);

/// Bits of the bypass: nobody takes turns; the configuration changes.
pub(super) const BYPASS_IDLE: u32 = 1;
const BYPASS_HOLD: u32 = 2;

impl State {
    pub(super) fn map(map: &OwnedFd) -> io::Result<Self> {
        Ok(Self(Arc::new(Page::map(map.as_fd())?)))
    }

    /// Says that the worker lives; to be called in each of its turns, and every 8 ms at least. One
    /// look at the coarse clock, which is no system call, and one store.
    #[inline]
    pub fn beat(&self) {
        self.0.set_heartbeat_ns(sys::coarse_ns());
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

    /// Says whether a firewall has to be asked for every packet that is forwarded: those too that the
    /// kernel would have at once, for their IPv4 options or hop-by-hop header.
    pub fn set_ruled(&self, ruled: bool) {
        self.0.set_ruled(ruled);
    }

    /// Says if the kernel forwards everything.
    #[must_use]
    pub fn bypass(&self) -> bool {
        self.0.bypass(BYPASS_IDLE | BYPASS_HOLD)
    }

    /// The generation of flows that is in force.
    #[inline]
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.0.generation()
    }

    /// Empties the express lane: no flow that is in it is in force any more. The new generation.
    pub fn bump_generation(&self) -> u32 {
        self.0.bump_generation()
    }
}

/// The flows of the express lane; a handle for any thread, cheap to clone.
#[derive(Clone)]
pub struct FlowMaps {
    v4: Arc<OwnedFd>,
    v6: Arc<OwnedFd>,
    tallies: Arc<OwnedFd>,
    processors: usize,
}

/// Tallies that flows can be counted in, less the first, which stands for none (bpf/maps.h).
pub const MOST_TALLIES: u32 = 4096;

impl FlowMaps {
    pub(super) fn new(v4: OwnedFd, v6: OwnedFd, tallies: OwnedFd) -> io::Result<Self> {
        let [v4, v6, tallies] = [v4, v6, tallies].map(Arc::new);
        Ok(Self { v4, v6, tallies, processors: sys::possible_processors()? })
    }

    /// Packets, and their bytes of layer 3, of all flows ever that count in this tally.
    ///
    /// # Errors
    /// There is no such tally, or the system refused.
    pub fn tally(&self, number: u32) -> io::Result<(u64, u64)> {
        let parts: Vec<[u8; 16]> = sys::lookup_each(self.tallies.as_fd(), number, self.processors)?;
        let counted = parts.iter().map(|part| {
            let (packets, bytes) = part.split_at(8);
            let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
            (number(packets), number(bytes))
        });
        Ok(counted.fold((0, 0), |sum, part| (sum.0 + part.0, sum.1 + part.1)))
    }

    /// Enters a flow, or enters it anew.
    ///
    /// # Errors
    /// The system refused.
    pub fn insert4(&self, key: &Flow4Key, flow: &Flow) -> io::Result<()> {
        sys::update(self.v4.as_fd(), key, flow)
    }

    /// Enters a flow, or enters it anew.
    ///
    /// # Errors
    /// The system refused.
    pub fn insert6(&self, key: &Flow6Key, flow: &Flow) -> io::Result<()> {
        sys::update(self.v6.as_fd(), key, flow)
    }

    /// Enters flows by one system call, `flows[i]` for `keys[i]`; says how many.
    ///
    /// # Errors
    /// The system refused the first.
    pub fn insert4_all(&self, keys: &[Flow4Key], flows: &[Flow]) -> io::Result<usize> {
        sys::update_all(self.v4.as_fd(), keys, flows)
    }

    /// Enters flows by one system call, `flows[i]` for `keys[i]`; says how many.
    ///
    /// # Errors
    /// The system refused the first.
    pub fn insert6_all(&self, keys: &[Flow6Key], flows: &[Flow]) -> io::Result<usize> {
        sys::update_all(self.v6.as_fd(), keys, flows)
    }

    /// A flow, whether in force or not.
    ///
    /// # Errors
    /// The system refused.
    pub fn get4(&self, key: &Flow4Key) -> io::Result<Option<Flow>> {
        sys::lookup(self.v4.as_fd(), key)
    }

    /// A flow, whether in force or not.
    ///
    /// # Errors
    /// The system refused.
    pub fn get6(&self, key: &Flow6Key) -> io::Result<Option<Flow>> {
        sys::lookup(self.v6.as_fd(), key)
    }

    /// Takes a flow out; false where it was not there.
    ///
    /// # Errors
    /// The system refused.
    pub fn remove4(&self, key: &Flow4Key) -> io::Result<bool> {
        sys::delete(self.v4.as_fd(), key)
    }

    /// Takes a flow out; false where it was not there.
    ///
    /// # Errors
    /// The system refused.
    pub fn remove6(&self, key: &Flow6Key) -> io::Result<bool> {
        sys::delete(self.v6.as_fd(), key)
    }

    /// Calls `each` for every IPv4 flow, whether in force or not; about 0.1 µs a flow.
    ///
    /// # Errors
    /// The system refused.
    pub fn each4(&self, each: impl FnMut(&Flow4Key, &Flow)) -> io::Result<()> {
        sys::each(self.v4.as_fd(), each)
    }

    /// Calls `each` for every IPv6 flow, whether in force or not; about 0.1 µs a flow.
    ///
    /// # Errors
    /// The system refused.
    pub fn each6(&self, each: impl FnMut(&Flow6Key, &Flow)) -> io::Result<()> {
        sys::each(self.v6.as_fd(), each)
    }

    /// Flows that are held, IPv4 and IPv6, whether in force or not. Looks at all of them: for
    /// reports, not for the worker.
    ///
    /// # Errors
    /// The system refused.
    pub fn len(&self) -> io::Result<(usize, usize)> {
        let (mut v4, mut v6) = (0, 0);
        self.each4(|_, _| v4 += 1)?;
        self.each6(|_, _| v6 += 1)?;
        Ok((v4, v6))
    }
}

/// The counts of the steering program; a handle for any thread, cheap to clone.
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
