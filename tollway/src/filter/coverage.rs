//! Who decides by each rule: the fast road, the kernel because of what the rule wants, or the kernel
//! because the rule's packets are not on the fast road.

use super::ir::{Chain, Datum, Elements, Family, Hook, Rule, Ruleset, Step};
use super::listing::listed;
use super::undone::{At, LINES};
use crate::mistake::{Mistake, quoted};

/// Who decides by a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// The fast road.
    Compiled,
    /// The kernel, for packets that come to this rule, and why.
    Kernel(String),
    /// Whoever has the rule's packets, which are not on the fast road, and why.
    Elsewhere(&'static str),
}

/// A rule, where it is, and who decides by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Covered<'a> {
    /// The rule's chain.
    pub chain: &'a Chain,
    /// The rule.
    pub rule: &'a Rule,
    /// Who decides by it.
    pub coverage: Coverage,
}

/// Says of every rule who decides by it, in the order of the ruleset, which [`Ruleset::check`] has found
/// right.
#[must_use]
pub fn coverage(rules: &Ruleset) -> Vec<Covered<'_>> {
    let roads = roads(rules);
    let chains = rules.chains.iter().zip(roads);
    let covered = chains.flat_map(|(chain, road)| {
        chain.rules.iter().map(move |rule| {
            let coverage = match &road {
                Road::Fast(at) => match unsupported(rules, rule, *at) {
                    None => Coverage::Compiled,
                    Some(why) => Coverage::Kernel(why.to_owned()),
                },
                Road::Other(why) => Coverage::Elsewhere(why),
            };
            Covered { chain, rule, coverage }
        })
    });
    covered.collect()
}

/// The rules that only a kernel could decide by, as mistakes: for a router whose rules are a file's, and
/// which has no kernel to ask.
#[must_use]
pub fn refusals(rules: &Ruleset, file: &str) -> Vec<Mistake> {
    let kernels = listed(rules).into_iter().filter_map(|covered| match covered.coverage {
        Coverage::Kernel(why) => Some(refusal(covered.chain, covered.rule, &why, file)),
        Coverage::Compiled | Coverage::Elsewhere(_) => None,
    });
    kernels.collect()
}

fn refusal(chain: &Chain, rule: &Rule, why: &str, file: &str) -> Mistake {
    let file = rule.place.file.clone().unwrap_or_else(|| file.to_owned());
    let rule_of = match rule.place.handle {
        Some(handle) if rule.place.line == 0 => format!("rule {handle} of {}", chain.name),
        _ => format!("the rule of {}", chain.name),
    };
    let what = format!("{rule_of}, {}, can not be done: {why}", quoted(&rule.text));
    let remedy =
        "take it out or write it in another way: behind this file there is no kernel to decide";
    Mistake::placeless(file, rule.place.line, what, remedy)
}

/// Whether the packets of a chain are on the fast road.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Road {
    Fast(At),
    Other(&'static str),
}

/// The road of each chain: that of the base chains that lead to it.
fn roads(rules: &Ruleset) -> Vec<Road> {
    let mut roads = vec![Road::Other("nothing leads to this chain"); rules.chains.len()];
    for (index, chain) in rules.chains.iter().enumerate() {
        let Some(base) = &chain.base else { continue };
        let road = road(rules, base.hook, chain.family);
        let (mut seen, mut stack) = (vec![false; rules.chains.len()], vec![index]);
        while let Some(index) = stack.pop() {
            if std::mem::replace(&mut seen[index], true) {
                continue;
            }
            roads[index] = match (&roads[index], &road) {
                (Road::Fast(one), Road::Fast(other)) => Road::Fast(one.or(*other)),
                (Road::Fast(_), Road::Other(_)) => continue,
                _ => road.clone(),
            };
            stack.extend(rules.exits(&rules.chains[index]).into_iter().map(|(chain, _)| chain.0));
        }
    }
    roads
}

fn road(rules: &Ruleset, hook: Hook, family: Family) -> Road {
    match (family, hook) {
        (Family::Bridge, _) => Road::Other("not on this router's way: it has no bridges"),
        (_, Hook::Input) => Road::Other("hook input: packets for this host are its kernel's"),
        (_, Hook::Output) => Road::Other("hook output: packets of this host are its kernel's"),
        _ => {
            let line = LINES.into_iter().find(|line| line.contains(&hook));
            Road::Fast(At::of(rules, line.unwrap_or_default()))
        }
    }
}

/// Why a rule can not be done exactly, if so.
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

    use crate::filter::ir::{Action, Base, ChainId, Log, Place, Policy, Reject, Verdict};

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
    fn a_chain_is_on_the_road_if_any_base_chain_of_the_road_leads_to_it() {
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
        let told: Vec<_> = coverage(&rules).into_iter().map(|covered| covered.coverage).collect();
        let input = Coverage::Elsewhere("hook input: packets for this host are its kernel's");
        assert_eq!(
            told,
            [
                input.clone(),
                Coverage::Compiled,
                input.clone(),
                input,
                Coverage::Compiled,
                Coverage::Kernel("connection tracking".to_owned()),
                Coverage::Elsewhere("nothing leads to this chain"),
                Coverage::Elsewhere("not on this router's way: it has no bridges"),
            ]
        );
        let refused: Vec<_> = refusals(&rules, "t").iter().map(ToString::to_string).collect();
        assert_eq!(
            refused,
            [
                "r.nft:6: the rule of both, \"rule 6\", can not be done: connection tracking; take it out \
              or write it in another way: behind this file there is no kernel to decide"
            ]
        );
    }

    #[test]
    fn verdicts_of_the_kernels_are_found_in_maps() {
        use crate::filter::ir::{Element, Item, Range, Selector, Set};
        let mut rules = Ruleset::default();
        let datum = Datum::Verdict(Verdict::Unsupported("queue".to_owned()));
        let map = rules.add_set(Set {
            name: String::new(),
            key: vec![Selector::Protocol.into()],
            dynamic: false,
            elements: Elements::Tuples(vec![Element {
                key: vec![Item::Range(Range::one(6))],
                datum: Some(datum),
            }]),
        });
        let steps = vec![Step::VerdictMap { keys: vec![Selector::Protocol.into()], map }];
        let mut rule = rule(0, steps);
        rule.place = Place::handle(9);
        rules.add_chain(chain("forward", Some(Hook::Forward), Family::Ip, vec![rule]));
        let refused = refusals(&rules, "t.nft");
        assert!(
            refused[0]
                .to_string()
                .starts_with("t.nft: rule 9 of forward, \"rule 0\", can not be done: queue; "),
            "{refused:?}"
        );
    }

    #[test]
    fn what_flatten_leaves_to_the_kernel_is_told() {
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
            let lines: Vec<_> = refusals(&rules, "t").iter().map(|told| told.line).collect();
            lines
        };
        assert_eq!(refused(&[Hook::Ingress]), [1, 2, 3]);
        assert_eq!(refused(&[Hook::Prerouting, Hook::Forward]), [0; 0]);
        assert_eq!(refused(&[Hook::Forward]), [0; 0]);
        // The link that it leaves by is not the one that hook egress is asked for.
        assert_eq!(refused(&[Hook::Forward, Hook::Egress]), [3]);
    }
}
