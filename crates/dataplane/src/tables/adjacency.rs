//! Known neighbours and the host routes by which the path reaches them.
//!
//! The next hop of a connected prefix states only that destinations are neighbours themselves; the path
//! does not resolve them. So each known neighbour has a host route of its own, in every VRF in which a
//! connected prefix of its link covers it. The tables adjust these host routes when other routes change.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Tables, TablesError};
use crate::id::{LinkId, NextHopId, VrfId};
use crate::next_hops::Action;
use crate::prefix::RoutePrefix;

/// The host routes that the tables made for neighbours, and the neighbours that may need one.
#[derive(Debug, Default)]
pub(super) struct HostRoutes {
    made: HashMap<(VrfId, IpAddr), HostRoute>,
    /// Neighbours whose Ethernet address is known.
    known: BTreeSet<(IpAddr, LinkId)>,
    /// By link, the VRFs that have or had a prefix whose destinations are on the link themselves.
    gleaning: HashMap<LinkId, Vec<VrfId>>,
}

/// A host route that the tables made for a neighbour.
#[derive(Clone, Copy, Debug)]
struct HostRoute {
    link: LinkId,
    next: NextHopId,
    /// The VRF's own route to just this address, which the host route replaces.
    own: Option<NextHopId>,
}

impl Tables {
    /// Sets a neighbour's address like [`Tables::learn_neigh`], and adds a host route to it in every
    /// VRF in which a connected prefix of its link covers it.
    ///
    /// # Errors
    /// See [`TablesError`]; the part that succeeded stays, and a repeated call does the rest.
    pub fn publish_neigh(
        &mut self,
        link: LinkId,
        address: IpAddr,
        mac: [u8; 6],
    ) -> Result<NextHopId, TablesError> {
        let next = self.learn_neigh(link, address, Some(mac))?;
        self.host_routes.known.insert((address, link));
        let vrfs = self.host_routes.gleaning.get(&link).map_or(0, Vec::len);
        for index in 0..vrfs {
            let vrf = self.host_routes.gleaning[&link][index];
            self.sync_host_route(vrf, address, link)?;
        }
        Ok(next)
    }

    /// Undoes [`Tables::publish_neigh`]: the neighbour's address is not known any more, and its host
    /// routes are removed unless they have been replaced. False if memory for that waits for readers; a repeated
    /// call does the rest.
    pub fn withdraw_neigh(&mut self, link: LinkId, address: IpAddr) -> bool {
        if self.find_neigh(link, address).is_none() {
            return true;
        }
        self.host_routes.known.remove(&(address, link));
        let vrfs = self.host_routes.gleaning.get(&link).map_or(0, Vec::len);
        let mut done = true;
        for index in 0..vrfs {
            let vrf = self.host_routes.gleaning[&link][index];
            done &= self.sync_host_route(vrf, address, link).is_ok();
        }
        if !done {
            // A route cannot be removed now, so its next hop stays and has to be resolved again.
            let _ = self.learn_neigh(link, address, None);
            return false;
        }
        self.forget_neigh(link, address)
    }

    /// Records a route that is about to enter a FIB, if its destinations are on a link themselves.
    fn note_connected(&mut self, vrf: VrfId, next: NextHopId) {
        let Some(link) = self.connected_link(next) else { return };
        let vrfs = self.host_routes.gleaning.entry(link).or_default();
        if !vrfs.contains(&vrf) {
            vrfs.push(vrf);
        }
    }

    /// The link that holds the destinations of a next hop, if they are neighbours themselves.
    fn connected_link(&self, next: NextHopId) -> Option<LinkId> {
        let view = self.routes.next_hops.view();
        let record = view.record(view.installed(next)).filter(|_| !next.is_group())?;
        (record.action() == Action::Glean).then(|| record.link())
    }

    /// Inserts or removes a VRF's own route and updates the host routes of neighbours. Says whether
    /// there was one to remove.
    pub(super) fn change_route(
        &mut self,
        vrf: VrfId,
        prefix: RoutePrefix,
        next: Option<NextHopId>,
    ) -> Result<bool, TablesError> {
        if let Some(next) = next {
            self.note_connected(vrf, next);
        }
        let (first, last) = bounds(prefix);
        let made = self.host_routes.made.get_mut(&(vrf, first)).filter(|_| first == last);
        let before = match (made, next) {
            (Some(made), _) => {
                let (before, link) = (std::mem::replace(&mut made.own, next), made.link);
                self.sync_host_route(vrf, first, link)?;
                before.is_some()
            }
            (None, Some(next)) => self.insert_in_fib(vrf, prefix, next).map(|()| true)?,
            (None, None) => self.remove_from_fib(vrf, prefix)?,
        };
        if !self.host_routes.known.is_empty() {
            let range = (first, LinkId(0))..=(last, LinkId(u16::MAX));
            let within: Vec<_> = self.host_routes.known.range(range).copied().collect();
            for (address, link) in within {
                self.sync_host_route(vrf, address, link)?;
            }
        }
        Ok(before)
    }

    /// Adds or removes a neighbour's host route, according to the VRF's own routes.
    fn sync_host_route(
        &mut self,
        vrf: VrfId,
        address: IpAddr,
        link: LinkId,
    ) -> Result<(), TablesError> {
        let made = self.host_routes.made.get(&(vrf, address)).copied();
        let own = made.map_or_else(|| self.exact_route(vrf, address), |made| made.own);
        let through = own
            .or_else(|| self.covering_route(vrf, address))
            .and_then(|id| self.connected_link(id));
        let host = RoutePrefix::host(address);
        let is_known = self.host_routes.known.contains(&(address, link));
        if through == Some(link) && is_known {
            let next = self.find_neigh(link, address).ok_or(TablesError::Unknown)?;
            if made.is_none_or(|made| made.next != next) {
                self.insert_in_fib(vrf, host, next)?;
                self.host_routes.made.insert((vrf, address), HostRoute { link, next, own });
            }
        } else if made.is_some_and(|made| made.link == link) {
            match own {
                Some(own) => self.insert_in_fib(vrf, host, own)?,
                None => self.remove_from_fib(vrf, host).map(|_| ())?,
            }
            self.host_routes.made.remove(&(vrf, address));
        }
        Ok(())
    }

    fn insert_in_fib(
        &self,
        vrf: VrfId,
        prefix: RoutePrefix,
        next: NextHopId,
    ) -> Result<(), TablesError> {
        let record = self.routes.vrfs.get(usize::from(vrf.0)).ok_or(TablesError::Unknown)?;
        match prefix {
            RoutePrefix::V4(prefix) => self.routes.fib4.insert(record.root4, prefix, next)?,
            RoutePrefix::V6(prefix) => self.routes.fib6.insert(record.root6, prefix, next)?,
        }
        Ok(())
    }

    fn remove_from_fib(&self, vrf: VrfId, prefix: RoutePrefix) -> Result<bool, TablesError> {
        let record = self.routes.vrfs.get(usize::from(vrf.0)).ok_or(TablesError::Unknown)?;
        Ok(match prefix {
            RoutePrefix::V4(prefix) => self.routes.fib4.remove(record.root4, prefix)?,
            RoutePrefix::V6(prefix) => self.routes.fib6.remove(record.root6, prefix)?,
        })
    }

    fn exact_route(&self, vrf: VrfId, address: IpAddr) -> Option<NextHopId> {
        let record = self.routes.vrfs.get(usize::from(vrf.0))?;
        match RoutePrefix::host(address) {
            RoutePrefix::V4(prefix) => self.routes.fib4.get(record.root4, prefix),
            RoutePrefix::V6(prefix) => self.routes.fib6.get(record.root6, prefix),
        }
    }

    /// The next hop of the longest prefix that covers an address and other addresses.
    fn covering_route(&self, vrf: VrfId, address: IpAddr) -> Option<NextHopId> {
        let record = self.routes.vrfs.get(usize::from(vrf.0))?;
        let len = if address.is_ipv4() { 31 } else { 127 };
        let found = match RoutePrefix::new(address, len) {
            RoutePrefix::V4(prefix) => self.routes.fib4.longest(record.root4, prefix),
            RoutePrefix::V6(prefix) => self.routes.fib6.longest(record.root6, prefix),
        };
        found.map(|(_, next)| next)
    }
}

/// The first and the last address of a prefix.
fn bounds(prefix: RoutePrefix) -> (IpAddr, IpAddr) {
    match prefix {
        RoutePrefix::V4(prefix) => {
            let first = (prefix.bits() >> 96) as u32;
            let last = first | u32::MAX.checked_shr(prefix.len().into()).unwrap_or(0);
            (Ipv4Addr::from_bits(first).into(), Ipv4Addr::from_bits(last).into())
        }
        RoutePrefix::V6(prefix) => {
            let first = prefix.bits();
            let last = first | u128::MAX.checked_shr(prefix.len().into()).unwrap_or(0);
            (Ipv6Addr::from_bits(first).into(), Ipv6Addr::from_bits(last).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::dice::Dice;
    use crate::testkit::lender::PlainLender;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    /// A link of the first of two VRFs; each VRF has a connected prefix, and one of a single address.
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
    fn a_route_that_replaced_a_host_route_stays() {
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

    /// A neighbour whose host route cannot be removed at once leaves nothing behind in the end.
    #[test]
    #[cfg_attr(miri, ignore = "takes minutes under Miri")]
    fn a_neighbour_that_goes_late_frees_its_next_hop() {
        let lender = PlainLender::small();
        let mut tables = Tables::with_memory(&lender.memory());
        let vrf = tables.add_vrf().unwrap();
        let (_, link) = tables.add_port([2, 0, 0, 0, 0, 1], vrf, 1500).unwrap();
        let glean = tables.glean(link).unwrap();
        tables.insert(vrf, RoutePrefix::new([10, 0, 0, 0].into(), 8), glean).unwrap();
        let reader = tables.epochs.join();
        let address = |number: u32| IpAddr::from(Ipv4Addr::from_bits(0x0a00_0000 | number << 8));
        let gone = address(7);
        tables.publish_neigh(link, gone, MAC).unwrap();
        // The reader passes nothing, so that changes of routes use up the memory.
        let is_full = (8..).any(|number| tables.publish_neigh(link, address(number), MAC).is_err());
        assert!(is_full && !tables.withdraw_neigh(link, gone));
        let next = tables.find_neigh(link, gone).unwrap();
        assert_eq!(tables.next_hop(next).action, Action::Resolve);
        reader.pass();
        assert!(tables.withdraw_neigh(link, gone));
        assert_eq!(tables.find_neigh(link, gone), None);
    }

    /// A VRF's routes other than host routes, and the known neighbours.
    #[derive(Default)]
    struct Naive {
        routes: HashMap<(VrfId, u32, u8), NextHopId>,
        known: HashMap<(LinkId, u32), NextHopId>,
    }

    impl Naive {
        fn lookup(&self, tables: &Tables, vrf: VrfId, address: u32) -> NextHopId {
            let mask = |len: u8| u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
            let covers = (0..=32).rev();
            let mut found =
                covers.filter_map(|len| self.routes.get(&(vrf, address & mask(len), len)));
            let Some(next) = found.next() else { return NextHopId::NO_ROUTE };
            let through = tables.next_hop(*next);
            let neigh = self.known.get(&(through.link, address));
            *neigh.filter(|_| through.action == Action::Glean).unwrap_or(next)
        }
    }

    /// Routes and neighbours that come and go in any order give the same results as a lookup of the
    /// route followed by one of the neighbour.
    #[test]
    #[cfg_attr(miri, ignore = "takes minutes under Miri")]
    fn host_routes_follow_routes_and_neighbours() {
        for seed in 0..32 {
            let mut dice = Dice(seed);
            let (mut tables, link, vrfs) = tables();
            let (_, other) = tables.add_port([2, 0, 0, 0, 0, 2], vrfs[0], 1500).unwrap();
            for vrf in vrfs {
                tables.remove(vrf, RoutePrefix::new([10, 0, 0, 0].into(), 24)).unwrap();
            }
            tables.remove(vrfs[0], RoutePrefix::host([10, 1, 0, 1].into())).unwrap();
            let links = [link, other];
            let gleans = links.map(|link| tables.glean(link).unwrap());
            let targets = [gleans[0], gleans[1], tables.local().unwrap(), NextHopId::NO_ROUTE];
            let mut naive = Naive::default();
            for _ in 0..400 {
                let vrf = vrfs[dice.below(2)];
                let address = 0x0a00_0000 | dice.below(8) as u32;
                let ip = IpAddr::from(Ipv4Addr::from_bits(address));
                let link = links[dice.below(2)];
                let len = [28, 29, 30, 31, 32][dice.below(5)];
                let route = (vrf, address & (u32::MAX << (32 - u32::from(len))), len);
                match dice.below(4) {
                    0 => {
                        let next = targets[dice.below(4)];
                        tables.insert(vrf, RoutePrefix::new(ip, len), next).unwrap();
                        naive.routes.insert(route, next);
                    }
                    1 => {
                        let there = tables.remove(vrf, RoutePrefix::new(ip, len)).unwrap();
                        assert_eq!(naive.routes.remove(&route).is_some(), there);
                    }
                    2 => {
                        let next = tables.publish_neigh(link, ip, MAC).unwrap();
                        naive.known.insert((link, address), next);
                    }
                    _ => {
                        tables.withdraw_neigh(link, ip);
                        naive.known.remove(&(link, address));
                    }
                }
                for last in 0..8 {
                    let address = 0x0a00_0000 | last;
                    for vrf in vrfs {
                        let found = tables.lookup(vrf, Ipv4Addr::from_bits(address).into());
                        assert_eq!(found, naive.lookup(&tables, vrf, address), "seed {seed}");
                    }
                }
            }
        }
    }
}
