//! The model: plain data that says what the router is to forward.
//!
//! Two sources fill it, the configuration file and (later) the kernel's own configuration, and
//! nothing behind it knows which. Names are the kernel's: link, vrf, route, neigh, nexthop group.
//! Indices (`LinkIndex`, `VrfIndex`, ...) point into the vectors of the [`Model`] they came with.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use ipnet::IpNet;

use crate::filter::ir::Ruleset;

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
    /// The VRF of links that name none (the kernel's table 254).
    pub const MAIN: Self = Self(0);
}

/// A position in [`Model::groups`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupIndex(pub usize);

/// An Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl std::fmt::Display for Mac {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(formatter, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

/// Everything that the router is to do, whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    /// Where the control socket is, if not where it usually is.
    pub control: Option<PathBuf>,
    /// Where frames come from and go to.
    pub ports: Vec<Port>,
    /// Logical links: one for each port (at the port's own index), then VLAN links, each after the
    /// link that carries it.
    pub links: Vec<Link>,
    /// Routing tables; index 0 is the main one.
    pub vrfs: Vec<Vrf>,
    /// Routes, connected ones excluded (they follow from addresses).
    pub routes: Vec<Route>,
    /// Named sets of next hops that routes share.
    pub groups: Vec<NextHopGroup>,
    /// Static neighbours.
    pub neighs: Vec<Neigh>,
    /// Addresses beside those of links whose packets are the kernel's behind a port, broadcast
    /// addresses among them.
    pub own: Vec<IpAddr>,
    /// Which ports have the express lane.
    pub express: ExpressMode,
    /// Flows of each family that the express lane holds at most.
    pub express_flows: u32,
    /// The firewall's rules, if there are any.
    pub filter: Option<Arc<Ruleset>>,
    /// What becomes of packets while such rules cannot be asked.
    pub fail: FailMode,
    /// What to know of the kernel behind the ports, where that has the same rules.
    pub kernel_rules: Option<KernelRules>,
    /// Where packets are written that rules log to a group.
    pub filter_log: Option<PathBuf>,
}

/// The kernel behind the ports has the firewall's rules as well: packets that these leave to it are its own to
/// decide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelRules {
    /// For each link the VRF device that its device belongs to, if any: packets meet prerouting once
    /// more as if they came from there, and the hooks behind it so (`l3mdev_l3_rcv`, `vrf_ip_rcv`).
    pub vrf_devices: Vec<Option<String>>,
}

impl Model {
    /// Gives a port's link the address of the device behind it, and with it every VLAN link that
    /// has its address from there; links whose address somebody gave keep theirs.
    pub fn adopt_mac(&mut self, port: PortIndex, mac: Mac) {
        // One pass is enough: parents precede their VLAN links.
        let mut adopted = vec![false; self.links.len()];
        for (index, link) in self.links.iter_mut().enumerate() {
            let follows = match link.kind {
                LinkKind::Port(own) => own == port,
                LinkKind::Vlan { parent, .. } => adopted.get(parent.0).copied().unwrap_or(false),
            };
            if follows && !link.mac_given {
                link.mac = mac;
                adopted[index] = true;
            }
        }
    }
}

/// What becomes of packets that rules of a configuration's own would be asked about, while nobody is there
/// to ask, or the configuration changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailMode {
    /// They are dropped.
    #[default]
    Closed,
    /// The kernel forwards them, which does not know the rules.
    Open,
}

/// Which ports have the express lane, of those that can have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpressMode {
    /// Those without zero-copy: there the way to user space and back costs the most.
    #[default]
    Auto,
    /// All.
    On,
    /// None.
    Off,
}

impl ExpressMode {
    /// Says if a port has the lane.
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
    /// What stands behind it.
    pub kind: PortKind,
}

impl PortKind {
    /// The word that the configuration has for it.
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

    /// The device behind it.
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

/// What stands behind a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// Rings of plain memory, for benchmarks and tests.
    Memory,
    /// Capture files: frames are read from one and written to another, either may be absent.
    Capture {
        /// File to read frames from.
        input: Option<PathBuf>,
        /// File to write sent frames to.
        output: Option<PathBuf>,
    },
    /// A TAP device of the given name, made when it does not exist.
    Tap {
        /// Device name, 1 to 15 bytes.
        device: String,
    },
    /// A network interface of this machine, through a packet socket.
    AfPacket {
        /// Interface name.
        device: String,
    },
    /// A network interface of this machine, through AF_XDP sockets.
    AfXdp {
        /// Interface name.
        device: String,
        /// What is tried.
        mode: AfXdpMode,
    },
}

/// How an interface is used through AF_XDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AfXdpMode {
    /// The best that the device offers; where it offers nothing, a packet socket.
    #[default]
    Auto,
    /// The best that the device offers, and nothing but AF_XDP: the kernel forwards beside the router,
    /// and a packet socket leaves it every frame.
    Best,
    /// The device reads and writes the router's memory itself.
    ZeroCopy,
    /// The kernel copies, from XDP in the driver.
    Copy,
    /// The kernel copies, from generic XDP, which any device has.
    Generic,
}

/// A logical link, the thing that has addresses and a VRF (a kernel netdevice).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its name, 1 to 15 bytes.
    pub name: String,
    /// Port itself, or a VLAN on another link.
    pub kind: LinkKind,
    /// Ethernet address. Where nobody gave one, a port's link has one made from its name and a VLAN
    /// link has its parent's; see [`Model::adopt_mac`] for ports that have a device's own.
    pub mac: Mac,
    /// Whether somebody gave `mac`; if not, a device's own address replaces it.
    pub mac_given: bool,
    /// Largest layer-3 packet, bytes (68 to 16,000).
    pub mtu: u16,
    /// The VRF whose FIB routes what arrives here.
    pub vrf: VrfIndex,
    /// Addresses with their prefix lengths; the first of a family is its primary one.
    pub addresses: Vec<IpNet>,
    /// What of that which arrives here is the kernel's to forward.
    pub left: Left,
}

/// What is left to the kernel behind a port, whatever the router could do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Left {
    /// IPv4.
    pub v4: bool,
    /// IPv6.
    pub v6: bool,
    /// Fragments of IPv4, which the kernel puts together; an `af_xdp` port's steering program sees to it.
    pub fragments4: bool,
    /// Of IPv6 likewise, with all packets that have an extension header.
    pub fragments6: bool,
}

/// What a link is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// The untagged frames of a port.
    Port(PortIndex),
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

/// The ethertype in front of a VLAN tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum VlanProtocol {
    /// 802.1Q, 0x8100.
    #[default]
    Dot1q,
    /// 802.1ad, 0x88a8.
    Dot1ad,
}

/// A routing table of its own, and the links that belong to it.
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
    /// Drop without a word.
    Blackhole,
    /// Drop, answer "host unreachable".
    Unreachable,
    /// Drop, answer "administratively prohibited".
    Prohibit,
}

/// Where a packet goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NextHop {
    /// The router to send to; none when the destination itself is on the link.
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
    /// The link it is on.
    pub link: LinkIndex,
    /// Its address.
    pub address: IpAddr,
    /// Its Ethernet address.
    pub mac: Mac,
}
