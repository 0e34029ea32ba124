//! Known neighbours and the host routes that lead the path to them.
//!
//! The path does not look at the destination behind a connected prefix, whose next hop only says that
//! destinations are neighbours themselves. So each known one has a host route of its own.

use std::collections::HashMap;
use std::net::IpAddr;

use super::{Action, RoutePrefix, Tables, TablesError};
use crate::id::{LinkId, NextHopId, VrfId};

/// Which host routes were made for neighbours, and where neighbours need some.
#[derive(Debug, Default)]
pub(super) struct HostRoutes {
    made: HashMap<(LinkId, IpAddr), Vec<HostRoute>>,
    /// The VRFs, by link, that have or had a prefix whose destinations are on the link themselves.
    gleaning: HashMap<LinkId, Vec<VrfId>>,
}

/// A host route that was made for a neighbour.
#[derive(Clone, Copy, Debug)]
struct HostRoute {
    vrf: VrfId,
    /// The prefix was a connected one itself, of one address.
    over_connected: bool,
}

impl Tables {
    /// Tells a neighbour's address, as [`Tables::learn_neigh`], and leads to it whatever is for it by
    /// a connected prefix of its link, of whichever VRF.
    ///
    /// # Errors
    /// See [`TablesError`]; what could be done is done, and doing it again does the rest.
    pub fn publish_neigh(
        &mut self,
        link: LinkId,
        address: IpAddr,
        mac: [u8; 6],
    ) -> Result<NextHopId, TablesError> {
        let next = self.learn_neigh(link, address, Some(mac))?;
        let vrfs = self.host_routes.gleaning.get(&link).map_or(0, Vec::len);
        for index in 0..vrfs {
            let vrf = self.host_routes.gleaning[&link][index];
            let own = self.exact_route(vrf, address);
            if own == Some(next) {
                continue;
            }
            let through = self.next_hop(self.lookup(vrf, address));
            if through.action != Action::Glean || through.link != link {
                continue;
            }
            self.insert(vrf, RoutePrefix::host(address), next)?;
            let route = HostRoute { vrf, over_connected: own.is_some() };
            self.host_routes.made.entry((link, address)).or_default().push(route);
        }
        Ok(next)
    }

    /// Takes back what [`Tables::publish_neigh`] told: the neighbour's address is not known, and host
    /// routes that were made for it go, unless they have been replaced.
    pub fn withdraw_neigh(&mut self, link: LinkId, address: IpAddr) {
        let key = (link, address);
        let Some(next) = self.find_neigh(link, address) else { return };
        let mut left = self.host_routes.made.remove(&key).unwrap_or_default();
        left.retain(|route| !self.remove_host_route(link, address, *route, next));
        if left.is_empty() {
            self.forget_neigh(link, address);
        } else {
            // A route can not go now, so its next hop stays, and is to be asked for again.
            self.host_routes.made.insert(key, left);
            let _ = self.set_neigh(link, address, None);
        }
    }

    fn remove_host_route(
        &mut self,
        link: LinkId,
        address: IpAddr,
        route: HostRoute,
        next: NextHopId,
    ) -> bool {
        let HostRoute { vrf, over_connected } = route;
        if self.exact_route(vrf, address) != Some(next) {
            return true;
        }
        let prefix = RoutePrefix::host(address);
        let done = match over_connected {
            true => self.glean(link).and_then(|glean| self.insert(vrf, prefix, glean)),
            false => self.remove(vrf, prefix).map(|_| ()),
        };
        done.is_ok()
    }

    /// Notes a route to be put in a FIB, if it says that destinations are on a link themselves.
    pub(super) fn note_connected(&mut self, vrf: VrfId, next: NextHopId) {
        let view = self.next_hops.view();
        let record = view.record(view.in_force(next)).filter(|_| !next.is_group());
        if record.is_some_and(|record| record.action() == Action::Glean) {
            let link = self.next_hop(next).link;
            let vrfs = self.host_routes.gleaning.entry(link).or_default();
            if !vrfs.contains(&vrf) {
                vrfs.push(vrf);
            }
        }
    }

    fn exact_route(&self, vrf: VrfId, address: IpAddr) -> Option<NextHopId> {
        let record = self.vrfs.get(usize::from(vrf.0))?;
        match RoutePrefix::host(address) {
            RoutePrefix::V4(prefix) => self.fib4.get(record.root4, prefix),
            RoutePrefix::V6(prefix) => self.fib6.get(record.root6, prefix),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    /// A link of the first of two VRFs with a connected prefix in each, and one of one address.
    fn tables() -> (Tables, LinkId, [VrfId; 2]) {
        let mut tables = Tables::new();
        let vrfs = [tables.add_vrf().unwrap(), tables.add_vrf().unwrap()];
        let (_, link) = tables.add_port([2, 0, 0, 0, 0, 1], vrfs[0], 1500).unwrap();
        let glean = tables.glean(link).unwrap();
        for vrf in vrfs {
            tables.insert(vrf, RoutePrefix::new([10, 0, 0, 0].into(), 24), glean).unwrap();
        }
        tables.insert(vrfs[0], RoutePrefix::host([10, 1, 0, 1].into()), glean).unwrap();
        (tables, link, vrfs)
    }

    #[test]
    fn host_routes_come_and_go_with_the_neighbour() {
        let (mut tables, link, vrfs) = tables();
        for address in [[10, 0, 0, 7], [10, 1, 0, 1]].map(IpAddr::from) {
            let before = vrfs.map(|vrf| tables.lookup(vrf, address));
            for last in [1, 1, 2] {
                let mac = [2, 0, 0, 0, 1, last];
                let next = tables.publish_neigh(link, address, mac).unwrap();
                assert_eq!(tables.lookup(vrfs[0], address), next);
                assert_eq!(tables.next_hop(next).action, Action::Forward);
            }
            let there = tables.exact_route(vrfs[1], address).is_some();
            assert_eq!(there, before[1] == before[0], "where a connected prefix leads to it");
            tables.withdraw_neigh(link, address);
            assert_eq!(vrfs.map(|vrf| tables.lookup(vrf, address)), before);
            assert_eq!(tables.find_neigh(link, address), None);
        }
        assert!(tables.host_routes.made.is_empty());
    }

    #[test]
    fn what_replaced_a_host_route_stays() {
        let (mut tables, link, [vrf, _]) = tables();
        let address = IpAddr::from([10, 0, 0, 7]);
        tables.publish_neigh(link, address, MAC).unwrap();
        let local = tables.local().unwrap();
        tables.insert(vrf, RoutePrefix::host(address), local).unwrap();
        tables.withdraw_neigh(link, address);
        assert_eq!(tables.lookup(vrf, address), local);
    }

    #[test]
    fn a_gateway_keeps_its_next_hop() {
        let (mut tables, link, [vrf, _]) = tables();
        let address = IpAddr::from([10, 0, 0, 7]);
        let next = tables.neigh(link, address).unwrap();
        tables.insert(vrf, RoutePrefix::new([172, 16, 0, 0].into(), 12), next).unwrap();
        assert_eq!(tables.publish_neigh(link, address, MAC), Ok(next));
        tables.withdraw_neigh(link, address);
        assert_eq!(tables.lookup(vrf, [172, 16, 0, 1].into()), next);
        assert_eq!(tables.next_hop(next).action, Action::Resolve);
        tables.withdraw_neigh(link, [10, 0, 0, 8].into());
    }
}
