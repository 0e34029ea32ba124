//! The two forms of a ruleset: for packets on the user path, and for flows of known connections.

use std::collections::HashMap;

use crate::ir::{Match, Ruleset, SetId, Step, Test};

/// A ruleset in two forms. Their counters have the same numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forms {
    /// The rules for packets, of whose connections nothing is known: those that get to a step that tests or sets
    /// something of a connection take the kernel path.
    pub packets: Ruleset,
    /// The rules for flows of known connections, see [`Ruleset::for_connections`]; none if they are the same.
    pub connections: Option<Ruleset>,
}

/// Where a rule ends for packets, of whose connections nothing is known.
pub(super) struct PacketEnd {
    /// The numbers of the chain and of the rule in it.
    pub(super) rule: (usize, usize),
    /// The first step that tests or sets something of a connection.
    pub(super) at: usize,
    /// Why packets that get there take the kernel path.
    pub(super) why: String,
}

impl Forms {
    /// The forms of a ruleset that tests connections.
    pub(super) fn of(rules: Ruleset, ends: Vec<PacketEnd>) -> Self {
        if ends.is_empty() && !rules.differs_for_connections() {
            return Self { packets: rules, connections: None };
        }
        let connections = rules.clone().for_connections();
        let mut packets = rules;
        if !ends.is_empty() {
            for PacketEnd { rule: (chain, rule), at, why } in ends {
                let steps = &mut packets.chains[chain].rules[rule].steps;
                steps.truncate(at);
                steps.push(Step::Unsupported(why));
            }
            only_used_sets(&mut packets);
        }
        Self { packets, connections: Some(connections) }
    }
}

/// Removes the sets that no rule looks up. The others are in the order in which rules first do.
fn only_used_sets(rules: &mut Ruleset) {
    let mut all: Vec<_> = std::mem::take(&mut rules.sets).into_iter().map(Some).collect();
    let (mut kept, mut numbers) = (Vec::new(), HashMap::new());
    let mut keep = |set: &mut SetId| {
        *set = *numbers.entry(*set).or_insert_with(|| {
            kept.extend(all.get_mut(set.0).and_then(Option::take));
            SetId(kept.len() - 1)
        });
    };
    for step in
        rules.chains.iter_mut().flat_map(|chain| &mut chain.rules).flat_map(|rule| &mut rule.steps)
    {
        match step {
            Step::Match(one) => in_set(one).into_iter().for_each(&mut keep),
            Step::Any(any) => any.iter_mut().flatten().filter_map(in_set).for_each(&mut keep),
            Step::Map { map, .. } | Step::VerdictMap { map, .. } => keep(map),
            _ => {}
        }
    }
    rules.sets = kept;
}

fn in_set(one: &mut Match) -> Option<&mut SetId> {
    match &mut one.test {
        Test::Set(set) => Some(set),
        Test::Ranges(_) | Test::Link(_) => None,
    }
}
