//! Carries counts over when rules are read again.

use std::collections::HashMap;

use super::ir::{Action, CounterId, Ruleset, Step};

/// Returns, for each counter of the new rules, the number of the counter in the old rules whose count it
/// continues. A named counter continues the one of its name. Another counter continues if the old rules have
/// the same rule: the same chain and text, and the same position among equals.
#[must_use]
pub fn carried(before: Option<&Ruleset>, after: Option<&Ruleset>) -> Vec<Option<u32>> {
    let Some(after) = after else { return Vec::new() };
    let known: HashMap<_, _> = before.map(keys).unwrap_or_default().into_iter().rev().collect();
    let mut carried = vec![None; after.counters.len()];
    for (key, counter) in keys(after) {
        if let Some(slot) = carried.get_mut(counter.0).filter(|slot| slot.is_none()) {
            *slot = known.get(&key).and_then(|counter| u32::try_from(counter.0).ok());
        }
    }
    carried
}

/// What identifies a counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key<'a> {
    Name(&'a str),
    Rule {
        chain: &'a str,
        text: String,
        /// Position among the rules of this chain and text.
        nth: usize,
        /// Position among the rule's counters.
        counter: usize,
    },
}

/// All counters; a counter that several rules share appears once for each of them.
fn keys(rules: &Ruleset) -> Vec<(Key<'_>, CounterId)> {
    let named = rules.counters.iter().enumerate().filter_map(|(number, counter)| {
        Some((Key::Name(counter.name.as_deref()?), CounterId(number)))
    });
    let mut keys: Vec<_> = named.collect();
    for chain in &rules.chains {
        let mut seen: HashMap<String, usize> = HashMap::new();
        for rule in &chain.rules {
            let text = without_counts(&rule.text);
            let nth = seen.entry(text.clone()).or_default();
            *nth += 1;
            let counters = rule.steps.iter().filter_map(|step| match step {
                Step::Do(Action::Count(counter)) => Some(*counter),
                _ => None,
            });
            let own = counters.filter(|id| rules.counters[id.0].name.is_none()).enumerate();
            keys.extend(own.map(|(counter, id)| {
                let key = Key::Rule { chain: &chain.name, text: text.clone(), nth: *nth, counter };
                (key, id)
            }));
        }
    }
    keys
}

/// A rule's text without the counts at the time of writing (`packets 5 bytes 300`, `[5:300]`), so that the
/// rule compares equal.
fn without_counts(text: &str) -> String {
    let mut kept = Vec::new();
    let mut words = text.split(' ').peekable();
    while let Some(word) = words.next() {
        let is_number = |word: &&str| word.bytes().all(|byte| byte.is_ascii_digit());
        let is_after_counter = kept.last() == Some(&"counter") || kept.last() == Some(&"packets");
        let is_count = matches!(word, "packets" | "bytes") && is_after_counter;
        if is_count && words.next_if(is_number).is_some() {
            // A placeholder, so that `bytes` finds it.
            if word == "packets" {
                kept.push(word);
            }
            continue;
        }
        let is_pair = word.starts_with('[')
            && word.ends_with(']')
            && word.bytes().all(|byte| byte.is_ascii_digit() || b"[:]".contains(&byte));
        if !is_pair {
            kept.push(word);
        }
    }
    kept.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{Chain, Counter, Family, Place, Rule};

    /// A ruleset of one chain whose rules each have a counter, some of them named.
    fn rules(texts: &[(&str, Option<&str>)]) -> Ruleset {
        let mut rules = Ruleset::default();
        let mut chain = Chain::new("inet filter forward", Family::Inet);
        for (text, name) in texts {
            let name = name.map(str::to_owned);
            let known = rules.counters.iter().position(|c| name.is_some() && c.name == name);
            let counter = match known {
                Some(number) => CounterId(number),
                None => rules.add_counter(Counter { name, ..Counter::default() }),
            };
            chain.rules.push(Rule {
                place: Place::default(),
                text: (*text).to_owned(),
                steps: vec![Step::Do(Action::Count(counter))],
            });
        }
        rules.add_chain(chain);
        rules
    }

    #[test]
    fn counts_go_with_their_rule_or_name() {
        let before = rules(&[("a", None), ("b", None), ("a", None), ("x", Some("n")), ("d", None)]);
        let after = rules(&[("y", Some("n")), ("c", None), ("a", None), ("a", None), ("a", None)]);
        let carried = carried(Some(&before), Some(&after));
        assert_eq!(carried, [Some(3), None, Some(0), Some(2), None]);
        assert_eq!(super::carried(None, Some(&after)), [None; 5]);
        assert_eq!(super::carried(Some(&before), None), []);
        assert_eq!(
            super::carried(Some(&before), Some(&before)),
            [Some(0), Some(1), Some(2), Some(3), Some(4)]
        );
    }

    #[test]
    fn a_rule_of_another_chain_is_another() {
        let before = rules(&[("a", None)]);
        let mut after = before.clone();
        after.chains[0].name.push('2');
        assert_eq!(carried(Some(&before), Some(&after)), [None]);
    }

    #[test]
    fn counts_are_not_part_of_a_rule() {
        let plain = without_counts("tcp dport 22 counter packets 12 bytes 720 drop");
        assert_eq!(plain, without_counts("tcp dport 22 counter packets 0 bytes 0 drop"));
        assert_eq!(without_counts("[5:300] -A x -j y"), without_counts("[0:0] -A x -j y"));
        let limit = |n| without_counts(&format!("limit rate 5/second burst {n} packets"));
        assert_ne!(limit(5), limit(6));
        let over = |n| without_counts(&format!("quota over {n} bytes drop"));
        assert_ne!(over(5), over(6));
    }
}
