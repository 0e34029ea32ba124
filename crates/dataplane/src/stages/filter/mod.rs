//! Filter: applies the firewall rules to a packet, at the points of the path that have rules.
//!
//! Kernel equivalent: `nft_do_chain` (`net/netfilter/nf_tables_core.c`) and `ipt_do_table`
//! (`net/ipv4/netfilter/ip_tables.c`), which try rule by rule. This stage tries all rules at once. It
//! looks up every part of a packet that rules match on (a [`Field`]) once. Each lookup gives a set of
//! bits, one for each rule that the field does not exclude. The intersection of these sets is the rules
//! that match. Baboescu and Varghese, "Scalable packet classification", 2001 (bit vectors with
//! summaries).
//!
//! Rules are one list, chain after chain ([`Rules`]). A jump continues at another index of the list, so
//! no chain is copied. The first rule that matches decides for most packets. If it is not final,
//! `classifier/by_rule.rs` executes simple rules for all packets together; otherwise `walk.rs`
//! continues from rule to rule.
//!
//! Without rules the filter costs nothing: the path skips the stage.
//!
//! Sets of addresses may change while packets flow ([`LiveSet`]). Other sets (of ports, of several
//! keys, maps) are part of the rules, and change when other rules are installed.
//!
//! Hook ingress runs before all checks, so its packets may be malformed in any way. It also sees ARP
//! and frames to group addresses, which the host or the kernel handles afterwards. Packets with IPv4
//! options or a hop-by-hop header exit the path before the other hooks: `detour.rs` evaluates the rules
//! for them.
//!
//! Limits: [`MOST_RULES`] rules per point and family, after sets of several keys are expanded. Rules of
//! hook ingress do not count frames that are dropped before it (for other stations, of other protocols
//! than IPv4, IPv6 and ARP, with unknown tags). Packets that the kernel behind a port receives itself,
//! such as those for the router's own addresses, never reach this stage, unless rules of a file translate
//! addresses.

mod aliases;
mod binding;
mod bits;
mod bucket;
mod build;
mod classifier;
mod connection;
mod count;
mod cut;
mod detour;
mod dim;
mod engine;
mod error;
mod evaluate;
mod field;
mod flow;
mod flows;
mod head;
mod ingress;
mod live;
mod log;
mod nat;
mod parsed;
mod partition;
mod policy_route;
mod rules;
mod scratch;
mod stage;
mod state;
mod states;
mod summary;
mod tally;
#[cfg(test)]
mod tests;
mod tracking;
mod varies;
mod walk;
mod wide;

pub use aliases::{
    AliasConfig, AliasEnd, AliasPass, Aliases, MOST_MAPPINGS, MappingReport, Redirect, Unregistered,
};
pub use binding::{LinkAddress, NatRange, NatTarget};
pub use bits::MOST_RULES;
use bucket::SharedLimit;
pub use classifier::Classifier;
pub use connection::{
    Connection, ConnectionField, ConnectionState, Direction, FlowConnection, MarkOf, MarkUpdate,
    Tuple, TupleField,
};
pub use count::Count;
pub(crate) use engine::{EngineImage, FIRST_COUNTER, LINE};
pub use error::FilterError;
pub use field::{Address, Field, PayloadBase};
pub use flow::{FlowFilter, FlowKey, FlowReport, MOST_TOUCHED, Touched, TranslationOrder};
pub use ingress::ingress;
pub(crate) use live::EngineSets;
pub use live::{Element, LiveSet, LiveSetError};
pub use log::{LOG_BYTES, LogQueue, Logged, MOST_LOGGED};
pub(crate) use nat::{restore, translate_own};
pub use parsed::Parsed;
pub use rules::{Alias, Condition, KeepState, Limit, LimitUnit, Op, Reject, Rule, Rules};
pub use stage::{forward, prerouting};
pub use state::{PolicyRoute, State};
pub use states::{
    MOST_PARENTS, MOST_STATES, StateLimit, StateName, StateReport, StateRule, States,
};
pub use tracking::{ConnectionReport, MOST_CONNECTIONS, TcpConnectionState, Tracker};

use std::sync::Arc;

use crate::cpu::Level;
use crate::epoch::Epochs;
use crate::fib::Fib;
use crate::id::{LinkId, NextHopId};
use crate::memory::Apart;

/// A point of the path at which rules run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Point {
    /// The link is known, nothing is checked yet: hook ingress.
    Ingress,
    /// The header is valid: hook prerouting.
    Prerouting,
    /// The next hop is known: hooks forward, postrouting and egress, one after the other.
    Forward,
    /// The chains of type nat at hook prerouting, for packets that begin a connection.
    DestinationNat,
    /// Hook prerouting behind these, where packets have the translated destination.
    BehindNat,
    /// The chains of type nat at hook postrouting, for packets that begin a connection.
    SourceNat,
}

impl Point {
    /// Whether the next hop is known there, and the TTL decremented.
    const fn is_behind_route(self) -> bool {
        matches!(self, Self::Forward | Self::SourceNat)
    }
}

/// The number of points.
const POINTS: usize = 6;

/// The number of versions: IPv4, IPv6 and ARP.
const VERSIONS: usize = 3;

/// The index of a point's classifier for a version.
const fn place(version: u8) -> usize {
    match version {
        4 => 0,
        6 => 1,
        _ => 2,
    }
}

/// What rules decide about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Subject {
    /// Packets on the user path, and flows.
    #[default]
    Packets,
    /// Flows only, of which also the connection is known.
    Flows,
}

/// The compiled rules of all points, and the buckets of their limits. Workers share it.
#[derive(Debug, Default)]
pub struct Filter {
    /// For each [`Point`], IPv4, IPv6 and ARP.
    points: [[Option<Classifier>; VERSIONS]; POINTS],
    /// The same rules for the BPF programs, as far as these can evaluate them.
    compiled: [[Option<engine::Compiled>; VERSIONS]; POINTS],
    /// Limits by number, with their buckets, each apart from what is only read.
    limits: Vec<Apart<SharedLimit>>,
    /// The initial values of the rules' counters.
    counters: Vec<Count>,
    /// Next hops that rules refer to, by number.
    hops: Vec<NextHopId>,
    /// Sets that change while packets flow, by number.
    live: Vec<Arc<LiveSet>>,
    /// The states that rules keep, if some do.
    states: Option<Box<States>>,
    /// The aliases that rules give to packets, if some do.
    aliases: Option<Box<Aliases>>,
    /// The connections that rules test, if some do.
    tracker: Option<Box<Tracker>>,
    /// The addresses of each link, from which rules of nat choose.
    addresses: Vec<Vec<LinkAddress>>,
    /// Whether rules look past an authentication header.
    past_auth: bool,
    /// Whether some rule keeps packets out of connection tracking.
    untracks: bool,
    subject: Subject,
    translation_order: TranslationOrder,
    /// Whether the kernel translates addresses of IPv4, and of IPv6: some chain is there for it.
    translates: [bool; 2],
    /// The rules for flows of known connections, if they differ.
    connections: Option<Arc<FlowFilter>>,
    /// The sets' prefixes, IPv4 and IPv6.
    tries: [Option<Arc<Fib>>; 2],
}

impl Filter {
    /// Creates a filter without rules, with `counters` counters and these limits for later rules.
    /// Their buckets are full.
    #[must_use]
    pub fn new(counters: usize, limits: Vec<Limit>) -> Self {
        let limits = limits.into_iter().map(|limit| Apart(SharedLimit::new(limit))).collect();
        Self { limits, counters: vec![Count::default(); counters], ..Self::default() }
    }

    /// Whether it decides about flows only, of which also the connection is known.
    #[must_use]
    pub fn is_for_flows(&self) -> bool {
        self.subject == Subject::Flows
    }

    /// Makes rules that are set later look past IPv6 authentication headers, as ip6tables does; nft
    /// treats such a header as the transport header.
    pub const fn look_past_auth(&mut self) {
        self.past_auth = true;
    }

    /// Sets whether the kernel translates addresses of IPv4 packets, and of IPv6 packets. Without a chain for it, it does
    /// not, whatever connections it has.
    pub const fn set_translates(&mut self, translates: [bool; 2]) {
        self.translates = translates;
    }

    /// Whether the kernel translates addresses of packets of this version of IP.
    #[must_use]
    pub const fn translates(&self, version: u8) -> bool {
        let [v4, v6] = self.translates;
        if version == 4 { v4 } else { v6 }
    }

    /// Sets the rules that keep states, in the order of [`KeepState::state_rule`].
    pub fn set_state_rules(&mut self, state_rules: Vec<StateRule>) {
        self.states = (!state_rules.is_empty()).then(|| Box::new(States::new(state_rules)));
    }

    /// The states that rules keep, if some do.
    #[must_use]
    pub fn states(&self) -> Option<&States> {
        self.states.as_deref()
    }

    /// Sets the instances of [`Alias::instance`], in that order.
    pub fn set_aliases(&mut self, instances: Vec<AliasConfig>) {
        self.aliases = (!instances.is_empty()).then(|| Box::new(Aliases::new(instances)));
    }

    /// The aliases that rules give to packets, if some do.
    #[must_use]
    pub fn aliases(&self) -> Option<&Aliases> {
        self.aliases.as_deref()
    }

    /// Tracks connections, for rules that are set later and test these.
    pub fn track(&mut self, tracker: Tracker) {
        self.tracker = Some(Box::new(tracker));
    }

    /// Whether the router translates addresses of packets of this version of IP by these rules.
    pub(crate) fn is_translator(&self, version: u8) -> bool {
        let is_alias = self.aliases.is_some() && version == 4;
        is_alias || self.tracker.as_ref().is_some_and(|tracker| tracker.translates(version))
    }

    /// Sets the addresses of each link, for rules that translate to them.
    pub fn set_addresses(&mut self, addresses: Vec<Vec<LinkAddress>>) {
        self.addresses = addresses;
    }

    /// The addresses of a link.
    fn addresses_of(&self, link: LinkId) -> &[LinkAddress] {
        self.addresses.get(usize::from(link.0)).map_or(&[], Vec::as_slice)
    }

    /// The connections that rules test, if some do.
    #[must_use]
    pub fn tracker(&self) -> Option<&Tracker> {
        self.tracker.as_deref()
    }

    /// Sets the rules for flows of known connections. Their counters have the same numbers.
    pub fn set_connections(&mut self, rules: FlowFilter) {
        self.connections = Some(Arc::new(rules));
    }

    /// The rules for flows of known connections; none if these are the same.
    #[must_use]
    pub const fn connections(&self) -> Option<&Arc<FlowFilter>> {
        self.connections.as_ref()
    }

    /// Adds a live set for rules that are set later, with its initial elements. Returns the number by
    /// which [`Field::InSet`] refers to it. `epochs` are those of the tables that will use the rules.
    ///
    /// # Errors
    /// [`FilterError::Memory`] if there is no room, [`FilterError::NoSet`] if an element is not of the
    /// version.
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
            LiveSetError::NotARange(_) => FilterError::NoSet(number),
        })?;
        self.live.push(Arc::new(set));
        Ok(number)
    }

    /// The sets that change while packets flow.
    #[must_use]
    pub fn live_sets(&self) -> &[Arc<LiveSet>] {
        &self.live
    }

    /// Whether BPF programs may find all elements of a lost set again, if the rules are placed once more.
    pub(crate) fn a_set_may_return(&self) -> bool {
        self.live.iter().any(|set| set.may_return())
    }

    /// Whether somebody changes a live set at this moment, which may take long.
    pub(crate) fn has_busy_sets(&self) -> bool {
        self.live.iter().any(|set| set.is_busy())
    }

    /// Lets BPF programs find the elements of all live sets among these, as far as there is room.
    pub(crate) fn fill(&self, sets: &Arc<EngineSets>) {
        self.live.iter().for_each(|set| _ = set.root_in(sets));
    }

    /// The live set with this name: the whole name, or its last word if that is unique.
    #[must_use]
    pub fn live_set(&self, name: &str) -> Option<&Arc<LiveSet>> {
        let whole = self.live.iter().find(|set| set.name() == name);
        let last = |set: &&Arc<LiveSet>| set.name().rsplit(' ').next() == Some(name);
        let mut ends = self.live.iter().filter(last);
        whole.or_else(|| ends.next().filter(|_| ends.next().is_none()))
    }

    /// Sets the initial values of the counters, by number.
    pub fn begin_at(&mut self, counts: impl IntoIterator<Item = Count>) {
        for (counter, count) in self.counters.iter_mut().zip(counts) {
            *counter = count;
        }
    }

    /// Compiles the rules of a point for a version of IP, or 0 for ARP, for the widest instructions of
    /// the machine.
    ///
    /// # Errors
    /// See [`FilterError`]; the filter is then unchanged.
    pub fn set(&mut self, point: Point, version: u8, rules: &Rules) -> Result<(), FilterError> {
        self.set_at(Level::detect(), point, version, rules)
    }

    /// Like [`Filter::set`], for a given instruction set that the machine supports.
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
        if self.subject == Subject::Packets && self.tracker.is_none() && rules.are_of_connections()
        {
            return Err(FilterError::Connection);
        }
        let mut classifier = Classifier::build(level, point, version, rules, &self.live)?;
        classifier.past_auth = self.past_auth;
        let compiled = match self.subject {
            Subject::Packets => Some(engine::Compiled::of(version, rules)),
            Subject::Flows => None,
        };
        self.untracks |=
            rules.rules.iter().any(|rule| rule.ops.contains(&Op::NoTrack { again: false }));
        self.compiled[point as usize][place(version)] = compiled;
        self.points[point as usize][place(version)] = Some(classifier);
        Ok(())
    }

    /// The rules of a point.
    #[inline(always)]
    #[must_use]
    pub fn at(&self, point: Point, version: u8) -> Option<&Classifier> {
        self.points[point as usize][place(version)].as_ref()
    }

    /// Says whether a point has rules.
    #[inline(always)]
    #[must_use]
    pub fn hangs_at(&self, point: Point) -> bool {
        self.points[point as usize].iter().any(Option::is_some)
    }

    /// Says whether the lookups of a point cache results; `index` is that of [`State`]'s scratch memory.
    fn caches_results(&self, index: usize) -> bool {
        let classifier = self.points.as_flattened().get(index).and_then(Option::as_ref);
        classifier.is_some_and(|classifier| classifier.packing.is_some())
    }

    /// Says whether some rule sends packets to the kernel path.
    #[must_use]
    pub fn leaves_to_kernel(&self) -> bool {
        let mut rules = self.points.iter().flatten().flatten().flat_map(|one| &one.programs);
        rules.any(|(ops, _)| ops.contains(&Op::Unsupported))
    }

    /// Says whether a rule logs.
    fn logs(&self) -> bool {
        let mut rules = self.points.iter().flatten().flatten().flat_map(|one| &one.programs);
        rules.any(|(ops, _)| ops.iter().any(|op| matches!(op, Op::Log { .. })))
    }

    /// Says whether the lookups of a point cache results by flow; same index.
    fn decides_by_flow(&self, index: usize) -> bool {
        let classifier = self.points.as_flattened().get(index).and_then(Option::as_ref);
        classifier.is_some_and(Classifier::decides_by_flow)
    }

    /// The initial values of the counters, by number.
    pub(crate) fn starts(&self) -> Vec<Count> {
        self.counters.clone()
    }

    /// The number of counters.
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
