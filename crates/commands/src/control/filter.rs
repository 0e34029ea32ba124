//! Listing the firewall's rules with their counters.

use std::collections::HashMap;

use tollway_dataplane::stages::filter::{Count, Filter as Compiled};

use super::message::{Filter, FilterChain, FilterCounter, FilterRule, FilterSet};
use tollway_firewall::ir::{
    Base, Chain, CounterId, Elements, Family, Hook, LinkPattern, Policy, Rule, Ruleset,
};
use tollway_firewall::listing::listed;
use tollway_firewall::offload::{Offload, RuleOffload};

/// Lists the rules with their counters; `counts` is indexed by [`CounterId`]. A set that changes
/// while packets flow has as many elements as the active set.
pub(super) fn describe(
    rules: Option<&Ruleset>,
    installed: Option<&Compiled>,
    counts: &[Count],
) -> Filter {
    let Some(rules) = rules else {
        return Filter { on: false, chains: vec![], counters: vec![], sets: vec![] };
    };
    let count = |id: CounterId| counts.get(id.0).copied().unwrap_or_default();
    let mut of_chain: HashMap<*const Chain, Vec<FilterRule>> = HashMap::new();
    for one in listed(rules) {
        of_chain.entry(one.chain).or_default().push(rule(&one, &count));
    }
    let chains = rules.chains.iter().filter_map(|chain| {
        let own = of_chain.remove(&std::ptr::from_ref(chain)).unwrap_or_default();
        // If all rules of a chain are listed elsewhere, a front end generated the chain.
        let is_shown = chain.base.is_some() || chain.rules.is_empty() || !own.is_empty();
        is_shown.then(|| self::chain(chain, own))
    });
    let chains = chains.collect();
    let counters = rules.counters.iter().enumerate().filter_map(|(number, counter)| {
        let Count { packets, bytes } = count(CounterId(number));
        Some(FilterCounter { name: counter.name.clone()?, packets, bytes })
    });
    let sets = rules.sets.iter().filter(|set| !set.name.is_empty()).map(|set| FilterSet {
        name: set.name.clone(),
        elements: match (installed.and_then(|filter| filter.live_set(&set.name)), &set.elements) {
            (Some(live), _) => live.count(),
            (None, Elements::Ranges(ranges)) => ranges.len(),
            (None, Elements::Tuples(tuples)) => tuples.len(),
        },
    });
    Filter { on: true, chains, counters: counters.collect(), sets: sets.collect() }
}

fn chain(chain: &Chain, rules: Vec<FilterRule>) -> FilterChain {
    let base = chain.base.as_ref();
    let devices = base.map_or(&[][..], |base| &base.devices);
    FilterChain {
        name: chain.name.clone(),
        family: family(chain.family).to_owned(),
        hook: base.map(|base| hook(base.hook).to_owned()),
        devices: devices.iter().map(device).collect(),
        priority: base.map(|base| base.priority),
        policy: base.map(|base| policy(base).to_owned()),
        rules,
    }
}

fn rule(one: &RuleOffload<'_>, count: &impl Fn(CounterId) -> Count) -> FilterRule {
    let Rule { place, text, .. } = one.rule;
    let count = one.rule.counter().map(count);
    FilterRule {
        file: place.file.clone(),
        line: (place.line > 0).then_some(place.line),
        handle: place.handle,
        text: text.clone(),
        verdict: match one.offload {
            Offload::Compiled => "compiled",
            Offload::Kernel(_) => "kernel",
            Offload::Elsewhere(_) => "elsewhere",
        }
        .to_owned(),
        packets: count.map(|count| count.packets),
        bytes: count.map(|count| count.bytes),
    }
}

fn policy(base: &Base) -> &'static str {
    match base.policy {
        Policy::Accept => "accept",
        Policy::Drop => "drop",
    }
}

fn device(pattern: &LinkPattern) -> String {
    match pattern {
        LinkPattern::Name(name) => name.clone(),
        LinkPattern::Prefix(prefix) => format!("{prefix}*"),
        LinkPattern::Vrf(vrf) => format!("VRF {vrf}"),
    }
}

const fn family(family: Family) -> &'static str {
    match family {
        Family::Ip => "ip",
        Family::Ip6 => "ip6",
        Family::Inet => "inet",
        Family::Netdev => "netdev",
        Family::Bridge => "bridge",
    }
}

const fn hook(hook: Hook) -> &'static str {
    match hook {
        Hook::Ingress => "ingress",
        Hook::Prerouting => "prerouting",
        Hook::Input => "input",
        Hook::Forward => "forward",
        Hook::Output => "output",
        Hook::Postrouting => "postrouting",
        Hook::Egress => "egress",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollway_firewall::ir::{Action, Counter, Field, Place, Range, Set, Step, Verdict};

    #[test]
    fn rules_come_with_their_counts_and_chains_with_their_hook() {
        let mut rules = Ruleset::default();
        rules.add_set(Set {
            name: "inet t bad".to_owned(),
            key: vec![Field::Source4.into()],
            dynamic: false,
            elements: Elements::Ranges(vec![Range::one(1), Range::one(5)]),
        });
        let own = rules.add_counter(Counter::default());
        let named = rules.add_counter(Counter { name: Some("web".into()), ..Counter::default() });
        let rule =
            |text: &str, steps| Rule { place: Place::handle(7), text: text.to_owned(), steps };
        let mut chain = Chain::new("inet t forward", Family::Inet);
        chain.base = Some(Base::new(Hook::Forward, -5, Policy::Drop));
        chain.rules = vec![
            rule("counter accept", vec![Step::Do(Action::Count(own))]),
            rule("counter name web", vec![Step::Do(Action::Count(named))]),
            rule("drop", vec![Step::Verdict(Verdict::Drop)]),
        ];
        rules.add_chain(chain);
        rules.add_chain(Chain::new("inet t loose", Family::Inet));
        let counts = [Count { packets: 3, bytes: 300 }, Count { packets: 4, bytes: 444 }];
        let described = describe(Some(&rules), None, &counts);
        let [forward, loose] = &described.chains[..] else { panic!("{described:?}") };
        assert_eq!(
            (forward.hook.as_deref(), forward.priority, forward.policy.as_deref()),
            (Some("forward"), Some(-5), Some("drop"))
        );
        assert_eq!((&loose.hook, &loose.policy), (&None, &None));
        let counted: Vec<_> =
            forward.rules.iter().map(|rule| (rule.packets, rule.bytes, rule.handle)).collect();
        assert_eq!(
            counted,
            [(Some(3), Some(300), Some(7)), (Some(4), Some(444), Some(7)), (None, None, Some(7))]
        );
        assert_eq!(
            described.counters,
            [FilterCounter { name: "web".to_owned(), packets: 4, bytes: 444 }]
        );
        assert_eq!(described.sets, [FilterSet { name: "inet t bad".to_owned(), elements: 2 }]);
        assert!(!describe(None, None, &[]).on);
    }
}
