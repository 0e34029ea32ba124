//! Counts of routes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use super::PerFamily;
use crate::kernel::{Family, Hop, Hops, Ifindex, Nexthop, NexthopId, Route, RouteKey, RouteKind};
use crate::rib::{Rib, RouteAttrs};

/// The table of the host's own addresses.
const LOCAL: u32 = 255;
/// `RTPROT_KERNEL`.
const BY_KERNEL: u8 = 2;

/// Counts of routes by which packets are forwarded or dropped. Routes for the host's addresses and for
/// link-local addresses do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteTally {
    /// All routes.
    pub total: PerFamily<u64>,
    /// Routes by the device that they lead to.
    pub by_device: BTreeMap<Ifindex, u64>,
    /// Devices that default routes lead to.
    pub defaults: BTreeSet<Ifindex>,
    /// Routes with several next hops.
    pub several: PerFamily<u64>,
    /// Routes that encapsulate packets.
    pub wrapped: u64,
    /// Routes for a single type of service.
    pub of_tos: u64,
    /// Routes that the router cannot follow exactly for another reason ([`Route::unsupported`], unknown next-hop
    /// objects).
    pub unsupported: u64,
    /// Routes that differ from others only in their next hops. The kernel tries them in turn: default
    /// routes of IPv4, any routes of IPv6.
    pub in_turn: u64,
    /// The last route, and whether there was another of its key.
    last: Option<(RouteKey, bool)>,
}

impl RouteTally {
    /// Counts all known routes; takes some 100 ms for a million.
    #[must_use]
    pub fn of(rib: &Rib, nexthops: &HashMap<NexthopId, Nexthop>) -> Self {
        let mut tally = Self::default();
        rib.each_route(|dest, body| {
            let RouteAttrs { tos, priority, ref route, .. } = *body;
            let key = RouteKey { table: dest.table, dst: dest.net(), tos, priority };
            tally.add(&key, route, nexthops);
        });
        tally
    }

    /// Counts a route. Routes of one key have to come one after the other, except unsupported ones.
    pub fn add(&mut self, key: &RouteKey, route: &Route, nexthops: &HashMap<NexthopId, Nexthop>) {
        let stays = matches!(key.dst.addr(), IpAddr::V6(v6) if v6.is_unicast_link_local());
        let is_to_many =
            matches!(route.kind, RouteKind::Broadcast | RouteKind::Anycast | RouteKind::Multicast);
        // A VRF has its own in its table.
        let is_own = route.protocol == BY_KERNEL && (key.table == LOCAL || is_to_many);
        if route.kind == RouteKind::Local || stays || is_own {
            return;
        }
        if !route.unsupported {
            self.compare(key);
        }
        let family = if key.dst.addr().is_ipv4() { Family::V4 } else { Family::V6 };
        *self.total.of_mut(family) += 1;
        let mut hops = Vec::new();
        let mut is_unsupported =
            route.unsupported || is_to_many || matches!(route.kind, RouteKind::Other(_));
        match &route.hops {
            Hops::None => {}
            Hops::One(hop) => hops.push(*hop),
            Hops::Many(many) => hops.extend(many.iter().copied()),
            Hops::Object(id) => is_unsupported |= !gather(*id, nexthops, &mut hops),
        }
        // Destinations on the link have the link's MTU.
        is_unsupported |= route.mtu > 0 && hops.iter().any(|hop| hop.via.is_none());
        *self.several.of_mut(family) += u64::from(hops.len() > 1);
        self.wrapped += u64::from(hops.iter().any(|hop| hop.encap));
        self.of_tos += u64::from(key.tos != 0 && family == Family::V4);
        self.unsupported += u64::from(is_unsupported);
        let mut devices: Vec<_> = hops.iter().map(|hop| hop.ifindex).collect();
        devices.sort_unstable();
        devices.dedup();
        if key.dst.prefix_len() == 0 {
            self.defaults.extend(&devices);
        }
        devices.into_iter().for_each(|device| *self.by_device.entry(device).or_default() += 1);
    }

    /// Looks for routes of one key among which the kernel chooses at run time (`fib_select_default`,
    /// `find_rr_leaf`).
    fn compare(&mut self, key: &RouteKey) {
        if key.dst.addr().is_ipv4() && key.dst.prefix_len() > 0 {
            return;
        }
        let is_again = self.last.is_some_and(|(last, _)| last == *key);
        if let Some((_, was_again)) = self.last.filter(|_| is_again) {
            self.in_turn += if was_again { 1 } else { 2 };
        }
        self.last = Some((*key, is_again));
    }
}

/// Collects the next hops of an object; false if they do not describe it fully.
fn gather(id: NexthopId, nexthops: &HashMap<NexthopId, Nexthop>, hops: &mut Vec<Hop>) -> bool {
    match nexthops.get(&id) {
        Some(Nexthop::Hop(hop)) => {
            hops.push(*hop);
            true
        }
        Some(Nexthop::Blackhole) => true,
        Some(Nexthop::Group { members, resilient }) => {
            let mut is_whole = !resilient;
            for (member, _) in members {
                // A group cannot be a member of a group.
                match nexthops.get(member) {
                    Some(Nexthop::Hop(hop)) => hops.push(*hop),
                    Some(Nexthop::Blackhole) => {}
                    _ => is_whole = false,
                }
            }
            is_whole
        }
        Some(Nexthop::Other) | None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(ifindex: Ifindex) -> Hop {
        Hop { via: None, ifindex, weight: 1, flags: 0, encap: false }
    }

    fn tally(routes: &[(&str, RouteKind, Hops)]) -> RouteTally {
        let nexthops = HashMap::from([
            (1, Nexthop::Hop(hop(7))),
            (2, Nexthop::Hop(hop(8))),
            (3, Nexthop::Group { members: vec![(1, 1), (2, 1)], resilient: false }),
            (4, Nexthop::Group { members: vec![(1, 1)], resilient: true }),
            (5, Nexthop::Other),
        ]);
        let mut tally = RouteTally::default();
        for (dst, kind, hops) in routes {
            let key = RouteKey { table: 254, dst: dst.parse().unwrap(), tos: 0, priority: 0 };
            let (kind, hops) = (*kind, hops.clone());
            let route =
                Route { kind, hops, protocol: 4, prefsrc: None, mtu: 0, unsupported: false };
            tally.add(&key, &route, &nexthops);
        }
        tally
    }

    #[test]
    fn broadcast_routes_of_the_kernel_do_not_count() {
        let key = RouteKey { table: 10, dst: "ff00::/8".parse().unwrap(), tos: 0, priority: 256 };
        let mut tally = RouteTally::default();
        for (protocol, total) in [(BY_KERNEL, 0), (BY_KERNEL, 0), (4, 1)] {
            let hops = Hops::One(hop(7));
            let kind = RouteKind::Multicast;
            let route = Route { kind, hops, protocol, prefsrc: None, mtu: 0, unsupported: false };
            tally.add(&key, &route, &HashMap::new());
            assert_eq!((tally.total.v6, tally.unsupported, tally.in_turn), (total, total, 0));
        }
    }

    #[test]
    fn routes_are_counted_by_kind() {
        use RouteKind::{Blackhole, Local, Unicast};
        let encap = Hop { encap: true, ..hop(9) };
        let many = Hops::Many(Box::new([hop(7), hop(7), encap]));
        let found = tally(&[
            ("10.0.0.0/8", Unicast, Hops::One(hop(7))),
            ("10.1.0.0/16", Blackhole, Hops::None),
            ("10.2.0.0/16", Unicast, many),
            ("10.3.0.0/16", Unicast, Hops::Object(3)),
            ("10.0.0.1/32", Local, Hops::One(hop(1))),
            ("fe80::/64", Unicast, Hops::One(hop(1))),
            ("2001:db8::/32", Unicast, Hops::Object(4)),
            ("2001:db9::/32", Unicast, Hops::Object(5)),
            ("2001:dba::/32", Unicast, Hops::Object(6)),
        ]);
        assert_eq!(
            found,
            RouteTally {
                total: PerFamily { v4: 4, v6: 3 },
                by_device: BTreeMap::from([(7, 4), (8, 1), (9, 1)]),
                defaults: BTreeSet::new(),
                several: PerFamily { v4: 2, v6: 0 },
                wrapped: 1,
                of_tos: 0,
                unsupported: 3,
                in_turn: 0,
                last: found.last,
            }
        );
        let by = |device| Hops::One(hop(device));
        let found = tally(&[
            ("0.0.0.0/0", Unicast, by(7)),
            ("0.0.0.0/0", Unicast, by(8)),
            ("0.0.0.0/0", Unicast, by(9)),
            ("10.0.0.0/8", Unicast, by(7)),
            ("10.0.0.0/8", Unicast, by(8)),
            ("2001:db8::/32", Unicast, by(7)),
            ("2001:db9::/32", Unicast, by(7)),
            ("2001:db9::/32", Unicast, by(8)),
        ]);
        assert_eq!(found.in_turn, 5, "but those of which the first counts");
        assert_eq!(found.defaults, BTreeSet::from([7, 8, 9]));
    }
}
