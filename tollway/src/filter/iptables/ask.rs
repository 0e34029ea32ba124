//! What a rule asks of a packet, in the order in which the kernel asks.

use crate::filter::ir::{Limit, LinkPattern, Match, Range, Selector, Step};

/// One thing that a rule asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// A condition.
    Holds(Step),
    /// It leaves by another link; before the route is known it does.
    NotOutput(LinkPattern),
    /// No packet does.
    Never,
    /// Packets of which all of one of these hold are dropped at once, whatever follows.
    Hotdrop(Vec<Vec<Match>>),
    /// IPv6 packets whose extension headers are broken are dropped at once.
    Headers6,
    /// It is within a rate.
    Limit(Limit),
    /// It can not be said, and why; nothing but the packet decides.
    Unknown(String),
    /// It can not be said, and asking changes what is answered to the next packet.
    UnknownState(String),
    /// Packets of which this holds are the kernel's if all else holds.
    Unless(Match, String),
}

impl Ask {
    pub(super) fn one(one: Match, negate: bool) -> Self {
        Self::Holds(Step::Match(if negate { one.negated() } else { one }))
    }

    /// A transport header shorter than this.
    pub(super) fn shorter_than(bytes: u128) -> Vec<Match> {
        vec![Match::in_ranges(Selector::TransportLength, [Range::new(0, bytes - 1)])]
    }
}
