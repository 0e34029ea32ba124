//! Compiles a list of rules into a classifier.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::bits::{self, MOST_RULES};
use super::classifier::{ByRule, Classifier, Classify};
use super::dim::{Dim, MOST_DIMS, Ranges};
use super::partition::Partition;
use super::rules::join;
use super::scratch::Packing;
use super::summary::{RuleSummary, VerdictSets};
use super::{
    Condition, ConnectionField, Field, FilterError, LiveSet, MarkOf, MarkUpdate, Op, Point, Rule,
    Rules, varies,
};
use crate::cpu::Level;

/// The number of bits of a field up to which any mask is expanded into ranges.
const MASKED_BITS: u32 = 16;

impl Classifier {
    /// Compiles a list of rules for packets of a version of IP at a point.
    pub(super) fn build(
        level: Level,
        point: Point,
        version: u8,
        rules: &Rules,
        live: &[Arc<LiveSet>],
    ) -> Result<Self, FilterError> {
        check(rules)?;
        let sees_df = varies::any_sees_df(rules, version);
        check_sets(rules, version, live)?;
        let changed = changed(rules);
        let mut fields: BTreeMap<Field, Ranges> = BTreeMap::new();
        let mut programs = Vec::with_capacity(rules.rules.len());
        let mut all_vary = Vec::with_capacity(rules.rules.len());
        for (number, rule) in rules.rules.iter().enumerate() {
            let (mut ops, mut varies) = (Vec::new(), 0);
            for condition in merged(&rule.conditions) {
                match ranges(&condition, &changed) {
                    Some(_)
                        if fields.len() >= MOST_DIMS && !fields.contains_key(&condition.field) =>
                    {
                        ops.push(Op::Check(condition));
                    }
                    Some(ranges) => {
                        varies |= varies::of(condition.field, sees_df);
                        add(fields.entry(condition.field).or_default(), number as u32, ranges);
                    }
                    None => ops.push(Op::Check(condition)),
                }
            }
            ops.extend_from_slice(&rule.ops);
            programs.push((ops.into_boxed_slice(), rule.next));
            all_vary.push(varies);
        }
        let mut all = vec![0; bits::width(rules.rules.len())];
        for rule in 0..rules.rules.len() {
            bits::put(&mut all, rule as u32);
        }
        let is_ip4 = version == 4 && point != Point::Ingress;
        let (partition, dims) = match Partition::build(&fields, rules.rules.len(), is_ip4) {
            Some((partition, dims)) => (Some(partition), dims),
            None => (None, with_sets(&fields, &all)?),
        };
        let summaries: Vec<_> = programs.iter().map(|(ops, _)| RuleSummary::of(ops)).collect();
        Ok(Self {
            classify: Classify::at(level),
            point,
            version,
            past_auth: false,
            width: all.len(),
            packing: Packing::of(&dims, all.len()).filter(|_| partition.is_none()),
            wants: wants(point, version, &dims),
            all,
            live: live.to_vec(),
            dims,
            partition,
            verdict_sets: VerdictSets::of(&summaries),
            summaries,
            by_rule: ByRule::of(&programs),
            programs,
            end: rules.end,
            varies: all_vary,
            sees_df,
        })
    }
}

/// The lookups of all fields, with sets of rules.
fn with_sets(fields: &BTreeMap<Field, Ranges>, all: &[u64]) -> Result<Vec<Dim>, FilterError> {
    fields.iter().map(|(field, ranges)| Dim::build(*field, ranges, all)).collect()
}

/// The number of bytes of the transport header that rules match on, and whether the lookup needs its
/// position.
fn wants(point: Point, version: u8, dims: &[Dim]) -> (u16, bool) {
    let bytes = dims.iter().map(|dim| dim.field.transport_bytes()).max().unwrap_or(0);
    let is_plain = version == 4 && point != Point::Ingress;
    let is_walked = |dim: &Dim| match dim.field {
        Field::TransportLength => true,
        Field::Protocol | Field::FragmentOffset => !is_plain,
        _ => false,
    };
    (bytes, point == Point::Ingress || dims.iter().any(is_walked))
}

/// Adds a rule's ranges of a field; if it already has some from another mask, their intersection.
pub(super) fn add(field: &mut Ranges, rule: u32, ranges: Vec<(u128, u128)>) {
    match field.last_mut() {
        Some((last, before)) if *last == rule => *before = both(before, &ranges),
        _ => field.push((rule, ranges)),
    }
}

/// The ranges of a condition, if it can be looked up ahead. `changed` are the fields that ops may change
/// before a rule is reached.
pub(super) fn ranges(condition: &Condition, changed: &[Field]) -> Option<Vec<(u128, u128)>> {
    let is_packet = matches!(condition.field, Field::Payload { .. });
    if changed.contains(&condition.field) || is_packet && !changed.is_empty() {
        return None;
    }
    let bits = condition.field.bits();
    let max = u128::MAX >> (128 - bits);
    if condition.mask & max == max {
        let within = condition.ranges.iter().filter(|range| range.0 <= max);
        return Some(within.map(|(first, last)| (*first, (*last).min(max))).collect());
    }
    if bits <= MASKED_BITS {
        let values = (0..=max).filter(|value| condition.holds(Some(*value)));
        return Some(join(values.map(|value| (value, value)).collect()));
    }
    let open = !condition.mask & max;
    let is_prefix = open & open.wrapping_add(1) == 0;
    let whole = |range: &&(u128, u128)| range.0 == range.1;
    if is_prefix && condition.ranges.iter().filter(whole).count() == condition.ranges.len() {
        let under = condition.ranges.iter().filter(|range| range.0 & open == 0);
        return Some(under.map(|range| (range.0, range.0 | open)).collect());
    }
    None
}

/// Merges conditions on the same field.
pub(super) fn merged(conditions: &[Condition]) -> Vec<Condition> {
    let mut merged: Vec<Condition> = Vec::with_capacity(conditions.len());
    for condition in conditions {
        let same =
            |one: &&mut Condition| one.field == condition.field && one.mask == condition.mask;
        match merged.iter_mut().find(same) {
            Some(one) => one.ranges = both(&one.ranges, &condition.ranges),
            None => merged.push(condition.clone()),
        }
    }
    merged
}

/// The intersection of two lists of ranges.
fn both(left: &[(u128, u128)], right: &[(u128, u128)]) -> Vec<(u128, u128)> {
    let (mut left, mut right) = (left.iter().peekable(), right.iter().peekable());
    let mut shared = Vec::new();
    while let (Some(one), Some(other)) = (left.peek(), right.peek()) {
        let (first, last) = (one.0.max(other.0), one.1.min(other.1));
        if first <= last {
            shared.push((first, last));
        }
        if one.1 < other.1 {
            left.next();
        } else {
            right.next();
        }
    }
    shared
}

/// Fields that ops change.
fn changed(rules: &Rules) -> Vec<Field> {
    let mut changed = Vec::new();
    for op in rules.rules.iter().flat_map(|rule| &rule.ops) {
        let field = match op {
            Op::Track | Op::NoTrack { .. } => {
                changed.extend(of_connections(rules));
                continue;
            }
            Op::Mark { .. } | Op::UpdateMark(MarkUpdate { target: MarkOf::Packet, .. }) => {
                Field::Mark
            }
            Op::UpdateMark(_) => Field::Connection(ConnectionField::Mark),
            Op::Dscp(_) => Field::TrafficClass,
            _ => continue,
        };
        if !changed.contains(&field) {
            changed.push(field);
        }
    }
    changed
}

/// The properties of connections that rules test.
fn of_connections(rules: &Rules) -> impl Iterator<Item = Field> + '_ {
    let conditions = rules.rules.iter().flat_map(|rule| &rule.conditions);
    let fields = conditions.map(|condition| condition.field);
    fields.filter(|field| matches!(field, Field::Connection(_)))
}

/// Checks that every live set that rules use exists.
fn check_sets(rules: &Rules, version: u8, live: &[Arc<LiveSet>]) -> Result<(), FilterError> {
    let conditions = rules.rules.iter().flat_map(|rule| {
        let checks = rule.ops.iter().filter_map(|op| match op {
            Op::Check(condition) => Some(condition),
            _ => None,
        });
        rule.conditions.iter().chain(checks)
    });
    for condition in conditions {
        if let Field::InSet { set, .. } = condition.field
            && live.get(usize::from(set)).is_none_or(|live| live.version() != version)
        {
            return Err(FilterError::NoSet(set));
        }
    }
    Ok(())
}

/// Checks the requirements of [`Rules`].
fn check(rules: &Rules) -> Result<(), FilterError> {
    let count = rules.rules.len();
    if count > MOST_RULES {
        return Err(FilterError::TooMany(count));
    }
    let ends = |rule: &Rule| {
        rule.conditions.is_empty()
            && matches!(rule.ops[..], [.., Op::Accept | Op::Drop | Op::Reject(_) | Op::Unsupported])
    };
    let last = count.saturating_sub(1) as u32;
    if !rules.rules.last().is_some_and(ends) {
        return Err(FilterError::ConditionalLast(last));
    }
    // A rule that is the target of returns must not return itself.
    let is_end = |at: u32| {
        let rule = rules.rules.get(at as usize);
        rule.is_some_and(|rule| {
            rule.conditions.is_empty()
                && matches!(
                    rule.ops[..],
                    [
                        ..,
                        Op::Accept | Op::Drop | Op::Reject(_) | Op::Unsupported | Op::Chain { .. }
                    ]
                )
        })
    };
    for (number, rule) in (0..).zip(&rules.rules) {
        let follows = |at: &u32| *at > number && *at <= last;
        let leads_on = |op: &Op| match op {
            Op::Skip(at) | Op::Call(at) => follows(at),
            Op::Chain { at, end } => follows(at) && follows(end),
            Op::CheckState { at, .. } => at.iter().flatten().all(follows),
            _ => true,
        };
        if !(rule.ops.iter().all(leads_on) && (number == last || follows(&rule.next))) {
            return Err(FilterError::BackwardJump(number));
        }
        let targets = rule.ops.iter().filter_map(|op| match op {
            Op::Chain { end, .. } => Some([*end, *end + 1]),
            _ => None,
        });
        if let Some(at) = targets.flatten().find(|at| !is_end(*at)) {
            return Err(FilterError::ConditionalReturn(at));
        }
    }
    if is_end(rules.end) { Ok(()) } else { Err(FilterError::ConditionalReturn(rules.end)) }
}
