//! Which rules may see forwarded packets, or packets that the kernel sends because of them.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use tollway_firewall::nft::json::text;

/// A chain: family, table, name.
type ChainPlace<'v> = [&'v str; 3];

/// Which chains see more than packets for the host itself.
pub(super) struct Reach<'v> {
    /// Chains that other packets may reach.
    reached: HashSet<ChainPlace<'v>>,
    /// All chains of the listing.
    all: HashSet<ChainPlace<'v>>,
    /// Whether a verdict leads to a chain that is not in the listing.
    is_open: bool,
}

impl<'v> Reach<'v> {
    /// Follows all verdicts of a listing, starting at the base chains of hooks other than input.
    pub(super) fn of(objects: &[(&str, &'v Value)]) -> Self {
        let of_kind = |wanted: &'static str| {
            objects.iter().filter(move |(kind, _)| *kind == wanted).map(|(_, object)| *object)
        };
        let all = of_kind("chain").map(|chain| place(chain, text(chain, "name"))).collect();
        let mut reach = Self { reached: HashSet::new(), all, is_open: false };
        let mut next = Vec::new();
        for chain in of_kind("chain") {
            if chain.get("hook").is_some() && text(chain, "hook") != "input" {
                next.push(place(chain, text(chain, "name")));
            }
        }
        // A rule of any chain may look up a map.
        for map in of_kind("map") {
            reach.targets(map, map, &mut next);
        }
        let mut rules: HashMap<ChainPlace<'v>, Vec<&'v Value>> = HashMap::new();
        for rule in of_kind("rule") {
            rules.entry(in_chain(rule)).or_default().push(rule);
        }
        while let Some(chain) = next.pop() {
            reach.reached.insert(chain);
            // Removed, so that each rule is followed once.
            for rule in rules.remove(&chain).into_iter().flatten() {
                reach.targets(rule, rule, &mut next);
            }
        }
        reach
    }

    /// Says whether packets that are not for the host may reach a rule.
    pub(super) fn reaches(&self, rule: &Value) -> bool {
        let chain = in_chain(rule);
        self.is_open || self.reached.contains(&chain) || !self.all.contains(&chain)
    }

    /// The chains to which the verdicts of a rule or a map lead.
    fn targets(&mut self, of: &'v Value, value: &'v Value, found: &mut Vec<ChainPlace<'v>>) {
        match value {
            Value::Array(values) => values.iter().for_each(|one| self.targets(of, one, found)),
            Value::Object(members) => {
                for (name, inner) in members {
                    if matches!(name.as_str(), "jump" | "goto") {
                        match inner.get("target").and_then(Value::as_str) {
                            Some(target) => found.push(place(of, target)),
                            None => self.is_open = true,
                        }
                    } else {
                        self.targets(of, inner, found);
                    }
                }
            }
            _ => {}
        }
    }
}

fn place<'v>(object: &'v Value, chain: &'v str) -> ChainPlace<'v> {
    [text(object, "family"), text(object, "table"), chain]
}

fn in_chain(rule: &Value) -> ChainPlace<'_> {
    place(rule, text(rule, "chain"))
}
