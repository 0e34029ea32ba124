//! The rules by which BPF programs find the FIB of a packet: policy rules, and the FIBs that others fall back to.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::gap::gap;
use crate::epoch::{Epochs, Retired};
use crate::id::{LinkId, NextHopId};
use crate::links::LinkRecord;
use crate::memory::{Aligned, Memory, Part};
use crate::prefix::Prefix;
use crate::stages::rule::{Decision, RouteTables, Rule};
use crate::sync::AtomicU64;

/// The number of rules that there is room for, of all links together.
pub const MOST_ROUTE_RULES: usize = 1 << 14;
/// The maximum number of rules of a link, each FIB that another falls back to included; as in `bpf/route_rules.h`.
const MOST_RULES_OF_LINK: usize = 64;
/// Words of a rule, `struct route_rule` of `bpf/route_rules.h`.
const WORDS: usize = 8;
/// In the root of a link: it is the number of its first rule.
pub const ROOT_RULES: u32 = 1 << 31;

/// A rule as programs read it.
type Words = [u64; WORDS];

/// Where a link's packets of an IP version find their routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// In the FIB of this root, or by the rules from this one on.
    At(u32),
    /// There are too many rules for a program, or there is no room for them. The FIB has this root.
    Nowhere(u32),
}

impl Start {
    /// What stands in the link.
    pub(super) const fn root(self) -> u32 {
        let (Self::At(root) | Self::Nowhere(root)) = self;
        root
    }
}

/// Rules of links. Links with the same rules share them, and their memory is used again when no program reads them any
/// more.
#[derive(Debug)]
pub(super) struct RouteRules {
    memory: RuleWords,
    placed: Mutex<Placed>,
}

struct RuleWords(Aligned<AtomicU64>);

#[derive(Debug)]
struct Placed {
    /// Where the rules of links are, and whether a link still leads to them.
    active: HashMap<Vec<Words>, (Range<u32>, bool)>,
    retired: Retired<Range<u32>>,
    /// The places of rules that programs may still read.
    left: Vec<Range<u32>>,
    is_waiting: bool,
}

impl RouteRules {
    pub(super) fn new(memory: &Memory, epochs: &Arc<Epochs>) -> Self {
        let room = if memory.is_lent() { MOST_ROUTE_RULES } else { 0 };
        let placed = Placed {
            active: HashMap::new(),
            retired: Retired::new(Arc::clone(epochs)),
            left: Vec::new(),
            is_waiting: false,
        };
        let memory = RuleWords(Aligned::new(memory, Part::RouteRules, room * WORDS));
        Self { memory, placed: Mutex::new(placed) }
    }

    fn lock(&self) -> MutexGuard<'_, Placed> {
        // A panic under the lock ends the process, or the test.
        self.placed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to place the rules of all links.
    pub(super) fn begin(&self) {
        let mut placed = self.lock();
        placed.active.values_mut().for_each(|(_, is_used)| *is_used = false);
        placed.is_waiting = false;
        let Placed { retired, left, .. } = &mut *placed;
        retired.reclaim(|range| left.retain(|other| *other != range));
    }

    /// Places the rules of a link for an IP version; links of older rules have theirs until the end.
    pub(super) fn place(&self, routes: &RouteTables, link: LinkId, version: u8) -> Start {
        let record = &routes.links[link];
        let root = root_of(record, version);
        let Some(rules) = rules(routes, link, version) else { return Start::At(root) };
        if rules.len() > MOST_RULES_OF_LINK {
            return Start::Nowhere(root);
        }
        let mut placed = self.lock();
        if let Some((range, is_used)) = placed.active.get_mut(&rules) {
            *is_used = true;
            return Start::At(range.start | ROOT_RULES);
        }
        let used = placed.active.values().map(|(range, _)| range).chain(&placed.left);
        let Some(range) = gap(used, 0, MOST_ROUTE_RULES as u32, rules.len() as u32) else {
            placed.is_waiting = true;
            return Start::Nowhere(root);
        };
        self.memory.write(range.start, &rules);
        let start = range.start;
        placed.active.insert(rules, (range, true));
        Start::At(start | ROOT_RULES)
    }

    /// Gives up the rules that no link leads to any more.
    pub(super) fn end(&self) {
        let mut placed = self.lock();
        let Placed { active, retired, left, .. } = &mut *placed;
        for (_, (range, _)) in active.extract_if(|_, (_, is_used)| !*is_used) {
            left.push(range.clone());
            retired.push(range);
        }
        retired.mark();
    }

    /// Whether rules wait until programs have left others.
    pub(super) fn is_waiting(&self) -> bool {
        let placed = self.lock();
        placed.is_waiting && !placed.left.is_empty()
    }
}

impl RuleWords {
    /// Writes rules that no program reads yet: whoever leads to them stores that after this.
    fn write(&self, first: u32, rules: &[Words]) {
        let places = self.0.get().iter().skip(first as usize * WORDS);
        for (place, word) in places.zip(rules.iter().flatten()) {
            place.store(*word, Relaxed);
        }
    }
}

fn root_of(record: &LinkRecord, version: u8) -> u32 {
    if version == 4 { record.root4 } else { record.root6 }
}

/// The rules of a link for an IP version, as [`RouteTables::find`] applies them; none if there is only its FIB.
fn rules(routes: &RouteTables, link: LinkId, version: u8) -> Option<Vec<Words>> {
    let root = root_of(&routes.links[link], version);
    if routes.kernel_roots.has(version, root) {
        return None;
    }
    let next_root = |root: &u32| routes.fallbacks.as_ref()?.next_root(version, *root);
    let own = [Rule::any(Decision::Root(root))];
    let policy = routes.policies.as_ref().and_then(|policies| policies.of(link));
    let rules = match policy {
        Some(policy) => policy.rules(version),
        None => next_root(&root).map(|_| &own[..])?,
    };
    let mut all: Vec<Rule> = Vec::new();
    for rule in rules {
        match rule.decision {
            Decision::Next(_) => all.push(*rule),
            Decision::Root(first) => {
                let roots = std::iter::successors(Some(first), next_root);
                all.extend(roots.map(|root| rule.with(Decision::Root(root))));
            }
        }
    }
    // What no rule matches has no route.
    all.push(Rule::any(Decision::Next(NextHopId::NO_ROUTE)));
    let last = all.len() - 1;
    Some(all.iter().enumerate().map(|(at, rule)| words(rule, at < last)).collect())
}

/// A rule in the order of `struct route_rule`; `more` follow.
fn words(rule: &Rule, more: bool) -> Words {
    let (src, dst) = rule.prefixes();
    let (mark, mask) = rule.mark();
    let (number, is_next_hop) = match rule.decision {
        Decision::Root(root) => (root, false),
        Decision::Next(next) => (next.0, true),
    };
    let halves = |prefix: Prefix| [(prefix.bits() >> 64) as u64, prefix.bits() as u64];
    let [source, destination] = [src, dst].map(halves);
    let [a, b, c, d] = mark.to_ne_bytes();
    let kind = [src.len(), dst.len(), is_next_hop.into(), more.into(), a, b, c, d];
    let [a, b, c, d] = mask.to_ne_bytes();
    let [e, f, g, h] = number.to_ne_bytes();
    let [kind, rest] = [kind, [a, b, c, d, e, f, g, h]].map(u64::from_ne_bytes);
    [source[0], source[1], destination[0], destination[1], kind, rest, 0, 0]
}

impl std::fmt::Debug for RuleWords {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("RuleWords").finish_non_exhaustive()
    }
}
