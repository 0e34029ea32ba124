use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tollway_dataplane::id::Vid;
use tollway_dataplane::tables::{RoutePrefix, Tables, TablesError};
use tollway_dataplane::wire::eth::ethertype;

use crate::frames::{self, Addresses, Spread, Template};

/// Flows of the rows that have many.
const MANY_FLOWS: usize = 65_536;

/// The path that a row runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// Without any optional stage.
    Nothing,
    /// The one that the program has.
    Everything,
}

/// One row of the table: what is configured, and what is sent.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name in reports.
    pub name: &'static str,
    /// What it is, in words.
    pub title: &'static str,
    /// The path that it runs on.
    pub build: Build,
    /// Frames handed over at once.
    pub burst: usize,
    /// No path at all: only what no router can leave out.
    pub floor: bool,
    many_flows: bool,
    ipv6: bool,
    vlan: bool,
    vrf: bool,
}

const PLAIN: Scenario = Scenario {
    name: "ip4-one-flow",
    title: "IPv4, one route, one flow",
    build: Build::Nothing,
    burst: 64,
    floor: false,
    many_flows: false,
    ipv6: false,
    vlan: false,
    vrf: false,
};

/// Every row, in the table's order.
pub const ROWS: &[Scenario] = &[
    Scenario {
        name: "floor",
        title: "read the header, write 14 bytes, TTL and checksum",
        floor: true,
        ..PLAIN
    },
    PLAIN,
    Scenario {
        name: "ip4-64k-flows",
        title: "IPv4, one route, 65,536 flows",
        many_flows: true,
        ..PLAIN
    },
    Scenario {
        name: "ip4-vlan",
        title: "IPv4, VLAN tag in and out",
        build: Build::Everything,
        vlan: true,
        ..PLAIN
    },
    Scenario {
        name: "ip4-vrf",
        title: "IPv4 in a VRF",
        build: Build::Everything,
        vrf: true,
        ..PLAIN
    },
    Scenario {
        name: "ip4-all-off",
        title: "IPv4, every feature built in, none configured",
        build: Build::Everything,
        ..PLAIN
    },
    Scenario { name: "ip6-one-flow", title: "IPv6, one route, one flow", ipv6: true, ..PLAIN },
    Scenario { name: "ip4-burst-4", title: "IPv4, bursts of 4", burst: 4, ..PLAIN },
    Scenario { name: "ip4-burst-1", title: "IPv4, bursts of 1", burst: 1, ..PLAIN },
];

const ROUTER_MAC: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const NEIGH_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x22];
const SENDER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x11];
const VIDS: [u16; 2] = [100, 200];
const MTU: u16 = 1500;

impl Scenario {
    /// Two ports, one route from the first out by the second, its neighbour known.
    ///
    /// # Errors
    /// None in practice: the tables are small.
    pub fn tables(&self) -> Result<Tables, TablesError> {
        let mut tables = Tables::new();
        let main = tables.add_vrf()?;
        let vrf = if self.vrf { tables.add_vrf()? } else { main };
        let mut links = Vec::new();
        for mac in ROUTER_MAC {
            let (_, link) = tables.add_port(mac, vrf, MTU)?;
            links.push(link);
        }
        if self.vlan {
            for (link, vid) in links.iter_mut().zip(VIDS) {
                let vid = Vid::new(vid).ok_or(TablesError::Unknown)?;
                let mac = tables.link(*link).mac_bytes;
                *link = tables.add_vlan(*link, ethertype::DOT1Q, vid, mac, vrf, MTU)?;
            }
        }
        let gateways = [
            IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
            IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xff, 0, 0, 0, 0, 1)),
        ];
        let prefixes = [
            RoutePrefix::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0)), 8),
            RoutePrefix::new(IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0)), 32),
        ];
        for (gateway, prefix) in gateways.into_iter().zip(prefixes) {
            let next = tables.set_neigh(links[1], gateway, Some(NEIGH_MAC))?;
            tables.insert(vrf, prefix, next)?;
        }
        Ok(tables)
    }

    /// The frames that arrive, one for each flow.
    #[must_use]
    pub fn templates(&self) -> Vec<Template> {
        let tag = [(ethertype::DOT1Q, VIDS[0])];
        let tags: &[_] = if self.vlan { &tag } else { &[] };
        let flows = if self.many_flows { MANY_FLOWS } else { 1 };
        let mut spread = Spread::new(0x7011_0a11);
        let flow = |_| {
            let random = spread.next();
            let addresses = if self.ipv6 {
                let net = 0x2001_0db8_u128 << 96;
                Addresses::V6(net | 0x1_0000, net | 0x2_0000)
            } else {
                let src = 0xac10_0000 | (random >> 40) as u32 & 0x000f_ffff;
                Addresses::V4(src, 0x0a00_0000 | random as u32 >> 8)
            };
            let ports = ((random >> 16) as u16, 53);
            frames::udp(ROUTER_MAC[0], SENDER_MAC, tags, addresses, ports)
        };
        (0..flows).map(flow).collect()
    }
}
