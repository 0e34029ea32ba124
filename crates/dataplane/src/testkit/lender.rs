//! Memory that a test lends to tables, and reads as a BPF program would.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tollway_dataplane::id::LinkId;
use tollway_dataplane::memory::{Capacities, Capacity, Lender, Memory, Part, Words};

/// Bytes of a page, and of the process's words.
const PAGE: usize = 4096;
const WORD: usize = size_of::<AtomicU64>();

/// Words that begin a page.
#[derive(Clone)]
struct Pages {
    words: Arc<[AtomicU64]>,
    start: usize,
}

impl Pages {
    fn new(bytes: usize) -> Self {
        let words: Arc<[AtomicU64]> =
            (0..(bytes + PAGE) / WORD).map(|_| AtomicU64::new(0)).collect();
        let start = words.as_ptr().align_offset(PAGE);
        Self { words, start }
    }
}

impl Words for Pages {
    fn words(&self) -> &[AtomicU64] {
        &self.words[self.start..]
    }
}

/// Lends memory of the process.
pub struct PlainLender {
    capacities: Capacities,
    lent: Mutex<BTreeMap<Part, Pages>>,
}

/// A link as programs read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedLink {
    pub root4: u32,
    pub root6: u32,
    pub flags: u32,
    /// The line of its rules; 0 if there are none.
    pub rules: u32,
}

impl PlainLender {
    pub fn new(capacities: Capacities) -> Arc<Self> {
        Arc::new(Self { capacities, lent: Mutex::default() })
    }

    /// Room for small tables.
    pub fn small() -> Arc<Self> {
        let fib = Capacity { roots: 16, nodes: 1 << 10, values: 1 << 16 };
        Self::new(Capacities {
            fib4: fib,
            fib6: fib,
            next_hops: 1 << 10,
            groups: 16,
            rules: 1 << 12,
            sets: fib,
            processors: 2,
            fdb_buckets: 1 << 10,
        })
    }

    pub fn memory(self: &Arc<Self>) -> Memory {
        Memory::lent(Arc::clone(self) as Arc<dyn Lender>)
    }

    /// A word of a part.
    pub fn word(&self, part: Part, index: usize) -> u64 {
        let lent = self.lent.lock().expect("no test has panicked");
        lent[&part].words()[index].load(Ordering::Acquire)
    }

    /// Changes a word of a part, as a program does.
    pub fn set_word(&self, part: Part, index: usize, word: u64) {
        let lent = self.lent.lock().expect("no test has panicked");
        lent[&part].words()[index].store(word, Ordering::Release);
    }

    /// A link, in the order of `struct engine_link` in `bpf/fib.h`.
    pub fn link(&self, link: LinkId) -> SharedLink {
        let first = 2 * usize::from(link.0);
        let [low, high] = [0, 1].map(|word| self.word(Part::Links, first + word).to_ne_bytes());
        let half = |bytes: [u8; 8], at: usize| {
            u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        SharedLink {
            root4: half(low, 0),
            root6: half(low, 4),
            flags: half(high, 0),
            rules: half(high, 4),
        }
    }
}

impl Lender for PlainLender {
    fn capacities(&self) -> Capacities {
        self.capacities
    }

    fn lend(&self, part: Part) -> Option<Box<dyn Words>> {
        let Capacities { fib4, fib6, next_hops, groups, rules, sets, processors, fdb_buckets } =
            self.capacities;
        let bytes = match part {
            Part::Roots4 => 8 * fib4.roots,
            Part::Nodes4 => 64 * fib4.nodes,
            Part::Values4 => 4 * fib4.values,
            Part::Roots6 => 8 * fib6.roots,
            Part::Nodes6 => 64 * fib6.nodes,
            Part::Values6 => 4 * fib6.values,
            Part::NextHops => 4 * next_hops,
            Part::Records => 64 * (next_hops + tollway_dataplane::next_hops::SPARE_RECORDS),
            Part::Groups => 8 * 256 * groups,
            Part::Multipath => 8 * 17,
            Part::Links => 16 * tollway_dataplane::tables::MOST_LINKS,
            Part::Rules => 64 * rules,
            Part::RuleCounts => 16 * processors * tollway_dataplane::tables::MOST_ENGINE_COUNTERS,
            Part::RouteRules => 64 * tollway_dataplane::tables::MOST_ROUTE_RULES,
            Part::SetRoots => 8 * sets.roots,
            Part::SetNodes => 64 * sets.nodes,
            Part::SetValues => 4 * sets.values,
            Part::BridgePorts => 64 * tollway_dataplane::tables::MOST_BRIDGE_PORTS,
            Part::Fdb => 64 * tollway_dataplane::stages::bridge::fdb_lines(fdb_buckets),
        };
        let mut lent = self.lent.lock().expect("no test has panicked");
        if lent.contains_key(&part) {
            return None;
        }
        let pages = Pages::new(bytes);
        lent.insert(part, pages.clone());
        Some(Box::new(pages))
    }
}
