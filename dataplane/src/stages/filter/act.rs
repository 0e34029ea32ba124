//! What the rules do with a packet, in short.

use super::Op;
use crate::burst::{BURST, Lanes};

/// A summary of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Act {
    /// Accepts the packet, and nothing else.
    Accept,
    /// Drops it, and nothing else.
    Drop,
    /// Anything else: see its program.
    Program,
}

/// Sets of rules by their action, for lists of at most 64 rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Plain {
    accepts: u64,
    drops: u64,
}

impl Plain {
    pub(super) fn of(acts: &[Act]) -> Self {
        let those = |wanted| {
            let alike = acts.iter().take(64).map(|act| u64::from(*act == wanted));
            alike.enumerate().fold(0, |set, (rule, bit)| set | bit << rule)
        };
        Self { accepts: those(Act::Accept), drops: those(Act::Drop) }
    }

    /// Takes the set of rules that each packet matches. Returns the packets whose first rule drops
    /// them, and those whose first rule does more than accept them.
    #[inline(always)]
    pub(super) fn sort(self, sets: &[u64; BURST]) -> (Lanes, Lanes) {
        let (mut drop, mut accept) = (Lanes::NONE, Lanes::NONE);
        for (lane, set) in sets.iter().enumerate() {
            let first = set & set.wrapping_neg();
            drop.put(lane, first & self.drops != 0);
            accept.put(lane, first & self.accepts != 0);
        }
        (drop, Lanes(!accept.0))
    }
}

impl Act {
    pub(super) fn of(ops: &[Op]) -> Self {
        match ops {
            [Op::Accept] => Self::Accept,
            [Op::Drop] => Self::Drop,
            _ => Self::Program,
        }
    }
}
