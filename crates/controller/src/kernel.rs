//! The kernel's configuration as plain data: the content of its messages, without interpretation.

mod bridge;

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

pub use bridge::{
    BridgePort, BridgePortFlag, BridgePortFlags, BridgePortState, BridgeSettings, Stp,
};

/// A network device's number.
pub type Ifindex = u32;

/// A routing table's number; 253 is `default`, 254 `main`, 255 `local`.
pub type TableId = u32;

/// A next-hop object's number (ip-nexthop(8)).
pub type NexthopId = u32;

/// IPv4 or IPv6: the kernel has rules, sysctls and tables of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The other family.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::V4 => Self::V6,
            Self::V6 => Self::V4,
        }
    }
}

/// A network device (rtnetlink(7), `RTM_NEWLINK`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Netdev {
    /// Its name.
    pub name: String,
    /// The driver that made it (`IFLA_INFO_KIND`): `veth`, `vlan`, `vrf`, `bridge`; none for hardware.
    pub kind: Option<String>,
    /// Its Ethernet address, if it has one.
    pub mac: Option<[u8; 6]>,
    /// Its packets have no header of layer 2.
    pub is_layer3: bool,
    /// Largest layer-3 packet, bytes.
    pub mtu: u32,
    /// `IFF_*` flags.
    pub flags: u32,
    /// The device below, in the same namespace (`IFLA_LINK`); for a veth, its peer.
    pub lower: Option<Ifindex>,
    /// The bridge, bond or VRF that it belongs to (`IFLA_MASTER`).
    pub master: Option<Ifindex>,
    /// For a VLAN device: the tag's identifier and protocol.
    pub vlan: Option<(u16, u16)>,
    /// For a VRF device: its table.
    pub vrf_table: Option<TableId>,
    /// For a bridge: its settings.
    pub bridge: Option<BridgeSettings>,
    /// Of a bridge: somebody wants all of its frames (`IFLA_PROMISCUITY`), as packet sockets do.
    pub is_promiscuous: bool,
    /// The queueing discipline's name (`IFLA_QDISC`).
    pub qdisc: String,
    /// The number of the attached XDP program.
    pub xdp: Option<u32>,
}

impl Netdev {
    /// Says whether the device is switched on (`IFF_UP`).
    #[must_use]
    pub const fn is_up(&self) -> bool {
        self.flags & libc::IFF_UP as u32 != 0
    }
}

/// An address of a device (`RTM_NEWADDR`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// The device.
    pub ifindex: Ifindex,
    /// The address itself (`IFA_LOCAL`, else `IFA_ADDRESS`) and its prefix length.
    pub address: IpNet,
    /// The other end's address, where that differs (`IFA_ADDRESS`).
    pub peer: Option<IpAddr>,
    /// The broadcast address, IPv4 only.
    pub broadcast: Option<Ipv4Addr>,
    /// `IFA_F_*` flags; a tentative or duplicate address is not active.
    pub flags: u32,
}

/// The key of a route in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteKey {
    /// The table.
    pub table: TableId,
    /// Destination.
    pub dst: IpNet,
    /// Type of service, 0 for any. IPv6 has none: there it is [`OF_SOURCES`](Self::OF_SOURCES) or 0.
    pub tos: u8,
    /// Metric: lower wins.
    pub priority: u32,
}

impl RouteKey {
    /// The type of service that marks an IPv6 route for packets of some sources (`RTA_SRC`). Changes of other
    /// routes do not affect it. It is [unsupported](Route::unsupported), and comes before all others.
    pub const OF_SOURCES: u8 = 1;

    /// The family of the destination.
    #[must_use]
    pub const fn family(&self) -> Family {
        match self.dst {
            IpNet::V4(_) => Family::V4,
            IpNet::V6(_) => Family::V6,
        }
    }
}

/// What a route does (`rtm_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouteKind {
    /// Forward.
    Unicast,
    /// Deliver to the host.
    Local,
    /// Deliver as a broadcast.
    Broadcast,
    /// IPv6: deliver to the host, one of several.
    Anycast,
    /// Deliver to a multicast group.
    Multicast,
    /// Drop silently.
    Blackhole,
    /// Drop, answer "host unreachable".
    Unreachable,
    /// Drop, answer "administratively prohibited".
    Prohibit,
    /// Continue as if this table had no route.
    Throw,
    /// A type unknown to Tollway.
    Other(u8),
}

/// The device of a next hop is down (`RTNH_F_DEAD`).
pub const DEAD: u8 = 1;
/// The gateway of a next hop is reached on its device, whatever the routes say (`RTNH_F_ONLINK`).
pub const ON_LINK: u8 = 4;
/// The device of a next hop has no carrier (`RTNH_F_LINKDOWN`).
pub const LINK_DOWN: u8 = 16;

/// One of a route's next hops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hop {
    /// The gateway; none when the destination itself is on the device.
    pub via: Option<IpAddr>,
    /// The device.
    pub ifindex: Ifindex,
    /// Share of the flows, 1 to 256.
    pub weight: u16,
    /// The `RTNH_F_*` flags [`DEAD`], [`ON_LINK`] and [`LINK_DOWN`]. The kernel changes the first and the
    /// last without notifying, so they are as of the route's last event.
    pub flags: u8,
    /// The packet is encapsulated on its way (`RTA_ENCAP`): tunnels, MPLS, segment routing.
    pub encap: bool,
}

/// Where a route leads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Hops {
    /// Nowhere, as with a blackhole route.
    None,
    /// One next hop.
    One(Hop),
    /// Several, chosen by flow.
    Many(Box<[Hop]>),
    /// The next hops of a next-hop object.
    Object(NexthopId),
}

/// A route (`RTM_NEWROUTE`); kept small, since there may be a million.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// What it does.
    pub kind: RouteKind,
    /// Where it leads.
    pub hops: Hops,
    /// Who added it (`RTPROT_*`).
    pub protocol: u8,
    /// Preferred source address, for the router's own packets; when that address goes, so does the route.
    pub prefsrc: Option<IpAddr>,
    /// Largest packet, bytes (`RTAX_MTU`), 0 for the device's MTU.
    pub mtu: u32,
    /// Whether the route has an attribute that the router cannot apply exactly: a lifetime (IPv6), a source
    /// prefix (IPv6), a realm, or an unknown one. Its packets take the kernel path.
    pub unsupported: bool,
}

impl Route {
    /// Says whether the kernel would consider both routes the same. It ignores flags that the kernel changes
    /// without a notification: whether next hops are dead or without a carrier.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let own = (self.kind, self.protocol, self.prefsrc, self.mtu, self.unsupported);
        own == (other.kind, other.protocol, other.prefsrc, other.mtu, other.unsupported)
            && self.hops.is_same(&other.hops)
    }

    /// Says whether an IPv6 route is one of the siblings of its key, which together are one route with
    /// several next hops (`rt6_qualify_for_ecmp`). Routes of sources ([`RouteKey::OF_SOURCES`]) share a key
    /// here, but not in the kernel: the caller excludes them.
    ///
    /// Routes from router advertisements join nothing. A route that a user adds with their protocol does join,
    /// and the kernel does not say which of the two a route is. Several next hops are siblings in any case.
    #[must_use]
    pub fn joins(&self) -> bool {
        /// `RTPROT_RA`.
        const ADVERTISED: u8 = 9;
        let hops = self.hops.list();
        let by_routers = !hops.is_empty() && hops.iter().all(|hop| hop.via.is_some());
        by_routers && (self.protocol != ADVERTISED || hops.len() > 1)
    }

    /// Says whether this is one of several siblings that make up another route.
    #[must_use]
    pub fn is_among(&self, other: &Self) -> bool {
        let (own, others) = (self.hops.list(), other.hops.list());
        let is_there = |hop: &Hop| others.iter().any(|other| other.leads_alike(hop));
        others.len() > 1 && !own.is_empty() && own.iter().all(is_there)
    }
}

impl Hops {
    /// The next hops that the route itself names.
    #[must_use]
    pub fn list(&self) -> &[Hop] {
        match self {
            Self::None | Self::Object(_) => &[],
            Self::One(hop) => std::slice::from_ref(hop),
            Self::Many(hops) => hops,
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        let of = |hops: &Self| match hops {
            Self::Object(id) => Some(*id),
            _ => None,
        };
        let (own, others) = (self.list(), other.list());
        of(self) == of(other)
            && own.len() == others.len()
            && own.iter().zip(others).all(|(own, other)| own.is_same(other))
    }
}

impl Hop {
    /// Says whether the hops are the same, regardless of their state.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let state = DEAD | LINK_DOWN;
        let lasting = |hop: &Self| Self { flags: hop.flags & !state, ..*hop };
        lasting(self) == lasting(other)
    }

    /// Says whether both lead to the same place (`rt6_duplicate_nexthop`). The weights do not count: the
    /// notification of a deleted IPv6 next hop lacks its weight.
    #[must_use]
    pub fn leads_alike(&self, other: &Self) -> bool {
        (self.via, self.ifindex, self.encap) == (other.via, other.ifindex, other.encap)
    }
}

/// A next-hop object (`RTM_NEWNEXTHOP`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nexthop {
    /// One next hop.
    Hop(Hop),
    /// Drops packets.
    Blackhole,
    /// Several, by number and weight.
    Group {
        /// The members.
        members: Vec<(NexthopId, u16)>,
        /// Flows keep their member when others come and go.
        resilient: bool,
    },
    /// An object that is not for routes (`NHA_FDB`), or of an unknown kind.
    Other,
}

/// A rule of policy routing (`RTM_NEWRULE`, ip-rule(8)).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rule {
    /// The family.
    pub family: Family,
    /// Rules are evaluated in this order, those of one priority in the order of their addition.
    pub priority: u32,
    /// Sources that match; none for all.
    pub src: Option<IpNet>,
    /// Destinations that match; none for all.
    pub dst: Option<IpNet>,
    /// Name of the input device that matches; none for all.
    pub iif: Option<String>,
    /// The value and mask of the packet's mark.
    pub mark: Option<(u32, u32)>,
    /// What it does.
    pub action: RuleAction,
    /// A selector that Tollway does not support (output device, ports, tunnel, `not`, ...), in words.
    pub unsupported: Option<String>,
}

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RuleAction {
    /// Looks up a table; without a route there, the next rule applies.
    Table(TableId),
    /// Looks up the table of the packet's VRF (`l3mdev`); nothing for packets outside VRFs.
    Vrf,
    /// Drops silently.
    Blackhole,
    /// Drops, answers "host unreachable".
    Unreachable,
    /// Drops, answers "administratively prohibited".
    Prohibit,
    /// Does nothing.
    Nop,
    /// Continues at the first rule of that priority.
    Goto(u32),
}

/// The kernel's configuration apart from routes, which are in the [`super::rib::Rib`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Devices.
    pub netdevs: BTreeMap<Ifindex, Netdev>,
    /// The devices that belong to bridges, each to that of its [master](Netdev::master).
    pub bridge_ports: BTreeMap<Ifindex, BridgePort>,
    /// Addresses.
    pub addresses: std::collections::BTreeSet<Address>,
    /// Rules, in the order of evaluation.
    pub rules: Vec<Rule>,
    /// Next-hop objects.
    pub nexthops: HashMap<NexthopId, Nexthop>,
}

impl Kernel {
    /// The device with a name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<(Ifindex, &Netdev)> {
        let named = self.netdevs.iter().find(|(_, netdev)| netdev.name == name);
        named.map(|(index, netdev)| (*index, netdev))
    }

    /// The bridge that a device belongs to, and its number.
    #[must_use]
    pub fn bridge_of(&self, device: Ifindex) -> Option<(Ifindex, &Netdev)> {
        let index = self.netdevs.get(&device)?.master?;
        let bridge = self.netdevs.get(&index)?;
        bridge.bridge.map(|_| (index, bridge))
    }

    /// The VRF device that a device belongs to.
    #[must_use]
    pub fn vrf_of(&self, netdev: &Netdev) -> Option<(Ifindex, &Netdev)> {
        let index = netdev.master?;
        let master = self.netdevs.get(&index)?;
        master.vrf_table.map(|_| (index, master))
    }
}
