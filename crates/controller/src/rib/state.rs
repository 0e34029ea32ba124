//! The state that decides whether a next hop is usable: devices, addresses, next-hop objects.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net};

use crate::kernel::{
    Address, DEAD, Family, Hop, Hops, Ifindex, LINK_DOWN, Netdev, Nexthop, NexthopId, Route,
    TableId,
};

/// `IFF_UP`.
const UP: u32 = 1;
/// `IFF_RUNNING` and `IFF_LOWER_UP`: either means that the device has a carrier.
const CARRIER: u32 = 1 << 6 | 1 << 16;

/// The table for routes that name none.
pub const MAIN: TableId = 254;

/// The state of a device that matters to next hops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) up: bool,
    pub(super) carrier: bool,
    master: Option<Ifindex>,
    vrf_table: Option<TableId>,
}

impl Device {
    pub(super) fn new(netdev: &Netdev) -> Self {
        Self {
            up: netdev.flags & UP != 0,
            carrier: netdev.flags & CARRIER != 0,
            master: netdev.master,
            vrf_table: netdev.vrf_table,
        }
    }
}

/// Devices whose routes the kernel ignores while they have no carrier
/// (`ignore_routes_with_linkdown`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ignoring {
    /// For IPv4.
    pub v4: HashSet<Ifindex>,
    /// For IPv6.
    pub v6: HashSet<Ifindex>,
}

/// Whether a route is usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Usability {
    /// It is usable.
    Yes,
    /// None of its next hops is usable.
    No,
    /// Only the kernel knows.
    Unknown,
}

/// The state that decides whether a next hop is usable.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) devices: HashMap<Ifindex, Device>,
    /// IPv4 addresses by device, with the other end's: one address may have several of these.
    pub(super) addresses: HashMap<Ifindex, Vec<(Ipv4Net, Option<IpAddr>)>>,
    pub(super) nexthops: HashMap<NexthopId, Nexthop>,
    pub(super) ignoring: Ignoring,
}

impl State {
    /// Says whether a next hop is usable (`fib_lookup_good_nhc`, `find_match` of IPv6).
    pub(super) fn is_usable(&self, hop: &Hop, family: Family) -> bool {
        let ignoring = match family {
            Family::V4 => &self.ignoring.v4,
            Family::V6 => &self.ignoring.v6,
        };
        let device = self.devices.get(&hop.ifindex);
        hop.flags & DEAD == 0
            && device.is_none_or(|device| {
                device.up && (device.carrier || !ignoring.contains(&hop.ifindex))
            })
    }

    /// Says whether an object is usable.
    pub(super) fn object(&self, id: NexthopId, family: Family) -> Usability {
        let any = |usable: bool| if usable { Usability::Yes } else { Usability::No };
        match self.nexthops.get(&id) {
            Some(Nexthop::Hop(hop)) => any(self.is_usable(hop, family)),
            Some(Nexthop::Blackhole) => Usability::Yes,
            Some(Nexthop::Group { members, .. }) => {
                any(members.iter().any(|(member, _)| self.is_member(*member, family)))
            }
            Some(Nexthop::Other) | None => Usability::Unknown,
        }
    }

    /// Says whether an object is a blackhole, or a group with one.
    pub(super) fn drops(&self, id: NexthopId) -> bool {
        match self.nexthops.get(&id) {
            Some(Nexthop::Blackhole) => true,
            Some(Nexthop::Group { members, .. }) => {
                let is_blackhole = |(member, _): &(NexthopId, _)| {
                    matches!(self.nexthops.get(member), Some(Nexthop::Blackhole))
                };
                members.iter().any(is_blackhole)
            }
            // An unknown object counts as a blackhole until it is known.
            Some(Nexthop::Other) | None => true,
            Some(Nexthop::Hop(_)) => false,
        }
    }

    /// Says whether an object in a group is usable.
    pub(super) fn is_member(&self, id: NexthopId, family: Family) -> bool {
        match self.nexthops.get(&id) {
            Some(Nexthop::Hop(hop)) => self.is_usable(hop, family),
            Some(Nexthop::Blackhole) => true,
            _ => false,
        }
    }

    /// Reduces the flags of next hops to what only the kernel knows: [`DEAD`] stays if the device's state
    /// does not explain it. That is the case after the device lost its last address (`fib_disable_ip`), and
    /// in IPv6 after it was down, until it has a carrier again.
    pub(super) fn clear_explained_flags(&self, route: &mut Route, family: Family) {
        match &mut route.hops {
            Hops::One(hop) => self.clear_explained_flag(hop, family),
            Hops::Many(hops) => {
                hops.iter_mut().for_each(|hop| self.clear_explained_flag(hop, family))
            }
            Hops::None | Hops::Object(_) => {}
        }
    }

    fn clear_explained_flag(&self, hop: &mut Hop, family: Family) {
        hop.flags &= !LINK_DOWN;
        let state = Hop { flags: 0, ..*hop };
        let explained = match self.devices.get(&hop.ifindex) {
            // In IPv6 it stays dead until the device has a carrier, so being down does not explain the flag.
            Some(device) if family == Family::V6 && !device.up => false,
            Some(_) => !self.is_usable(&state, family),
            None => true,
        };
        if explained {
            hop.flags &= !DEAD;
        }
    }

    /// Adds an address; returns whether it is the device's first.
    pub(super) fn add_address(&mut self, address: &Address) -> bool {
        let IpNet::V4(net) = address.address else { return false };
        let addresses = self.addresses.entry(address.ifindex).or_default();
        if addresses.contains(&(net, address.peer)) {
            return false;
        }
        addresses.push((net, address.peer));
        addresses.len() == 1
    }

    /// Says whether a device has an IPv4 address.
    pub(super) fn has_address(&self, device: Ifindex) -> bool {
        self.addresses.get(&device).is_some_and(|addresses| !addresses.is_empty())
    }

    /// Removes an address. Returns it if no device has it any more, and returns whether the device has none
    /// left.
    pub(super) fn remove_address(&mut self, address: &Address) -> (Option<Ipv4Addr>, bool) {
        let IpNet::V4(net) = address.address else { return (None, false) };
        let own = self.addresses.get_mut(&address.ifindex);
        let found = own.and_then(|own| {
            Some((own.iter().position(|other| *other == (net, address.peer))?, own))
        });
        let Some((at, own)) = found else { return (None, false) };
        own.swap_remove(at);
        let last = own.is_empty();
        let on_other_device =
            self.addresses.values().flatten().any(|(other, _)| other.addr() == net.addr());
        ((!on_other_device).then_some(net.addr()), last)
    }

    /// The table whose routes depend on a device's addresses by their preferred source.
    pub(super) fn table_of(&self, device: Ifindex) -> TableId {
        let own = self.devices.get(&device);
        let master = own.and_then(|device| device.master);
        let vrf = master.and_then(|master| self.devices.get(&master));
        vrf.and_then(|vrf| vrf.vrf_table).unwrap_or(MAIN)
    }
}
