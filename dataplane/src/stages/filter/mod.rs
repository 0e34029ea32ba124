//! Filter: what rules say about a packet, at the points of its way where rules can hang.
//!
//! Kernel equivalent: `nft_do_chain` (`net/netfilter/nf_tables_core.c`) and `ipt_do_table`
//! (`net/ipv4/netfilter/ip_tables.c`), which try rule by rule; here all rules are tried at once. Every
//! part of a packet that rules look at (a [`Field`]) is looked up once and gives a set of bits, one for
//! each rule that it does not speak against; their intersection is the rules that match. Baboescu and
//! Varghese, "Scalable packet classification", 2001 (bit vectors with summaries).
//!
//! Rules lie in one line, chain behind chain ([`Rules`]); a jump goes on at another place of the line, so
//! no chain is copied. The first rule that matches decides for most packets; where it does not end
//! the matter, `walk.rs` goes on from rule to rule.
//!
//! None configured costs nothing: the stage is not called.
//!
//! Sets of addresses may change while packets flow ([`LiveSet`]). Other sets (of ports, of several keys,
//! maps) are a part of the rules, and change when other rules are put in force.
//!
//! Hook ingress is before all checks, so its packets may be broken in any way; it sees ARP and frames to
//! groups as well, which are the host's or the kernel's behind it. Packets with IPv4 options or a
//! hop-by-hop header leave the road before the other hooks: `detour.rs` asks the rules for them.
//!
//! Limits: [`MOST_RULES`] rules at one point and family, after sets of several keys are spread out. Frames
//! that are dropped before hook ingress (for other stations, of other protocols than IPv4, IPv6 and ARP,
//! with unknown tags) are not counted by its rules. What the kernel behind a port receives itself, such
//! as packets for the router's own addresses, never comes here.

mod bits;
mod build;
mod cache;
mod classifier;
mod cut;
mod detour;
mod dim;
mod field;
mod find;
mod first;
mod flow;
mod flows;
mod head;
mod ingress;
mod live;
mod log;
mod member;
mod rules;
mod stage;
mod state;
mod steer;
mod walk;
mod wide;

pub use bits::MOST_RULES;
pub use build::FilterError;
pub use classifier::Classifier;
pub use field::{Address, Field, HeaderBase, Parsed};
pub use flow::{FlowKey, MOST_TOUCHED, Touched};
pub use ingress::ingress;
pub use live::{Element, LiveSet, LiveSetError};
pub use log::{LOG_BYTES, LogQueue, Logged, MOST_LOGGED};
pub use rules::{Condition, Limit, LimitUnit, Op, Reject, Rule, Rules};
pub use stage::{forward, hangs, prerouting};
pub use state::{Count, State};
pub use steer::Steer;

use std::sync::Arc;

use crate::cpu::Level;
use crate::epoch::Epochs;
use crate::id::NextHopId;
use crate::stages::route::Fib;

/// Points of a packet's way where rules can hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Point {
    /// Its link is known, nothing is checked yet: hook ingress.
    Ingress,
    /// Its header is sound: hook prerouting.
    Prerouting,
    /// Its next hop is known: hooks forward, postrouting and egress, one after the other.
    Forward,
}

/// How many points there are.
const POINTS: usize = 3;

/// Versions of IP, and ARP.
const VERSIONS: usize = 3;

/// Which of a point's classifiers is for a version.
const fn place(version: u8) -> usize {
    match version {
        4 => 0,
        6 => 1,
        _ => 2,
    }
}

/// Rules at all points, compiled.
#[derive(Debug, Default)]
pub struct Filter {
    /// For each [`Point`], IPv4, IPv6 and ARP.
    points: [[Option<Classifier>; VERSIONS]; POINTS],
    /// Limits by number.
    limits: Vec<Limit>,
    /// What the counters begin with that rules count into.
    counters: Vec<Count>,
    /// Next hops that rules name, by number.
    hops: Vec<NextHopId>,
    /// Sets that change while packets flow, by number.
    live: Vec<Arc<LiveSet>>,
    /// Whether rules look behind an authentication header.
    past_auth: bool,
    /// The sets' prefixes, IPv4 and IPv6.
    tries: [Option<Arc<Fib>>; 2],
}

impl Filter {
    /// No rules yet, but so many counters and these limits for those to come.
    #[must_use]
    pub fn new(counters: usize, limits: Vec<Limit>) -> Self {
        Self { limits, counters: vec![Count::default(); counters], ..Self::default() }
    }

    /// Lets rules that are set later look behind IPv6 authentication headers, as ip6tables does; nft takes
    /// such a header for the transport header.
    pub const fn look_past_auth(&mut self) {
        self.past_auth = true;
    }

    /// Adds a live set for rules that are set later, with what it begins with; returns the number by which
    /// [`Field::InSet`] names it. `epochs` are those of the tables that the rules will be for.
    ///
    /// # Errors
    /// [`FilterError::Memory`] where there is no room, [`FilterError::NoSet`] where an element is none
    /// of the version.
    pub fn add_live_set(
        &mut self,
        name: &str,
        version: u8,
        elements: &[Element],
        epochs: &Arc<Epochs>,
    ) -> Result<u16, FilterError> {
        let number = u16::try_from(self.live.len()).map_err(|_| FilterError::Memory)?;
        let trie = &mut self.tries[usize::from(version == 6)];
        let trie = trie.get_or_insert_with(|| live::tries(epochs));
        let set = LiveSet::new(name, version, epochs, trie).ok_or(FilterError::Memory)?;
        set.fill(elements).map_err(|error| match error {
            LiveSetError::Full(_) | LiveSetError::Missing(_) => FilterError::Memory,
            LiveSetError::Astray(_) => FilterError::NoSet(number),
        })?;
        self.live.push(Arc::new(set));
        Ok(number)
    }

    /// The sets that change while packets flow.
    #[must_use]
    pub fn live_sets(&self) -> &[Arc<LiveSet>] {
        &self.live
    }

    /// The live set of this name: the whole name, or its last word where no other set has that.
    #[must_use]
    pub fn live_set(&self, name: &str) -> Option<&Arc<LiveSet>> {
        let whole = self.live.iter().find(|set| set.name() == name);
        let last = |set: &&Arc<LiveSet>| set.name().rsplit(' ').next() == Some(name);
        let mut ends = self.live.iter().filter(last);
        whole.or_else(|| ends.next().filter(|_| ends.next().is_none()))
    }

    /// Has the counters begin with these, by number.
    pub fn begin_at(&mut self, counts: impl IntoIterator<Item = Count>) {
        for (counter, count) in self.counters.iter_mut().zip(counts) {
            *counter = count;
        }
    }

    /// Compiles the rules of a point for a version of IP, or 0 for ARP, for the widest instructions that
    /// the machine has.
    ///
    /// # Errors
    /// See [`FilterError`]; the filter is as it was.
    pub fn set(&mut self, point: Point, version: u8, rules: &Rules) -> Result<(), FilterError> {
        self.set_at(Level::detect(), point, version, rules)
    }

    /// The same for instructions of the caller's choice, of those that the machine has.
    ///
    /// # Errors
    /// See [`FilterError`].
    pub fn set_at(
        &mut self,
        level: Level,
        point: Point,
        version: u8,
        rules: &Rules,
    ) -> Result<(), FilterError> {
        let mut classifier = Classifier::build(level, point, version, rules, &self.live)?;
        classifier.past_auth = self.past_auth;
        self.points[point as usize][place(version)] = Some(classifier);
        Ok(())
    }

    /// The rules of a point.
    #[inline(always)]
    #[must_use]
    pub fn at(&self, point: Point, version: u8) -> Option<&Classifier> {
        self.points[point as usize][place(version)].as_ref()
    }

    /// Says if a point has rules.
    #[inline(always)]
    #[must_use]
    pub fn hangs_at(&self, point: Point) -> bool {
        self.points[point as usize].iter().any(Option::is_some)
    }

    /// Says if the rules of a point, in the order of [`State`]'s rooms, keep what they find.
    fn keeps(&self, index: usize) -> bool {
        let classifier = self.points.as_flattened().get(index).and_then(Option::as_ref);
        classifier.is_some_and(|classifier| classifier.packing.is_some())
    }

    /// Says if packets that come to some rule are left to the kernel.
    #[must_use]
    pub fn leaves_to_kernel(&self) -> bool {
        let mut rules = self.points.iter().flatten().flatten().flat_map(|one| &one.programs);
        rules.any(|(ops, _)| ops.contains(&Op::Unsupported))
    }

    /// Says if a rule logs.
    fn logs(&self) -> bool {
        let mut rules = self.points.iter().flatten().flatten().flat_map(|one| &one.programs);
        rules.any(|(ops, _)| ops.iter().any(|op| matches!(op, Op::Log { .. })))
    }

    /// Says if the rules of a point, in the same order, keep what they find for flows.
    fn decides_by_flow(&self, index: usize) -> bool {
        let classifier = self.points.as_flattened().get(index).and_then(Option::as_ref);
        classifier.is_some_and(flows::decide)
    }

    /// Counters that rules count into.
    #[must_use]
    pub fn counters(&self) -> usize {
        self.counters.len()
    }

    /// Bytes of memory that lookups read.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let classifiers = self.points.iter().flatten().flatten();
        let tries = self.tries.iter().flatten();
        classifiers.map(Classifier::memory_bytes).sum::<usize>()
            + self.live.iter().map(|set| set.memory_bytes()).sum::<usize>()
            + tries.map(|trie| trie.memory_bytes()).sum::<usize>()
    }
}
