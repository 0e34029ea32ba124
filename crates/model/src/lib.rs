//! The model: plain data that says what the router forwards.
//!
//! The configuration file and the controller both fill it; the code behind it does not know which.
//! Names are the kernel's: link, vrf, route, neigh, nexthop group. Indices (`LinkIndex`,
//! `VrfIndex`, ...) point into the vectors of the [`Model`] that they came with.
//!
//! [`mod@compile`] turns a model into the tables that the path reads, and [`names`] keeps the names that the
//! tables do not hold.

// These macros panic on a closed pipe. Only `tollway-commands` prints, by functions that do not panic.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod compile;
pub mod config;
mod engine;
pub mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

pub use engine::{Choice, Engine, Engines};
use ipnet::IpNet;

use tollway_firewall::ir::Ruleset;
use tollway_net::{KernelPath, Mac, VlanProtocol};

/// A position in [`Model::ports`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortIndex(pub usize);

/// A position in [`Model::links`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkIndex(pub usize);

/// A position in [`Model::vrfs`]; 0 is the main VRF, which always exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VrfIndex(pub usize);

impl VrfIndex {
    /// The VRF of links that name no other (the kernel's table 254).
    pub const MAIN: Self = Self(0);
}

/// A position in [`Model::groups`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupIndex(pub usize);

/// The complete configuration of a router.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    /// The path of the control socket; none for the default path.
    pub control: Option<PathBuf>,
    /// Sources and sinks of frames.
    pub ports: Vec<Port>,
    /// The ports whose device belongs to a bridge, which says where their frames leave.
    pub bridge_ports: BTreeMap<PortIndex, BridgeMember>,
    /// Bridges that the router is itself, in place of a kernel: it learns and floods.
    pub bridges: Vec<LearningBridge>,
    /// Logical links: first one for each port (at the index of the port), then those of bridges and VLAN links, each
    /// after the link that carries it.
    pub links: Vec<Link>,
    /// Routing tables; index 0 is the main one.
    pub vrfs: Vec<Vrf>,
    /// Routes, without connected ones (they follow from addresses).
    pub routes: Vec<Route>,
    /// Named sets of next hops that routes share.
    pub groups: Vec<NextHopGroup>,
    /// Static neighbours.
    pub neighs: Vec<Neigh>,
    /// Further addresses, beside those of links, whose packets take the kernel path behind a port.
    /// Broadcast addresses are among them.
    pub own: Vec<IpAddr>,
    /// Which ports have the XDP path.
    pub xdp_path: XdpPathMode,
    /// The most flows of each family in the XDP path.
    pub xdp_flows: u32,
    /// The firewall's rules, if there are any.
    pub filter: Option<Arc<Ruleset>>,
    /// The same rules for flows of connections that a kernel tracks, if they differ.
    pub connections: Option<Arc<Ruleset>>,
    /// What happens to packets while such rules cannot be evaluated.
    pub fail: FailMode,
    /// Facts about the kernel behind the ports, if it has the same rules.
    pub kernel_rules: Option<KernelRules>,
    /// The capture file for packets that rules log to a group.
    pub filter_log: Option<PathBuf>,
}

/// A port's device and its bridge, by their numbers in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BridgeMember {
    /// The device.
    pub device: u32,
    /// The bridge.
    pub bridge: u32,
}

/// The kernel behind the ports has the firewall's rules as well. It evaluates them for packets that
/// these rules leave to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelRules {
    /// For each link, the VRF device that its device is enslaved to, if any. The kernel repeats
    /// prerouting with the VRF device as input device, and later hooks also see this device
    /// (`l3mdev_l3_rcv`, `vrf_ip_rcv`).
    pub vrf_devices: Vec<Option<String>>,
}

/// A bridge that learns by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LearningBridge {
    /// Its name in the configuration, 1 to 15 bytes.
    pub name: String,
    /// Its ports, none of them another bridge's.
    pub ports: Vec<LearningPort>,
    /// The time after which it forgets an address that sends nothing, in seconds.
    pub ageing_s: u32,
    /// The most addresses that it learns.
    pub max_entries: u32,
    /// Addresses that it neither learns nor forgets.
    pub entries: Vec<StaticEntry>,
}

/// A port of a bridge that learns by itself. The flags are those of `bridge link`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearningPort {
    /// The port.
    pub port: PortIndex,
    /// Whether nothing is forwarded to another isolated port.
    pub is_isolated: bool,
    /// Whether frames may leave by the port that they came from.
    pub is_hairpin: bool,
    /// Whether the addresses of senders are learned.
    pub learns: bool,
    /// The most frames in a second that are flooded from the port.
    pub storm_limit: Option<u32>,
}

impl LearningPort {
    /// A port without special settings.
    #[must_use]
    pub const fn new(port: PortIndex) -> Self {
        Self { port, is_isolated: false, is_hairpin: false, learns: true, storm_limit: None }
    }
}

/// An address behind a port of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaticEntry {
    /// The address.
    pub mac: Mac,
    /// The port.
    pub port: PortIndex,
}

impl Model {
    /// Whether a port has the XDP path.
    #[must_use]
    pub fn xdp_path_of(&self, port: PortIndex) -> XdpPathMode {
        match self.ports.get(port.0).map(|port| &port.kind) {
            Some(PortKind::AfXdp { engine, .. }) => engine.xdp_path(self.xdp_path),
            _ => XdpPathMode::Off,
        }
    }

    /// The place of a bridge among those that have ports; none if it has no port.
    #[must_use]
    pub fn bridge_number(&self, bridge: u32) -> Option<u16> {
        let bridges: BTreeSet<u32> = self.bridge_ports.values().map(|of| of.bridge).collect();
        let number = bridges.iter().position(|other| *other == bridge)?;
        u16::try_from(number).ok()
    }

    /// Gives the link of a port the Ethernet address of the port's device, and with it every VLAN
    /// link that inherits its address. Links with a configured address keep it.
    pub fn adopt_mac(&mut self, port: PortIndex, mac: Mac) {
        // One pass is enough: parents precede their VLAN links.
        let mut adopted = vec![false; self.links.len()];
        for (index, link) in self.links.iter_mut().enumerate() {
            let follows = match link.kind {
                LinkKind::Port(own) => own == port,
                LinkKind::Bridge { .. } => false,
                LinkKind::Vlan { parent, .. } => adopted.get(parent.0).copied().unwrap_or(false),
            };
            if follows && !link.mac_given {
                link.mac = mac;
                adopted[index] = true;
            }
        }
    }
}

/// What happens to packets that the configuration's own rules would decide, while no worker
/// evaluates these rules or while the configuration changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailMode {
    /// They are dropped.
    #[default]
    Closed,
    /// The kernel forwards them without the rules, which it does not have.
    Open,
}

/// Which of the capable ports have the XDP path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpPathMode {
    /// Ports without zero-copy, where the way to user space and back costs the most.
    #[default]
    Auto,
    /// All.
    On,
    /// None.
    Off,
}

impl XdpPathMode {
    /// Says whether a port has the XDP path.
    #[must_use]
    pub const fn is_on(self, zero_copy: bool) -> bool {
        match self {
            Self::Auto => !zero_copy,
            Self::On => true,
            Self::Off => false,
        }
    }
}

/// A port: one source and sink of Ethernet frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its name in the configuration, 1 to 15 bytes.
    pub name: String,
    /// What is behind it.
    pub kind: PortKind,
}

impl PortKind {
    /// The keyword of the configuration for this kind.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Capture { .. } => "capture",
            Self::Tap { .. } => "tap",
            Self::AfPacket { .. } => "af_packet",
            Self::AfXdp { .. } => "af_xdp",
        }
    }

    /// What decides about the port's packets, if that is selected.
    #[must_use]
    pub const fn engine(&self) -> Option<Engine> {
        match self {
            Self::AfXdp { engine, .. } => Some(*engine),
            _ => None,
        }
    }

    /// Why that is selected, in words.
    #[must_use]
    pub fn because(&self) -> Option<&str> {
        match self {
            Self::AfXdp { because, .. } => Some(because),
            _ => None,
        }
    }

    /// The name of the device behind the port.
    #[must_use]
    pub fn device(&self) -> Option<&str> {
        match self {
            Self::Tap { device } | Self::AfPacket { device } | Self::AfXdp { device, .. } => {
                Some(device)
            }
            Self::Memory | Self::Capture { .. } => None,
        }
    }
}

/// What is behind a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// Rings of plain memory, for benchmarks and tests.
    Memory,
    /// Capture files: the port reads frames from one and writes frames to another; either may be
    /// absent.
    Capture {
        /// File to read frames from.
        input: Option<PathBuf>,
        /// File to write sent frames to.
        output: Option<PathBuf>,
    },
    /// A TAP device of the given name, created if it does not exist.
    Tap {
        /// Device name, 1 to 15 bytes.
        device: String,
    },
    /// A network interface of this machine, through a packet socket.
    AfPacket {
        /// Interface name.
        device: String,
    },
    /// A network interface of this machine, through AF_XDP sockets or a tc program.
    AfXdp {
        /// Interface name.
        device: String,
        /// Which mode to try.
        mode: AfXdpMode,
        /// What decides about its packets. With [`Engine::Tc`], it has no sockets.
        engine: Engine,
        /// Why that does, in words.
        because: String,
    },
}

/// How the router uses an interface through AF_XDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AfXdpMode {
    /// The best mode that the device offers; a packet socket if it offers none.
    #[default]
    Auto,
    /// The best mode that the device offers, but never a packet socket. The kernel forwards beside
    /// the router here, and would also receive every frame of a packet socket.
    Best,
    /// Zero-copy: the device reads and writes the router's memory itself.
    ZeroCopy,
    /// The kernel copies frames, from XDP in the driver.
    Copy,
    /// The kernel copies frames, from generic XDP, which every device supports.
    Generic,
}

/// A logical link: what has addresses and a VRF (a kernel netdevice).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its name, 1 to 15 bytes.
    pub name: String,
    /// A port itself, a bridge, or a VLAN on another link.
    pub kind: LinkKind,
    /// The Ethernet address. If none is configured, a port's link derives one from its name, and a
    /// VLAN link inherits its parent's. [`Model::adopt_mac`] replaces it for ports with a device's
    /// own address.
    pub mac: Mac,
    /// Whether `mac` is configured; if not, the device's own address replaces it.
    pub mac_given: bool,
    /// Largest layer-3 packet, bytes (68 to 16,000).
    pub mtu: u16,
    /// The VRF whose FIB routes packets that arrive here.
    pub vrf: VrfIndex,
    /// Addresses with their prefix lengths; the first of a family is its primary one.
    pub addresses: Vec<IpNet>,
    /// Which arriving packets take the kernel path.
    pub kernel_path: KernelPath,
}

/// What a link is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkKind {
    /// The untagged frames of a port.
    Port(PortIndex),
    /// What a bridge of the kernel hands up from its ports.
    Bridge {
        /// The number of its device in the kernel. Some port is one of its ports ([`Model::bridge_ports`]).
        device: u32,
    },
    /// Frames of `parent` under a tag (`parent` may itself be a VLAN link: QinQ).
    Vlan {
        /// The link that carries the tagged frames.
        parent: LinkIndex,
        /// VLAN identifier, 1 to 4094.
        vid: u16,
        /// Tag protocol.
        protocol: VlanProtocol,
    },
}

/// A separate routing table; links belong to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vrf {
    /// Its name; the main one is called `main`.
    pub name: String,
}

/// One route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The VRF whose FIB holds it.
    pub vrf: VrfIndex,
    /// Destination prefix, host bits zero.
    pub dst: IpNet,
    /// Lower wins among routes to the same prefix.
    pub metric: u32,
    /// What happens to packets that match.
    pub target: RouteTarget,
}

/// What a route does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteTarget {
    /// Forward to one next hop, or spread over several by flow.
    NextHops(Vec<NextHop>),
    /// Forward to a named group.
    Group(GroupIndex),
    /// Drop silently.
    Blackhole,
    /// Drop and answer "host unreachable".
    Unreachable,
    /// Drop and answer "administratively prohibited".
    Prohibit,
}

/// A next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NextHop {
    /// The gateway; none if the destination itself is on the link.
    pub via: Option<IpAddr>,
    /// The egress link.
    pub link: LinkIndex,
    /// Share of the flows, 1 to 256.
    pub weight: u16,
}

/// A named set of next hops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHopGroup {
    /// Its name.
    pub name: String,
    /// Its members, at least one.
    pub members: Vec<NextHop>,
}

/// A static neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Neigh {
    /// Its link.
    pub link: LinkIndex,
    /// Its address.
    pub address: IpAddr,
    /// Its Ethernet address.
    pub mac: Mac,
}
