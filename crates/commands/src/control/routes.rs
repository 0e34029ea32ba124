//! Reads routes from memory that the workers share, without querying the workers: their packets do
//! not wait, regardless of the number of routes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use tollway_dataplane::fib::{Fib, Root};
use tollway_dataplane::id::{NextHopId, VrfId};
use tollway_dataplane::links::VrfRecord;
use tollway_dataplane::next_hops::{Action, NextHops};
use tollway_dataplane::prefix::{Prefix, RoutePrefix};
use tollway_dataplane::stages::ecmp::Groups;
use tollway_dataplane::verdict::DropReason;
use tollway_dataplane::worker::Worker;

use super::message::{NextHop, Route};
use super::neighs::{link_name, mac_of};
use tollway_model::names::Names;

/// The router's routes, in memory that it shares with the worker.
pub(super) struct Reader {
    vrfs: Vec<VrfRecord>,
    /// The VRF that each VRF falls back to.
    fallbacks: Vec<Option<VrfId>>,
    fib4: Arc<Fib>,
    fib6: Arc<Fib>,
    next_hops: Arc<NextHops>,
    groups: Arc<Groups>,
}

/// The routes of one VRF and family, as they were at one moment.
pub(super) struct List {
    is_ipv4: bool,
    routes: Vec<(Prefix, NextHopId)>,
}

impl Reader {
    /// Call this on the worker's thread.
    pub(super) fn new(worker: &Worker) -> Self {
        let tables = worker.state();
        Self {
            vrfs: tables.routes.vrfs.clone(),
            fallbacks: (0..tables.routes.vrfs.len() as u16)
                .map(|vrf| tables.fallback(VrfId(vrf)))
                .collect(),
            fib4: Arc::clone(&tables.routes.fib4),
            fib6: Arc::clone(&tables.routes.fib6),
            next_hops: Arc::clone(&tables.routes.next_hops),
            groups: Arc::clone(&tables.routes.groups),
        }
    }

    /// The routes of a VRF within a prefix, or all. Each list is one family, read when the iterator
    /// reaches it.
    pub(super) fn lists(&self, vrf: VrfId, within: Option<IpNet>) -> impl Iterator<Item = List> {
        let record = self.vrfs.get(usize::from(vrf.0)).copied();
        [true, false].into_iter().filter_map(move |is_ipv4| {
            let VrfRecord { root4, root6 } = record?;
            let (fib, root) = if is_ipv4 { (&self.fib4, root4) } else { (&self.fib6, root6) };
            let prefix = match within.map(|net| RoutePrefix::new(net.addr(), net.prefix_len())) {
                None => Prefix::v6(0, 0),
                Some(RoutePrefix::V4(prefix)) if is_ipv4 => prefix,
                Some(RoutePrefix::V6(prefix)) if !is_ipv4 => prefix,
                Some(_) => return None,
            };
            Some(List { is_ipv4, routes: fib.within(root, prefix) })
        })
    }

    /// The route that packets to an address take; none if there is no route.
    pub(super) fn find(&self, names: &Names, vrf: VrfId, address: IpAddr) -> Option<Route> {
        let after = |vrf: &VrfId| self.fallbacks.get(usize::from(vrf.0)).copied().flatten();
        let found = std::iter::successors(Some(vrf), after).find_map(|vrf| {
            let record = self.vrfs.get(usize::from(vrf.0))?;
            let (fib, root, prefix): (_, Root, _) = match RoutePrefix::host(address) {
                RoutePrefix::V4(prefix) => (&self.fib4, record.root4, prefix),
                RoutePrefix::V6(prefix) => (&self.fib6, record.root6, prefix),
            };
            // A throw route counts as no route.
            fib.longest(root, prefix).filter(|(_, next)| *next != NextHopId::NO_ROUTE)
        });
        let (prefix, next) = found?;
        Some(self.route(names, net(prefix, address.is_ipv4())?, next))
    }

    fn route(&self, names: &Names, prefix: IpNet, next: NextHopId) -> Route {
        if next.is_group() {
            let members = self.groups.members(next.0 & !NextHopId::GROUP);
            let hops = members.iter().filter_map(|member| {
                let hop = self.next_hop(names, member.next).ok()?;
                Some(NextHop { share: Some(member.weight), ..hop })
            });
            return Route { prefix, kind: "unicast".to_owned(), nexthops: hops.collect() };
        }
        let (kind, nexthops) = match self.next_hop(names, next) {
            Ok(hop) => {
                let kind = match hop.via {
                    None => "connected",
                    Some(via) if prefix == IpNet::from(via) => "neighbour",
                    Some(_) => "unicast",
                };
                (kind, vec![hop])
            }
            Err(kind) => (kind, Vec::new()),
        };
        Route { prefix, kind: kind.to_owned(), nexthops }
    }

    /// The target of a next hop, or the kind of a route that leads nowhere.
    fn next_hop(&self, names: &Names, id: NextHopId) -> Result<NextHop, &'static str> {
        let next = self.next_hops.get(id);
        let via = match next.action {
            Action::Forward | Action::Bridge | Action::Resolve => next.neigh,
            Action::Glean => None,
            Action::Local => return Err("local"),
            Action::Drop(reason) => return Err(reason.name()),
            Action::Punt(reason) => return Err(reason.name()),
        };
        Ok(NextHop { via, dev: link_name(names, next.link), mac: mac_of(&next), share: None })
    }
}

impl List {
    /// Formats the routes. Without `all`, only those that lead somewhere or were configured.
    pub(super) fn routes<'a>(
        self,
        reader: &'a Reader,
        names: &'a Names,
        all: bool,
    ) -> impl Iterator<Item = Route> + 'a {
        let is_ipv4 = self.is_ipv4;
        let routes = self.routes.into_iter().filter_map(move |(prefix, next)| {
            Some(reader.route(names, net(prefix, is_ipv4)?, next))
        });
        let standing = ["local", DropReason::IpInvalidDest.name()];
        routes.filter(move |route| all || !standing.contains(&route.kind.as_str()))
    }
}

/// The prefix with its family.
fn net(prefix: Prefix, is_ipv4: bool) -> Option<IpNet> {
    let address = if is_ipv4 {
        IpAddr::V4(Ipv4Addr::from_bits((prefix.bits() >> 96) as u32))
    } else {
        IpAddr::V6(Ipv6Addr::from_bits(prefix.bits()))
    };
    IpNet::new(address, prefix.len()).ok()
}
