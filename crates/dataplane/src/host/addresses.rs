//! The router's own addresses, by link, and source address selection (`inet_select_addr` in
//! `net/ipv4/devinet.c`, `ipv6_dev_get_saddr` in `net/ipv6/addrconf.c`).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::id::{LinkId, VrfId};
use crate::prefix::RoutePrefix;
use crate::tables::Tables;

/// Addresses and prefix lengths of every link.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    by_link: BTreeMap<LinkId, Vec<(IpAddr, u8)>>,
}

impl Addresses {
    pub(super) fn add(&mut self, link: LinkId, address: IpAddr, prefix_len: u8) {
        self.by_link.entry(link).or_default().push((address, prefix_len));
    }

    fn on_link(&self, link: LinkId) -> &[(IpAddr, u8)] {
        self.by_link.get(&link).map_or(&[], Vec::as_slice)
    }

    /// Addresses of all links in a VRF.
    fn in_vrf(&self, tables: &Tables, vrf: VrfId) -> impl Iterator<Item = (IpAddr, u8)> {
        let links = self.by_link.iter().filter(move |(link, _)| {
            tables.routes.links.get(**link).is_some_and(|record| record.vrf == vrf)
        });
        links.flat_map(|(_, addresses)| addresses.iter().copied())
    }

    /// Whether the link itself has the address; its link-local address counts.
    pub(super) fn link_has(&self, tables: &Tables, link: LinkId, address: IpAddr) -> bool {
        self.on_link(link).iter().any(|(own, _)| *own == address)
            || address == IpAddr::V6(self.link_local(tables, link))
    }

    /// Whether the router has the address, for a packet from `link`: on any link of its VRF, but a
    /// link-local address only on that link (RFC 4007).
    pub(super) fn is_local(&self, tables: &Tables, link: LinkId, address: IpAddr) -> bool {
        if is_link_local(address) {
            return self.link_has(tables, link, address);
        }
        self.in_vrf(tables, tables.link(link).vrf).any(|(own, _)| own == address)
    }

    /// Whether the address is a multicast or broadcast address, of any subnet in the link's VRF.
    pub(super) fn is_group(&self, tables: &Tables, link: LinkId, address: IpAddr) -> bool {
        let IpAddr::V4(v4) = address else { return address.is_multicast() };
        v4.is_multicast() || v4.is_broadcast() || self.is_subnet_broadcast(tables, link, v4)
    }

    fn is_subnet_broadcast(&self, tables: &Tables, link: LinkId, address: Ipv4Addr) -> bool {
        self.in_vrf(tables, tables.link(link).vrf).any(|(own, len)| match own {
            // Neither a /31 (RFC 3021) nor a single address has a broadcast address.
            IpAddr::V4(own) if len < 31 => {
                let hosts = u32::MAX.checked_shr(u32::from(len)).unwrap_or(0);
                address.to_bits() == own.to_bits() | hosts
            }
            _ => false,
        })
    }

    /// Whether the address lies in a prefix of the link.
    pub(super) fn is_connected(&self, link: LinkId, address: IpAddr) -> bool {
        is_link_local(address)
            || self.on_link(link).iter().any(|(own, len)| {
                own.is_ipv4() == address.is_ipv4()
                    && RoutePrefix::new(*own, *len) == RoutePrefix::new(address, *len)
            })
    }

    /// The link's configured link-local address, or the one of RFC 4291, appendix A.
    pub(super) fn link_local(&self, tables: &Tables, link: LinkId) -> Ipv6Addr {
        let configured = self.on_link(link).iter().find_map(|(own, _)| match own {
            IpAddr::V6(own) if own.is_unicast_link_local() => Some(*own),
            _ => None,
        });
        configured.unwrap_or_else(|| eui64(tables.link(link).mac_bytes))
    }

    /// The source address towards an IPv4 neighbour: the link's address in its subnet, else the
    /// link's first, else the VRF's first.
    pub(super) fn source4(&self, tables: &Tables, link: LinkId, neigh: IpAddr) -> Option<Ipv4Addr> {
        let v4 = |(own, len): (IpAddr, u8)| match own {
            IpAddr::V4(own) => Some((own, len)),
            IpAddr::V6(_) => None,
        };
        let near = |(own, len): &(Ipv4Addr, u8)| {
            neigh.is_ipv4()
                && RoutePrefix::new((*own).into(), *len) == RoutePrefix::new(neigh, *len)
        };
        let mut own = self.on_link(link).iter().copied().filter_map(v4);
        let first = own.clone().next();
        let vrf = tables.link(link).vrf;
        let chosen = own.find(near).or(first);
        chosen.or_else(|| self.in_vrf(tables, vrf).find_map(v4)).map(|(own, _)| own)
    }

    /// The source address towards an IPv6 address on a link: one of the same scope on the link,
    /// else in the VRF, else the link-local one (RFC 6724, rules 2 and 5).
    pub(super) fn source6(&self, tables: &Tables, link: LinkId, dst: Ipv6Addr) -> Ipv6Addr {
        let link_local = self.link_local(tables, link);
        if is_link_local(dst.into()) {
            return link_local;
        }
        let global = |(own, _): (IpAddr, u8)| match own {
            IpAddr::V6(own) if !own.is_unicast_link_local() => Some(own),
            _ => None,
        };
        let vrf = tables.link(link).vrf;
        let on_link = self.on_link(link).iter().copied().find_map(global);
        on_link.or_else(|| self.in_vrf(tables, vrf).find_map(global)).unwrap_or(link_local)
    }
}

/// Whether an address is valid only on its link: `fe80::/10`, or multicast of link scope.
pub(super) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.segments()[0] & 0xff0f == 0xff02,
    }
}

/// The link-local address of a MAC address (RFC 4291, appendix A).
pub(super) const fn eui64(mac: [u8; 6]) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    let id = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    Ipv6Addr::from_bits(0xfe80 << 112 | id as u128)
}

/// The multicast address on which a neighbour receives solicitations (RFC 4291, 2.7.1).
pub(super) const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits(0xff02_0000_0000_0000_0000_0001_ff00_0000 | address.to_bits() & 0xff_ffff)
}

/// The Ethernet address of an IPv6 multicast address (RFC 2464, 7).
pub(super) const fn multicast_mac(address: Ipv6Addr) -> [u8; 6] {
    let [.., a, b, c, d] = address.octets();
    [0x33, 0x33, a, b, c, d]
}
