//! The rules of a list that keep states, and where packets are looked up.

use super::rule::{Action, Rule, StateOf};
use crate::ir::{Counter, CounterId, KeepState, Ruleset, StateName, StateRule, StateRuleId};

/// The states for which packets have been looked up last (`struct ipfw_dyn_info`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Looked {
    #[default]
    NotYet,
    Any,
    /// Those of one name, by its number.
    Name(usize),
}

impl Looked {
    /// Whether a rule that looks for these states has to do so (`DYN_LOOKUP_NEEDED`).
    pub(super) fn needs(self, looks: Self) -> bool {
        match self {
            Self::NotYet => true,
            Self::Any => false,
            Self::Name(_) => self != looks,
        }
    }
}

/// The rules that keep states or look for them.
pub(super) struct StateRules {
    names: Vec<String>,
    /// What each rule looks for.
    looks: Vec<Option<Looked>>,
    /// How each rule keeps states.
    keeps: Vec<Option<KeepState>>,
    /// The rules that keep states, in the order of the ruleset's state_rules, and the states that they keep.
    rules: Vec<(usize, Looked)>,
    /// The rules behind those that keep states and let packets go on.
    continuations: Vec<usize>,
}

impl StateRules {
    pub(super) fn new(rules: &[Rule], counters: &[CounterId], ruleset: &mut Ruleset) -> Self {
        let mut state_rules = Self {
            names: Vec::new(),
            looks: Vec::new(),
            keeps: Vec::new(),
            rules: Vec::new(),
            continuations: Vec::new(),
        };
        state_rules.looks =
            rules.iter().map(|rule| Some(state_rules.number(rule.checks()?))).collect();
        if rules.iter().all(|rule| rule.keep.is_none()) {
            state_rules.keeps = vec![None; rules.len()];
            return state_rules;
        }
        let mut named = |name: &str| {
            ruleset.add_counter(Counter { name: Some(name.to_owned()), ..Counter::default() })
        };
        let over_limit = named("ipfw connections beyond a limit");
        let full = named("ipfw connections without room for their state");
        for (index, (rule, counter)) in rules.iter().zip(counters).enumerate() {
            let Some(keep) = &rule.keep else {
                state_rules.keeps.push(None);
                continue;
            };
            let is_equal = |other: &&StateRule| other.rule == rule.text;
            let state_rule = StateRule {
                rule: rule.text.clone(),
                nth: ruleset.state_rules.iter().filter(is_equal).count() as u32,
                name: keep.name.clone(),
                limit: keep.limit,
            };
            let number = StateRuleId(ruleset.state_rules.len());
            ruleset.state_rules.push(state_rule);
            state_rules.keeps.push(Some(KeepState {
                state_rule: number,
                counter: *counter,
                over_limit,
                full,
            }));
            let kept = state_rules.number(StateOf::Name(keep.name.clone()));
            state_rules.rules.push((index, kept));
            if !matches!(rule.action, Action::Allow | Action::Deny | Action::Reject(_)) {
                state_rules.continuations.push(index + 1);
            }
        }
        state_rules
    }

    fn number(&mut self, of: StateOf) -> Looked {
        let StateOf::Name(name) = of else { return Looked::Any };
        let known = self.names.iter().position(|known| *known == name);
        Looked::Name(known.unwrap_or_else(|| {
            self.names.push(name);
            self.names.len() - 1
        }))
    }

    /// The states that a rule looks for before anything else.
    pub(super) fn looks(&self, index: usize) -> Option<Looked> {
        self.looks[index]
    }

    /// How a rule keeps states.
    pub(super) fn keep(&self, index: usize) -> Option<KeepState> {
        self.keeps[index]
    }

    /// The rules that keep states, each if it keeps those that are looked for.
    pub(super) fn rules(&self, looked: Looked) -> Vec<Option<usize>> {
        let keeps = |(index, kept): &(usize, Looked)| {
            (looked == Looked::Any || looked == *kept).then_some(*index)
        };
        self.rules.iter().map(keeps).collect()
    }

    /// The rules at which packets with a state go on.
    pub(super) fn continuations(&self) -> impl Iterator<Item = usize> {
        self.continuations.iter().copied()
    }

    /// The name that a lookup is for; `None` for any.
    pub(super) fn name(&self, looked: Looked) -> Option<StateName> {
        match looked {
            Looked::Name(number) => Some(StateName::of(&self.names[number])),
            Looked::Any | Looked::NotYet => None,
        }
    }

    /// The part of a chain's name that says for which states its packets have been looked up.
    pub(super) fn describe(&self, looked: Looked) -> String {
        match looked {
            Looked::NotYet => String::new(),
            Looked::Any => " checked".to_owned(),
            Looked::Name(number) => format!(" checked :{}", self.names[number]),
        }
    }
}
