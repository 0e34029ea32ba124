//! A slow and plain model of the kernel: rules one by one, routes by linear search, next hops with the
//! kernel's marks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use crate::event::Place;
use crate::fib_sync::EgressLinks;
use crate::kernel::{
    DEAD, Family, Hop, Hops, Ifindex, Kernel, LINK_DOWN, Nexthop, NexthopId, Route, RouteKey,
    RouteKind, RuleAction, TableId,
};
use crate::rib::Ignoring;

/// A route as the kernel has it, with the marks of its next hops.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KernelRoute {
    pub(super) key: RouteKey,
    pub(super) route: Route,
    pub(super) dead: Vec<bool>,
}

impl KernelRoute {
    pub(super) fn new(key: RouteKey, route: Route) -> Self {
        let dead = vec![false; route.hops.list().len()];
        Self { key, route, dead }
    }

    fn is_v4(&self) -> bool {
        self.key.dst.addr().is_ipv4()
    }
}

/// The target of a packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Answer {
    NoRoute,
    Local,
    Blackhole,
    Unreachable,
    Prohibit,
    Kernel,
    /// Via a device to a host, with the MTU of the route if it has one.
    By(Ifindex, IpAddr, u32),
    Any(BTreeSet<Answer>),
}

/// The state of the model.
#[derive(Clone, Default)]
pub(super) struct Naive {
    pub(super) kernel: Kernel,
    pub(super) routes: BTreeMap<(TableId, IpNet), Vec<KernelRoute>>,
    pub(super) ignoring: Ignoring,
    pub(super) egress_links: EgressLinks,
}

/// The packet to look up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub(super) iif: Ifindex,
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    pub(super) mark: u32,
}

enum Outcome {
    Go(Answer),
    Next,
}

impl Naive {
    fn device(&self, index: Ifindex) -> (bool, bool) {
        let flags = self.kernel.netdevs.get(&index).map_or(0, |netdev| netdev.flags);
        (flags & 1 != 0, flags & (1 << 6 | 1 << 16) != 0)
    }

    /// The answer, and whether the kernel might give another one for reasons that do not show.
    pub(super) fn look_up(&self, packet: &Packet) -> (Answer, bool) {
        let family = if packet.dst.is_ipv4() { Family::V4 } else { Family::V6 };
        let netdev = &self.kernel.netdevs[&packet.iif];
        let vrf = netdev.master.map(|master| &self.kernel.netdevs[&master]);
        let vrf = vrf.filter(|vrf| vrf.vrf_table.is_some());
        let name = vrf.map_or(&netdev.name, |vrf| &vrf.name);
        let rules: Vec<_> = self.kernel.rules.iter().filter(|rule| rule.family == family).collect();
        let (mut at, mut unsure) = (0, false);
        while let Some(rule) = rules.get(at) {
            at += 1;
            let by_member = family == Family::V4 && vrf.is_some();
            let is_it = |iif: &String| iif == name || by_member && *iif == netdev.name;
            let matches = rule.iif.as_ref().is_none_or(is_it)
                && rule.src.is_none_or(|src| src.contains(&packet.src))
                && rule.dst.is_none_or(|dst| dst.contains(&packet.dst))
                && rule.mark.is_none_or(|(value, mask)| (packet.mark ^ value) & mask == 0);
            if !matches {
                continue;
            }
            // In a VRF, kernels differ in the device that IPv4 packets belong to.
            if rule.unsupported.is_some()
                || rule.iif.is_some() && by_member && rule.action != RuleAction::Nop
            {
                return (Answer::Kernel, unsure);
            }
            let table = match rule.action {
                RuleAction::Nop => continue,
                RuleAction::Goto(target) => {
                    // A `goto` with selectors takes the kernel path.
                    unsure |= rule.src.is_some() || rule.dst.is_some() || rule.mark.is_some();
                    let found = rules.iter().position(|rule| rule.priority == target);
                    at = found.unwrap_or(at);
                    continue;
                }
                RuleAction::Blackhole => return (Answer::Blackhole, unsure),
                RuleAction::Unreachable => return (Answer::Unreachable, unsure),
                RuleAction::Prohibit => return (Answer::Prohibit, unsure),
                RuleAction::Vrf => match vrf.and_then(|vrf| vrf.vrf_table) {
                    Some(table) => table,
                    None => continue,
                },
                RuleAction::Table(table) => table,
            };
            unsure |= self.is_unsure(table, packet.dst);
            if let Outcome::Go(answer) = self.table(table, packet.dst) {
                return (answer, unsure);
            }
        }
        (Answer::NoRoute, unsure)
    }

    /// The state that may concern a packet, in words.
    pub(super) fn describe(&self, packet: &Packet) -> String {
        let rules = self.kernel.rules.iter().map(|rule| format!("{rule:?}"));
        let routes = self.routes.iter().filter(|((_, net), _)| net.contains(&packet.dst));
        let routes = routes.flat_map(|(_, routes)| routes).map(|kept| format!("{kept:?}"));
        let nexthops = self.kernel.nexthops.iter().map(|(id, nexthop)| format!("{id} {nexthop:?}"));
        rules.chain(routes).chain(nexthops).collect::<Vec<_>>().join("\n")
    }

    /// For a local table's prefixes of many addresses (see `merge::content`), and a default table.
    fn is_unsure(&self, table: TableId, dst: IpAddr) -> bool {
        let unsupported = |key: &(TableId, IpNet)| key.0 == 255 && key.1.prefix_len() < 32;
        let shadows = self.routes.keys().any(|key| unsupported(key) && key.1.contains(&dst));
        dst.is_ipv4() && (table == 255 || shadows)
    }

    fn table(&self, table: TableId, dst: IpAddr) -> Outcome {
        let mut nets: Vec<_> = self.routes.keys().filter(|(of, _)| *of == table).collect();
        nets.retain(|(_, net)| net.contains(&dst));
        nets.sort_by_key(|(_, net)| std::cmp::Reverse(net.prefix_len()));
        nets.iter().find_map(|key| self.prefix(&self.routes[*key], dst)).unwrap_or(Outcome::Next)
    }

    fn prefix(&self, routes: &[KernelRoute], dst: IpAddr) -> Option<Outcome> {
        for (at, route) in routes.iter().enumerate() {
            // Beyond the lowest metric IPv6 evaluates all others at once, those by the input device first.
            if !route.is_v4() && at == 1 && routes.len() > 2 {
                return Some(Outcome::Go(Answer::Kernel));
            }
            if route.key.tos != 0 || route.route.unsupported {
                return Some(Outcome::Go(Answer::Kernel));
            }
            let same_key = routes.iter().filter(|other| other.key == route.key).count();
            if !route.is_v4() && same_key > 1 {
                return Some(Outcome::Go(Answer::Kernel));
            }
            let answer = match route.route.kind {
                RouteKind::Throw => return Some(Outcome::Next),
                RouteKind::Blackhole => Answer::Blackhole,
                RouteKind::Unreachable => Answer::Unreachable,
                RouteKind::Prohibit => Answer::Prohibit,
                RouteKind::Local => Answer::Local,
                _ => match self.hops(route, dst) {
                    Some(answer) => answer,
                    None if matches!(route.route.hops, Hops::Object(_)) && route.is_v4() => {
                        return None;
                    }
                    None => continue,
                },
            };
            let defaults = route.is_v4() && route.key.dst.prefix_len() == 0 && same_key > 1;
            return Some(Outcome::Go(if defaults { Answer::Kernel } else { answer }));
        }
        None
    }

    fn is_good(&self, hop: &Hop, dead: bool, is_v4: bool) -> bool {
        let ignoring = if is_v4 { &self.ignoring.v4 } else { &self.ignoring.v6 };
        !dead && (self.device(hop.ifindex).1 || !ignoring.contains(&hop.ifindex))
    }

    fn hops(&self, route: &KernelRoute, dst: IpAddr) -> Option<Answer> {
        let is_v4 = route.is_v4();
        let mtu = route.route.mtu;
        let hops = route.route.hops.list().iter().zip(&route.dead);
        let good = hops.filter(|(hop, dead)| self.is_good(hop, **dead, is_v4));
        let good: Vec<_> = good.map(|(hop, _)| self.hop(hop, mtu, dst)).collect();
        match &route.route.hops {
            Hops::None => Some(Answer::Kernel),
            Hops::One(_) | Hops::Many(_) => {
                self.any(good, matches!(route.route.hops, Hops::Many(_)), is_v4)
            }
            Hops::Object(id) => self.object(*id, mtu, dst),
        }
    }

    fn any(&self, good: Vec<Answer>, several: bool, is_v4: bool) -> Option<Answer> {
        let kernel =
            if is_v4 { self.egress_links.kernel_groups4 } else { self.egress_links.kernel_groups6 };
        match &good[..] {
            [] => None,
            _ if several && kernel => Some(Answer::Kernel),
            [only] if !several => Some(only.clone()),
            _ => Some(Answer::Any(good.into_iter().collect())),
        }
    }

    fn object(&self, id: NexthopId, mtu: u32, dst: IpAddr) -> Option<Answer> {
        let one = |id| match self.kernel.nexthops.get(&id) {
            Some(Nexthop::Hop(hop)) => {
                self.is_good(hop, false, dst.is_ipv4()).then(|| self.hop(hop, mtu, dst))
            }
            Some(Nexthop::Blackhole) => Some(Answer::Blackhole),
            _ => Some(Answer::Kernel),
        };
        match self.kernel.nexthops.get(&id) {
            Some(Nexthop::Group { members, resilient }) => {
                let good = members.iter().filter_map(|(id, _)| one(*id)).collect();
                let any = self.any(good, true, dst.is_ipv4());
                any.map(|any| if *resilient { Answer::Kernel } else { any })
            }
            _ => one(id),
        }
    }

    fn hop(&self, hop: &Hop, mtu: u32, dst: IpAddr) -> Answer {
        let egress_link = self.egress_links.links.get(&hop.ifindex);
        let fast = egress_link
            .is_some_and(|egress_link| if dst.is_ipv4() { egress_link.v4 } else { egress_link.v6 });
        if !fast || hop.encap || (hop.via.is_none() && mtu > 0) {
            return Answer::Kernel;
        }
        Answer::By(hop.ifindex, hop.via.unwrap_or(dst), mtu)
    }

    /// A route as the kernel notifies of it, with the state of its next hops (`fib_nexthop_info`).
    pub(super) fn reported(&self, kept: &KernelRoute) -> Route {
        let ignoring = if kept.is_v4() { &self.ignoring.v4 } else { &self.ignoring.v6 };
        let reported_hop = |(hop, dead): (&Hop, &bool)| {
            let down = *dead || !self.device(hop.ifindex).1;
            let ignored = down && ignoring.contains(&hop.ifindex);
            let flags = if down { LINK_DOWN } else { 0 } | if *dead || ignored { DEAD } else { 0 };
            Hop { flags, ..*hop }
        };
        let hops: Vec<_> =
            kept.route.hops.list().iter().zip(&kept.dead).map(reported_hop).collect();
        let hops = match &kept.route.hops {
            Hops::One(_) => Hops::One(hops[0]),
            Hops::Many(_) => Hops::Many(hops.into()),
            other => other.clone(),
        };
        Route { hops, ..kept.route.clone() }
    }

    // Changes of the state.

    /// The place of a new route, as `ip route add|append|prepend|replace` choose it; none if the kernel
    /// refuses.
    pub(super) fn place(&self, key: &RouteKey, route: &Route, how: usize) -> Option<Place> {
        let routes = self.routes.get(&(key.table, key.dst));
        let same_key: Vec<_> =
            routes.into_iter().flatten().filter(|kept| kept.key == *key).collect();
        if same_key.is_empty() {
            return Some(Place::Only);
        }
        if same_key.iter().any(|kept| kept.route.is_same(route)) {
            return None;
        }
        let is_v4 = key.dst.addr().is_ipv4();
        match how {
            0 => None,
            1 => Some(Place::Last),
            2 if is_v4 => Some(Place::First),
            2 => Some(Place::Last),
            _ => Some(Place::Instead),
        }
    }

    /// Adds a route; returns it as the kernel notifies of it.
    pub(super) fn add(&mut self, key: RouteKey, route: Route, place: Place) -> Route {
        let is_v6 = key.dst.addr().is_ipv6();
        let rank = |key: &RouteKey| (std::cmp::Reverse(key.tos), key.priority);
        let routes = self.routes.entry((key.table, key.dst)).or_default();
        let joined = routes.iter().position(|kept| kept.key == key && kept.route.joins());
        if let (true, true, Some(at), Place::Last) = (is_v6, route.joins(), joined, place) {
            let mut hops = routes[at].route.hops.list().to_vec();
            let place = |hop: &Hop| (hop.via, hop.ifindex, hop.encap);
            let known = |hop: &Hop| hops.iter().any(|other| place(other) == place(hop));
            let new: Vec<_> = route.hops.list().iter().filter(|hop| !known(hop)).copied().collect();
            routes[at].dead.extend(new.iter().map(|_| false));
            hops.extend(new);
            routes[at].route.hops = Hops::Many(hops.into());
            // The notification has all next hops, and everything else of the new sibling.
            return Route { hops: routes[at].route.hops.clone(), ..route };
        }
        let kept = KernelRoute::new(key, route.clone());
        let first = routes.iter().position(|other| rank(&other.key) >= rank(&key));
        let first = first.unwrap_or(routes.len());
        let end = routes.iter().position(|other| rank(&other.key) > rank(&key));
        match place {
            Place::Only | Place::First => routes.insert(first, kept),
            Place::Last => routes.insert(end.unwrap_or(routes.len()), kept),
            Place::Instead => {
                let alike = |other: &KernelRoute| {
                    other.key == key && (!is_v6 || other.route.joins() == route.joins())
                };
                let at = routes.iter().position(alike).unwrap_or(first);
                routes[at] = kept;
            }
        }
        route
    }

    fn retain(&mut self, mut keep: impl FnMut(&mut KernelRoute) -> bool) {
        for routes in self.routes.values_mut() {
            routes.retain_mut(&mut keep);
        }
        self.routes.retain(|_, routes| !routes.is_empty());
    }

    /// `RTM_DELROUTE`: removes only some of the hops, if others remain.
    pub(super) fn delete(&mut self, key: &RouteKey, route: &Route) {
        self.retain(|kept| kept.key != *key || !kept.route.is_same(route));
    }

    pub(super) fn delete_hop(&mut self, key: &RouteKey, at: usize) -> Option<Route> {
        let routes = self.routes.get_mut(&(key.table, key.dst))?;
        let kept = routes.iter_mut().find(|kept| kept.key == *key && kept.route.joins())?;
        let mut hops = kept.route.hops.list().to_vec();
        if hops.len() < 2 {
            return None;
        }
        let at = at % hops.len();
        let gone = hops.remove(at);
        let reported = Route { hops: Hops::One(Hop { weight: 1, ..gone }), ..kept.route.clone() };
        kept.dead.remove(at);
        kept.route.hops =
            if let [hop] = hops[..] { Hops::One(hop) } else { Hops::Many(hops.into()) };
        // Only a list contains the attributes of the next sibling.
        kept.route.unsupported |= at == 0;
        Some(reported)
    }

    /// `NETDEV_DOWN`, or with `all` the loss of the last address (IPv4 only).
    fn down(&mut self, index: Ifindex, v6: bool, all: bool) {
        self.retain(|kept| {
            let concerned = kept.is_v4() || v6;
            let stays = kept.is_v4() && kept.route.kind == RouteKind::Local && !all;
            let own = kept.route.hops.list().iter().any(|hop| hop.ifindex == index);
            if !concerned || stays || !own {
                return true;
            }
            for (hop, dead) in kept.route.hops.list().iter().zip(&mut kept.dead) {
                *dead |= hop.ifindex == index;
            }
            !kept.dead.iter().all(|dead| *dead)
        });
    }

    fn revive(&mut self, index: Ifindex, family: Family) {
        let is_v4 = family == Family::V4;
        for kept in self.routes.values_mut().flatten().filter(|kept| kept.is_v4() == is_v4) {
            for (hop, dead) in kept.route.hops.list().iter().zip(&mut kept.dead) {
                *dead &= hop.ifindex != index;
            }
        }
    }

    fn drop_objects(&mut self, index: Ifindex) {
        let by = |nexthop: &Nexthop| matches!(nexthop, Nexthop::Hop(hop) if hop.ifindex == index);
        let gone = self.kernel.nexthops.iter().filter(|(_, nexthop)| by(nexthop));
        let gone: Vec<_> = gone.map(|(id, _)| *id).collect();
        gone.into_iter().for_each(|id| self.drop_object(id));
    }

    pub(super) fn drop_object(&mut self, id: NexthopId) {
        self.kernel.nexthops.remove(&id);
        let mut empty = Vec::new();
        for (group, nexthop) in &mut self.kernel.nexthops {
            if let Nexthop::Group { members, .. } = nexthop {
                members.retain(|(member, _)| *member != id);
                if members.is_empty() {
                    empty.push(*group);
                }
            }
        }
        self.retain(|kept| kept.route.hops != Hops::Object(id));
        empty.into_iter().for_each(|group| self.drop_object(group));
    }

    /// Changes a device's flags.
    pub(super) fn set_device(&mut self, index: Ifindex, up: bool, carrier: bool) {
        let before = self.device(index);
        let flags = u32::from(up) | u32::from(carrier) << 6;
        self.kernel.netdevs.get_mut(&index).expect("is there").flags = flags;
        if before.0 && !up {
            self.drop_objects(index);
            self.down(index, true, false);
        } else if !before.0 && up {
            self.revive(index, Family::V4);
        }
        if up && carrier {
            self.revive(index, Family::V6);
        }
        if before.1 && !carrier {
            self.drop_objects(index);
        }
    }

    pub(super) fn remove_address(&mut self, index: Ifindex, address: Ipv4Addr) {
        let netdev = &self.kernel.netdevs[&index];
        let vrf = netdev.master.and_then(|master| self.kernel.netdevs[&master].vrf_table);
        let table = vrf.unwrap_or(254);
        let elsewhere = self.kernel.addresses.iter().any(|of| of.address.addr() == address);
        if !elsewhere {
            let source = Some(IpAddr::V4(address));
            self.retain(|kept| kept.key.table != table || kept.route.prefsrc != source);
        }
        let mut own = self.kernel.addresses.iter();
        if !own.any(|of| of.ifindex == index && of.address.addr().is_ipv4()) {
            self.down(index, false, true);
        }
    }

    pub(super) fn first_address(&mut self, index: Ifindex) {
        if self.device(index).0 {
            self.revive(index, Family::V4);
        }
    }
}
