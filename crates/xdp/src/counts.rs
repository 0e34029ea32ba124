//! What the XDP program counts, byte for byte as in `bpf/maps.h`.

use tollway_dataplane::verdict::DropReason;

/// Why the XDP program passes a packet to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum PassReason {
    /// The bypass is set: user space makes the kernel forward everything.
    Bypass,
    /// Nobody confirms the tables, or the packet is for a worker whose heartbeat is too old.
    Stale,
    /// Its destination Ethernet address is a multicast or broadcast address.
    GroupMac,
    /// Its destination Ethernet address is not the port's.
    NotOursMac,
    /// Neither IPv4 nor IPv6: ARP, LLDP, spanning tree, ...
    Ethertype,
    /// Tagged with a VLAN that is not configured.
    VlanUnknown,
    /// The IP header is truncated, or has a wrong version or wrong lengths.
    Malformed,
    /// Its destination address is not routed: multicast, broadcast, loopback, reserved.
    Special,
    /// Its source or destination is a link-local address.
    LinkLocal,
    /// Its destination is one of the router's own addresses.
    Local,
    /// It has IPv4 options or an IPv6 hop-by-hop header.
    Options,
    /// Its TTL or hop limit expires here.
    Ttl,
    /// The queue that it arrived on has no socket.
    NoSocket,
    /// The user path has already handed it to the kernel.
    Punted,
    /// Traffic that arrives on its link takes the kernel path.
    Offload,
    /// Its flow takes the kernel path, because of its route or of a rule.
    KernelFlow,
    /// It has no flow in the XDP path, and its port is crowded ([`State::set_crowded`](crate::State::set_crowded)).
    Crowded,
    /// It is larger than its flow's MTU; the kernel fragments it, or reports an ICMP error.
    MtuExceeded,
    /// Its sender left its checksum to a network card, or seems to have done so.
    Checksum,
    /// Its route is the kernel's, or it has none.
    KernelRoute,
    /// Its neighbour is not known.
    NeighUnresolved,
    /// The tc program does not decide about it.
    Undecided,
    /// It came to a firewall rule that only the kernel can evaluate.
    KernelRule,
    /// It leaves by a port with a tc program: the kernel puts packets together (GRO) before such a device, and no tc
    /// program beside the XDP program forwards the result.
    KernelExit,
    /// The kernel tracks its connection, and the programs have no entry for it.
    Connection,
    /// The bridge does not forward it from its port, or to that of its destination, or the programs cannot.
    BridgePort,
    /// The bridge has not learned its source address at its port.
    BridgeSource,
    /// It keeps the source address of a frame in the bridge's forwarding database.
    BridgeRefresh,
    /// The bridge does not know its destination address, or that is where it comes from.
    BridgeDestination,
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
        Self::KernelRoute,
        Self::NeighUnresolved,
        Self::Undecided,
        Self::KernelRule,
        Self::KernelExit,
        Self::Connection,
        Self::BridgePort,
        Self::BridgeSource,
        Self::BridgeRefresh,
        Self::BridgeDestination,
    ];

    /// The reason's name in reports.
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
            Self::KernelRoute => "kernel_route",
            Self::NeighUnresolved => "neigh_unresolved",
            Self::Undecided => "undecided",
            Self::KernelRule => "kernel_rule",
            Self::KernelExit => "kernel_exit",
            Self::Connection => "connection",
            Self::BridgePort => "bridge_port",
            Self::BridgeSource => "bridge_source",
            Self::BridgeRefresh => "bridge_refresh",
            Self::BridgeDestination => "bridge_destination",
        }
    }
}

/// The number of [`PassReason`]s.
pub const PASS_REASONS: usize = 29;

/// The number of [`DropReason`]s, as in `bpf/maps.h`.
const DROP_REASONS: usize = 28;
const _: () = assert!(DROP_REASONS == DropReason::COUNT, "bpf/maps.h has another number");
const _: () = assert!(
    DropReason::Blackhole as usize == 12 && DropReason::NetfilterDrop as usize == 18,
    "bpf/maps.h has other numbers"
);

/// The XDP program's counters of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PortCounts {
    /// Packets that this port received and the XDP path forwarded.
    pub xdp_rx_packets: u64,
    /// Their bytes, from the Ethernet header on.
    pub xdp_rx_bytes: u64,
    /// Packets that the XDP path sent by this port.
    pub xdp_tx_packets: u64,
    /// Their bytes, with the new Ethernet header.
    pub xdp_tx_bytes: u64,
    /// Packets that went to an AF_XDP socket.
    pub to_user: u64,
    /// Packets dropped while the rules could not be evaluated ([`super::State::set_ruled`]).
    pub closed_packets: u64,
    /// Their bytes, from the Ethernet header on.
    pub closed_bytes: u64,
    /// Packets that the XDP program left to the tc program beside it (`bpf/beside.h`), and how many of these that got.
    marked: u64,
    taken: u64,
    /// Packets that were forwarded or dropped by entries of connections, as the kernel counts what it forwards itself:
    /// those that it has put together are one.
    pub connection_packets: u64,
    /// Their bytes, from the IP header on.
    pub connection_bytes: u64,
    /// Packets that the XDP path dropped and their bytes, from the Ethernet header on, by
    /// [`DropReason`].
    pub drops: [[u64; 2]; DROP_REASONS],
    /// Packets passed to the kernel, by [`PassReason`].
    pub pass: [u64; PASS_REASONS],
    /// The tick in which a program last found the tables confirmed; only programs use it.
    pub(super) confirmed_tick: u64,
    /// The tick in which the XDP program last found a heartbeat fresh, and its worker; only the program
    /// uses it.
    pub(super) alive_tick: u64,
}

impl PortCounts {
    /// The number of packets passed to the kernel for a reason.
    #[must_use]
    pub const fn passed(&self, reason: PassReason) -> u64 {
        let passed = self.pass[reason as usize];
        match reason {
            // The tc program has counted what it got.
            PassReason::KernelExit => passed + self.marked.saturating_sub(self.taken),
            _ => passed,
        }
    }

    /// The number of packets that the XDP path dropped, for all reasons.
    #[must_use]
    pub fn dropped_packets(&self) -> u64 {
        self.drops.iter().map(|[packets, _]| packets).sum()
    }

    /// Adds another processor's counters.
    pub(super) fn add(&mut self, other: &Self) {
        self.xdp_rx_packets += other.xdp_rx_packets;
        self.xdp_rx_bytes += other.xdp_rx_bytes;
        self.xdp_tx_packets += other.xdp_tx_packets;
        self.xdp_tx_bytes += other.xdp_tx_bytes;
        self.to_user += other.to_user;
        self.closed_packets += other.closed_packets;
        self.closed_bytes += other.closed_bytes;
        self.marked += other.marked;
        self.taken += other.taken;
        self.connection_packets += other.connection_packets;
        self.connection_bytes += other.connection_bytes;
        let drops = self.drops.as_flattened_mut().iter_mut();
        drops.zip(other.drops.as_flattened()).for_each(|(sum, more)| *sum += more);
        self.pass.iter_mut().zip(other.pass).for_each(|(sum, more)| *sum += more);
    }
}
