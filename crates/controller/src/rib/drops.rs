//! What the kernel drops or reactivates without notification.
//!
//! The RIB may derive too many drops. Packets of a route that is missing here take the kernel path until the
//! RIB has it again, from the list that [`Rib::doubts`] requests.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};

use super::attrs_store::{RouteAttrs, RouteAttrsId};
use super::order::as_hops;
use super::route_store::Alias;
use super::state::{Device, Usability};
use super::{DestKey, Rib};
use crate::kernel::{
    Address, DEAD, Family, Hop, Hops, Ifindex, Netdev, Nexthop, NexthopId, Route, RouteKind,
    TableId,
};

/// `RTPROT_KERNEL`.
const KERNELS: u8 = 2;

impl Rib {
    /// A device has come, has changed, or has gone.
    pub(super) fn apply_device(&mut self, index: Ifindex, netdev: Option<&Netdev>) {
        let now = netdev.map(Device::new);
        let before = match now {
            Some(now) => self.state.devices.insert(index, now),
            None => self.state.devices.remove(&index),
        };
        let Some(before) = before else {
            return self.device_changed(index);
        };
        let Some(now) = now else {
            return self.device_gone(index);
        };
        if before.up && !now.up {
            self.device_down(index);
        } else if (before.up, before.carrier) != (now.up, now.carrier) {
            if !before.up && now.up {
                self.mark(index, Family::V4, false);
            }
            // IPv6 waits for the carrier (`addrconf_link_ready` before `rt6_sync_up`).
            if now.up && now.carrier {
                self.mark(index, Family::V6, false);
            }
            if !now.carrier {
                self.drop_objects_of(index);
            }
            // A next hop may also have been dead for lack of an address, so its state is now in doubt.
            self.doubts |= now.carrier && !self.state.has_address(index);
            self.device_changed(index);
        }
    }

    /// Notes that the usability of next hops by a device may have changed.
    pub(super) fn device_changed(&mut self, index: Ifindex) {
        self.hops_touched = true;
        let objects = self.objects_by(index);
        self.touch_where(|attrs| match attrs.route.hops {
            Hops::Object(id) => objects.contains(&id),
            _ => attrs.is_by(index),
        });
    }

    /// `fib_sync_down_dev` and `fib6_ifdown` on `NETDEV_DOWN`: drops routes that have no other device.
    fn device_down(&mut self, index: Ifindex) {
        self.drop_objects_of(index);
        let stays =
            |attrs: &RouteAttrs| attrs.family == Family::V4 && attrs.route.kind == RouteKind::Local;
        let dead = self.attrs_store.find(|attrs| !stays(attrs) && self.is_dead(attrs, index));
        self.drop_routes(&dead);
        self.mark(index, Family::V6, true);
        self.device_changed(index);
    }

    /// Says whether a route has no next hop left except those by a device.
    fn is_dead(&self, attrs: &RouteAttrs, index: Ifindex) -> bool {
        let down = |hop: &Hop| {
            let device = self.state.devices.get(&hop.ifindex);
            let dead = hop.flags & DEAD != 0 || device.is_some_and(|device| !device.up);
            dead || hop.ifindex == index
        };
        attrs.is_by(index) && attrs.route.hops.list().iter().all(down)
    }

    /// The same on `NETDEV_UNREGISTER`: IPv4 routes go entirely, IPv6 routes lose the next hop.
    fn device_gone(&mut self, index: Ifindex) {
        self.drop_objects_of(index);
        self.state.addresses.remove(&index);
        let (mut dead, mut less) = (HashSet::new(), Vec::new());
        for (id, attrs) in self.attrs_store.iter().filter(|(_, attrs)| attrs.is_by(index)) {
            let left = attrs.route.hops.list().iter().copied();
            let left: Vec<_> = left.filter(|hop| hop.ifindex != index).collect();
            if attrs.family == Family::V4 || left.is_empty() {
                dead.insert(id);
            } else {
                less.push((id, as_hops(left)));
            }
        }
        self.drop_routes(&dead);
        for (id, hops) in &less {
            self.attrs_store.change(*id, |attrs| attrs.route.hops = hops.clone());
        }
        let less: HashSet<_> = less.into_iter().map(|(id, _)| id).collect();
        self.doubts |= !less.is_empty();
        self.touch_routes(&less);
        self.hops_touched = true;
    }

    /// Marks next hops by a device as dead regardless of its state, or removes that mark; returns their routes.
    fn mark(&mut self, index: Ifindex, family: Family, dead: bool) -> HashSet<RouteAttrsId> {
        let flags = |hop: &Hop| if dead { hop.flags | DEAD } else { hop.flags & !DEAD };
        let concerned = |attrs: &RouteAttrs| {
            let mut hops = attrs.route.hops.list().iter();
            attrs.family == family
                && hops.any(|hop| hop.ifindex == index && hop.flags != flags(hop))
        };
        let ids = self.attrs_store.find(concerned);
        for id in &ids {
            self.attrs_store.change(*id, |attrs| {
                let hops = match &mut attrs.route.hops {
                    Hops::One(hop) => std::slice::from_mut(hop),
                    Hops::Many(hops) => hops,
                    Hops::None | Hops::Object(_) => &mut [],
                };
                let own = hops.iter_mut().filter(|hop| hop.ifindex == index);
                own.for_each(|hop| hop.flags = flags(hop));
            });
        }
        ids
    }

    /// Like [`Rib::mark`], if nothing else of the device changed.
    fn mark_alone(&mut self, index: Ifindex, family: Family, dead: bool) {
        let ids = self.mark(index, family, dead);
        self.hops_touched |= !ids.is_empty();
        self.touch_routes(&ids);
    }

    /// With a device's first address, its dead next hops become usable (`fib_inetaddr_event`).
    pub(super) fn address_here(&mut self, address: &Address) {
        if self.state.add_address(address) {
            self.mark_alone(address.ifindex, Family::V4, false);
        }
    }

    /// With an address go the routes that prefer it as source (`fib_sync_down_addr`); with a device's last
    /// address go the routes by the device (`fib_disable_ip`).
    pub(super) fn address_gone(&mut self, address: &Address) {
        let (gone, last) = self.state.remove_address(address);
        if let Some(source) = gone {
            self.drop_source(source, self.state.table_of(address.ifindex));
        }
        if last {
            let index = address.ifindex;
            let is_v4 = |attrs: &RouteAttrs| attrs.family == Family::V4;
            let dead = self.attrs_store.find(|attrs| is_v4(attrs) && self.is_dead(attrs, index));
            self.drop_routes(&dead);
            self.mark_alone(index, Family::V4, true);
        }
    }

    /// The kernel notifies of the routes that it has added for the address itself (`fib_del_ifaddr`).
    fn drop_source(&mut self, source: Ipv4Addr, table: TableId) {
        let has_notification = |route: &Route| {
            let is_connected = matches!(&route.hops, Hops::One(hop) if hop.via.is_none());
            route.protocol == KERNELS && is_connected
        };
        let prefers = |attrs: &RouteAttrs| {
            attrs.route.prefsrc == Some(IpAddr::V4(source)) && !has_notification(&attrs.route)
        };
        let ids = self.attrs_store.find(prefers);
        self.drop_routes_in(Some(table), &ids);
    }

    /// A next-hop object has come, has changed, or has gone.
    pub(super) fn apply_nexthop(&mut self, id: NexthopId, nexthop: Option<&Nexthop>) {
        let Some(nexthop) = nexthop else { return self.drop_objects(vec![id]) };
        let before = self.state.nexthops.insert(id, nexthop.clone());
        if before.as_ref() == Some(nexthop) {
            return;
        }
        self.hops_touched = true;
        let mut users: Vec<_> = self.groups_with(&[id]).into_iter().collect();
        users.push(id);
        let now = self.uses(&users);
        self.put_nexthop(id, before);
        let old = self.uses(&users);
        self.put_nexthop(id, Some(nexthop.clone()));
        // Most changes only concern the next hops in the tables: routes still lead to the same object.
        if now != old {
            self.touch_where(|attrs| match attrs.route.hops {
                Hops::Object(object) => users.contains(&object),
                _ => false,
            });
        }
    }

    fn put_nexthop(&mut self, id: NexthopId, nexthop: Option<Nexthop>) {
        match nexthop {
            Some(nexthop) => self.state.nexthops.insert(id, nexthop),
            None => self.state.nexthops.remove(&id),
        };
    }

    fn uses(&self, ids: &[NexthopId]) -> Vec<[Usability; 2]> {
        let both = |id| [Family::V4, Family::V6].map(|family| self.state.object(id, family));
        ids.iter().map(|id| both(*id)).collect()
    }

    fn groups_with(&self, ids: &[NexthopId]) -> HashSet<NexthopId> {
        let has = |nexthop: &Nexthop| match nexthop {
            Nexthop::Group { members, .. } => members.iter().any(|(id, _)| ids.contains(id)),
            _ => false,
        };
        let groups = self.state.nexthops.iter().filter(|(_, nexthop)| has(nexthop));
        groups.map(|(id, _)| *id).collect()
    }

    /// The objects by a device, and the groups that have such members.
    fn objects_by(&self, index: Ifindex) -> HashSet<NexthopId> {
        let own = self.own_objects(index);
        let mut all = self.groups_with(&own);
        all.extend(own);
        all
    }

    fn own_objects(&self, index: Ifindex) -> Vec<NexthopId> {
        let by = |nexthop: &Nexthop| matches!(nexthop, Nexthop::Hop(hop) if hop.ifindex == index);
        let own = self.state.nexthops.iter().filter(|(_, nexthop)| by(nexthop));
        own.map(|(id, _)| *id).collect()
    }

    /// `nexthop_flush_dev`: objects go as soon as their device loses its carrier.
    fn drop_objects_of(&mut self, index: Ifindex) {
        let ids = self.own_objects(index);
        self.doubts |= !ids.is_empty();
        self.drop_objects(ids);
    }

    /// Removes objects from their groups; empty groups go as well, and all routes of either.
    fn drop_objects(&mut self, mut ids: Vec<NexthopId>) {
        ids.retain(|id| self.state.nexthops.remove(id).is_some());
        if ids.is_empty() {
            return;
        }
        for group in self.groups_with(&ids) {
            let Some(Nexthop::Group { members, .. }) = self.state.nexthops.get_mut(&group) else {
                continue;
            };
            members.retain(|(id, _)| !ids.contains(id));
            if members.is_empty() {
                self.state.nexthops.remove(&group);
                ids.push(group);
            }
        }
        self.hops_touched = true;
        let used =
            |attrs: &RouteAttrs| matches!(attrs.route.hops, Hops::Object(id) if ids.contains(&id));
        let dead = self.attrs_store.find(used);
        self.drop_routes(&dead);
    }

    /// Removes all routes with these attributes.
    fn drop_routes(&mut self, ids: &HashSet<RouteAttrsId>) {
        self.drop_routes_in(None, ids);
    }

    /// Removes the routes with these attributes from one table, or from all.
    fn drop_routes_in(&mut self, table: Option<TableId>, ids: &HashSet<RouteAttrsId>) {
        if ids.is_empty() {
            return;
        }
        let table = match table {
            None => None,
            Some(table) => match self.by_number.get(&table) {
                None => return,
                Some(number) => Some(*number),
            },
        };
        for family in [Family::V4, Family::V6] {
            if ids.iter().any(|id| self.attrs_store.get(*id).family == family) {
                self.doubts = true;
                self.remove_where(family, table, |alias| ids.contains(&alias.attrs));
            }
        }
    }

    /// Touches the destinations of all routes whose attributes match.
    fn touch_where(&mut self, is_meant: impl Fn(&RouteAttrs) -> bool) {
        let ids = self.attrs_store.find(is_meant);
        self.touch_routes(&ids);
    }

    /// Touches the destinations of all routes with these attributes.
    fn touch_routes(&mut self, ids: &HashSet<RouteAttrsId>) {
        if self.touched.is_some() {
            let found = self.destinations_of(ids);
            self.touched.get_or_insert_default().extend(found);
        }
    }

    /// The destinations of all routes with these attributes.
    pub(super) fn destinations_of(&self, ids: &HashSet<RouteAttrsId>) -> Vec<DestKey> {
        let mut found = Vec::new();
        let is_meant = |aliases: &[Alias]| aliases.iter().any(|alias| ids.contains(&alias.attrs));
        let has = |family| ids.iter().any(|id| self.attrs_store.get(*id).family == family);
        if has(Family::V4) {
            self.v4.each(|key, aliases| {
                if is_meant(aliases) {
                    found.push(DestKey::V4(key));
                }
            });
        }
        if has(Family::V6) {
            self.v6.each(|key, aliases| {
                if is_meant(aliases) {
                    found.push(DestKey::V6(key));
                }
            });
        }
        found
    }
}
