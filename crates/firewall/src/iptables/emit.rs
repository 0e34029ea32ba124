//! Turns parsed tables into the intermediate form.
//!
//! A rule becomes several. Before it come guards, which drop the packets that one of its matches would drop
//! for a truncated header. A guard has the conditions that the kernel checks before that match. Most guards
//! are omitted, because one above in the chain covers more packets.

use super::check::Check;
use super::file::{self, Line, Table};
use super::graph::{self, Reach};
use super::header::has_extensions;
use super::names::family_name;
use super::target::{self, Effect};
use crate::ir::{
    Action, Base, Chain, ChainId, ChainKind, Counter, CounterId, Family, Field, LinkPattern, Match,
    NatTarget, NatVerdict, Place, Policy, Range, Rule, Ruleset, Step, Verdict,
};
use crate::mistake::{Fault, Ledger, quoted};

/// Builds a ruleset from tables.
pub(super) fn ruleset(
    tables: &[Table],
    saver: Saver,
    file: &str,
    family: Family,
    ledger: &mut Ledger<'_>,
) -> Ruleset {
    let mut emit =
        Emitter { rules: Ruleset::default(), saver, file, family, ledger, headers: None };
    emit.rules.past_auth = saver == Saver::Legacy;
    let reached: Vec<_> = tables
        .iter()
        .filter_map(|table| Some((table, graph::reaches(table, emit.ledger)?)))
        .collect();
    for (table, reaches) in &reached {
        emit.table(table, reaches);
    }
    emit.rules.with_tracking()
}

/// The program that saved the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Saver {
    /// x_tables.
    Legacy,
    /// nf_tables, some of whose matches do not drop truncated headers.
    Nft,
}

/// Builds a ruleset from the tables of one save.
struct Emitter<'e, 'l> {
    rules: Ruleset,
    saver: Saver,
    file: &'e str,
    family: Family,
    ledger: &'e mut Ledger<'l>,
    /// The chain for packets with extension headers: it drops broken ones.
    headers: Option<ChainId>,
}

/// The chain being built.
struct CurrentChain<'t> {
    table: &'t Table,
    ids: &'t [Option<ChainId>],
    id: ChainId,
    reach: Reach,
    /// The policy of a built-in chain and its counter.
    policy: Option<(Policy, CounterId)>,
    /// Guards above that hold for everything after them.
    guards: Vec<(Vec<Step>, Step)>,
}

/// What a rule has checked so far.
#[derive(Default)]
struct Checked {
    steps: Vec<Step>,
    /// The conditions before the first limit: later guards must not use the limit up.
    before_limit: Option<Vec<Step>>,
    /// Why the rest is unsupported.
    unsupported: Option<String>,
}

impl Checked {
    /// The conditions of a guard with more conditions added.
    fn and(&self, more: Vec<Step>) -> Vec<Step> {
        [self.before_limit.as_ref().unwrap_or(&self.steps).clone(), more].concat()
    }

    fn not_output(&mut self, pattern: &LinkPattern, reach: Reach) {
        match reach {
            Reach { before_route: true, after_route: true, .. } => {
                let why = "! -o is checked before the route is known and after it";
                self.unsupported.get_or_insert_with(|| why.to_owned());
            }
            Reach { before_route: true, .. } => {}
            _ => {
                let one = Match::link(Field::Output, pattern.clone()).negated();
                self.steps.push(Step::Match(one));
            }
        }
    }
}

/// What a guard does with packets.
enum GuardAction {
    Drop,
    Unsupported(String),
}

impl Emitter<'_, '_> {
    fn table(&mut self, table: &Table, reaches: &[Reach]) {
        let ids: Vec<_> = table.chains.iter().map(|chain| self.declare(table, chain)).collect();
        for ((chain, reach), id) in table.chains.iter().zip(reaches).zip(&ids) {
            let Some(id) = *id else { continue };
            let policy = chain.base.map(|(_, _, policy)| {
                let (packets, bytes) = chain.counts;
                let name = Some(format!("{} policy", self.rules.chains[id.0].name));
                let counter = Counter { name, packets, bytes };
                (policy, self.rules.add_counter(counter))
            });
            let mut current =
                CurrentChain { table, ids: &ids, id, reach: *reach, policy, guards: Vec::new() };
            for line in &chain.rules {
                self.line(&mut current, line);
            }
            if let Some((policy, counter)) = policy {
                let text = format!(":{} {}", chain.name, policy_name(policy));
                let place = Place::line(self.file, chain.line);
                let steps = vec![Step::Do(Action::Count(counter)), decide(policy)];
                self.rules.chains[id.0].rules.push(Rule { place, text, steps });
            }
        }
    }

    /// Adds a chain, unless it does nothing.
    fn declare(&mut self, table: &Table, chain: &file::Chain) -> Option<ChainId> {
        if chain.rules.is_empty() && matches!(chain.base, Some((_, _, Policy::Accept))) {
            return None;
        }
        let name = format!("{} {} {}", family_name(self.family), table.kind.name, chain.name);
        let mut added = Chain::new(name, self.family);
        added.base = chain.base.map(|(hook, priority, policy)| Base {
            kind: if table.is_nat() { ChainKind::Nat } else { ChainKind::Filter },
            ..Base::new(hook, priority, policy)
        });
        Some(self.rules.add_chain(added))
    }

    fn line(&mut self, current: &mut CurrentChain<'_>, line: &Line) {
        let checks = &line.rule.checks;
        let effect = self.effect(current, line);
        let is_unsupported =
            |check: &Check| matches!(check, Check::Unsupported(_) | Check::UnsupportedState(_));
        let punts = effect.is_err() || checks.iter().any(is_unsupported);
        let mut checked = Checked::default();
        for check in checks {
            match check {
                Check::Holds(step) => checked.steps.push(step.clone()),
                Check::Never => return,
                Check::NotOutput(pattern) => checked.not_output(pattern, current.reach),
                Check::Hotdrop(cases) => {
                    let then =
                        if self.drops(&checked) { GuardAction::Drop } else { GuardAction::short() };
                    self.guard(current, line, checked.and(any(cases)), then.step());
                }
                // In nf_tables, a packet with broken extension headers has no protocol and matches no rule.
                Check::Headers6 if self.saver == Saver::Nft => {}
                Check::Headers6 => {
                    let chain = self.headers();
                    let guard = checked.and(vec![Step::Match(has_extensions())]);
                    self.guard(current, line, guard, Step::Verdict(Verdict::Jump(chain)));
                }
                Check::KernelIf(one, why) => {
                    let guard = checked.and(vec![Step::Match(one.clone())]);
                    self.guard(current, line, guard, GuardAction::Unsupported(why.clone()).step());
                }
                Check::Limit(limit) if !punts => {
                    let limit = self.rules.add_limit(*limit);
                    checked.before_limit.get_or_insert_with(|| checked.steps.clone());
                    checked.steps.push(Step::Limit { limit, over: false });
                }
                Check::Unsupported(why) => {
                    checked.unsupported.get_or_insert_with(|| why.clone());
                }
                Check::Limit(_) | Check::UnsupportedState(_) => {
                    // Later checks of the kernel do not affect which packets get here.
                    let why = checked.unsupported.unwrap_or_else(|| first_reason(checks, &effect));
                    checked.steps.push(Step::Unsupported(why));
                    return self.push(current.id, line, checked.steps);
                }
            }
        }
        let Checked { mut steps, unsupported, .. } = checked;
        match (unsupported, effect) {
            (Some(why), _) | (None, Err(why)) => steps.push(Step::Unsupported(why)),
            (None, Ok(effect)) => {
                let (packets, bytes) = line.counts;
                let counter = self.rules.add_counter(Counter { name: None, packets, bytes });
                steps.push(Step::Do(Action::Count(counter)));
                steps.extend(effect);
            }
        }
        self.push(current.id, line, steps);
    }

    /// Says whether the next match certainly drops a truncated header.
    fn drops(&self, checked: &Checked) -> bool {
        checked.unsupported.is_none()
            && checked.before_limit.is_none()
            && self.saver == Saver::Legacy
    }

    fn push(&mut self, id: ChainId, line: &Line, steps: Vec<Step>) {
        let place = Place::line(self.file, line.number);
        self.rules.chains[id.0].rules.push(Rule { place, text: line.text.clone(), steps });
    }

    /// Adds a rule that keeps packets out of the next, unless one above already does.
    fn guard(&mut self, current: &mut CurrentChain<'_>, line: &Line, steps: Vec<Step>, then: Step) {
        let ends = |step: &Step| !matches!(step, Step::Verdict(Verdict::Jump(_)));
        let covers = |(guarded, effect): &(Vec<Step>, Step)| {
            let same = *effect == then || ends(effect) && ends(&then);
            same && guarded.iter().all(|step| steps.contains(step))
        };
        if current.guards.iter().any(covers) {
            return;
        }
        if !steps.iter().any(tests_written_field) {
            current.guards.push((steps.clone(), then.clone()));
        }
        let text = format!("{} # truncated headers", line.text);
        let place = Place::line(self.file, line.number);
        let steps = [steps, vec![then]].concat();
        self.rules.chains[current.id.0].rules.push(Rule { place, text, steps });
    }

    /// The steps after a rule's counter, or why they are unsupported.
    fn effect(&mut self, current: &CurrentChain<'_>, line: &Line) -> Result<Vec<Step>, String> {
        let nat = current.table.is_nat();
        Ok(match &line.rule.effect {
            Effect::Nothing => Vec::new(),
            Effect::Verdict(Verdict::Return) => match current.policy {
                Some((policy, counter)) => {
                    vec![Step::Do(Action::Count(counter)), decide(policy)]
                }
                None => vec![Step::Verdict(Verdict::Return)],
            },
            Effect::Verdict(Verdict::Nat(verdict)) => {
                if !nat {
                    return Err("only the table nat translates addresses".to_owned());
                }
                vec![Step::Verdict(Verdict::Nat(at(*verdict, current.reach)?))]
            }
            Effect::Verdict(verdict) if nat && *verdict != Verdict::Accept => {
                return Err("the nat table does not filter".to_owned());
            }
            Effect::Verdict(verdict) => vec![Step::Verdict(verdict.clone())],
            Effect::Act(action) => vec![Step::Do(action.clone())],
            Effect::Unsupported(why) => return Err(why.clone()),
            Effect::Chain(name) => vec![self.call(current, line, name)?],
        })
    }

    fn call(
        &mut self,
        current: &CurrentChain<'_>,
        line: &Line,
        name: &str,
    ) -> Result<Step, String> {
        let Some(position) = current.table.position(name) else {
            return match target::unsupported_target(name).filter(|_| !line.rule.goto) {
                Some(why) => Err(why),
                None => {
                    let what = format!("{} is no target and no chain of the table", quoted(name));
                    let fault = Fault::new(what, "declare it above with a line like :NAME - [0:0]");
                    self.ledger.value(line.rule.target.clone(), fault);
                    Err(String::new())
                }
            };
        };
        if let Some(stray) = &line.rule.stray {
            let fault = Fault::new(format!("the chain {name} has no options"), "take it out");
            self.ledger.value(stray.clone(), fault);
            return Err(String::new());
        }
        if current.table.chains[position].base.is_some() {
            let fault = Fault::new(
                format!("{name} is a built-in chain, which nothing leads to"),
                "give the rules that both need a chain of their own",
            );
            self.ledger.value(line.rule.target.clone(), fault);
            return Err(String::new());
        }
        let (Some(chain), false) = (current.ids[position], current.reach.is_deepest()) else {
            return Err("chains are nested too deep".to_owned());
        };
        Ok(Step::Verdict(match (line.rule.goto, current.policy) {
            (false, _) => Verdict::Jump(chain),
            (true, None) => Verdict::Goto(chain),
            (true, Some(policy)) => Verdict::Goto(self.and_policy(current, line, chain, policy)),
        }))
    }

    /// A chain that goes through another, then applies a policy: for a goto in a built-in chain.
    fn and_policy(
        &mut self,
        current: &CurrentChain<'_>,
        line: &Line,
        chain: ChainId,
        (policy, counter): (Policy, CounterId),
    ) -> ChainId {
        let name = format!("{} line {}", self.rules.chains[current.id.0].name, line.number);
        let added = self.rules.add_chain(Chain::new(name, self.family));
        self.push(added, line, vec![Step::Verdict(Verdict::Jump(chain))]);
        self.push(added, line, vec![Step::Do(Action::Count(counter)), decide(policy)]);
        added
    }

    /// The chain for IPv6 packets with extension headers: packets with valid headers return.
    fn headers(&mut self) -> ChainId {
        if let Some(chain) = self.headers {
            return chain;
        }
        let rule = |text: &str, steps| Rule { place: Place::default(), text: text.into(), steps };
        let any = Match::in_ranges(Field::Protocol, [Range::new(0, 255)]);
        let mut chain = Chain::new("ip6 extension headers", self.family);
        chain.rules = vec![
            rule("(sound headers)", vec![Step::Match(any), Step::Verdict(Verdict::Return)]),
            rule("(broken headers)", vec![GuardAction::Drop.step()]),
        ];
        let chain = self.rules.add_chain(chain);
        self.headers = Some(chain);
        chain
    }
}

impl GuardAction {
    fn short() -> Self {
        Self::Unsupported("a match needs a header that is truncated".to_owned())
    }

    fn step(self) -> Step {
        match self {
            Self::Drop => Step::Verdict(Verdict::Drop),
            Self::Unsupported(why) => Step::Unsupported(why),
        }
    }
}

/// What `NETMAP` translates where packets come to a rule.
fn at(mut verdict: NatVerdict, reach: Reach) -> Result<NatVerdict, String> {
    if let NatTarget::DestinationNetwork(first, last) = verdict.range.target {
        match reach {
            Reach { before_route: true, after_route: true, .. } => {
                return Err("NETMAP translates sources or destinations, and not both".to_owned());
            }
            Reach { after_route: true, .. } => {
                verdict.range.target = NatTarget::SourceNetwork(first, last);
            }
            _ => {}
        }
    }
    Ok(verdict)
}

/// All matches of at least one of these.
fn any(cases: &[Vec<Match>]) -> Vec<Step> {
    match cases {
        [all] => all.iter().cloned().map(Step::Match).collect(),
        _ => vec![Step::Any(cases.to_vec())],
    }
}

/// Says whether a step tests a field that rules write.
fn tests_written_field(step: &Step) -> bool {
    let of = |one: &Match| {
        let written =
            |field| matches!(field, Field::Mark | Field::TrafficClass | Field::Connection(_));
        one.keys.iter().any(|key| written(key.field))
    };
    match step {
        Step::Match(one) => of(one),
        Step::Any(any) => any.iter().flatten().any(of),
        _ => true,
    }
}

/// Why a rule is unsupported.
fn first_reason(checks: &[Check], effect: &Result<Vec<Step>, String>) -> String {
    let reason = checks.iter().find_map(|check| match check {
        Check::Unsupported(why) | Check::UnsupportedState(why) => Some(why.clone()),
        _ => None,
    });
    reason.or_else(|| effect.as_ref().err().cloned()).unwrap_or_default()
}

const fn policy_name(policy: Policy) -> &'static str {
    match policy {
        Policy::Accept => "ACCEPT",
        Policy::Drop => "DROP",
    }
}

const fn decide(policy: Policy) -> Step {
    Step::Verdict(match policy {
        Policy::Accept => Verdict::Accept,
        Policy::Drop => Verdict::Drop,
    })
}
