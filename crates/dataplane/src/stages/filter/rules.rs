//! The input of the classifier: one list of rules, chain after chain.

use super::{AliasPass, Field, MarkUpdate, NatRange, StateName};
use crate::id::VrfId;

/// A list of rules; packets begin at the first.
///
/// The last rule has no condition and is final, so that every packet finds a rule from any index on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Rules by number.
    pub rules: Vec<Rule>,
    /// The target of an [`Op::Return`] without a preceding [`Op::Call`].
    pub end: u32,
}

impl Rules {
    /// Says whether rules test or set something of connections.
    pub(super) fn are_of_connections(&self) -> bool {
        let is_one = |condition: &Condition| matches!(condition.field, Field::Connection(_));
        self.rules.iter().any(|rule| {
            rule.conditions.iter().any(is_one)
                || rule.ops.iter().any(|op| match op {
                    Op::Check(condition) => is_one(condition),
                    Op::UpdateMark(_) | Op::Track | Op::NoTrack { .. } | Op::Nat(_) => true,
                    _ => false,
                })
        })
    }
}

/// A rule: its conditions and operations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// All of them must hold.
    pub conditions: Vec<Condition>,
    /// Executed in order, until one ends the rule.
    pub ops: Vec<Op>,
    /// The rule to try next if no op decides otherwise; its index is greater than this rule's.
    pub next: u32,
}

/// Holds if a field is in one of these ranges, both ends included; it never holds for a packet that
/// lacks the field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The part of the packet.
    pub field: Field,
    /// The bits of the field to compare; the others are taken as 0.
    pub mask: u128,
    /// In ascending order; they neither overlap nor touch.
    pub ranges: Vec<(u128, u128)>,
}

impl Condition {
    /// Creates a condition on the whole field, with ranges in any order.
    #[must_use]
    pub fn new(field: Field, ranges: impl Into<Vec<(u128, u128)>>) -> Self {
        Self { field, mask: field.max(), ranges: join(ranges.into()) }
    }

    /// The opposite condition: the field is present, and in none of the ranges.
    #[must_use]
    pub fn outside(&self) -> Self {
        let mut gaps = Vec::new();
        let mut from = Some(0);
        for (first, last) in &self.ranges {
            if let Some(from) = from.filter(|from| from < first) {
                gaps.push((from, first - 1));
            }
            from = last.checked_add(1);
        }
        if let Some(from) = from.filter(|from| *from <= self.field.max()) {
            gaps.push((from, self.field.max()));
        }
        Self { ranges: gaps, ..*self }
    }

    /// Says whether it holds for a packet's field value.
    #[must_use]
    pub fn holds(&self, number: Option<u128>) -> bool {
        let Some(number) = number.map(|number| number & self.mask) else { return false };
        let after = self.ranges.partition_point(|range| range.0 <= number);
        after > 0 && number <= self.ranges[after - 1].1
    }
}

/// Joins ranges into the fewest possible, in ascending order.
#[must_use]
pub fn join(mut ranges: Vec<(u128, u128)>) -> Vec<(u128, u128)> {
    ranges.sort_unstable();
    let mut joined: Vec<(u128, u128)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match joined.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => joined.push((first, last)),
        }
    }
    joined
}

/// One operation of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// If this does not hold, treats the rule as one that does not match. It checks what conditions
    /// cannot express, such as fields that earlier ops may have changed.
    Check(Condition),
    /// Ends the rule if the packet exceeds the rate, or (`over`) if it does not.
    Limit {
        /// Its number in the filter.
        limit: u32,
        /// Whether the rule continues only above the rate.
        over: bool,
    },
    /// Counts packet and bytes.
    Count(u32),
    /// Keeps the start of the packet for the log.
    Log {
        /// The index among the ruleset's logs.
        log: u32,
        /// The rate limit of the log, if any.
        limit: Option<u32>,
    },
    /// Sets the mark to `mark & keep ^ flip`.
    Mark {
        /// Bits that are kept.
        keep: u32,
        /// Bits that are inverted.
        flip: u32,
    },
    /// Sets the connection's mark, or the packet's by it.
    UpdateMark(MarkUpdate),
    /// Looks the packet's connection up; drops the packet if there is no room for it.
    Track,
    /// Keeps the packet out of connection tracking.
    NoTrack {
        /// Tracking has seen the packet before: only one without a connection is kept out.
        again: bool,
    },
    /// Continues with the rule for the one that keeps the packet's state, if it has a state.
    CheckState {
        /// The state's name; none for any.
        name: Option<StateName>,
        /// The rule to continue with, for each rule that keeps states of this name.
        at: Box<[Option<u32>]>,
    },
    /// Keeps a state of the packet; drops the packet if it gets none.
    KeepState(KeepState),
    /// Translates addresses; drops the packet if it gets no mapping. What rules see stays as it is, so a verdict follows.
    Alias(Alias),
    /// Writes the DSCP, 6 bits.
    Dscp(u8),
    /// Sends the packet to a next hop, by its number in the filter.
    Forward(u32),
    /// Routes the packet by another VRF, if it has no route yet.
    Fib(VrfId),
    /// Continues with a later rule.
    Skip(u32),
    /// Continues with the next base chain. From then on, a return without a call leads to its end.
    Chain {
        /// Its first rule.
        at: u32,
        /// The rule that holds its policy.
        end: u32,
    },
    /// Leaves the base chain: continues with the rule that follows its policy.
    Leave,
    /// Calls another chain, whose first rule this is.
    Call(u32),
    /// Returns to the op after the call.
    Return,
    /// Translates the connection that the packet begins, and ends the list.
    Nat(NatRange),
    /// Lets the packet continue on the path.
    Accept,
    /// Drops the packet.
    Drop,
    /// Drops the packet and notifies its sender.
    Reject(Reject),
    /// Leaves the decision to the kernel.
    Unsupported,
}

/// How a rule keeps a state, and what counts packets that get none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepState {
    /// The number of the rule among those that keep states.
    pub state_rule: u32,
    /// The rule's own counter, which counts them all.
    pub counter: u32,
    /// Counts packets of connections beyond the limit.
    pub over_limit: u32,
    /// Counts packets for whose state there is no room.
    pub full: u32,
}

/// Which instance translates a packet, and what counts packets that it drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alias {
    /// The number of the instance; none for all of them (`nat global`).
    pub instance: Option<u32>,
    /// The pass.
    pub pass: AliasPass,
    /// Counts packets that come without a mapping.
    pub denied: u32,
    /// Counts packets for whose mapping there is no room.
    pub full: u32,
}

/// The notification to the sender of a rejected packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    /// The destination is unreachable, with this code of ICMP or ICMPv6, depending on the packet.
    Unreachable(u8),
    /// There is no such connection.
    TcpReset,
}

/// A token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Units per period.
    pub rate: u64,
    /// The period in ns.
    pub period_ns: u64,
    /// The maximum of units in the bucket.
    pub burst: u64,
    /// The unit.
    pub unit: LimitUnit,
}

/// The unit of a [`Limit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitUnit {
    /// Packets.
    Packets,
    /// Bytes of layer 3.
    Bytes,
}
