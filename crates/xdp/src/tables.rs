//! The tables of user space in maps that the XDP programs read: they decide about packets by the very memory that
//! the workers read.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use tollway_dataplane::memory::{Capacities, Capacity, Lender, MOST_FDB_BUCKETS, Part, Words};
use tollway_dataplane::next_hops::SPARE_RECORDS;
use tollway_dataplane::stages::bridge::fdb_lines;
use tollway_dataplane::stages::ecmp::MOST_MEMBERS;
use tollway_dataplane::tables::{
    MOST_BRIDGE_PORTS, MOST_ENGINE_COUNTERS, MOST_LINKS, MOST_ROUTE_RULES,
};

use super::shared::Shared;
use super::sys;
use tollway_linux::sync::lock;

/// Bytes of a line of values, `struct value_line` of `bpf/fib.h`, and of a node.
const LINE: usize = 64;
/// Bytes of the word that says where a FIB's top is.
const ROOT: usize = 8;
/// Bytes of a value.
const VALUE: usize = 4;
/// Bytes of `struct engine_link`.
const LINK: usize = 16;
/// Bytes of a member of a group.
const MEMBER: usize = 8;
/// Bytes of `struct multipath` of `bpf/ecmp.h`.
const MULTIPATH: usize = 136;

/// Bytes of `struct rule_count` of `bpf/rules.h`.
const RULE_COUNT: usize = 16;
/// Lines of firewall rules, 2 MB: twice those of some thousand rules.
const RULES: usize = 1 << 15;
/// Room for some 40,000 random addresses in sets of firewall rules, 6 MB.
const SETS: Capacity = Capacity { roots: 1 << 10, nodes: 1 << 16, values: 1 << 19 };

/// Room for a full Internet table: 0.95 million IPv4 and 0.2 million IPv6 routes take a third of this, so that twice
/// as many fit while half of the memory waits for a grace period. The kernel takes all of it at once, 43 MB.
const FULL_TABLE: Capacities = Capacities {
    fib4: Capacity { roots: 1 << 13, nodes: 1 << 17, values: 1 << 21 },
    fib6: Capacity { roots: 1 << 13, nodes: 1 << 16, values: 1 << 20 },
    next_hops: 1 << 17,
    groups: 1 << 10,
    rules: RULES,
    sets: SETS,
    processors: 0,
    fdb_buckets: 0,
};

/// A set of maps for the tables of one forwarding state. It lends each of them once.
///
/// All of them are there, or none: a program that read some parts, and found others empty, would follow routes that
/// nobody has.
pub struct TableMaps {
    capacities: Capacities,
    maps: [TableMap; Part::ALL.len()],
}

/// The map of a part, and its memory until that is lent.
struct TableMap {
    map: OwnedFd,
    memory: Mutex<Option<Shared<AtomicU64>>>,
}

impl TableMaps {
    /// Creates the maps, with room for twice the table of the Internet, doubled so often.
    ///
    /// # Errors
    /// The system refused, for want of memory or privileges.
    pub fn new(doublings: u32) -> io::Result<Self> {
        Self::with_room(doublings, 0)
    }

    /// As [`TableMaps::new`], with room for what bridges have learned: 262,144 addresses at most.
    ///
    /// # Errors
    /// As [`TableMaps::new`].
    pub fn with_bridges(doublings: u32) -> io::Result<Self> {
        Self::with_room(doublings, MOST_FDB_BUCKETS)
    }

    fn with_room(doublings: u32, fdb_buckets: usize) -> io::Result<Self> {
        let of_fib = |fib: Capacity| Capacity {
            roots: fib.roots,
            nodes: fib.nodes << doublings,
            values: fib.values << doublings,
        };
        Self::with_capacities(Capacities {
            fib4: of_fib(FULL_TABLE.fib4),
            fib6: of_fib(FULL_TABLE.fib6),
            next_hops: FULL_TABLE.next_hops << doublings,
            groups: FULL_TABLE.groups << doublings,
            rules: RULES,
            sets: of_fib(FULL_TABLE.sets),
            processors: sys::possible_processors()?,
            fdb_buckets,
        })
    }

    /// Creates maps with room for this.
    ///
    /// # Errors
    /// As [`TableMaps::new`].
    pub fn with_capacities(capacities: Capacities) -> io::Result<Self> {
        let mut maps = Vec::with_capacity(Part::ALL.len());
        for part in Part::ALL {
            let (size, count) = elements(part, &capacities);
            // All elements are one value, which programs reach by its address.
            let map = sys::create_array(name(part), (size * count) as u32, 1)?;
            let memory = Shared::map(map.as_fd(), size * count / size_of::<AtomicU64>())?;
            maps.push(TableMap { map, memory: Mutex::new(Some(memory)) });
        }
        let maps = maps.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(Self { capacities, maps })
    }

    /// The map of each part.
    pub(super) fn maps(&self) -> [BorrowedFd<'_>; Part::ALL.len()] {
        self.maps.each_ref().map(|of_part| of_part.map.as_fd())
    }

    /// The constant `ELEMENTS` of `bpf/fib.h`.
    pub(super) fn elements(&self) -> [u32; Part::ALL.len()] {
        Part::ALL.map(|part| elements(part, &self.capacities).1 as u32)
    }
}

impl Lender for TableMaps {
    fn capacities(&self) -> Capacities {
        self.capacities
    }

    fn lend(&self, part: Part) -> Option<Box<dyn Words>> {
        let memory = lock(&self.maps[part as usize].memory).take()?;
        Some(Box::new(memory))
    }
}

impl Words for Shared<AtomicU64> {
    fn words(&self) -> &[AtomicU64] {
        self
    }
}

/// The map's name.
const fn name(part: Part) -> &'static str {
    match part {
        Part::Roots4 => "roots4",
        Part::Nodes4 => "nodes4",
        Part::Values4 => "values4",
        Part::Roots6 => "roots6",
        Part::Nodes6 => "nodes6",
        Part::Values6 => "values6",
        Part::NextHops => "next_hops",
        Part::Records => "records",
        Part::Groups => "groups",
        Part::Multipath => "multipath",
        Part::Links => "engine_links",
        Part::Rules => "rules",
        Part::RuleCounts => "rule_counts",
        Part::RouteRules => "route_rules",
        Part::SetRoots => "set_roots",
        Part::SetNodes => "set_nodes",
        Part::SetValues => "set_values",
        Part::Fdb => "fdb",
        Part::BridgePorts => "bridge_ports",
    }
}

/// The size of the map's elements in bytes, and their number.
const fn elements(part: Part, capacities: &Capacities) -> (usize, usize) {
    let Capacities { fib4, fib6, next_hops, groups, rules, sets, processors, fdb_buckets } =
        capacities;
    match part {
        // One more: the generation.
        Part::Roots4 => (ROOT, fib4.roots + 1),
        Part::Roots6 => (ROOT, fib6.roots + 1),
        Part::SetRoots => (ROOT, sets.roots + 1),
        Part::Nodes4 => (LINE, fib4.nodes),
        Part::Nodes6 => (LINE, fib6.nodes),
        Part::SetNodes => (LINE, sets.nodes + 1),
        Part::Values4 => (LINE, (fib4.values * VALUE).div_ceil(LINE)),
        Part::Values6 => (LINE, (fib6.values * VALUE).div_ceil(LINE)),
        Part::SetValues => (LINE, (sets.values * VALUE).div_ceil(LINE) + 1),
        Part::NextHops => (LINE, (*next_hops * VALUE).div_ceil(LINE)),
        Part::Records => (LINE, *next_hops + SPARE_RECORDS),
        Part::Groups => (LINE, (*groups * MOST_MEMBERS * MEMBER).div_ceil(LINE)),
        Part::Multipath => (MULTIPATH, 1),
        Part::Links => (LINK, MOST_LINKS),
        Part::Rules => (LINE, *rules + 1),
        Part::RuleCounts => (RULE_COUNT, *processors * MOST_ENGINE_COUNTERS + 1),
        Part::RouteRules => (LINE, MOST_ROUTE_RULES),
        Part::Fdb => (LINE, fdb_lines(*fdb_buckets)),
        Part::BridgePorts => (LINE, MOST_BRIDGE_PORTS),
    }
}
