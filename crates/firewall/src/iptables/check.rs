//! The checks of a rule, in the kernel's order.

use crate::ir::{Field, Limit, LinkPattern, Match, Range, Step};

/// One check of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// A condition.
    Holds(Step),
    /// The egress link is another one; holds before the route is known.
    NotOutput(LinkPattern),
    /// No packet passes.
    Never,
    /// Drops packets at once that meet all matches of one of these, regardless of later checks.
    Hotdrop(Vec<Vec<Match>>),
    /// Drops IPv6 packets with broken extension headers at once.
    Headers6,
    /// The packet is within a rate.
    Limit(Limit),
    /// An unsupported check and why; its result depends only on the packet.
    Unsupported(String),
    /// An unsupported check and why; making it changes the result for the next packet.
    UnsupportedState(String),
    /// Packets that meet this match take the kernel path, for this reason, if they pass the rule's other checks.
    KernelIf(Match, String),
}

impl Check {
    /// The check of one match, or of its inverse.
    pub(super) fn one(one: Match, negate: bool) -> Self {
        Self::Holds(Step::Match(if negate { one.negated() } else { one }))
    }

    /// A transport header shorter than this.
    pub(super) fn shorter_than(bytes: u128) -> Vec<Match> {
        vec![Match::in_ranges(Field::TransportLength, [Range::new(0, bytes - 1)])]
    }
}
