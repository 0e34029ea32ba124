//! What the match `conntrack` of iptables tests (`conntrack_mt` in `net/netfilter/xt_conntrack.c`), as conditions.

use crate::ir::{ConnectionField, Field, Key, Match, Range};

/// States of packets of no connection, as bits of `NF_CT_STATE_*`.
const WITHOUT_CONNECTION: [u128; 2] = [1, 64];

/// All states.
const STATES: [u128; 5] = [1, 2, 4, 8, 64];

/// A match, option by option.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConntrackMatch {
    /// States, and whether they are negated.
    pub states: Option<(ConntrackStates, bool)>,
    /// Conditions that packets of no connection do not meet.
    pub others: Vec<Match>,
}

/// States that a match lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConntrackStates {
    /// Bits of `NF_CT_STATE_*`.
    pub states: u128,
    /// `SNAT` and `DNAT`, as bits of `enum ip_conntrack_status`.
    pub translated: u32,
}

impl ConntrackMatch {
    /// When it matches: if all conditions of one of these hold. Of packets of no connection, only the state is tested.
    #[must_use]
    pub fn alternatives(&self) -> Vec<Vec<Match>> {
        let others = self.others.clone();
        let Some((ConntrackStates { states: bits, translated }, is_inverted)) = self.states else {
            return vec![others];
        };
        let holds = |bit: u128| (bits & bit != 0) != is_inverted;
        let mut alternatives = Vec::new();
        let with = |first: Vec<Match>| [first, others.clone()].concat();
        match (translated, is_inverted) {
            (0, _) => alternatives.push(with(vec![states(holds)])),
            (bits, false) => {
                alternatives.push(with(vec![states(holds)]));
                alternatives.push(with(vec![has_status(bits)]));
            }
            (bits, true) => alternatives.push(with(vec![states(holds), has_no_status(bits)])),
        }
        let needs_connection = !others.is_empty() || is_inverted && translated != 0;
        if needs_connection && WITHOUT_CONNECTION.into_iter().any(holds) {
            alternatives.push(vec![states(|bit| WITHOUT_CONNECTION.contains(&bit) && holds(bit))]);
        }
        alternatives
    }

    /// Adds a condition on the direction.
    pub fn direction(&mut self, is_reply: bool) {
        self.others.push(Match::is(key(ConnectionField::Direction, 0xff), is_reply.into()));
    }

    /// Adds a condition on the protocol.
    pub fn protocol(&mut self, protocol: u8, is_inverted: bool) {
        let one = Match::is(key(ConnectionField::Protocol, 0xff), protocol.into());
        self.others.push(if is_inverted { one.negated() } else { one });
    }

    /// Adds a condition on bits of the status, one of which it has to have.
    pub fn status(&mut self, bits: u32, is_inverted: bool) {
        self.others.push(if is_inverted { has_no_status(bits) } else { has_status(bits) });
    }
}

/// The state is one of these.
pub fn states(is_one: impl Fn(u128) -> bool) -> Match {
    let bits = STATES.into_iter().filter(|bit| is_one(*bit));
    Match::in_ranges(key(ConnectionField::State, 0xff), bits.map(Range::one).collect::<Vec<_>>())
}

/// The connection has one of these bits of the status.
fn has_status(bits: u32) -> Match {
    let any = Range::new(1, u32::MAX.into());
    Match::in_ranges(key(ConnectionField::Status, bits.into()), [any])
}

fn has_no_status(bits: u32) -> Match {
    Match::is(key(ConnectionField::Status, bits.into()), 0)
}

/// Bits of a property.
#[must_use]
pub const fn key(field: ConnectionField, mask: u128) -> Key {
    Key::masked(Field::Connection(field), mask)
}
