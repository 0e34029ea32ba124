//! States that rules keep of packets (ipfw `keep-state`, `limit`, `check-state`).

use super::{ChainId, CounterId, Ruleset, StateName};

/// A position in [`Ruleset::state_rules`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateRuleId(pub usize);

/// Looks for the packet's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckState {
    /// The name of the state; `None` for any.
    pub name: Option<StateName>,
    /// Where a packet with a state continues: a chain for each of [`Ruleset::state_rules`] whose states have the name.
    pub chains: Vec<Option<ChainId>>,
}

/// Keeps a state of the packet, or drops the packet if it gets none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepState {
    /// The rule that keeps it.
    pub state_rule: StateRuleId,
    /// The rule's own counter, which counts packets that get none, too.
    pub counter: CounterId,
    /// Counts packets of connections beyond the limit.
    pub over_limit: CounterId,
    /// Counts packets for whose state there is no room.
    pub full: CounterId,
}

impl Ruleset {
    pub(super) fn check_state(&self, check: &CheckState) -> Result<(), String> {
        let goes =
            |chain: &ChainId| self.chains.get(chain.0).is_some_and(|chain| chain.base.is_none());
        match check.chains.len() == self.state_rules.len()
            && check.chains.iter().flatten().all(goes)
        {
            true => Ok(()),
            false => Err("has states of rules that are not there".to_owned()),
        }
    }

    pub(super) fn keep_state(&self, keep: &KeepState) -> Result<(), String> {
        let counters = [keep.counter, keep.over_limit, keep.full];
        let counts = |counter: &CounterId| counter.0 < self.counters.len();
        match keep.state_rule.0 < self.state_rules.len() && counters.iter().all(counts) {
            true => Ok(()),
            false => Err("keeps a state in a place that is not there".to_owned()),
        }
    }
}
