//! Measures what a million routes cost the controller: memory, the time until tables have them, and the
//! time for changes.
//!
//!     cargo run --release -p tollway --example rib_scale -- [ROUTES]

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use tollway_controller::event::{Change, Event, Place};
use tollway_controller::fib_sync::{ActiveTables, EgressLink, EgressLinks, FibSync};
use tollway_controller::kernel::{
    Family, Hop, Hops, Kernel, Netdev, Nexthop, Route, RouteKey, RouteKind, Rule, RuleAction,
};
use tollway_controller::lookup_chains::LookupChains;
use tollway_controller::rib::Rib;
use tollway_dataplane::id::{LinkId, VrfId};
use tollway_dataplane::tables::Tables;

const LINKS: [u32; 2] = [1, 2];
/// Routers that routes lead to, by next-hop objects.
const ROUTERS: u32 = 500;
const CHANGES: usize = 100_000;

struct Bench(RefCell<Tables>);

impl ActiveTables for Bench {
    fn change<T>(&self, job: impl FnOnce(&mut Tables) -> T) -> T {
        job(&mut self.0.borrow_mut())
    }
}

fn main() {
    let routes = std::env::args().nth(1).and_then(|routes| routes.parse().ok());
    let routes: u32 = routes.unwrap_or(1_000_000);
    let kernel = kernel();
    let mut rib = Rib::new();
    rib.apply(&Event::Whole(Box::new(kernel.clone())));
    let before = resident();
    let start = Instant::now();
    for n in 0..routes {
        let (key, route) = route(n, n % ROUTERS + 1);
        rib.apply(&Event::Route(key, route, Change::Listed));
    }
    say("routes taken", start, resident() - before);
    let has = |family, table| rib.has(table, family);
    let lookup_chains = LookupChains::of(&kernel, LINKS, has);
    let mut tables = Tables::new();
    for _ in &lookup_chains.lookup_chains {
        tables.add_vrf().expect("a VRF");
    }
    let links = LINKS.into_iter().enumerate().map(|(at, index)| {
        let mac = [2, 0, 0, 0, 0, at as u8];
        tables.add_port(mac, VrfId(0), 1500).expect("a port");
        (index, EgressLink { link: LinkId(at as u16), v4: true, v6: true, is_layer3: false })
    });
    let links = links.collect();
    let egress_links = EgressLinks { links, kernel_groups4: false, kernel_groups6: false };
    let (start, before) = (Instant::now(), resident());
    let mut fib_sync =
        FibSync::build(&mut rib, lookup_chains, egress_links, &mut tables).expect("room");
    say("tables filled", start, resident() - before);
    let bench = Bench(RefCell::new(tables));
    let start = Instant::now();
    for n in 0..CHANGES as u32 {
        let (key, route) = route(n * 7 % routes, n % ROUTERS + 7);
        rib.apply(&Event::Route(key, route, Change::Add(Place::Instead)));
    }
    say("100,000 changes taken", start, 0);
    let start = Instant::now();
    let followed = fib_sync.sync(&mut rib, &bench).expect("room");
    say(&format!("and active {followed:?}"), start, 0);
    let start = Instant::now();
    for id in 1..=ROUTERS {
        rib.apply(&Event::Nexthop(id, Some(Nexthop::Hop(hop(id + 1)))));
    }
    let followed = fib_sync.sync(&mut rib, &bench).expect("room");
    say(&format!("all next-hop objects changed {followed:?}"), start, 0);
    let start = Instant::now();
    rib.apply(&Event::Link(1, Some(Box::new(Netdev::default()))));
    let followed = fib_sync.sync(&mut rib, &bench).expect("room");
    say(&format!("half of the routers' device down {followed:?}"), start, 0);
    println!("resident {} MB", resident());
}

fn kernel() -> Kernel {
    let mut kernel = Kernel::default();
    for index in LINKS {
        kernel.netdevs.insert(index, Netdev { flags: 65, ..Netdev::default() });
    }
    for (priority, table) in [(0, 255), (32766, 254), (32767, 253)] {
        let (src, dst, iif, mark, unsupported) = Default::default();
        let action = RuleAction::Table(table);
        let family = Family::V4;
        kernel.rules.push(Rule { family, priority, src, dst, iif, mark, action, unsupported });
    }
    for id in 1..=ROUTERS {
        kernel.nexthops.insert(id, Nexthop::Hop(hop(id)));
    }
    kernel
}

fn hop(id: u32) -> Hop {
    let via = IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 | id));
    Hop { via: Some(via), ifindex: LINKS[id as usize % 2], weight: 1, flags: 0, encap: false }
}

fn route(n: u32, router: u32) -> (RouteKey, Route) {
    // The addresses are scattered, as in a dump of a hashed table and in updates.
    let address = Ipv4Addr::from_bits((n.wrapping_mul(0x9e37_79b1) >> 12 | 1 << 20) << 8);
    let dst = ipnet::IpNet::new(address.into(), 24).expect("a prefix");
    let hops = Hops::Object(router.min(ROUTERS));
    let kind = RouteKind::Unicast;
    let route = Route { kind, hops, protocol: 186, prefsrc: None, mtu: 0, unsupported: false };
    (RouteKey { table: 254, dst, tos: 0, priority: 20 }, route)
}

fn say(what: &str, since: Instant, megabytes: i64) {
    println!("{what}: {:.3} s, {megabytes} MB", since.elapsed().as_secs_f64());
}

/// Resident memory of the process, MB.
fn resident() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<i64>().ok());
    number.unwrap_or(0) / 1024
}
