//! Finds which chains of a table lead to which, and from which hooks.

use super::file::Table;
use super::target::Effect;
use crate::ir::{Hook, MOST_JUMPS};
use crate::mistake::Ledger;

/// Jumps that the front end itself adds behind the deepest chain.
const OWN_JUMPS: usize = 2;

/// What the chains that lead to a chain imply for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reach {
    /// Packets without a known egress link reach it.
    pub(super) before_route: bool,
    /// Packets with a known egress link reach it.
    pub(super) after_route: bool,
    /// Its greatest depth in jumps.
    depth: usize,
}

impl Reach {
    /// Says whether a jump from here is deeper than the intermediate form allows.
    pub(super) const fn is_deepest(self) -> bool {
        self.depth + OWN_JUMPS >= MOST_JUMPS
    }
}

/// Examines all chains; `None` if they form a circle, which is a mistake.
pub(super) fn reaches(table: &Table, ledger: &mut Ledger<'_>) -> Option<Vec<Reach>> {
    let order = callers_first(table, ledger)?;
    let mut reaches = vec![Reach::default(); table.chains.len()];
    for chain in order {
        if let Some((hook, ..)) = table.chains[chain].base {
            let reach = &mut reaches[chain];
            let before = matches!(hook, Hook::Prerouting | Hook::Input);
            reach.before_route = before;
            reach.after_route = !before;
        }
        let from = reaches[chain];
        for line in &table.chains[chain].rules {
            let Effect::Chain(name) = &line.rule.effect else { continue };
            let Some(target) = table.position(name) else { continue };
            let reach = &mut reaches[target];
            reach.before_route |= from.before_route;
            reach.after_route |= from.after_route;
            reach.depth = reach.depth.max(from.depth + usize::from(!line.rule.goto));
        }
    }
    Some(reaches)
}

/// The position of a walk in a chain.
struct Walk {
    chain: usize,
    rule: usize,
}

fn callers_first(table: &Table, ledger: &mut Ledger<'_>) -> Option<Vec<usize>> {
    let (mut order, mut seen) = (Vec::new(), vec![false; table.chains.len()]);
    let mut is_open = vec![false; table.chains.len()];
    let mut sound = true;
    for first in 0..table.chains.len() {
        let mut walks = vec![Walk { chain: first, rule: 0 }];
        if std::mem::replace(&mut seen[first], true) {
            continue;
        }
        is_open[first] = true;
        while let Some(walk) = walks.last_mut() {
            let chain = &table.chains[walk.chain];
            let Some(line) = chain.rules.get(walk.rule) else {
                is_open[walk.chain] = false;
                order.push(walk.chain);
                walks.pop();
                continue;
            };
            walk.rule += 1;
            let Effect::Chain(name) = &line.rule.effect else { continue };
            let Some(target) = table.position(name) else { continue };
            if is_open[target] {
                let what = format!("the chain {name} leads to itself");
                ledger.relation(line.rule.target.clone(), what, "take one of the jumps out");
                sound = false;
            } else if !std::mem::replace(&mut seen[target], true) {
                is_open[target] = true;
                walks.push(Walk { chain: target, rule: 0 });
            }
        }
    }
    order.reverse();
    sound.then_some(order)
}
