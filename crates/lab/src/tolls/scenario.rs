use tollway_dataplane::dispatch::Path;

use super::bridge;
use super::scene::{self, Scene, Stage};
use crate::bench::Bench;
use crate::{fib, filter};

/// The build of the packet path for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// Without any optional stage.
    NoStages,
    /// With all optional stages, as in the program.
    AllStages,
}

/// The part of the router that a row is about, in table order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// The path itself.
    Path,
    /// One configured feature.
    Feature,
    /// Tables of all sizes.
    Routes,
    /// Firewalls of all sizes.
    Rules,
    /// Bursts of several sizes.
    Bursts,
    /// What several workers cost.
    Workers,
    /// Everything at once.
    All,
}

/// The configuration of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// No path: only the work that no router can omit.
    Floor,
    /// A few routes.
    Plain(Scene),
    /// A number of routes of the family, with as many destinations as in `lab fib`.
    Routes(fib::Family, usize),
    /// A number of rules, and packets drawn from them.
    Rules(usize),
    /// A bridge that knows a number of stations, half of them behind each port.
    Bridge(u32),
    /// One route, and every frame leaves by a ring to the worker that has the egress port.
    HandOver,
    /// One route, and the headers come from memory, with or without prefetch.
    #[cfg(target_arch = "x86_64")]
    Cold {
        /// Whether ports prefetch the headers of the next burst, as zero-copy ports do.
        prefetch: bool,
    },
    /// All features, a full table and a thousand rules.
    All,
}

/// One row of the table: its configuration and its packets.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name in reports.
    pub name: &'static str,
    /// A description in words.
    pub title: &'static str,
    /// The part of the router that it is about.
    pub group: Group,
    /// The row that this row extends; the difference is the cost of the extension.
    pub over: Option<&'static str>,
    /// The build of the path.
    pub build: Build,
    /// Frames per burst.
    pub burst: usize,
    pub(super) kind: Kind,
}

impl Scenario {
    /// Whether the row has no path at all.
    #[must_use]
    pub fn is_floor(&self) -> bool {
        self.kind == Kind::Floor
    }

    /// The growth curve that this row is a point of, and the size at that point.
    #[must_use]
    pub fn growth(&self) -> Option<(&'static str, usize)> {
        match self.kind {
            Kind::Routes(fib::Family::V4, size) => Some(("IPv4", size)),
            Kind::Routes(fib::Family::V6, size) => Some(("IPv6", size)),
            Kind::Rules(size) => Some(("rules", size)),
            _ => None,
        }
    }

    /// Whether its data exceeds the share of the caches that the other rows leave when they take
    /// turns.
    pub(super) fn is_large(&self) -> bool {
        match self.kind {
            Kind::Routes(..) | Kind::Rules(_) | Kind::All => true,
            Kind::Bridge(stations) => stations > bridge::FEW,
            _ => false,
        }
    }
}

const PLAIN: Scenario = Scenario {
    name: "ip4-one-flow",
    title: "IPv4, one route, one flow",
    group: Group::Path,
    over: Some("floor"),
    build: Build::NoStages,
    burst: 64,
    kind: Kind::Plain(Scene::PLAIN),
};

const fn path(
    name: &'static str,
    title: &'static str,
    over: &'static str,
    build: Build,
    scene: Scene,
) -> Scenario {
    Scenario { name, title, over: Some(over), build, kind: Kind::Plain(scene), ..PLAIN }
}

const fn feature(name: &'static str, title: &'static str, scene: Scene) -> Scenario {
    let over = if scene.ipv6 { "ip6-all-off" } else { "ip4-all-off" };
    Scenario { group: Group::Feature, ..path(name, title, over, Build::AllStages, scene) }
}

const fn bridge(
    name: &'static str,
    title: &'static str,
    over: &'static str,
    stations: u32,
) -> Scenario {
    Scenario {
        name,
        title,
        group: Group::Feature,
        over: Some(over),
        build: Build::AllStages,
        kind: Kind::Bridge(stations),
        ..PLAIN
    }
}

const fn routes4(name: &'static str, title: &'static str, size: usize) -> Scenario {
    Scenario {
        name,
        title,
        group: Group::Routes,
        over: if size == 1 { Some("ip4-all-off") } else { Some("ip4-fib-1") },
        build: Build::AllStages,
        kind: Kind::Routes(fib::Family::V4, size),
        ..PLAIN
    }
}

const fn routes6(name: &'static str, title: &'static str, size: usize) -> Scenario {
    Scenario {
        over: if size == 1 { Some("ip6-all-off") } else { Some("ip6-fib-1") },
        kind: Kind::Routes(fib::Family::V6, size),
        ..routes4(name, title, size)
    }
}

const fn rules(name: &'static str, title: &'static str, size: usize) -> Scenario {
    Scenario {
        name,
        title,
        group: Group::Rules,
        over: if size == 0 { Some("ip4-all-off") } else { Some("ip4-filter-0") },
        build: Build::AllStages,
        kind: Kind::Rules(size),
        ..PLAIN
    }
}

const fn bursts(name: &'static str, title: &'static str, burst: usize) -> Scenario {
    Scenario { name, title, group: Group::Bursts, over: Some("ip4-one-flow"), burst, ..PLAIN }
}

#[cfg(target_arch = "x86_64")]
const fn cold(
    name: &'static str,
    title: &'static str,
    over: &'static str,
    prefetch: bool,
) -> Scenario {
    Scenario {
        name,
        title,
        group: Group::Bursts,
        over: Some(over),
        build: Build::AllStages,
        kind: Kind::Cold { prefetch },
        ..PLAIN
    }
}

const V4: Scene = Scene::PLAIN;
const V6: Scene = Scene { ipv6: true, ..V4 };

/// Every row, in the table's order.
pub const ROWS: &[Scenario] = &[
    Scenario {
        name: "floor",
        title: "read the header, write 14 bytes, TTL and checksum",
        over: None,
        kind: Kind::Floor,
        ..PLAIN
    },
    PLAIN,
    path(
        "ip4-64k-flows",
        "IPv4, one route, 65,536 flows",
        "ip4-one-flow",
        Build::NoStages,
        Scene { many_flows: true, ..V4 },
    ),
    path(
        "ip4-all-off",
        "IPv4, every feature built in, none configured",
        "ip4-one-flow",
        Build::AllStages,
        V4,
    ),
    path("ip6-one-flow", "IPv6, one route, one flow", "ip4-one-flow", Build::NoStages, V6),
    path(
        "ip6-64k-flows",
        "IPv6, one route, 65,536 flows",
        "ip6-one-flow",
        Build::NoStages,
        Scene { many_flows: true, ..V6 },
    ),
    path(
        "ip6-all-off",
        "IPv6, every feature built in, none configured",
        "ip6-one-flow",
        Build::AllStages,
        V6,
    ),
    feature("ip4-vlan", "IPv4, VLAN tag in and out", Scene { tags: 1, ..V4 }),
    feature("ip4-qinq", "IPv4, two tags in and out (QinQ)", Scene { tags: 2, ..V4 }),
    feature("ip4-vrf", "IPv4 in a VRF", Scene { vrf: true, ..V4 }),
    feature(
        "ip4-fallback",
        "IPv4, a VRF that falls back to another",
        Scene { fallback: true, ..V4 },
    ),
    feature("ip4-ecmp", "IPv4, a group of 8 next hops", Scene { ecmp: true, ..V4 }),
    feature("ip4-policy", "IPv4, two policy rules", Scene { policy: true, ..V4 }),
    feature("ip4-rpf", "IPv4, sources checked strictly", Scene { rpf: true, ..V4 }),
    feature("ip4-redirects", "IPv4, redirects looked for", Scene { redirects: true, ..V4 }),
    feature("ip6-vlan", "IPv6, VLAN tag in and out", Scene { tags: 1, ..V6 }),
    feature("ip6-qinq", "IPv6, two tags in and out (QinQ)", Scene { tags: 2, ..V6 }),
    feature("ip6-vrf", "IPv6 in a VRF", Scene { vrf: true, ..V6 }),
    feature("ip6-ecmp", "IPv6, a group of 8 next hops", Scene { ecmp: true, ..V6 }),
    bridge("l2-bridge", "bridge, learning, one flow", "ip4-all-off", bridge::FEW),
    bridge("l2-bridge-100k", "bridge, learning, 100,000 stations at random", "l2-bridge", 100_000),
    routes4("ip4-fib-1", "IPv4, 1 prefix, 262,144 destinations", 1),
    routes4("ip4-fib-100", "IPv4, 100 prefixes", 100),
    routes4("ip4-fib-1k", "IPv4, 1,000 prefixes", 1000),
    routes4("ip4-fib-10k", "IPv4, 10,000 prefixes", 10_000),
    routes4("ip4-fib-100k", "IPv4, 100,000 prefixes", 100_000),
    routes4("ip4-fib-1m", "IPv4, 1,000,000 prefixes", 1_000_000),
    routes6("ip6-fib-1", "IPv6, 1 prefix, 262,144 destinations", 1),
    routes6("ip6-fib-100", "IPv6, 100 prefixes", 100),
    routes6("ip6-fib-1k", "IPv6, 1,000 prefixes", 1000),
    routes6("ip6-fib-10k", "IPv6, 10,000 prefixes", 10_000),
    routes6("ip6-fib-100k", "IPv6, 100,000 prefixes", 100_000),
    routes6("ip6-fib-1m", "IPv6, 1,000,000 prefixes", 1_000_000),
    rules("ip4-filter-0", "IPv4, no rules, 4,096 flows", 0),
    rules("ip4-filter-1", "IPv4, 1 rule, 4,096 flows", 1),
    rules("ip4-filter-10", "IPv4, 10 rules of mixed shapes", 10),
    rules("ip4-filter-100", "IPv4, 100 rules of mixed shapes", 100),
    rules("ip4-filter-1k", "IPv4, 1,000 rules of mixed shapes", 1000),
    rules("ip4-filter-10k", "IPv4, 10,000 rules of mixed shapes", 10_000),
    bursts("ip4-burst-4", "IPv4, bursts of 4", 4),
    bursts("ip4-burst-1", "IPv4, bursts of 1", 1),
    #[cfg(target_arch = "x86_64")]
    cold("ip4-cold-no-prefetch", "IPv4, headers in memory instead of caches", "ip4-all-off", false),
    #[cfg(target_arch = "x86_64")]
    cold("ip4-cold", "IPv4, headers in memory, prefetched", "ip4-cold-no-prefetch", true),
    Scenario {
        name: "ip4-handover",
        title: "IPv4, every frame by a ring to the worker that sends it",
        group: Group::Workers,
        over: Some("ip4-all-off"),
        build: Build::AllStages,
        kind: Kind::HandOver,
        ..PLAIN
    },
    Scenario {
        name: "ip4-all-on",
        title: "IPv4, QinQ, VRF, 1M prefixes, ECMP, policy, redirects, rpf, 1,000 rules, 65,536 flows",
        group: Group::All,
        over: Some("ip4-all-off"),
        build: Build::AllStages,
        kind: Kind::All,
        ..PLAIN
    },
];

impl Scenario {
    /// Builds tables, frames and rules.
    ///
    /// # Errors
    /// A message, if the tables refuse the row's content, which does not happen in practice.
    pub(crate) fn stage(&self) -> Result<Stage, String> {
        match self.kind {
            Kind::Floor | Kind::HandOver => scene::plain(&Scene::PLAIN),
            #[cfg(target_arch = "x86_64")]
            Kind::Cold { .. } => scene::plain(&Scene::PLAIN),
            Kind::Plain(scene) => scene::plain(&scene),
            Kind::Bridge(stations) => bridge::stage(stations),
            Kind::Routes(family, size) => {
                let prefixes = fib::synthetic(family, size);
                let tables = fib::tables(family, &prefixes)?;
                Ok(Stage { tables, source: fib::frames(family, &prefixes), filter: None })
            }
            Kind::Rules(size) => {
                let (tables, source, rules) = filter::synthetic(size)?;
                Ok(Stage { tables, source, filter: (size > 0).then_some(rules) })
            }
            Kind::All => scene::all(),
        }
    }
    /// Builds the bench of the row. It records tolls, as the program does.
    ///
    /// # Errors
    /// A message, if memory is short.
    pub fn bench(&self) -> Result<Bench, String> {
        let path = match self.build {
            Build::NoStages => Path::without_optional_stages(),
            Build::AllStages => Path::detect(),
        };
        let stage = self.stage()?;
        let mut bench = Bench::with_path(path, stage.tables, stage.source, self.burst)?;
        if self.is_floor() {
            bench.set_floor();
        }
        if self.kind == Kind::HandOver {
            bench.set_relay(self.burst);
        }
        #[cfg(target_arch = "x86_64")]
        if let Kind::Cold { prefetch } = self.kind {
            bench.set_cold();
            if prefetch {
                bench.set_prefetch(self.burst);
            }
        }
        if let Some(filter) = stage.filter {
            bench.filter(filter, false);
        }
        Ok(bench)
    }
}
