//! Random states of the kernel, and random changes of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::naive::{Naive, Packet};
use crate::event::{Change, Event, Presence};
use crate::kernel::{
    Address, Family, Hop, Hops, Ifindex, Netdev, Nexthop, Route, RouteKey, RouteKind, Rule,
    RuleAction, TableId,
};
use tollway_firewall::testkit::dice::Dice;

/// Devices that are the router's links; the last belongs to the VRF.
pub(super) const LINKS: [Ifindex; 3] = [1, 2, 3];
/// All devices except the VRF; the last is not a link of the router.
const DEVICES: [Ifindex; 4] = [1, 2, 3, 4];
const VRF: Ifindex = 9;
const TABLES: [TableId; 6] = [254, 254, 254, 255, 10, 100];

pub(super) struct KernelState {
    pub(super) dice: Dice,
    pub(super) naive: Naive,
}

pub(super) fn address(family: Family, last: u8) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, 0, 0, last).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into()).into(),
    }
}

impl KernelState {
    pub(super) fn new(seed: u64) -> Self {
        let mut kernel_state = Self { dice: Dice(seed), naive: Naive::default() };
        for index in DEVICES {
            let master = (index == 3).then_some(VRF);
            let name = format!("dev{index}");
            let netdev = Netdev { name, master, flags: 1 | 1 << 6, ..Netdev::default() };
            kernel_state.naive.kernel.netdevs.insert(index, netdev);
        }
        let name = "vrf".to_owned();
        let vrf_table = Some(10);
        let vrf = Netdev { name, vrf_table, flags: 1 | 1 << 6, ..Netdev::default() };
        kernel_state.naive.kernel.netdevs.insert(VRF, vrf);
        kernel_state.rules();
        kernel_state
    }

    fn family(&mut self) -> Family {
        self.dice.pick(&[Family::V4, Family::V6])
    }

    fn net(&mut self, family: Family) -> IpNet {
        let from_end = self.dice.pick(&[0, 0, 0, 1, 2, 2, 3, 4, 32]);
        let last = self.dice.below(16) as u8;
        let len = match family {
            Family::V4 => 32 - from_end,
            Family::V6 => 128 - from_end * 4,
        };
        IpNet::new(address(family, last), len).expect("a prefix").trunc()
    }

    fn rules(&mut self) {
        for family in [Family::V4, Family::V6] {
            let table = |table| RuleAction::Table(table);
            let mut rules = vec![(0, table(255)), (32766, table(254))];
            if self.dice.one_in(4) {
                rules[0].0 = 30000;
            }
            if family == Family::V4 {
                rules.push((32767, table(253)));
            }
            if !self.dice.one_in(4) {
                rules.push((1000, RuleAction::Vrf));
            }
            let rules = rules.into_iter();
            let mut rules: Vec<_> = rules.map(|(at, action)| rule(family, at, action)).collect();
            let more = if self.dice.one_in(2) { 0 } else { self.dice.below(4) };
            for _ in 0..more {
                let rule = self.rule(family);
                rules.push(rule);
            }
            rules.sort_by_key(|rule| rule.priority);
            self.naive.kernel.rules.extend(rules);
        }
    }

    fn rule(&mut self, family: Family) -> Rule {
        let at = self.dice.pick(&[10, 500, 2000, 31000, 32766, 40000]);
        let action = match self.dice.below(9) {
            0 => RuleAction::Blackhole,
            1 => RuleAction::Unreachable,
            2 => RuleAction::Prohibit,
            3 => RuleAction::Nop,
            4 => RuleAction::Goto(at + self.dice.pick(&[1, 490, 1500])),
            _ => RuleAction::Table(self.dice.pick(&[100, 100, 10, 254, 255])),
        };
        let mut rule = rule(family, at, action);
        for _ in 0..self.dice.below(3) {
            match self.dice.below(5) {
                0 => rule.src = Some(self.net(family)),
                1 => rule.dst = Some(self.net(family)),
                2 => rule.iif = Some(self.dice.pick(&["dev1", "dev3", "vrf", "lo"]).to_owned()),
                3 => rule.mark = Some((self.dice.below(3) as u32, 3)),
                _ if self.dice.one_in(4) => rule.unsupported = Some("tos 0x10".to_owned()),
                _ => {}
            }
        }
        rule
    }

    fn hop(&mut self, family: Family) -> Hop {
        let ifindex = self.dice.pick(&DEVICES);
        let via = match (family, self.dice.below(8)) {
            (_, 0 | 1) => None,
            (Family::V4, 2) => Some("fe80::7".parse().expect("an address")),
            _ => Some(address(family, 100 + self.dice.below(3) as u8)),
        };
        let weight = 1 + self.dice.below(3) as u16;
        Hop { via, ifindex, weight, flags: 0, encap: self.dice.one_in(24) }
    }

    fn up_hop(&mut self, family: Family) -> Option<Hop> {
        let hop = self.hop(family);
        let up = self.naive.kernel.netdevs[&hop.ifindex].flags & 1 != 0;
        up.then_some(hop)
    }

    fn route(&mut self, family: Family) -> Option<Route> {
        let mut kind = RouteKind::Unicast;
        let mut ids: Vec<_> = self.naive.kernel.nexthops.keys().copied().collect();
        ids.sort_unstable();
        let ids: Vec<_> = ids.into_iter().filter(|id| self.is_object_for(*id, family)).collect();
        let hops = match self.dice.below(12) {
            0 => {
                use RouteKind::{Blackhole, Prohibit, Throw, Unreachable};
                kind = self.dice.pick(&[Blackhole, Unreachable, Prohibit, Throw, Throw]);
                Hops::None
            }
            1 => {
                kind = RouteKind::Local;
                Hops::One(Hop { via: None, ..self.up_hop(family)? })
            }
            2..=4 => {
                let count = 2 + self.dice.below(2);
                let hops: Option<Vec<_>> = (0..count).map(|_| self.up_hop(family)).collect();
                let mut hops = hops?;
                // IPv6 has separate routes for hops without a gateway.
                hops.iter_mut().filter(|hop| hop.via.is_none()).for_each(|hop| {
                    hop.via = Some(address(family, 99));
                });
                hops.sort_by_key(|hop| (hop.via, hop.ifindex));
                hops.dedup_by_key(|hop| (hop.via, hop.ifindex));
                if hops.len() < 2 { Hops::One(hops[0]) } else { Hops::Many(hops.into()) }
            }
            5..=7 if !ids.is_empty() => Hops::Object(self.dice.pick(&ids)),
            _ => Hops::One(self.up_hop(family)?),
        };
        let source = family == Family::V4 && self.dice.one_in(6);
        let prefsrc = source.then(|| address(family, 200 + self.dice.below(2) as u8));
        let mtu = if self.dice.one_in(6) { 1400 } else { 0 };
        let unsupported = self.dice.one_in(30);
        Some(Route { kind, hops, protocol: 4, prefsrc, mtu, unsupported })
    }

    fn is_object_for(&self, id: u32, family: Family) -> bool {
        let nexthops = &self.naive.kernel.nexthops;
        let one = |id: &u32| match nexthops.get(id) {
            Some(Nexthop::Hop(Hop { via: Some(via), .. })) => family == Family::V4 || via.is_ipv6(),
            _ => true,
        };
        match nexthops.get(&id) {
            Some(Nexthop::Group { members, .. }) => members.iter().all(|(id, _)| one(id)),
            _ => one(&id),
        }
    }

    /// Makes a random change; returns the kernel's notifications.
    pub(super) fn step(&mut self) -> Vec<Event> {
        match self.dice.below(24) {
            0 => self.device(),
            1 | 2 => self.address(),
            3..=5 => self.nexthop(),
            6..=8 => self.delete(),
            _ => self.add(),
        }
    }

    /// Lists everything again, as after a loss.
    pub(super) fn list(&self) -> Vec<Event> {
        let mut events = vec![Event::Whole(Box::new(self.naive.kernel.clone()))];
        for family in [Family::V4, Family::V6] {
            events.push(Event::Listing { family, audit: false });
            let routes = self.naive.routes.values().flatten();
            let routes = routes.filter(|kept| kept.key.family() == family);
            events.extend(
                routes
                    .map(|kept| Event::Route(kept.key, self.naive.reported(kept), Change::Listed)),
            );
            events.push(Event::Listed { family, lists: 1 });
        }
        events
    }

    fn add(&mut self) -> Vec<Event> {
        let family = self.family();
        let Some(route) = self.route(family) else { return Vec::new() };
        let tos = if family == Family::V4 && self.dice.one_in(20) { 0x10 } else { 0 };
        let priority = self.dice.pick(&[1, 1, 2]);
        let (table, dst) = (self.dice.pick(&TABLES), self.net(family));
        let key = RouteKey { table, dst, tos, priority };
        let how = self.dice.below(4);
        let Some(place) = self.naive.place(&key, &route, how) else { return Vec::new() };
        let reported = self.naive.add(key, route, place);
        vec![Event::Route(key, reported, Change::Add(place))]
    }

    fn delete(&mut self) -> Vec<Event> {
        let all: Vec<_> = self.naive.routes.values().flatten().cloned().collect();
        if all.is_empty() {
            return Vec::new();
        }
        let kept = self.dice.pick(&all);
        let joined = kept.key.dst.addr().is_ipv6() && kept.route.joins();
        if joined && self.dice.one_in(2) {
            let at = self.dice.below(4);
            let gone = self.naive.delete_hop(&kept.key, at);
            return gone
                .map(|gone| Event::Route(kept.key, gone, Change::Del))
                .into_iter()
                .collect();
        }
        self.naive.delete(&kept.key, &kept.route);
        vec![Event::Route(kept.key, kept.route, Change::Del)]
    }

    fn device(&mut self) -> Vec<Event> {
        let index = self.dice.pick(&DEVICES);
        let up = !self.dice.one_in(3);
        let carrier = up && !self.dice.one_in(3);
        self.naive.set_device(index, up, carrier);
        let netdev = self.naive.kernel.netdevs[&index].clone();
        vec![Event::Link(index, Some(Box::new(netdev)))]
    }

    fn address(&mut self) -> Vec<Event> {
        let ifindex = self.dice.pick(&DEVICES);
        let own = 200 + self.dice.below(2) as u8;
        let net = IpNet::new(address(Family::V4, own), 24).expect("a prefix");
        let (peer, broadcast, flags) = (None, None, 0);
        let address = Address { ifindex, address: net, peer, broadcast, flags };
        let there = self.naive.kernel.addresses.remove(&address);
        let IpAddr::V4(v4) = net.addr() else { return Vec::new() };
        if there {
            self.naive.remove_address(ifindex, v4);
            return vec![Event::Address(address, Presence::Gone)];
        }
        let own = |of: &Address| of.ifindex == ifindex;
        let first = !self.naive.kernel.addresses.iter().any(own);
        self.naive.kernel.addresses.insert(address);
        if first {
            self.naive.first_address(ifindex);
        }
        vec![Event::Address(address, Presence::Here)]
    }

    fn nexthop(&mut self) -> Vec<Event> {
        let id = 1 + self.dice.below(6) as u32;
        let before = self.naive.kernel.nexthops.get(&id).cloned();
        if before.is_some() && self.dice.one_in(4) {
            self.naive.drop_object(id);
            return vec![Event::Nexthop(id, None)];
        }
        let family = self.family();
        let is_group = id > 4;
        let nexthop = if is_group {
            let nexthops = &self.naive.kernel.nexthops;
            let members = (1..=4).filter(|id| nexthops.contains_key(id));
            let members: Vec<_> = members.map(|id| (id, (id as u16) * 3)).collect();
            let kept: Vec<_> = members.into_iter().filter(|_| !self.dice.one_in(3)).collect();
            let blackhole = |id: &u32| nexthops[id] == Nexthop::Blackhole;
            if kept.is_empty() || (kept.len() > 1 && kept.iter().any(|(id, _)| blackhole(id))) {
                return Vec::new();
            }
            Nexthop::Group { members: kept, resilient: self.dice.one_in(3) }
        } else if self.dice.one_in(8) && !self.is_in_group(id) {
            Nexthop::Blackhole
        } else {
            let Some(hop) = self.up_hop(family) else { return Vec::new() };
            let carrier = self.naive.kernel.netdevs[&hop.ifindex].flags & 1 << 6 != 0;
            if !carrier {
                return Vec::new();
            }
            Nexthop::Hop(Hop { weight: 1, ..hop })
        };
        self.naive.kernel.nexthops.insert(id, nexthop.clone());
        let v6 = |routes: &Vec<super::naive::KernelRoute>| {
            let used = |hops: &Hops| matches!(hops, Hops::Object(id) if !self.is_object_for(*id, Family::V6));
            routes.iter().any(|kept| kept.key.dst.addr().is_ipv6() && used(&kept.route.hops))
        };
        if self.naive.routes.values().any(v6) {
            // The kernel refuses such a change.
            match before {
                Some(before) => self.naive.kernel.nexthops.insert(id, before),
                None => self.naive.kernel.nexthops.remove(&id),
            };
            return Vec::new();
        }
        vec![Event::Nexthop(id, Some(nexthop))]
    }

    fn is_in_group(&self, id: u32) -> bool {
        let has = |nexthop: &Nexthop| match nexthop {
            Nexthop::Group { members, .. } => members.iter().any(|(of, _)| *of == id),
            _ => false,
        };
        self.naive.kernel.nexthops.values().any(has)
    }

    pub(super) fn packet(&mut self) -> Packet {
        let family = self.family();
        let src = address(family, self.dice.below(16) as u8);
        let dst = address(family, self.dice.below(18) as u8);
        let mark = self.dice.below(4) as u32;
        Packet { iif: self.dice.pick(&LINKS), src, dst, mark }
    }
}

fn rule(family: Family, priority: u32, action: RuleAction) -> Rule {
    let (src, dst, iif, mark, unsupported) = Default::default();
    Rule { family, priority, src, dst, iif, mark, action, unsupported }
}
