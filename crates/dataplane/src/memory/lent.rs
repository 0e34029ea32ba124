//! Memory for tables that is lent, because BPF programs read the tables too.

use std::any::Any;
use std::sync::Arc;

use crate::sync::AtomicU64;

/// The maximum number of next hops: twenty times that of a full Internet table.
pub const MOST_NEXT_HOPS: usize = 1 << 20;

/// The maximum number of next-hop groups.
pub const MOST_GROUPS: usize = 1 << 16;

/// The maximum number of buckets of the [`Fdb`](crate::stages::bridge::Fdb) in the process's own memory: 262,144 entries
/// at most, 4 MB.
pub const MOST_FDB_BUCKETS: usize = 1 << 16;

/// The limits of a [`Fib`](crate::fib::Fib); the process's own memory is taken as it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// FIBs.
    pub roots: usize,
    /// Nodes, 64 bytes each.
    pub nodes: usize,
    /// Values, 4 bytes each.
    pub values: usize,
}

impl Default for Capacity {
    /// 65,536 VRFs, 4 million nodes, 64 million values: some 10 million routes of any mix.
    fn default() -> Self {
        Self { roots: 1 << 16, nodes: 1 << 22, values: 1 << 26 }
    }
}

/// A part of the tables that others than the workers may read, each in memory of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// Where the tops of the IPv4 FIBs lie, a word each.
    Roots4,
    /// Nodes of the IPv4 FIBs, 64 bytes each.
    Nodes4,
    /// Values of the IPv4 FIBs, 4 bytes each.
    Values4,
    /// As [`Part::Roots4`], for IPv6.
    Roots6,
    /// As [`Part::Nodes4`], for IPv6.
    Nodes6,
    /// As [`Part::Values4`], for IPv6.
    Values6,
    /// The active record of each next hop, 4 bytes each.
    NextHops,
    /// Records of next hops, 64 bytes each.
    Records,
    /// Members of next-hop groups, 8 bytes each, as many for each group.
    Groups,
    /// How the member for a flow is selected, 17 words.
    Multipath,
    /// What becomes of packets that arrive on each link, 16 bytes each.
    Links,
    /// Firewall rules, in lines of 64 bytes.
    Rules,
    /// Counters of firewall rules for each processor, 16 bytes each.
    RuleCounts,
    /// Rules that select the FIB of a packet, 64 bytes each.
    RouteRules,
    /// As [`Part::Roots4`], for sets of addresses in firewall rules.
    SetRoots,
    /// As [`Part::Nodes4`], for these sets.
    SetNodes,
    /// As [`Part::Values4`], for these sets.
    SetValues,
    /// The forwarding database of bridges, in lines of 64 bytes.
    Fdb,
    /// Ports of bridges, 64 bytes each.
    BridgePorts,
}

impl Part {
    /// All parts, in the order of their numbers.
    pub const ALL: [Self; 19] = [
        Self::Roots4,
        Self::Nodes4,
        Self::Values4,
        Self::Roots6,
        Self::Nodes6,
        Self::Values6,
        Self::NextHops,
        Self::Records,
        Self::Groups,
        Self::Multipath,
        Self::Links,
        Self::Rules,
        Self::RuleCounts,
        Self::RouteRules,
        Self::SetRoots,
        Self::SetNodes,
        Self::SetValues,
        Self::Fdb,
        Self::BridgePorts,
    ];

    /// The parts of the FIBs for sets: roots, nodes, values.
    pub(crate) const OF_SETS: [Self; 3] = [Self::SetRoots, Self::SetNodes, Self::SetValues];

    /// The parts of the FIBs of an IP version: roots, nodes, values.
    pub(crate) const fn of_fib(version: u8) -> [Self; 3] {
        match version {
            4 => [Self::Roots4, Self::Nodes4, Self::Values4],
            _ => [Self::Roots6, Self::Nodes6, Self::Values6],
        }
    }
}

/// Lends memory for the tables of one [`ForwardingState`](crate::tables::ForwardingState), which others than the workers
/// read too: BPF programs.
pub trait Lender: Any + Send + Sync {
    /// How much of each part it lends at most.
    fn capacities(&self) -> Capacities;

    /// Zeroed words for a part, as many as its capacity needs; none if it has none, or has lent them already.
    fn lend(&self, part: Part) -> Option<Box<dyn Words>>;
}

/// Words that live as long as this value.
pub trait Words: Send + Sync {
    /// The words; the first one begins a page.
    fn words(&self) -> &[AtomicU64];
}

/// How many items tables have room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacities {
    /// The IPv4 FIBs.
    pub fib4: Capacity,
    /// The IPv6 FIBs.
    pub fib6: Capacity,
    /// Next hops, beside the spare records.
    pub next_hops: usize,
    /// Next-hop groups.
    pub groups: usize,
    /// Lines of firewall rules for BPF programs; the workers' rules are elsewhere.
    pub rules: usize,
    /// Live sets of addresses in firewall rules for BPF programs; the workers' are elsewhere.
    pub sets: Capacity,
    /// Processors on which BPF programs count.
    pub processors: usize,
    /// Buckets of the forwarding database of bridges, a power of two; 0 if there is none.
    pub fdb_buckets: usize,
}

impl Default for Capacities {
    fn default() -> Self {
        Self {
            fib4: Capacity::default(),
            fib6: Capacity::default(),
            next_hops: MOST_NEXT_HOPS,
            groups: MOST_GROUPS,
            rules: 0,
            sets: Capacity { roots: 0, nodes: 0, values: 0 },
            processors: 0,
            fdb_buckets: MOST_FDB_BUCKETS,
        }
    }
}

/// Where tables have their memory: lent, or by default the process's own.
#[derive(Clone, Default)]
pub struct Memory(Option<Arc<dyn Lender>>);

impl Memory {
    /// Memory of a lender, and the process's own for parts that it does not lend.
    #[must_use]
    pub fn lent(lender: Arc<dyn Lender>) -> Self {
        Self(Some(lender))
    }

    /// The lender, if there is one and it has this type.
    #[must_use]
    pub fn lender<L: Lender>(&self) -> Option<Arc<L>> {
        let lender: Arc<dyn Any + Send + Sync> = self.0.clone()?;
        lender.downcast().ok()
    }

    /// Says whether there is a lender.
    #[must_use]
    pub const fn is_lent(&self) -> bool {
        self.0.is_some()
    }

    /// The capacities of its tables.
    pub(crate) fn capacities(&self) -> Capacities {
        self.0.as_ref().map_or_else(Capacities::default, |lender| lender.capacities())
    }

    #[cfg_attr(loom, allow(dead_code))]
    pub(super) fn lend(&self, part: Part) -> Option<Box<dyn Words>> {
        self.0.as_ref()?.lend(part)
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Memory").field(&self.0.is_some()).finish()
    }
}
