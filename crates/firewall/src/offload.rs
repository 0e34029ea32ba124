//! Which path executes each rule. It is the fast path, or the kernel path because of the rule's conditions or
//! actions, or another path because the rule's packets never take the fast path.

use super::ir::{Chain, Datum, Elements, Family, Hook, Rule, Ruleset, Step};
use super::undone::{At, POINTS};

/// The path that executes a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offload {
    /// The fast path.
    Compiled,
    /// The kernel path, for packets that reach this rule, and why.
    Kernel(String),
    /// Another path, since the rule's packets never take the fast path, and why.
    Elsewhere(&'static str),
}

/// A rule, its chain, and the path that executes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleOffload<'a> {
    /// The rule's chain.
    pub chain: &'a Chain,
    /// The rule.
    pub rule: &'a Rule,
    /// The path that executes it.
    pub offload: Offload,
}

/// Returns the path of every rule, in the order of the ruleset. [`Ruleset::check`] must have accepted the
/// ruleset.
#[must_use]
pub fn offload(rules: &Ruleset) -> Vec<RuleOffload<'_>> {
    let hook_paths = hook_paths(rules);
    let chains = rules.chains.iter().zip(hook_paths);
    let offloads = chains.flat_map(|(chain, hook_path)| {
        chain.rules.iter().map(move |rule| {
            let offload = match &hook_path {
                HookPath::Fast(at) => match unsupported(rules, rule, *at) {
                    None => Offload::Compiled,
                    Some(why) => Offload::Kernel(why.to_owned()),
                },
                HookPath::Other(why) => Offload::Elsewhere(why),
            };
            RuleOffload { chain, rule, offload }
        })
    });
    offloads.collect()
}

/// Whether the packets of a chain take the fast path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum HookPath {
    Fast(At),
    Other(&'static str),
}

/// Returns for each chain what its base chains (those that lead to it) imply.
fn hook_paths(rules: &Ruleset) -> Vec<HookPath> {
    let mut hook_paths = vec![HookPath::Other("nothing leads to this chain"); rules.chains.len()];
    for (index, chain) in rules.chains.iter().enumerate() {
        let Some(base) = &chain.base else { continue };
        let hook_path = hook_path(rules, base.hook, chain.family);
        let (mut seen, mut stack) = (vec![false; rules.chains.len()], vec![index]);
        while let Some(index) = stack.pop() {
            if std::mem::replace(&mut seen[index], true) {
                continue;
            }
            hook_paths[index] = match (&hook_paths[index], &hook_path) {
                (HookPath::Fast(one), HookPath::Fast(other)) => HookPath::Fast(one.or(*other)),
                (HookPath::Fast(_), HookPath::Other(_)) => continue,
                _ => hook_path.clone(),
            };
            stack.extend(rules.exits(&rules.chains[index]).into_iter().map(|(chain, _)| chain.0));
        }
    }
    hook_paths
}

fn hook_path(rules: &Ruleset, hook: Hook, family: Family) -> HookPath {
    match (family, hook) {
        (Family::Bridge, _) => HookPath::Other("not on this router's way: it has no bridges"),
        (_, Hook::Input) => HookPath::Other("hook input: packets for this host go to its kernel"),
        (_, Hook::Output) => {
            HookPath::Other("hook output: packets of this host come from its kernel")
        }
        _ => {
            let line = POINTS.into_iter().find(|line| line.contains(&hook));
            HookPath::Fast(At::of(rules, line.unwrap_or_default()))
        }
    }
}

/// Why a rule cannot be executed exactly, if so.
fn unsupported<'a>(rules: &'a Ruleset, rule: &'a Rule, at: At) -> Option<&'a str> {
    rule.steps.iter().find_map(|step| match step {
        Step::Unsupported(why) => Some(why.as_str()),
        Step::Verdict(verdict) => at.verdict(verdict),
        Step::Do(action) => at.action(action),
        Step::VerdictMap { map, .. } => match &rules.sets[map.0].elements {
            Elements::Tuples(elements) => {
                elements.iter().find_map(|element| match &element.datum {
                    Some(Datum::Verdict(verdict)) => at.verdict(verdict),
                    _ => None,
                })
            }
            Elements::Ranges(_) => None,
        },
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    use crate::ir::{Action, Base, ChainId, Log, Place, Policy, Reject, Verdict};
    use crate::listing::refusals;

    fn rule(line: usize, steps: Vec<Step>) -> Rule {
        Rule { place: Place::line("r.nft", line), text: format!("rule {line}"), steps }
    }

    fn chain(name: &str, hook: Option<Hook>, family: Family, rules: Vec<Rule>) -> Chain {
        let mut chain = Chain::new(name, family);
        chain.base = hook.map(|hook| Base::new(hook, 0, Policy::Accept));
        chain.rules = rules;
        chain
    }

    fn tracked() -> Step {
        Step::Unsupported("connection tracking".to_owned())
    }

    #[test]
    fn a_chain_is_on_the_path_if_any_base_chain_of_the_path_leads_to_it() {
        let jump = |to| vec![Step::Verdict(Verdict::Jump(ChainId(to)))];
        let mut rules = Ruleset::default();
        let inet = Family::Inet;
        rules.add_chain(chain("input", Some(Hook::Input), inet, vec![rule(1, jump(2))]));
        rules.add_chain(chain("forward", Some(Hook::Forward), inet, vec![rule(2, jump(3))]));
        rules.add_chain(chain(
            "host",
            None,
            inet,
            vec![rule(3, vec![tracked()]), rule(4, jump(4))],
        ));
        rules.add_chain(chain("transit", None, inet, vec![rule(5, jump(4))]));
        rules.add_chain(chain("both", None, inet, vec![rule(6, vec![tracked()])]));
        rules.add_chain(chain("loose", None, inet, vec![rule(7, vec![tracked()])]));
        let bridged = vec![rule(8, vec![tracked()])];
        rules.add_chain(chain("bridge", Some(Hook::Forward), Family::Bridge, bridged));
        assert_eq!(rules.check(), Ok(()));
        let found: Vec<_> = offload(&rules).into_iter().map(|one| one.offload).collect();
        let input = Offload::Elsewhere("hook input: packets for this host go to its kernel");
        assert_eq!(
            found,
            [
                input.clone(),
                Offload::Compiled,
                input.clone(),
                input,
                Offload::Compiled,
                Offload::Kernel("connection tracking".to_owned()),
                Offload::Elsewhere("nothing leads to this chain"),
                Offload::Elsewhere("not on this router's way: it has no bridges"),
            ]
        );
        let refused: Vec<_> = refusals(&rules, "t").iter().map(ToString::to_string).collect();
        assert_eq!(
            refused,
            [
                "r.nft:6: the rule of both, \"rule 6\", cannot be done: connection tracking; take it out \
              or write it in another way: behind this file there is no kernel to decide"
            ]
        );
    }

    #[test]
    fn verdicts_of_the_kernels_are_found_in_maps() {
        use crate::ir::{Element, Field, Item, Range, Set};
        let mut rules = Ruleset::default();
        let datum = Datum::Verdict(Verdict::Unsupported("queue".to_owned()));
        let map = rules.add_set(Set {
            name: String::new(),
            key: vec![Field::Protocol.into()],
            dynamic: false,
            elements: Elements::Tuples(vec![Element {
                key: vec![Item::Range(Range::one(6))],
                datum: Some(datum),
            }]),
        });
        let steps = vec![Step::VerdictMap { keys: vec![Field::Protocol.into()], map }];
        let mut rule = rule(0, steps);
        rule.place = Place::handle(9);
        rules.add_chain(chain("forward", Some(Hook::Forward), Family::Ip, vec![rule]));
        let refused = refusals(&rules, "t.nft");
        assert!(
            refused[0]
                .to_string()
                .starts_with("t.nft: rule 9 of forward, \"rule 0\", cannot be done: queue; "),
            "{refused:?}"
        );
    }

    #[test]
    fn rules_that_the_compiler_leaves_to_the_kernel_are_reported() {
        let via: IpAddr = "192.0.2.9".parse().unwrap();
        let does = || {
            vec![
                rule(1, vec![Step::Verdict(Verdict::Reject(Reject::TcpReset))]),
                rule(2, vec![Step::Do(Action::Fib(1))]),
                rule(3, vec![Step::Do(Action::Forward { via, link: None })]),
                rule(4, vec![Step::Do(Action::Log(Log::default()))]),
            ]
        };
        let refused = |hooks: &[Hook]| {
            let mut rules = Ruleset::default();
            rules.add_chain(chain("first", Some(hooks[0]), Family::Netdev, does()));
            for hook in &hooks[1..] {
                rules.add_chain(chain("other", Some(*hook), Family::Netdev, vec![]));
            }
            let lines: Vec<_> = refusals(&rules, "t").iter().map(|refusal| refusal.line).collect();
            lines
        };
        assert_eq!(refused(&[Hook::Ingress]), [1, 2, 3]);
        assert_eq!(refused(&[Hook::Prerouting, Hook::Forward]), [0; 0]);
        assert_eq!(refused(&[Hook::Forward]), [0; 0]);
        // Hook egress is evaluated with the egress link from before rule 3.
        assert_eq!(refused(&[Hook::Forward, Hook::Egress]), [3]);
    }
}
