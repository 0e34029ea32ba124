//! Executes rules for a burst at once: each rule for all packets that match it.
//!
//! Most packets of a burst match the same few rules. So this takes some instructions per rule, where
//! `walk.rs` takes some per packet and rule. It executes rules that only count, continue with another
//! rule, accept or drop. The walk executes the whole list for packets that reach any other rule.
//!
//! The sets of matching rules are known for lists of at most 64 rules. For longer lists, only the first
//! matching rule is known; the next one is then looked up for all packets that continue after a rule.

#[cfg(test)]
mod tests;

use super::super::Op;
use super::super::scratch::Scratch;
use super::super::tally::{MOST_HITS, Tally, span};
#[cfg(target_arch = "x86_64")]
use super::super::wide::Avx512;
use super::super::wide::{Wide, Words};
use super::Classifier;
use super::find::find_from;
use crate::burst::{BURST, Burst, Lanes};

/// The maximum number of rules in a packet's set, one bit each.
const MOST_RULES: usize = 64;

/// A list of rules that can be executed rule by rule.
pub(in super::super) struct ByRule {
    rules: Box<[Plain]>,
}

/// A rule, reduced to what this module executes.
#[derive(Debug, PartialEq, Eq)]
struct Plain {
    /// The counters that it counts in.
    counters: Box<[u32]>,
    then: Then,
}

/// The continuation after a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// With a later rule, by its number.
    To(u32),
    Accept,
    Drop,
    /// The rule does something else: the packet walks.
    Walk,
}

/// Packets that continue with a rule later than the next one.
struct Waiting {
    /// The rules, one bit each.
    rules: u64,
    /// The packets by rule.
    lanes: [Lanes; MOST_RULES],
}

impl ByRule {
    /// The list with these ops and next rules; none if no packet profits.
    pub(in super::super) fn of(programs: &[(Box<[Op]>, u32)]) -> Option<Self> {
        let rules: Box<[_]> = programs.iter().map(|(ops, next)| Plain::of(ops, *next)).collect();
        let is_long = rules.len() > MOST_RULES;
        let profits = |rule: &Plain| match rule.then {
            Then::Accept | Then::Drop => !rule.counters.is_empty(),
            Then::To(_) => !is_long || !rule.counters.is_empty(),
            Then::Walk => false,
        };
        // In a long list with calls, most packets would walk in the end, after lookups in vain.
        let calls = programs.iter().any(|(ops, _)| ops.iter().any(|op| matches!(op, Op::Call(_))));
        let does = rules.iter().any(profits) && !(is_long && calls);
        does.then_some(Self { rules })
    }

    /// The counters that a rule counts in.
    #[inline(always)]
    pub(in super::super) fn counters(&self, rule: usize) -> &[u32] {
        self.rules.get(rule).map_or(&[], |rule| &rule.counters)
    }
}

impl Plain {
    fn of(ops: &[Op], next: u32) -> Self {
        let mut counters = Vec::new();
        let mut then = Then::To(next);
        for op in ops {
            then = match op {
                Op::Count(counter) => {
                    counters.push(*counter);
                    continue;
                }
                // Only returns need a chain's end, and packets that come to a return walk.
                Op::Skip(at) | Op::Chain { at, .. } => Then::To(*at),
                Op::Accept => Then::Accept,
                Op::Drop => Then::Drop,
                _ => Then::Walk,
            };
            break;
        }
        Self { counters: counters.into(), then }
    }
}

pub(super) fn baseline(
    classifier: &Classifier,
    list: &ByRule,
    burst: &Burst,
    scratch: &mut Scratch,
    lanes: Lanes,
) {
    execute::<Words>(classifier, list, burst, scratch, lanes);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,fma,lzcnt,movbe,popcnt")]
pub(super) fn v3(
    classifier: &Classifier,
    list: &ByRule,
    burst: &Burst,
    scratch: &mut Scratch,
    lanes: Lanes,
) {
    execute::<Words>(classifier, list, burst, scratch, lanes);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,fma,lzcnt,movbe,popcnt")]
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
pub(super) fn v4(
    classifier: &Classifier,
    list: &ByRule,
    burst: &Burst,
    scratch: &mut Scratch,
    lanes: Lanes,
) {
    execute::<Avx512>(classifier, list, burst, scratch, lanes);
}

#[inline(always)]
fn execute<V: Wide>(
    classifier: &Classifier,
    list: &ByRule,
    burst: &Burst,
    scratch: &mut Scratch,
    lanes: Lanes,
) {
    scratch.tally.begin();
    if list.rules.len() <= MOST_RULES {
        execute_sets::<V>(list, &scratch.set, lanes, &mut scratch.tally);
    } else {
        let first = scratch.first;
        execute_first::<V>(classifier, list, scratch, lanes);
        // The walk begins there.
        scratch.first = first;
    }
    scratch.tally.finish(burst, lanes);
}

/// Executes the rules that some packet matches in ascending order: packets only continue with later ones.
#[inline(always)]
fn execute_sets<V: Wide>(list: &ByRule, sets: &[u64; BURST], lanes: Lanes, tally: &mut Tally) {
    let (mut some, all) = some_and_all(&sets[span(lanes)]);
    let mut waiting = Waiting { rules: 0, lanes: [Lanes::NONE; MOST_RULES] };
    let mut active = lanes;
    // All packets end: the last rule is without conditions, and final.
    while some != 0 && active.0 | waiting.rules != 0 {
        let number = some.trailing_zeros() as usize;
        some &= some - 1;
        active = active.or(waiting.take(number));
        let Some(rule) = list.rules.get(number) else { break };
        let matching = if all >> number & 1 != 0 { u64::MAX } else { V::with_bit(sets, number) };
        let matching = Lanes(matching & active.0);
        if matching.is_empty() {
            continue;
        }
        if !rule.counters.is_empty() {
            tally.hit(number, matching);
        }
        match rule.then {
            Then::To(next) if next as usize == number + 1 => continue,
            Then::To(next) => waiting.add(next, matching),
            Then::Accept => {}
            Then::Drop => tally.drop = tally.drop.or(matching),
            Then::Walk => tally.walk = tally.walk.or(matching),
        }
        active = active.without(matching);
    }
    tally.walk = tally.walk.or(active).or(waiting.take(MOST_RULES - 1));
}

/// The rules that some packet matches, and those that all match.
#[inline(always)]
fn some_and_all(sets: &[u64]) -> (u64, u64) {
    sets.iter().fold((0, u64::MAX), |(some, all), set| (some | set, all & set))
}

/// Executes the rule of a packet for all packets that are at the same one, until no packet is left.
#[inline(always)]
fn execute_first<V: Wide>(
    classifier: &Classifier,
    list: &ByRule,
    scratch: &mut Scratch,
    lanes: Lanes,
) {
    let mut active = lanes;
    for _ in 0..MOST_HITS {
        let Some(lane) = active.lowest() else { return };
        let number = scratch.first[lane];
        let matching = Lanes(V::equal(&scratch.first, number) & active.0);
        let Some(rule) = list.rules.get(number as usize) else { break };
        if !rule.counters.is_empty() {
            scratch.tally.hit(number as usize, matching);
        }
        match rule.then {
            Then::To(next) => {
                find_from::<V>(classifier, scratch, matching, next);
                continue;
            }
            Then::Accept => {}
            Then::Drop => scratch.tally.drop = scratch.tally.drop.or(matching),
            Then::Walk => scratch.tally.walk = scratch.tally.walk.or(matching),
        }
        active = active.without(matching);
    }
    scratch.tally.walk = scratch.tally.walk.or(active);
}

impl Waiting {
    fn add(&mut self, rule: u32, lanes: Lanes) {
        let rule = rule as usize % MOST_RULES;
        self.lanes[rule] = self.lanes[rule].or(lanes);
        self.rules |= 1 << rule;
    }

    /// Takes the packets that continue with a rule up to this one.
    fn take(&mut self, rule: usize) -> Lanes {
        let mut due = self.rules & u64::MAX >> (MOST_RULES - 1 - rule);
        self.rules &= !due;
        let mut lanes = Lanes::NONE;
        while due != 0 {
            lanes = lanes.or(self.lanes[due.trailing_zeros() as usize]);
            due &= due - 1;
        }
        lanes
    }
}
