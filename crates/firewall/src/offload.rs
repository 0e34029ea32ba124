//! Which path executes each rule. It is the fast path, or the kernel path because of the rule's conditions or
//! actions, or another path because the rule's packets never take the fast path.

use super::ir::{Chain, Datum, Elements, Family, Hook, Policy, Rule, Ruleset, Step, Verdict};
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
    rule.steps.iter().find_map(|step| unsupported_step(rules, step, at))
}

/// Why a step cannot be executed exactly, if so.
fn unsupported_step<'a>(rules: &'a Ruleset, step: &'a Step, at: At) -> Option<&'a str> {
    match step {
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
    }
}

/// Returns the rule that leaves all forwarded packets of an IP version to the kernel, if there is one: all of them
/// come to it, since no rule before it decides about any. [`Ruleset::check`] must have accepted the ruleset.
#[must_use]
pub fn kernel_for_all(rules: &Ruleset, is_ipv4: bool) -> Option<RuleOffload<'_>> {
    for hooks in POINTS {
        let at = At::of(rules, hooks);
        for (id, base) in hooks.iter().flat_map(|hook| rules.base_chains(*hook)) {
            let chain = &rules.chains[id.0];
            let sees_all = match chain.family {
                Family::Inet => true,
                Family::Ip if is_ipv4 => true,
                Family::Ip6 if !is_ipv4 => true,
                // Those of some devices.
                Family::Netdev => false,
                Family::Ip | Family::Ip6 | Family::Bridge => continue,
            };
            match first_decision(rules, chain, at) {
                Decision::Kernel(rule, why) if sees_all => {
                    return Some(RuleOffload { chain, rule, offload: Offload::Kernel(why) });
                }
                Decision::Some => return None,
                Decision::None if base.policy == Policy::Drop => return None,
                Decision::Kernel(..) | Decision::None => {}
            }
        }
    }
    None
}

/// What the rules of a chain decide first.
enum Decision<'a> {
    /// Nothing, but that the kernel path has some packets.
    None,
    /// The kernel path has all packets, because of this rule, and why.
    Kernel(&'a Rule, String),
    /// A verdict on some packets.
    Some,
}

fn first_decision<'a>(rules: &'a Ruleset, chain: &'a Chain, at: At) -> Decision<'a> {
    for rule in &chain.rules {
        let mut is_for_all = true;
        for step in &rule.steps {
            match (step, unsupported_step(rules, step, at)) {
                (Step::VerdictMap { .. }, _) => return Decision::Some,
                (_, Some(why)) if is_for_all => return Decision::Kernel(rule, why.to_owned()),
                (_, Some(_)) | (Step::Verdict(Verdict::Continue), None) => break,
                (Step::Verdict(_), None) => return Decision::Some,
                (Step::Do(_), None) => {}
                (_, None) => is_for_all = false,
            }
        }
    }
    Decision::None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    use crate::ir::{Action, Base, ChainId, Field, Log, Match, Place, Reject};
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
    fn a_rule_that_all_packets_come_to_leaves_all_to_the_kernel() {
        let udp = || Step::Match(Match::is(Field::Protocol, 17));
        let counts = || rule(1, vec![Step::Do(Action::Log(Log::default()))]);
        let some = || rule(2, vec![udp(), tracked()]);
        let all = || rule(3, vec![Step::Do(Action::Log(Log::default())), tracked(), udp()]);
        let drops = || rule(4, vec![udp(), Step::Verdict(Verdict::Drop)]);
        let found = |chains: Vec<Chain>| {
            let mut rules = Ruleset::default();
            chains.into_iter().for_each(|chain| _ = rules.add_chain(chain));
            assert_eq!(rules.check(), Ok(()));
            [true, false]
                .map(|is_ipv4| kernel_for_all(&rules, is_ipv4).map(|one| one.rule.place.line))
        };
        let at = |hook, family, rules| chain("c", Some(hook), family, rules);
        use Family::{Inet, Ip, Ip6, Netdev};
        use Hook::{Forward, Ingress, Input, Prerouting};
        let both = [Some(3), Some(3)];
        assert_eq!(found(vec![at(Forward, Inet, vec![counts(), some(), all(), drops()])]), both);
        assert_eq!(found(vec![at(Forward, Ip, vec![all()])]), [Some(3), None]);
        assert_eq!(found(vec![at(Forward, Inet, vec![some()])]), [None; 2]);
        assert_eq!(found(vec![at(Input, Inet, vec![all()])]), [None; 2]);
        assert_eq!(found(vec![at(Forward, Inet, vec![drops(), all()])]), [None; 2]);
        assert_eq!(found(vec![at(Ingress, Netdev, vec![all()])]), [None; 2]);
        let forward = || at(Forward, Inet, vec![all()]);
        assert_eq!(found(vec![forward(), at(Prerouting, Ip6, vec![drops()])]), [Some(3), None]);
        assert_eq!(found(vec![forward(), at(Ingress, Netdev, vec![drops()])]), [None; 2]);
        assert_eq!(found(vec![forward(), at(Prerouting, Inet, vec![counts(), some()])]), both);
        let mut closed = at(Prerouting, Ip, vec![counts()]);
        closed.base.as_mut().unwrap().policy = Policy::Drop;
        assert_eq!(found(vec![closed, forward()]), [None, Some(3)]);
    }

    #[test]
    fn verdicts_of_the_kernels_are_found_in_maps() {
        use crate::ir::{Element, Item, Range, Set};
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
