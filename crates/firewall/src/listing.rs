//! Rules as written: each appears once, although a front end may turn one into several, or add others.

use std::collections::HashMap;

use super::ir::{Action, Chain, CounterId, Rule, Ruleset, Step};
use super::offload::{Offload, RuleOffload, offload};
use crate::mistake::{Mistake, quoted};

/// Returns every rule as written, in order: at the first chain that contains it, with the worst result of any
/// chain. A rule that a front end has added is included only if it takes the kernel path.
#[must_use]
pub fn listed(rules: &Ruleset) -> Vec<RuleOffload<'_>> {
    let mut listed: Vec<RuleOffload<'_>> = Vec::new();
    let mut known = HashMap::new();
    for one in offload(rules) {
        let is_kernels = matches!(one.offload, Offload::Kernel(_));
        if one.rule.is_added() && !is_kernels {
            continue;
        }
        let Some(own) = own(one.rule) else {
            listed.push(one);
            continue;
        };
        let index = *known.entry(own).or_insert(listed.len());
        match listed.get_mut(index) {
            None => listed.push(one),
            Some(before) => {
                if rank(&before.offload) < rank(&one.offload) {
                    before.offload = one.offload;
                }
                // The rule with the counter represents all.
                if before.rule.counter().is_none() {
                    before.rule = one.rule;
                }
            }
        }
    }
    listed
}

/// Returns the rules that only a kernel could execute, as mistakes. This is for a router that reads its
/// rules from a file, where no kernel has them too.
#[must_use]
pub fn refusals(rules: &Ruleset, file: &str) -> Vec<Mistake> {
    let kernels = listed(rules).into_iter().filter_map(|one| match one.offload {
        Offload::Kernel(why) => Some(refusal(one.chain, one.rule, &why, file)),
        Offload::Compiled | Offload::Elsewhere(_) => None,
    });
    kernels.collect()
}

fn refusal(chain: &Chain, rule: &Rule, why: &str, file: &str) -> Mistake {
    let file = rule.place.file.clone().unwrap_or_else(|| file.to_owned());
    let rule_of = match rule.place.handle {
        Some(handle) if rule.place.line == 0 => format!("rule {handle} of {}", chain.name),
        _ => format!("the rule of {}", chain.name),
    };
    let what = format!("{rule_of}, {}, cannot be done: {why}", quoted(&rule.text));
    let remedy =
        "take it out or write it in another way: behind this file there is no kernel to decide";
    Mistake::placeless(file, rule.place.line, what, remedy)
}

/// What identifies a rule as written: its line, or else the counter that all its copies share.
fn own(rule: &Rule) -> Option<(Option<&str>, usize, Option<CounterId>, &str)> {
    let file = rule.place.file.as_deref();
    match (rule.place.line, rule.counter()) {
        (0, None) => None,
        (0, counter) => Some((file, 0, counter, &rule.text)),
        (line, _) => Some((file, line, None, "")),
    }
}

const fn rank(offload: &Offload) -> u8 {
    match offload {
        Offload::Elsewhere(_) => 0,
        Offload::Compiled => 1,
        Offload::Kernel(_) => 2,
    }
}

impl Rule {
    /// The counter of the rule: the first one that it counts in.
    #[must_use]
    pub fn counter(&self) -> Option<CounterId> {
        self.steps.iter().find_map(|step| match step {
            Step::Do(Action::Count(counter)) => Some(*counter),
            _ => None,
        })
    }

    /// Says whether a front end has added it: such a rule's text is in brackets.
    #[must_use]
    pub fn is_added(&self) -> bool {
        self.text.starts_with('(') && self.text.ends_with(')')
    }
}

impl Ruleset {
    /// The number of rules as written.
    #[must_use]
    pub fn rule_count(&self) -> usize {
        listed(self).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ipfw, iptables};

    fn reported(rules: &Ruleset) -> Vec<(&str, &str)> {
        let listed = listed(rules).into_iter().map(|one| {
            let verdict = match one.offload {
                Offload::Elsewhere(_) => "elsewhere",
                Offload::Compiled => "compiled",
                Offload::Kernel(_) => "kernel",
            };
            (one.rule.text.as_str(), verdict)
        });
        listed.collect()
    }

    #[test]
    fn a_rule_of_both_passes_is_listed_once() {
        let text = "add 100 skipto 300 tcp from any to any\nadd 200 allow ip from any to any in\n\
            add 300 count ip from any to any\nadd 400 reject ip from any to any\n";
        let rules = ipfw::read(text, "t").unwrap();
        assert_eq!(
            reported(&rules),
            [
                ("100 skipto 300 tcp from any to any", "compiled"),
                ("200 allow ip from any to any in", "compiled"),
                ("300 count ip from any to any", "compiled"),
                ("400 reject ip from any to any", "compiled"),
            ]
        );
        assert_eq!(rules.rule_count(), 4);
    }

    #[test]
    fn a_rule_on_the_kernel_path_in_any_pass_is_reported() {
        let text = "add 100 reject tcp from any to any layer2\nadd 200 allow ip from any to any\n";
        let rules = ipfw::read(text, "t").unwrap();
        let reported = reported(&rules);
        assert!(reported.contains(&("(answers the sender)", "kernel")), "{reported:?}");
        assert!(reported.contains(&("200 allow ip from any to any", "compiled")), "{reported:?}");
    }

    #[test]
    fn a_rule_with_a_guard_before_it_is_one() {
        let text = "*filter\n:FORWARD ACCEPT [0:0]\n\
            -A FORWARD -p tcp -m tcp --tcp-flags SYN SYN -j DROP\nCOMMIT\n";
        let rules = iptables::read(text, "t", crate::ir::Family::Ip).unwrap();
        assert_eq!(rules.chains.iter().map(|chain| chain.rules.len()).sum::<usize>(), 3);
        let rule = "-A FORWARD -p tcp -m tcp --tcp-flags SYN SYN -j DROP";
        assert_eq!(reported(&rules), [(rule, "compiled"), (":FORWARD ACCEPT", "compiled")]);
    }
}
