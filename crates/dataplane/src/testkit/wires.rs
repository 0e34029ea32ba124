//! The links, addresses and routes of the network that the tests send packets through.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use tollway_dataplane::id::{LinkId, NextHopId, PortId, Vid, VrfId};
use tollway_dataplane::memory::Memory;
use tollway_dataplane::prefix::RoutePrefix;
use tollway_dataplane::stages::ecmp::Member;
use tollway_dataplane::tables::Tables;
use tollway_dataplane::verdict::{DropReason, PuntReason};

use super::packet::{DOT1AD, DOT1Q, Mac, Packet, Tag, ip};

/// Ports of the network.
pub const PORTS: u8 = 3;

/// Largest packet of each port.
pub const MTU: [u16; PORTS as usize] = [1500, 9000, 1280];

/// A link of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkVariant {
    /// Untagged.
    Plain,
    /// One 802.1Q tag.
    Vlan,
    /// One 802.1Q tag, in VRF 1 and with a MAC address of its own.
    Red,
    /// One 802.1ad tag.
    Service,
    /// 802.1ad outside, 802.1Q inside, in VRF 2.
    Qinq,
    /// One 802.1Q tag, below `Stacked`.
    Outer,
    /// Two 802.1Q tags, in VRF 1.
    Stacked,
}

impl LinkVariant {
    /// Every kind of link; parents before what is on top of them.
    pub const ALL: [Self; 7] =
        [Self::Plain, Self::Vlan, Self::Red, Self::Service, Self::Qinq, Self::Outer, Self::Stacked];

    /// Tags of its frames, the outermost first.
    pub const fn tags(self) -> &'static [Tag] {
        match self {
            Self::Plain => &[],
            Self::Vlan => &[(DOT1Q, 10)],
            Self::Red => &[(DOT1Q, 20)],
            Self::Service => &[(DOT1AD, 30)],
            Self::Qinq => &[(DOT1AD, 30), (DOT1Q, 300)],
            Self::Outer => &[(DOT1Q, 40)],
            Self::Stacked => &[(DOT1Q, 40), (DOT1Q, 400)],
        }
    }

    const fn parent(self) -> Option<Self> {
        match self {
            Self::Plain => None,
            Self::Qinq => Some(Self::Service),
            Self::Stacked => Some(Self::Outer),
            _ => Some(Self::Plain),
        }
    }

    /// Its VRF.
    pub const fn vrf(self) -> VrfId {
        VrfId(match self {
            Self::Red | Self::Stacked => 1,
            Self::Qinq => 2,
            _ => 0,
        })
    }

    /// Its address on a port.
    pub const fn mac(self, port: u8) -> Mac {
        [2, 0, 0, 0, port, if let Self::Red = self { 0xed } else { 0 }]
    }

    /// Its neighbour on a port.
    pub const fn peer(self, port: u8) -> Mac {
        [6, 0, 0, 0, port, self as u8]
    }

    /// Its number on a port.
    pub const fn link(self, port: u8) -> LinkId {
        LinkId(port as u16 * Self::ALL.len() as u16 + self as u16)
    }

    /// An IPv4 destination behind its neighbour, from every VRF.
    pub const fn host4(self, port: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, port, self as u8, 9))
    }

    /// An IPv6 destination behind its neighbour, from every VRF.
    pub const fn host6(self, port: u8) -> IpAddr {
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, port as u16, self as u16, 0, 0, 0, 9))
    }

    /// A packet that arrives on this link of a port, to an address.
    pub fn packet(self, port: u8, dst: IpAddr) -> Packet {
        let src = if dst.is_ipv4() { ip("192.0.2.77") } else { ip("2001:db8:77::77") };
        Packet::between(src, dst).to(self.mac(port)).tagged(self.tags())
    }

    /// The frame that `frame` becomes on egress through this link of a port.
    pub fn forwarded(self, port: u8, frame: &[u8]) -> Vec<u8> {
        super::packet::forwarded(frame, self.peer(port), self.mac(port), self.tags())
    }
}

/// Destinations without a neighbour behind them, in every VRF: one of each family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    Blackhole,
    Unreachable,
    Prohibit,
    /// Connected: the router has to resolve the destination itself.
    Glean,
    /// Behind a neighbour that is not known.
    Resolve,
    Local,
    /// A group of the plain links of ports 1 and 2, weights 1 and 3.
    Group,
    /// No route.
    Nowhere,
    /// By a link of port 1 by which only the kernel sends.
    KernelExit,
}

impl Special {
    pub const ALL: [Self; 9] = [
        Self::Blackhole,
        Self::Unreachable,
        Self::Prohibit,
        Self::Glean,
        Self::Resolve,
        Self::Local,
        Self::Group,
        Self::Nowhere,
        Self::KernelExit,
    ];

    pub const fn host4(self) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(198, 18, self as u8, 9))
    }

    pub const fn host6(self) -> IpAddr {
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xff, self as u16, 0, 0, 0, 9))
    }
}

/// A destination that all VRFs have; in VRF `n`, it leads to the plain link of port `n`.
pub const OVERLAP4: &str = "172.16.5.5";
pub const OVERLAP6: &str = "fd00:1::5";

/// Weights of the group's members, on ports 1 and 2.
pub const WEIGHTS: [u16; 2] = [1, 3];

/// The network's tables, built once.
pub static TABLES: LazyLock<Tables> = LazyLock::new(tables);

/// Builds the tables for a test that changes them.
pub fn tables() -> Tables {
    tables_in(&Memory::default())
}

/// As [`tables`], with this memory.
pub fn tables_in(memory: &Memory) -> Tables {
    let mut tables = Tables::with_memory(memory);
    let vrfs: Vec<_> = (0..3).map(|_| tables.add_vrf().expect("a VRF")).collect();
    for port in 0..PORTS {
        for variant in LinkVariant::ALL {
            add_link(&mut tables, port, variant);
        }
    }
    for vrf in &vrfs {
        for port in 0..PORTS {
            for variant in LinkVariant::ALL {
                add_routes(&mut tables, *vrf, port, variant);
            }
        }
        for special in Special::ALL {
            add_special(&mut tables, *vrf, special);
        }
        let port = vrf.0 as u8;
        // Miri takes a minute to write the 65,536 entries of each.
        if port > 0 && !cfg!(miri) {
            give_default_routes(&mut tables, *vrf);
        }
        route(&mut tables, *vrf, (ip("172.16.0.0"), 12), |tables| {
            neigh4(tables, port, LinkVariant::Plain)
        });
        route(&mut tables, *vrf, (ip("fd00::"), 8), |tables| {
            neigh6(tables, port, LinkVariant::Plain)
        });
    }
    tables
}

/// Adds default routes to a VRF, to two links of port 2; in the test network all VRFs except the main
/// one have them.
pub fn give_default_routes(tables: &mut Tables, vrf: VrfId) {
    route(tables, vrf, (ip("0.0.0.0"), 0), |tables| neigh4(tables, 2, LinkVariant::Vlan));
    route(tables, vrf, (ip("::"), 0), |tables| neigh6(tables, 2, LinkVariant::Stacked));
}

fn add_link(tables: &mut Tables, port: u8, variant: LinkVariant) {
    let (mac, vrf, mtu) = (variant.mac(port), variant.vrf(), MTU[usize::from(port)]);
    let link = match (variant.parent(), variant.tags().last()) {
        (Some(parent), Some((protocol, vid))) => {
            let vid = Vid::new(*vid).expect("a VLAN");
            tables.add_vlan(parent.link(port), *protocol, vid, mac, vrf, mtu).expect("a link")
        }
        _ => {
            let (id, link) = tables.add_port(mac, vrf, mtu).expect("a port");
            assert_eq!(id, PortId(u16::from(port)));
            link
        }
    };
    assert_eq!(link, variant.link(port));
}

fn neigh4(tables: &mut Tables, port: u8, variant: LinkVariant) -> NextHopId {
    let gateway = IpAddr::V4(Ipv4Addr::new(10, 255, port, variant as u8 + 1));
    tables.set_neigh(variant.link(port), gateway, Some(variant.peer(port))).expect("a neighbour")
}

fn neigh6(tables: &mut Tables, port: u8, variant: LinkVariant) -> NextHopId {
    let gateway = ip("fe80::1");
    tables.set_neigh(variant.link(port), gateway, Some(variant.peer(port))).expect("a neighbour")
}

fn route(
    tables: &mut Tables,
    vrf: VrfId,
    (address, len): (IpAddr, u8),
    next: impl FnOnce(&mut Tables) -> NextHopId,
) {
    let next = next(tables);
    tables.insert(vrf, RoutePrefix::new(address, len), next).expect("a route");
}

fn add_routes(tables: &mut Tables, vrf: VrfId, port: u8, variant: LinkVariant) {
    route(tables, vrf, (variant.host4(port), 24), |tables| neigh4(tables, port, variant));
    route(tables, vrf, (variant.host6(port), 64), |tables| neigh6(tables, port, variant));
}

fn add_special(tables: &mut Tables, vrf: VrfId, special: Special) {
    for (host, len) in [(special.host4(), 24), (special.host6(), 120)] {
        let next = match special {
            Special::Blackhole => tables.drop(DropReason::Blackhole).expect("a next hop"),
            Special::Unreachable => tables.punt(PuntReason::Unreachable).expect("a next hop"),
            Special::Prohibit => tables.punt(PuntReason::Prohibit).expect("a next hop"),
            Special::Glean => tables.glean(LinkId(0)).expect("a next hop"),
            Special::Resolve => {
                let gateway = if host.is_ipv4() { ip("10.255.0.99") } else { ip("fe80::99") };
                tables.neigh(LinkId(0), gateway).expect("a next hop")
            }
            Special::Local => tables.local().expect("a next hop"),
            Special::Group => group(tables, host.is_ipv4()),
            Special::KernelExit => {
                tables.kernel_exit(LinkVariant::Plain.link(1)).expect("a next hop")
            }
            Special::Nowhere => continue,
        };
        tables.insert(vrf, RoutePrefix::new(host, len), next).expect("a route");
    }
}

fn group(tables: &mut Tables, is_ipv4: bool) -> NextHopId {
    let neigh = if is_ipv4 { neigh4 } else { neigh6 };
    let members = [(1, WEIGHTS[0]), (2, WEIGHTS[1])]
        .map(|(port, weight)| Member { next: neigh(tables, port, LinkVariant::Plain), weight });
    tables.add_group(&members).expect("a group")
}
