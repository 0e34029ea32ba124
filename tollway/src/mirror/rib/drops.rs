//! What the kernel drops or takes up again without telling.
//!
//! What is derived may be too much: a route that is missing here is one whose packets the kernel
//! forwards, until the list that [`Rib::doubts`] asks for has it again.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};

use super::bodies::{Body, BodyId};
use super::order::as_hops;
use super::shelf::Alias;
use super::state::{Device, Use};
use super::{Rib, Where};
use crate::mirror::kernel::{
    Address, DEAD, Family, Hop, Hops, Ifindex, Netdev, Nexthop, NexthopId, Route, RouteKind,
    TableId,
};

/// `RTPROT_KERNEL`.
const KERNELS: u8 = 2;

impl Rib {
    /// A device is there, has changed, or is no more.
    pub(super) fn take_device(&mut self, index: Ifindex, netdev: Option<&Netdev>) {
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
            // Next hops that were dead for want of an address, too, had another reason meanwhile.
            self.doubts |= now.carrier && !self.state.has_address(index);
            self.device_changed(index);
        }
    }

    /// Next hops by a device may be usable now that were not, or the other way round.
    pub(super) fn device_changed(&mut self, index: Ifindex) {
        self.hops_touched = true;
        let objects = self.objects_by(index);
        self.touch_where(|body| match body.route.hops {
            Hops::Object(id) => objects.contains(&id),
            _ => body.is_by(index),
        });
    }

    /// `fib_sync_down_dev` and `fib6_ifdown` on `NETDEV_DOWN`: routes go that have no other device.
    fn device_down(&mut self, index: Ifindex) {
        self.drop_objects_of(index);
        let stays = |body: &Body| body.family == Family::V4 && body.route.kind == RouteKind::Local;
        let dead = self.bodies.find(|body| !stays(body) && self.is_dead(body, index));
        self.drop_bodies(&dead);
        self.mark(index, Family::V6, true);
        self.device_changed(index);
    }

    /// Says if a route has no next hop left without those by a device.
    fn is_dead(&self, body: &Body, index: Ifindex) -> bool {
        let down = |hop: &Hop| {
            let device = self.state.devices.get(&hop.ifindex);
            let dead = hop.flags & DEAD != 0 || device.is_some_and(|device| !device.up);
            dead || hop.ifindex == index
        };
        body.is_by(index) && body.route.hops.list().iter().all(down)
    }

    /// The same on `NETDEV_UNREGISTER`: IPv4 routes go whole, IPv6 ones lose the next hop.
    fn device_gone(&mut self, index: Ifindex) {
        self.drop_objects_of(index);
        self.state.addresses.remove(&index);
        let (mut dead, mut less) = (HashSet::new(), Vec::new());
        for (id, body) in self.bodies.iter().filter(|(_, body)| body.is_by(index)) {
            let left = body.route.hops.list().iter().copied();
            let left: Vec<_> = left.filter(|hop| hop.ifindex != index).collect();
            if body.family == Family::V4 || left.is_empty() {
                dead.insert(id);
            } else {
                less.push((id, as_hops(left)));
            }
        }
        self.drop_bodies(&dead);
        for (id, hops) in &less {
            self.bodies.change(*id, |body| body.route.hops = hops.clone());
        }
        let less: HashSet<_> = less.into_iter().map(|(id, _)| id).collect();
        self.doubts |= !less.is_empty();
        self.touch_bodies(&less);
        self.hops_touched = true;
    }

    /// Sets or takes back that next hops by a device are dead whatever its state; says of which routes.
    fn mark(&mut self, index: Ifindex, family: Family, dead: bool) -> HashSet<BodyId> {
        let flags = |hop: &Hop| if dead { hop.flags | DEAD } else { hop.flags & !DEAD };
        let concerned = |body: &Body| {
            let mut hops = body.route.hops.list().iter();
            body.family == family && hops.any(|hop| hop.ifindex == index && hop.flags != flags(hop))
        };
        let ids = self.bodies.find(concerned);
        for id in &ids {
            self.bodies.change(*id, |body| {
                let hops = match &mut body.route.hops {
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

    /// The same where nothing else of the device has changed.
    fn mark_alone(&mut self, index: Ifindex, family: Family, dead: bool) {
        let ids = self.mark(index, family, dead);
        self.hops_touched |= !ids.is_empty();
        self.touch_bodies(&ids);
    }

    /// With its first address, dead next hops of a device are used again (`fib_inetaddr_event`).
    pub(super) fn address_here(&mut self, address: &Address) {
        if self.state.add_address(address) {
            self.mark_alone(address.ifindex, Family::V4, false);
        }
    }

    /// With an address go the routes that prefer it as source (`fib_sync_down_addr`), and with a
    /// device's last one those by the device (`fib_disable_ip`).
    pub(super) fn address_gone(&mut self, address: &Address) {
        let (gone, last) = self.state.remove_address(address);
        if let Some(source) = gone {
            self.drop_source(source, self.state.table_of(address.ifindex));
        }
        if last {
            let index = address.ifindex;
            let is_v4 = |body: &Body| body.family == Family::V4;
            let dead = self.bodies.find(|body| is_v4(body) && self.is_dead(body, index));
            self.drop_bodies(&dead);
            self.mark_alone(index, Family::V4, true);
        }
    }

    /// The routes that the kernel has made for the address itself it takes out by word (`fib_del_ifaddr`).
    fn drop_source(&mut self, source: Ipv4Addr, table: TableId) {
        let is_told = |route: &Route| {
            let is_connected = matches!(&route.hops, Hops::One(hop) if hop.via.is_none());
            route.protocol == KERNELS && is_connected
        };
        let prefers =
            |body: &Body| body.route.prefsrc == Some(IpAddr::V4(source)) && !is_told(&body.route);
        let ids = self.bodies.find(prefers);
        self.drop_bodies_of(&ids, Some(table));
    }

    /// A next-hop object is there, has changed, or is no more.
    pub(super) fn take_nexthop(&mut self, id: NexthopId, nexthop: Option<&Nexthop>) {
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
        // Most changes are for whoever keeps next hops: what routes lead to stays the same object.
        if now != old {
            self.touch_where(|body| match body.route.hops {
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

    fn uses(&self, ids: &[NexthopId]) -> Vec<[Use; 2]> {
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

    /// The objects by a device, and the groups that have such.
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

    /// `nexthop_flush_dev`: objects go with their device's carrier already.
    fn drop_objects_of(&mut self, index: Ifindex) {
        let ids = self.own_objects(index);
        self.doubts |= !ids.is_empty();
        self.drop_objects(ids);
    }

    /// Objects go: out of their groups, of which empty ones go too, and with all of them their routes.
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
        let used = |body: &Body| matches!(body.route.hops, Hops::Object(id) if ids.contains(&id));
        let dead = self.bodies.find(used);
        self.drop_bodies(&dead);
    }

    fn drop_bodies(&mut self, ids: &HashSet<BodyId>) {
        self.drop_bodies_of(ids, None);
    }

    /// Removes all routes with these bodies, or those of one table.
    fn drop_bodies_of(&mut self, ids: &HashSet<BodyId>, table: Option<TableId>) {
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
            if ids.iter().any(|id| self.bodies.get(*id).family == family) {
                self.doubts = true;
                self.remove_where(family, table, |alias| ids.contains(&alias.body));
            }
        }
    }

    /// Touches the destinations of all routes whose bodies are meant.
    fn touch_where(&mut self, is_meant: impl Fn(&Body) -> bool) {
        let ids = self.bodies.find(is_meant);
        self.touch_bodies(&ids);
    }

    fn touch_bodies(&mut self, ids: &HashSet<BodyId>) {
        if self.touched.is_some() {
            let found = self.where_bodies(ids);
            self.touched.get_or_insert_default().extend(found);
        }
    }

    /// The destinations of all routes with these bodies.
    pub(super) fn where_bodies(&self, ids: &HashSet<BodyId>) -> Vec<Where> {
        let mut found = Vec::new();
        let is_meant = |aliases: &[Alias]| aliases.iter().any(|alias| ids.contains(&alias.body));
        let has = |family| ids.iter().any(|id| self.bodies.get(*id).family == family);
        if has(Family::V4) {
            self.v4.each(|key, aliases| {
                if is_meant(aliases) {
                    found.push(Where::V4(key));
                }
            });
        }
        if has(Family::V6) {
            self.v6.each(|key, aliases| {
                if is_meant(aliases) {
                    found.push(Where::V6(key));
                }
            });
        }
        found
    }
}
