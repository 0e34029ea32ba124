//! The ops of rules in words, four each, and the conditions that a program looks up.

use std::collections::{BTreeMap, BTreeSet};

use super::super::build;
use super::super::dim::Ranges;
use super::super::{Condition, Field, Op, Rules};
use super::{MOST_FIELDS, SetRoots, field, lookup};

/// An op by its number in `bpf/rules.h`, and its operands.
type OpWords = [u32; 4];

const ASK: u32 = 0;
const ACCEPT: u32 = 1;
const DROP: u32 = 2;
const KERNEL: u32 = 3;
const COUNT: u32 = 4;
const MARK: u32 = 5;
const CHECK_MARK: u32 = 6;
const SKIP: u32 = 7;
const CHAIN: u32 = 8;
const LEAVE: u32 = 9;
const CALL: u32 = 10;
const RETURN: u32 = 11;

/// Splits rules into conditions that a program looks up, by field, and the ops of each rule.
pub(super) fn split(
    version: u8,
    rules: &Rules,
    roots: SetRoots<'_>,
) -> (BTreeMap<Field, Ranges>, Vec<Vec<OpWords>>) {
    let mut fields = Fields::of(version, rules, roots);
    let programs = rules.rules.iter().zip(0..).map(|(rule, number)| {
        let mut ops = Vec::new();
        let mut is_known = true;
        for condition in build::merged(&rule.conditions) {
            match place(&condition, version, &fields) {
                Place::Lookup(field, ranges) => {
                    build::add(fields.ranges.entry(field).or_default(), number, ranges);
                }
                Place::Op(op) => ops.push(op),
                Place::Always => {}
                Place::Unknown => is_known = false,
            }
        }
        if !is_known {
            return vec![[ASK, 0, 0, 0]];
        }
        ops.extend(rule.ops.iter().map(|op| words_of(op, rule.next)));
        // A rule ends with a verdict, or continues.
        ops.push([SKIP, rule.next, 0, 0]);
        ops
    });
    let programs = programs.collect();
    (fields.ranges, programs)
}

/// The fields that a program looks up.
struct Fields<'a> {
    ranges: BTreeMap<Field, Ranges>,
    roots: SetRoots<'a>,
    /// How many of them may be live sets: other fields come first, since more rules have them.
    most_sets: usize,
}

impl<'a> Fields<'a> {
    fn of(version: u8, rules: &Rules, roots: SetRoots<'a>) -> Self {
        let conditions = rules.rules.iter().flat_map(|rule| &rule.conditions);
        let others: BTreeSet<_> = conditions
            .map(|condition| condition.field)
            .filter(|field| field::number(*field).is_some() && !is_set(*field))
            .filter(|field| field::of_version(*field, version).is_none())
            // A rule that no packet of the version matches has a condition on it.
            .chain([Field::Protocol])
            .collect();
        let most_sets = MOST_FIELDS.saturating_sub(others.len());
        Self { ranges: BTreeMap::new(), roots, most_sets }
    }

    fn has_room(&self, field: Field) -> bool {
        let sets = self.ranges.keys().filter(|field| is_set(**field)).count();
        let is_over = is_set(field) && sets >= self.most_sets;
        self.ranges.contains_key(&field) || self.ranges.len() < MOST_FIELDS && !is_over
    }

    /// Whether a program can look the field up, if there is room.
    fn knows(&self, field: Field) -> bool {
        match field {
            Field::InSet { set, .. } => lookup::root_of(self.roots, set).is_some(),
            _ => field::number(field).is_some(),
        }
    }
}

const fn is_set(field: Field) -> bool {
    matches!(field, Field::InSet { .. })
}

/// Where the program evaluates a condition.
enum Place {
    /// It looks the field up before the first rule.
    Lookup(Field, Vec<(u128, u128)>),
    /// At the rule.
    Op(OpWords),
    /// It holds for every packet.
    Always,
    /// It cannot.
    Unknown,
}

fn place(condition: &Condition, version: u8, fields: &Fields<'_>) -> Place {
    let lookup = |field, ranges| match fields.has_room(field) {
        true => Place::Lookup(field, ranges),
        false => Place::Unknown,
    };
    if let Some(value) = field::of_version(condition.field, version) {
        // No protocol is in no range.
        let never = || lookup(Field::Protocol, Vec::new());
        return if condition.holds(value) { Place::Always } else { never() };
    }
    if condition.field == Field::Mark {
        return mark(condition).map_or(Place::Unknown, Place::Op);
    }
    if !fields.knows(condition.field) {
        return Place::Unknown;
    }
    match build::ranges(condition, &[]) {
        Some(ranges) => lookup(condition.field, ranges),
        None => Place::Unknown,
    }
}

/// The check of a condition on the mark.
fn mark(condition: &Condition) -> Option<OpWords> {
    let [(first, last)] = condition.ranges[..] else { return None };
    let word = |number: u128| u32::try_from(number).ok();
    Some([CHECK_MARK, condition.mask as u32, word(first)?, word(last.min(u32::MAX.into()))?])
}

fn words_of(op: &Op, next: u32) -> OpWords {
    match op {
        Op::Accept => [ACCEPT, 0, 0, 0],
        Op::Drop => [DROP, 0, 0, 0],
        Op::Unsupported => [KERNEL, 0, 0, 0],
        Op::Count(counter) => [COUNT, *counter, 0, 0],
        Op::Mark { keep, flip } => [MARK, *keep, *flip, 0],
        Op::Check(condition) if condition.field == Field::Mark => {
            mark(condition).unwrap_or([ASK, 0, 0, 0])
        }
        Op::Skip(at) => [SKIP, *at, 0, 0],
        Op::Chain { at, end } => [CHAIN, *at, *end, 0],
        Op::Leave => [LEAVE, 0, 0, 0],
        Op::Call(at) => [CALL, *at, next, 0],
        Op::Return => [RETURN, 0, 0, 0],
        Op::Check(_)
        | Op::UpdateMark(_)
        | Op::Track
        | Op::NoTrack { .. }
        | Op::Nat(_)
        | Op::Limit { .. }
        | Op::CheckState { .. }
        | Op::KeepState(_)
        | Op::Alias(_)
        | Op::Log { .. }
        | Op::Dscp(_)
        | Op::Forward(_)
        | Op::Fib(_)
        | Op::Reject(_) => [ASK, 0, 0, 0],
    }
}

/// The number of each rule's first op, and all ops.
pub(super) fn words(programs: &[Vec<OpWords>]) -> (Vec<u32>, Vec<u32>) {
    let starts = programs.iter().scan(0, |at, ops| {
        let start = *at;
        *at += ops.len() as u32;
        Some(start)
    });
    (starts.collect(), programs.iter().flatten().flatten().copied().collect())
}
