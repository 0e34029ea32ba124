//! Rules as people wrote them: each once, though a front end may make several of one, or more around it.

use std::collections::HashMap;

use super::coverage::{Coverage, Covered, coverage};
use super::ir::{Action, CounterId, Rule, Ruleset, Step};

/// Every rule that was written, in order: at the first chain that it is in, with the worst that is said of
/// it anywhere. What a front end has added itself is there only where it is the kernel's.
#[must_use]
pub fn listed(rules: &Ruleset) -> Vec<Covered<'_>> {
    let mut listed: Vec<Covered<'_>> = Vec::new();
    let mut known = HashMap::new();
    for covered in coverage(rules) {
        let is_kernels = matches!(covered.coverage, Coverage::Kernel(_));
        if covered.rule.is_added() && !is_kernels {
            continue;
        }
        let Some(own) = own(covered.rule) else {
            listed.push(covered);
            continue;
        };
        let index = *known.entry(own).or_insert(listed.len());
        match listed.get_mut(index) {
            None => listed.push(covered),
            Some(before) => {
                if rank(&before.coverage) < rank(&covered.coverage) {
                    before.coverage = covered.coverage;
                }
                // The one that counts stands for all.
                if counter(before.rule).is_none() {
                    before.rule = covered.rule;
                }
            }
        }
    }
    listed
}

/// What makes it the same rule: the line it was written in, or else the counter that all share.
fn own(rule: &Rule) -> Option<(Option<&str>, usize, Option<CounterId>, &str)> {
    let file = rule.place.file.as_deref();
    match (rule.place.line, counter(rule)) {
        (0, None) => None,
        (0, counter) => Some((file, 0, counter, &rule.text)),
        (line, _) => Some((file, line, None, "")),
    }
}

fn counter(rule: &Rule) -> Option<CounterId> {
    rule.steps.iter().find_map(|step| match step {
        Step::Do(Action::Count(counter)) => Some(*counter),
        _ => None,
    })
}

const fn rank(coverage: &Coverage) -> u8 {
    match coverage {
        Coverage::Elsewhere(_) => 0,
        Coverage::Compiled => 1,
        Coverage::Kernel(_) => 2,
    }
}

impl Rule {
    /// Says if a front end has added it itself: such a rule's text is in brackets.
    #[must_use]
    pub fn is_added(&self) -> bool {
        self.text.starts_with('(') && self.text.ends_with(')')
    }
}

impl Ruleset {
    /// Rules as they were written.
    #[must_use]
    pub fn rule_count(&self) -> usize {
        listed(self).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::{ipfw, iptables};

    fn told(rules: &Ruleset) -> Vec<(&str, &str)> {
        let listed = listed(rules).into_iter().map(|covered| {
            let verdict = match covered.coverage {
                Coverage::Elsewhere(_) => "elsewhere",
                Coverage::Compiled => "compiled",
                Coverage::Kernel(_) => "kernel",
            };
            (covered.rule.text.as_str(), verdict)
        });
        listed.collect()
    }

    #[test]
    fn a_rule_of_both_passes_is_listed_once() {
        let text = "add 100 skipto 300 tcp from any to any\nadd 200 allow ip from any to any in\n\
            add 300 count ip from any to any\nadd 400 reject ip from any to any\n";
        let rules = ipfw::read(text, "t").unwrap();
        assert_eq!(
            told(&rules),
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
    fn what_is_the_kernels_anywhere_is_told() {
        let text = "add 100 reject tcp from any to any layer2\nadd 200 allow ip from any to any\n";
        let rules = ipfw::read(text, "t").unwrap();
        let told = told(&rules);
        assert!(told.contains(&("(tells the sender)", "kernel")), "{told:?}");
        assert!(told.contains(&("200 allow ip from any to any", "compiled")), "{told:?}");
    }

    #[test]
    fn a_rule_with_a_guard_before_it_is_one() {
        let text = "*filter\n:FORWARD ACCEPT [0:0]\n\
            -A FORWARD -p tcp -m tcp --tcp-flags SYN SYN -j DROP\nCOMMIT\n";
        let rules = iptables::read(text, "t", crate::filter::ir::Family::Ip).unwrap();
        assert_eq!(rules.chains.iter().map(|chain| chain.rules.len()).sum::<usize>(), 3);
        let rule = "-A FORWARD -p tcp -m tcp --tcp-flags SYN SYN -j DROP";
        assert_eq!(told(&rules), [(rule, "compiled"), (":FORWARD ACCEPT", "compiled")]);
    }
}
