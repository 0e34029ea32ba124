//! Rules as they are handed to the classifier: one line of them, chain behind chain.

use super::Field;
use crate::id::VrfId;

/// A line of rules; packets begin at the first.
///
/// The last rule has no condition and ends the matter, so that every packet finds a rule wherever it goes
/// on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Rules by number.
    pub rules: Vec<Rule>,
    /// Where [`Op::Return`] goes on that no [`Op::Call`] came before.
    pub end: u32,
}

/// A rule: what has to hold, and what is done then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// All have to hold.
    pub conditions: Vec<Condition>,
    /// Done in order, until one ends the rule.
    pub ops: Vec<Op>,
    /// The rule that is next tried where none of the ops says otherwise; behind this one.
    pub next: u32,
}

/// A field is in one of these ranges, both ends included; a packet that lacks it is in none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The part of the packet.
    pub field: Field,
    /// Bits of it that count; the others are taken for 0.
    pub mask: u128,
    /// In ascending order, apart from each other.
    pub ranges: Vec<(u128, u128)>,
}

impl Condition {
    /// The whole field is in one of these, in any order.
    #[must_use]
    pub fn new(field: Field, ranges: impl Into<Vec<(u128, u128)>>) -> Self {
        Self { field, mask: field.max(), ranges: join(ranges.into()) }
    }

    /// The field is there, and in none of the ranges.
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

    /// Says if it holds for what a packet has.
    #[must_use]
    pub fn holds(&self, number: Option<u128>) -> bool {
        let Some(number) = number.map(|number| number & self.mask) else { return false };
        let behind = self.ranges.partition_point(|range| range.0 <= number);
        behind > 0 && number <= self.ranges[behind - 1].1
    }
}

/// The same numbers in as few ranges as can be, in ascending order.
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

/// What a rule does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Takes the rule for one that does not match where this does not hold: for what conditions can not
    /// say, such as fields that ops before may have changed.
    Check(Condition),
    /// Ends the rule where the packet is beyond the rate, or (`over`) within it.
    Limit {
        /// Its number in the filter.
        limit: u32,
        /// Whether it goes on beyond the rate instead.
        over: bool,
    },
    /// Counts packet and bytes.
    Count(u32),
    /// Keeps how the packet begins for whoever writes the log.
    Log {
        /// Which of the ruleset's logs.
        log: u32,
        /// The limit of what it may log, if it has one.
        limit: Option<u32>,
    },
    /// Makes the mark `mark & keep ^ flip`.
    Mark {
        /// Bits that stay.
        keep: u32,
        /// Bits that are turned over.
        flip: u32,
    },
    /// Writes the DSCP, 6 bits.
    Dscp(u8),
    /// Sends the packet to a next hop, by its number in the filter.
    Forward(u32),
    /// Has the packet routed by another VRF, where it has no route yet.
    Fib(VrfId),
    /// Goes on with another rule behind this one.
    Skip(u32),
    /// Goes on with the next base chain, where returns without a call lead to its end.
    Chain {
        /// Its first rule.
        at: u32,
        /// The rule that says its policy.
        end: u32,
    },
    /// Goes on behind the base chain: with the rule that follows its policy.
    Leave,
    /// Goes on with the first rule of another chain, and comes back.
    Call(u32),
    /// Goes back to behind the call.
    Return,
    /// The packet goes on its way.
    Accept,
    /// The packet is dropped.
    Drop,
    /// The packet is dropped, and its sender told.
    Reject(Reject),
    /// The packet is the kernel's to decide.
    Unsupported,
}

/// What the sender of a rejected packet is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    /// That the destination is unreachable, with this code of ICMP or ICMPv6, whichever the packet's is.
    Unreachable(u8),
    /// That there is no such connection.
    TcpReset,
}

/// A token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Units in each period.
    pub rate: u64,
    /// The period, ns.
    pub period_ns: u64,
    /// Units that it holds at most.
    pub burst: u64,
    /// What it counts.
    pub unit: LimitUnit,
}

/// What a [`Limit`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitUnit {
    /// Packets.
    Packets,
    /// Bytes of layer 3.
    Bytes,
}
