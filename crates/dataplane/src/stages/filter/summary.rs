//! Summaries of rules: most only accept or only drop a packet.

use super::Op;
use crate::burst::{BURST, Lanes};

/// What a rule does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum RuleSummary {
    /// Accepts the packet, and nothing else.
    Accept,
    /// Drops it, and nothing else.
    Drop,
    /// Anything else: see its program.
    Program,
}

/// The rules that only accept and those that only drop, as sets, for lists of at most 64 rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct VerdictSets {
    accepts: u64,
    drops: u64,
}

impl VerdictSets {
    pub(super) fn of(summaries: &[RuleSummary]) -> Self {
        let rules_with = |wanted| {
            let bits = summaries.iter().take(64).map(|summary| u64::from(*summary == wanted));
            bits.enumerate().fold(0, |set, (rule, bit)| set | bit << rule)
        };
        Self { accepts: rules_with(RuleSummary::Accept), drops: rules_with(RuleSummary::Drop) }
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

impl RuleSummary {
    pub(super) fn of(ops: &[Op]) -> Self {
        match ops {
            [Op::Accept] => Self::Accept,
            [Op::Drop] => Self::Drop,
            _ => Self::Program,
        }
    }
}
