//! A model of Linux's routing as in its sources, table by table and rule by rule, and the same routing
//! as [`Tables`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tollway_dataplane::id::{LinkId, NextHopId, VrfId};
use tollway_dataplane::prefix::{Prefix, RoutePrefix};
use tollway_dataplane::stages::ecmp::Member;
use tollway_dataplane::stages::rule::{PolicyAction, PolicyRule};
use tollway_dataplane::tables::Tables;
use tollway_dataplane::verdict::{DropReason, PuntReason};

use super::dice::Dice;
use super::packet::Mac;
use super::path_bench::Outcome;

/// Links, each a port of its own.
pub const LINKS: u8 = 4;

/// The type of a route (`RTN_*`), and the devices of its next hops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    Unicast(Vec<u8>),
    /// A unicast route on the kernel path.
    Kernel,
    /// A unicast route by a link by which only the kernel sends.
    KernelExit(u8),
    Local,
    Broadcast,
    Blackhole,
    Unreachable,
    Prohibit,
    Throw,
}

/// One route.
#[derive(Clone, Debug)]
pub struct Route {
    pub table: u16,
    pub prefix: Prefix,
    pub is_ipv4: bool,
    pub kind: Type,
}

/// The routing of a router.
#[derive(Clone, Debug, Default)]
pub struct Linux {
    pub routes: Vec<Route>,
    /// The table to look up after each.
    pub next: Vec<Option<u16>>,
}

impl Linux {
    /// `fib_table_lookup`: none for `-EAGAIN`.
    pub fn in_table(&self, table: u16, bits: u128, is_ipv4: bool) -> Option<&Type> {
        let covering = self.routes.iter().filter(|route| {
            route.table == table && route.is_ipv4 == is_ipv4 && route.prefix.contains(bits)
        });
        let longest = covering.max_by_key(|route| route.prefix.len());
        longest.map(|route| &route.kind).filter(|kind| **kind != Type::Throw)
    }

    /// Looks up the table, then those after it.
    pub fn search(&self, table: u16, bits: u128, is_ipv4: bool) -> Option<&Type> {
        let tables = std::iter::successors(Some(table), |table| self.next[usize::from(*table)]);
        tables.into_iter().find_map(|table| self.in_table(table, bits, is_ipv4))
    }

    /// `fib_rules_lookup`: the route, if any, or the action of a rule that replaces it.
    pub fn by_rules(
        &self,
        rules: &[PolicyRule],
        (src, dst): (IpAddr, IpAddr),
        mark: u32,
    ) -> Result<Option<&Type>, PolicyAction> {
        for rule in rules {
            let fits = |prefix: &Option<RoutePrefix>, address| {
                prefix.is_none_or(|prefix| covers(prefix, address))
            };
            let marked = rule.mark.is_none_or(|(value, mask)| mark & mask == value & mask);
            if !marked || !fits(&rule.src, src) || !fits(&rule.dst, dst) {
                continue;
            }
            let PolicyAction::View(vrf) = rule.action else { return Err(rule.action) };
            if let Some(found) = self.search(vrf.0, bits(dst), dst.is_ipv4()) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Random routes in `tables` tables, none of which comes after itself.
    pub fn random(dice: &mut Dice, tables: u16) -> Self {
        let mut next = vec![None; tables.into()];
        for table in 0..tables {
            let behind = usize::from(tables - table - 1);
            if behind > 0 && !dice.one_in(3) {
                next[usize::from(table)] = Some(table + 1 + dice.below(behind) as u16);
            }
        }
        let mut linux = Self { routes: Vec::new(), next };
        for _ in 0..dice.below(40) {
            let is_ipv4 = !dice.one_in(2);
            let prefix = random_prefix(dice, is_ipv4);
            let (table, kind) = (dice.below(tables.into()) as u16, random_type(dice));
            let is_same = |route: &Route| {
                (route.table, route.prefix, route.is_ipv4) == (table, prefix, is_ipv4)
            };
            linux.routes.retain(|route| !is_same(route));
            linux.routes.push(Route { table, prefix, is_ipv4, kind });
        }
        linux
    }

    /// The same routing as tables: VRFs by number, one link per port, neighbours known.
    pub fn compiled(&self) -> Tables {
        let mut tables = Tables::new();
        for _ in &self.next {
            tables.add_vrf().expect("a VRF");
        }
        for port in 0..LINKS {
            let (_, link) = tables.add_port(mac(port), VrfId(0), 1500).expect("a port");
            assert_eq!(link, LinkId(port.into()));
        }
        for (table, next) in self.next.iter().enumerate() {
            let vrf = VrfId(table as u16);
            tables.set_fallback(vrf, next.map(VrfId)).expect("no loop");
        }
        for route in &self.routes {
            let next = next_hop(&mut tables, route);
            let prefix = match route.is_ipv4 {
                true => RoutePrefix::V4(route.prefix),
                false => RoutePrefix::V6(route.prefix),
            };
            tables.insert(VrfId(route.table), prefix, next).expect("a route");
        }
        tables
    }
}

/// The result for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutcomeKind {
    /// Sent by a port.
    By(u16),
    Local,
    Drop(DropReason),
    Punt(PuntReason),
}

impl OutcomeKind {
    pub fn of(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Sent(port, _) => Self::By(*port),
            Outcome::Drop(reason) => Self::Drop(*reason),
            Outcome::Punt(reason, ..) => Self::Punt(*reason),
            Outcome::Local(..) => Self::Local,
        }
    }

    /// The result of a rule that selects no table.
    pub fn of_action(action: PolicyAction) -> Self {
        match action {
            PolicyAction::Blackhole => Self::Drop(DropReason::Blackhole),
            PolicyAction::Unreachable => Self::Punt(PuntReason::Unreachable),
            PolicyAction::Prohibit => Self::Punt(PuntReason::Prohibit),
            PolicyAction::Punt => Self::Punt(PuntReason::KernelRule),
            PolicyAction::View(_) => panic!("{action:?} is no end"),
        }
    }
}

/// The possible results for a packet with such a route.
pub fn kinds(found: Option<&Type>) -> Vec<OutcomeKind> {
    vec![match found {
        Some(Type::Unicast(links)) => {
            return links.iter().map(|link| OutcomeKind::By((*link).into())).collect();
        }
        Some(Type::Local | Type::Broadcast) => OutcomeKind::Local,
        Some(Type::Kernel) => OutcomeKind::Punt(PuntReason::KernelRoute),
        Some(Type::KernelExit(_)) => OutcomeKind::Punt(PuntReason::KernelExit),
        Some(Type::Blackhole) => OutcomeKind::Drop(DropReason::Blackhole),
        Some(Type::Unreachable) => OutcomeKind::Punt(PuntReason::Unreachable),
        Some(Type::Prohibit) => OutcomeKind::Punt(PuntReason::Prohibit),
        Some(Type::Throw) | None => OutcomeKind::Punt(PuntReason::NoRoute),
    }]
}

/// A port's address.
pub const fn mac(port: u8) -> Mac {
    [2, 0, 0, 0, 0, port]
}

fn next_hop(tables: &mut Tables, route: &Route) -> NextHopId {
    let mut neigh = |link: u8| {
        let via = match route.is_ipv4 {
            true => IpAddr::from([10, 255, link, 1]),
            false => IpAddr::from(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1)),
        };
        tables.set_neigh(LinkId(link.into()), via, Some([6, 0, 0, 0, 0, link])).expect("one")
    };
    match &route.kind {
        Type::Unicast(links) if links.len() == 1 => neigh(links[0]),
        Type::Unicast(links) => {
            let member = |link: &u8| Member { next: neigh(*link), weight: 1 };
            let members: Vec<_> = links.iter().map(member).collect();
            tables.add_group(&members).expect("a group")
        }
        Type::Kernel => tables.punt(PuntReason::KernelRoute).expect("a next hop"),
        Type::KernelExit(link) => tables.kernel_exit(LinkId((*link).into())).expect("a next hop"),
        Type::Local | Type::Broadcast => tables.local().expect("a next hop"),
        Type::Blackhole => tables.drop(DropReason::Blackhole).expect("a next hop"),
        Type::Unreachable => tables.punt(PuntReason::Unreachable).expect("a next hop"),
        Type::Prohibit => tables.punt(PuntReason::Prohibit).expect("a next hop"),
        Type::Throw => NextHopId::NO_ROUTE,
    }
}

fn random_type(dice: &mut Dice) -> Type {
    match dice.below(12) {
        0 => Type::Kernel,
        1 => Type::Local,
        2 => Type::Blackhole,
        3 => Type::Unreachable,
        4 => Type::Prohibit,
        5 => Type::Throw,
        6 => Type::KernelExit(dice.below(LINKS.into()) as u8),
        7 => {
            let mut links: Vec<u8> = (0..LINKS).filter(|_| dice.one_in(2)).collect();
            links.push(dice.below(LINKS.into()) as u8);
            links.dedup();
            Type::Unicast(links)
        }
        _ => Type::Unicast(vec![dice.below(LINKS.into()) as u8]),
    }
}

/// One of few addresses, so that packets often match routes.
pub fn random_address(dice: &mut Dice, is_ipv4: bool) -> IpAddr {
    let mut part = || dice.below(3) as u8;
    let [a, b, c, d] = [part(), part(), part(), part()];
    if is_ipv4 {
        return Ipv4Addr::new(10 + a, b, c, d).into();
    }
    let segments = [0x2001 + u16::from(a), 0xdb8, b.into(), 0, 0, c.into(), 0, d.into()];
    Ipv6Addr::from(segments).into()
}

/// A prefix of such addresses.
pub fn random_prefix(dice: &mut Dice, is_ipv4: bool) -> Prefix {
    let address = random_address(dice, is_ipv4);
    let len = match is_ipv4 {
        true => dice.pick(&[0, 7, 8, 16, 24, 31, 32]),
        false => dice.pick(&[0, 12, 48, 64, 95, 96, 128]),
    };
    match RoutePrefix::new(address, len) {
        RoutePrefix::V4(prefix) | RoutePrefix::V6(prefix) => prefix,
    }
}

/// A left-aligned address.
pub fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn covers(prefix: RoutePrefix, address: IpAddr) -> bool {
    match (prefix, address.is_ipv4()) {
        (RoutePrefix::V4(prefix), true) | (RoutePrefix::V6(prefix), false) => {
            prefix.contains(bits(address))
        }
        _ => false,
    }
}
