//! Checks that every ruleset must pass, regardless of the front end that produced it.

use super::{
    Chain, ChainId, Datum, Elements, Item, Key, Match, Range, Rule, Ruleset, Set, SetId, Step,
    Test, Verdict,
};

/// The deepest nesting of chains that jump to one another: nft's `NFT_JUMP_STACK_SIZE`.
pub const MOST_JUMPS: usize = 16;

/// What is wrong with a ruleset: the chain or set, the rule if there is one, and a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct IrError {
    /// The chain or set, with the rule's number from 1.
    pub place: String,
    /// What is wrong.
    pub problem: String,
}

impl Ruleset {
    /// Checks that numbers refer to something, ranges fit their fields, elements fit their sets, and jumps
    /// end.
    ///
    /// # Errors
    /// The first violation.
    pub fn check(&self) -> Result<(), IrError> {
        for set in &self.sets {
            self.check_set(set)
                .map_err(|problem| IrError { place: format!("set {}", set.name), problem })?;
        }
        for chain in &self.chains {
            for (index, rule) in chain.rules.iter().enumerate() {
                self.check_rule(rule).map_err(|problem| IrError {
                    place: format!("chain {}, rule {}", chain.name, index + 1),
                    problem,
                })?;
            }
        }
        self.check_jumps()
    }

    /// Walks the chains from those that no jump leads to, each after all that lead to it.
    fn check_jumps(&self) -> Result<(), IrError> {
        let edges: Vec<Vec<_>> = self.chains.iter().map(|chain| self.exits(chain)).collect();
        let mut callers = vec![0_usize; self.chains.len()];
        for (target, _) in edges.iter().flatten() {
            callers[target.0] += 1;
        }
        let mut depths = vec![0; self.chains.len()];
        let mut ready: Vec<_> = (0..callers.len()).filter(|chain| callers[*chain] == 0).collect();
        while let Some(chain) = ready.pop() {
            for (target, is_jump) in &edges[chain] {
                depths[target.0] = depths[target.0].max(depths[chain] + usize::from(*is_jump));
                callers[target.0] -= 1;
                if callers[target.0] == 0 {
                    ready.push(target.0);
                }
            }
        }
        let bad =
            (0..callers.len()).find(|chain| callers[*chain] > 0 || depths[*chain] > MOST_JUMPS);
        bad.map_or(Ok(()), |bad| {
            Err(IrError {
                place: format!("chain {}", self.chains[bad].name),
                problem: format!("is in a circle of jumps, or more than {MOST_JUMPS} jumps deep"),
            })
        })
    }

    /// Returns the chains that a chain's rules lead to, and whether control comes back.
    pub fn exits(&self, chain: &Chain) -> Vec<(ChainId, bool)> {
        let steps = chain.rules.iter().flat_map(|rule| &rule.steps);
        steps.flat_map(|step| self.targets(step)).collect()
    }

    /// Returns the chains that a step leads to, and whether control comes back.
    fn targets(&self, step: &Step) -> Vec<(ChainId, bool)> {
        let target = |verdict: &Verdict| match verdict {
            Verdict::Jump(chain) => Some((*chain, true)),
            Verdict::Goto(chain) => Some((*chain, false)),
            _ => None,
        };
        match step {
            Step::Verdict(verdict) => target(verdict).into_iter().collect(),
            Step::CheckState(check) => {
                check.chains.iter().flatten().map(|chain| (*chain, false)).collect()
            }
            Step::VerdictMap { map, .. } => match &self.sets[map.0].elements {
                Elements::Tuples(elements) => elements
                    .iter()
                    .filter_map(|element| match &element.datum {
                        Some(Datum::Verdict(verdict)) => target(verdict),
                        _ => None,
                    })
                    .collect(),
                Elements::Ranges(_) => Vec::new(),
            },
            _ => Vec::new(),
        }
    }

    fn check_set(&self, set: &Set) -> Result<(), String> {
        match &set.elements {
            Elements::Ranges(ranges) => {
                let [key] = &set.key[..] else {
                    return Err("has ranges for more than one key".to_owned());
                };
                ranges.iter().try_for_each(|range| check_range(*range, *key))
            }
            Elements::Tuples(elements) => elements.iter().try_for_each(|element| {
                if element.key.len() != set.key.len() {
                    return Err(format!(
                        "an element has {} parts and the set {}",
                        element.key.len(),
                        set.key.len()
                    ));
                }
                for (item, key) in element.key.iter().zip(&set.key) {
                    check_item(item, *key)?;
                }
                match &element.datum {
                    Some(Datum::Verdict(verdict)) => self.check_verdict(verdict),
                    _ => Ok(()),
                }
            }),
        }
    }

    fn check_rule(&self, rule: &Rule) -> Result<(), String> {
        rule.steps.iter().try_for_each(|step| self.check_step(step))
    }

    fn check_step(&self, step: &Step) -> Result<(), String> {
        match step {
            Step::Match(one) => self.check_match(one),
            Step::Any(any) => any.iter().flatten().try_for_each(|one| self.check_match(one)),
            Step::Limit { limit, .. } => {
                let limit = self.limits.get(limit.0).ok_or("has a limit that is not there")?;
                let makes_sense = limit.rate > 0 && limit.period_ns > 0 && limit.burst > 0;
                makes_sense
                    .then_some(())
                    .ok_or_else(|| "has a limit that lets nothing by".to_owned())
            }
            Step::Do(super::Action::Count(counter)) => match self.counters.get(counter.0) {
                Some(_) => Ok(()),
                None => Err("has a counter that is not there".to_owned()),
            },
            Step::Do(super::Action::Dscp(dscp)) if *dscp > 63 => {
                Err(format!("has a DSCP of {dscp}, which is over 63"))
            }
            Step::Map { keys, map, .. } => {
                self.check_lookup(keys, *map, |datum| matches!(datum, Some(Datum::Number(_))))
            }
            Step::VerdictMap { keys, map } => {
                self.check_lookup(keys, *map, |datum| matches!(datum, Some(Datum::Verdict(_))))
            }
            Step::Verdict(verdict) => self.check_verdict(verdict),
            Step::CheckState(check) => self.check_state(check),
            Step::KeepState(keep) => self.keep_state(keep),
            Step::Alias(alias) => self.check_alias(alias),
            Step::Do(_) | Step::Unsupported(_) => Ok(()),
        }
    }

    fn check_verdict(&self, verdict: &Verdict) -> Result<(), String> {
        match verdict {
            Verdict::Jump(chain) | Verdict::Goto(chain) => match self.chains.get(chain.0) {
                None => Err("leads to a chain that is not there".to_owned()),
                Some(chain) if chain.base.is_some() => {
                    Err(format!("leads to {}, which is a base chain", chain.name))
                }
                Some(_) => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn check_match(&self, one: &Match) -> Result<(), String> {
        match (&one.test, &one.keys[..]) {
            (Test::Ranges(ranges), [key]) if !key.field.is_link() => {
                ranges.iter().try_for_each(|range| check_range(*range, *key))
            }
            (Test::Link(_), [key]) if key.field.is_link() => Ok(()),
            (Test::Set(set), keys) => self.check_lookup(keys, *set, |_| true),
            _ => Err("compares something with what it cannot be".to_owned()),
        }
    }

    fn check_lookup(
        &self,
        keys: &[Key],
        set: SetId,
        datum: impl Fn(&Option<Datum>) -> bool,
    ) -> Result<(), String> {
        let set = self.sets.get(set.0).ok_or("has a set that is not there")?;
        let alike = |(key, own): (&Key, &Key)| key.field.is_link() == own.field.is_link();
        if keys.len() != set.key.len() || !keys.iter().zip(&set.key).all(alike) {
            return Err(format!("looks something else up than set {} has", set.name));
        }
        let sound = match &set.elements {
            Elements::Ranges(ranges) => ranges.is_empty() || datum(&None),
            Elements::Tuples(elements) => elements.iter().all(|element| datum(&element.datum)),
        };
        sound.then_some(()).ok_or_else(|| format!("map {} has data of another kind", set.name))
    }
}

fn check_item(item: &Item, key: Key) -> Result<(), String> {
    match (item, key.field.is_link()) {
        (Item::Range(range), false) => check_range(*range, key),
        (Item::Link(_), true) => Ok(()),
        _ => Err("an element is of another kind than the set".to_owned()),
    }
}

fn check_range(range: Range, key: Key) -> Result<(), String> {
    if range.first > range.last || range.last > key.field.max() {
        return Err(format!("{:#x} to {:#x} is no range of it", range.first, range.last));
    }
    Ok(())
}
