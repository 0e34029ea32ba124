//! The instances of a list in the intermediate form, and the steps of rules that translate by them.

use super::conditions::Pass;
use super::list::List;
use super::rule::{Action, Rule};
use crate::ir::{
    Alias, AliasId, AliasInstance, AliasPass, Counter, CounterId, Place, Ruleset, Step,
};

/// The instances of a list.
#[derive(Default)]
pub(super) struct Nats {
    /// Their numbers, in the order of the ruleset.
    numbers: Vec<u16>,
    /// Counts packets that are denied, and those for whose mapping there is no room.
    counters: Option<(CounterId, CounterId)>,
}

impl Nats {
    /// Adds the instances to a ruleset, if rules translate by them.
    pub(super) fn new(list: &List, rules: &[Rule], file: &str, ruleset: &mut Ruleset) -> Self {
        if !rules.iter().any(|rule| matches!(rule.action, Action::Nat(_))) {
            return Self::default();
        }
        let instances = list.nats.iter().map(|nat| AliasInstance {
            place: Place::line(file, nat.line),
            config: nat.config.clone(),
            link: nat.link.clone(),
        });
        ruleset.aliases = instances.collect();
        let mut named = |name: &str| {
            ruleset.add_counter(Counter { name: Some(name.to_owned()), ..Counter::default() })
        };
        let denied = named("ipfw nat without a mapping (deny_in)");
        let full = named("ipfw nat without room for a mapping");
        Self {
            numbers: list.nats.iter().map(|nat| nat.config.number).collect(),
            counters: Some((denied, full)),
        }
    }

    /// The step that translates a packet; none in passes of layer 2.
    pub(super) fn step(&self, number: Option<u16>, pass: Pass) -> Option<Step> {
        let (denied, full) = self.counters?;
        let pass = match pass {
            Pass::In => AliasPass::In,
            Pass::Out => AliasPass::Out,
            Pass::EtherIn | Pass::EtherOut => return None,
        };
        let instance = match number {
            Some(number) => Some(AliasId(self.numbers.iter().position(|one| *one == number)?)),
            None => None,
        };
        Some(Step::Alias(Alias { instance, pass, denied, full }))
    }
}
