//! Turns a list of numbered rules into chains.
//!
//! The module cuts the list at the targets of `skipto` and `call`; each piece is a chain that continues at the
//! next. In FreeBSD, `return` without a `call` before it does nothing. So a piece exists twice if packets can
//! reach it with and without a `call`. In the same way, a piece exists once for each name of states for which
//! packets that reach it have been looked up: `ipfw_chk` does not look them up again (`DYN_LOOKUP_NEEDED`).

use std::collections::{BTreeMap, BTreeSet};

use super::action::LAST;
use super::conditions::{Conditions, Pass, Sets};
use super::guard;
use super::list::List;
use super::nats::Nats;
use super::rule::{Action, RejectKind, Rule, Term, Test};
use super::state_rules::{Looked, StateRules};
use crate::ir::{
    Action as IrAction, Base, Chain, ChainId, CheckState, Counter, CounterId, Family, Field, Log,
    Match, Place, Policy, Ruleset, Step, Verdict,
};

/// Turns the content of a file into the intermediate form.
pub(super) fn chains(list: &List, file: &str) -> Ruleset {
    let active = list.rules.iter().filter(|rule| list.disabled >> rule.set & 1 == 0);
    let mut rules: Vec<Rule> = active.cloned().collect();
    rules.push(last(list.open));
    let mut ruleset = Ruleset::default();
    let counters = rules.iter().map(|rule| {
        let (packets, bytes) = rule.counts;
        ruleset.add_counter(Counter { name: None, packets, bytes })
    });
    let counters: Vec<_> = counters.collect();
    let guards = guard::Counters::new(&mut ruleset);
    let nats = Nats::new(list, &rules, file, &mut ruleset);
    let state_rules = StateRules::new(&rules, &counters, &mut ruleset);
    let mut sets = Sets::new(&list.tables);
    for pass in passes(&rules) {
        let mut conditions = Conditions { pass, sets: &mut sets, rules: &mut ruleset };
        let matches = rules.iter().map(|rule| conditions.rule(rule)).collect();
        let targets = targets(&rules);
        let mut cut = Cut {
            rules: &rules,
            counters: &counters,
            state_rules: &state_rules,
            nats: &nats,
            file,
            pass,
            matches,
            cuts: targets.iter().flatten().copied().chain(state_rules.continuations()).collect(),
            targets,
            ruleset: &mut ruleset,
            made: BTreeMap::new(),
            rejecting: BTreeMap::new(),
            keeping: BTreeMap::new(),
            waiting: Vec::new(),
        };
        cut.base(&guards);
    }
    ruleset
}

/// The rule that always exists.
fn last(open: bool) -> Rule {
    let action = if open { Action::Allow } else { Action::Deny };
    let word = if open { "allow" } else { "deny" };
    Rule {
        number: LAST,
        set: 31,
        span: 0..0,
        line: 0,
        text: format!("{LAST} {word} ip from any to any"),
        log: false,
        action,
        log_name: String::new(),
        blocks: Vec::new(),
        keep: None,
        counts: (0, 0),
    }
}

/// The passes of a packet. Layer 2 is included only if a rule concerns it, as if `net.link.ether.ipfw` were
/// set then.
pub(super) fn passes(rules: &[Rule]) -> Vec<Pass> {
    let about = |term: &Term| matches!(term.test, Test::Layer2 | Test::Mac(_) | Test::EtherType(_));
    let ether = rules.iter().flat_map(|rule| rule.blocks.iter().flatten()).any(about);
    let passes = [Pass::EtherIn, Pass::In, Pass::Out, Pass::EtherOut];
    passes.into_iter().filter(|pass| ether || !pass.is_ether()).collect()
}

/// For each rule that jumps, its target: the first rule of that number or a higher one.
fn targets(rules: &[Rule]) -> Vec<Option<usize>> {
    let find = |number: u16| rules.partition_point(|rule| rule.number < number);
    let target = |rule: &Rule| match rule.action {
        // Never backwards.
        Action::Skipto(to) => Some(find(to.max(rule.number.saturating_add(1)))),
        Action::Call(to) => Some(find(to)),
        _ => None,
    };
    rules.iter().map(target).collect()
}

/// How packets have come to a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Way {
    /// By a call.
    called: bool,
    /// The states that have been looked for, without success.
    looked: Looked,
}

/// The list of one pass, being cut.
struct Cut<'a> {
    rules: &'a [Rule],
    counters: &'a [CounterId],
    state_rules: &'a StateRules,
    nats: &'a Nats,
    file: &'a str,
    pass: Pass,
    /// The conditions of each rule; `None` for one that never matches in this pass.
    matches: Vec<Option<Vec<Step>>>,
    targets: Vec<Option<usize>>,
    /// The rules at which chains begin.
    cuts: BTreeSet<usize>,
    ruleset: &'a mut Ruleset,
    /// Chains by their first rule, and how packets come there.
    made: BTreeMap<(usize, Way), ChainId>,
    /// Chains that reject packets.
    rejecting: BTreeMap<RejectKind, ChainId>,
    /// For packets with a state: the chains of the rules that keep states.
    keeping: BTreeMap<Way, Vec<Option<ChainId>>>,
    waiting: Vec<(usize, Way, ChainId)>,
}

impl Cut<'_> {
    fn base(&mut self, guards: &guard::Counters) {
        let ether = self.pass.is_ether();
        let family = if ether { Family::Netdev } else { Family::Inet };
        let mut chain = Chain::new(format!("ipfw {}", self.pass.name()), family);
        let base = Base::new(self.pass.hook(), 0, Policy::Drop);
        chain.base = Some(Base { only_sound: true, ..base });
        let id = self.ruleset.add_chain(chain);
        let mut rules = guards.rules();
        rules.extend(self.piece(0, Way::default()));
        self.ruleset.chains[id.0].rules = rules;
        while let Some((first, way, id)) = self.waiting.pop() {
            self.ruleset.chains[id.0].rules = self.piece(first, way);
        }
    }

    /// The chain that begins with a rule.
    fn chain(&mut self, first: usize, way: Way) -> ChainId {
        if let Some(id) = self.made.get(&(first, way)) {
            return *id;
        }
        let what = if way.called { " called" } else { "" };
        let looked = self.state_rules.describe(way.looked);
        let name = format!("ipfw {} {}{what}{looked}", self.pass.name(), self.rules[first].number);
        let id = self.add(name, Vec::new());
        self.made.insert((first, way), id);
        self.waiting.push((first, way, id));
        id
    }

    fn add(&mut self, name: String, rules: Vec<crate::ir::Rule>) -> ChainId {
        let family = if self.pass.is_ether() { Family::Netdev } else { Family::Inet };
        let mut chain = Chain::new(name, family);
        chain.rules = rules;
        self.ruleset.add_chain(chain)
    }

    /// The rules from `first` to the next cut, or to one that ends all packets.
    fn piece(&mut self, first: usize, mut way: Way) -> Vec<crate::ir::Rule> {
        let mut piece = Vec::new();
        for index in first..self.rules.len() {
            if index > first && self.cuts.contains(&index) {
                piece.push(self.goes_on(index, way));
                break;
            }
            if let Some(looks) = self.state_rules.looks(index)
                && way.looked.needs(looks)
            {
                way.looked = looks;
                piece.push(self.check_state(index, way));
            }
            let Some(mut steps) = self.matches[index].clone() else { continue };
            let all = steps.is_empty();
            steps.extend(self.state_rules.keep(index).map(Step::KeepState));
            let defers = self.rules[index].keep.as_ref().is_some_and(|keep| keep.defers);
            let ends = match defers {
                true => Some(false),
                false => self.action(index, way, &mut steps),
            };
            let Some(ends) = ends else { continue };
            let text = self.rules[index].text.clone();
            piece.push(self.written(index, text, steps));
            if all && ends {
                break;
            }
        }
        piece
    }

    /// The rule that leads to the chain that begins with another.
    fn goes_on(&mut self, index: usize, way: Way) -> crate::ir::Rule {
        let text = format!("(goes on at {})", self.rules[index].number);
        let next = self.chain(index, way);
        self.written(index, text, vec![Step::Verdict(Verdict::Goto(next))])
    }

    /// The rule that looks for packets' states.
    fn check_state(&mut self, index: usize, way: Way) -> crate::ir::Rule {
        let text = match self.rules[index].action {
            Action::CheckState(_) => self.rules[index].text.clone(),
            _ => "(looks for states)".to_owned(),
        };
        let name = self.state_rules.name(way.looked);
        let check = CheckState { name, chains: self.keeping(way) };
        self.written(index, text, vec![Step::CheckState(check)])
    }

    /// The chains of the rules that keep states which packets have just been looked up for: what these rules do,
    /// without their conditions.
    fn keeping(&mut self, way: Way) -> Vec<Option<ChainId>> {
        if let Some(chains) = self.keeping.get(&way) {
            return chains.clone();
        }
        let state_rules = self.state_rules.rules(way.looked);
        let looked = self.state_rules.describe(way.looked);
        let what = if way.called { " called" } else { "" };
        let chains: Vec<_> = state_rules
            .iter()
            .map(|index| {
                let number = self.rules[(*index)?].number;
                let pass = self.pass.name();
                Some(self.add(format!("ipfw {pass} states of {number}{what}{looked}"), Vec::new()))
            })
            .collect();
        self.keeping.insert(way, chains.clone());
        for (index, id) in state_rules.into_iter().flatten().zip(chains.iter().flatten()) {
            let mut steps = Vec::new();
            let ends = self.action(index, way, &mut steps) == Some(true);
            let text = format!("(states of {})", self.rules[index].number);
            let mut rules = vec![self.written(index, text, steps)];
            if !ends {
                rules.push(self.goes_on(index + 1, way));
            }
            self.ruleset.chains[id.0].rules = rules;
        }
        chains
    }

    fn written(&self, index: usize, text: String, steps: Vec<Step>) -> crate::ir::Rule {
        let rule = &self.rules[index];
        let file = (rule.line > 0).then(|| self.file.to_owned());
        let place = Place { file, line: rule.line, handle: Some(rule.number.into()) };
        crate::ir::Rule { place, text, steps }
    }

    /// Adds the steps of a rule's action. Returns whether no packet goes on to the next rule; `None` if the
    /// rule does nothing here, not even count.
    fn action(&mut self, index: usize, way: Way, steps: &mut Vec<Step>) -> Option<bool> {
        let rule = &self.rules[index];
        let (action, ether) = (rule.action.clone(), self.pass.is_ether());
        match action {
            Action::CheckState(_) => return None,
            Action::Return if !way.called => return None,
            Action::Forward(_) if ether => return (!steps.is_empty()).then_some(false),
            Action::Dscp(_) if ether => {
                steps.push(Step::Match(guard::is_ip()));
            }
            _ => {}
        }
        steps.push(Step::Do(IrAction::Count(self.counters[index])));
        if rule.log {
            let prefix = format!("ipfw: {} {}", rule.number, rule.log_name);
            steps.push(Step::Do(IrAction::Log(Log { prefix, group: None })));
        }
        let verdict = match action {
            Action::Allow => Verdict::Accept,
            Action::Deny => Verdict::Drop,
            Action::Reject(kind) => Verdict::Goto(self.rejecting(kind)),
            Action::Count | Action::CheckState(_) => Verdict::Continue,
            Action::Fib(fib) => {
                steps.push(Step::Do(IrAction::Fib(fib)));
                Verdict::Continue
            }
            Action::Dscp(dscp) => {
                steps.push(Step::Do(IrAction::Dscp(dscp)));
                Verdict::Continue
            }
            Action::Forward(via) => Verdict::Goto(self.forward(index, via)),
            // As with `net.inet.ip.fw.one_pass`.
            Action::Nat(number) => {
                steps.extend(self.nats.step(number, self.pass));
                Verdict::Accept
            }
            Action::Skipto(_) => Verdict::Goto(self.target(index, way)),
            Action::Call(_) => self.call(index, way),
            Action::Return => Verdict::Return,
            Action::Pipe => Verdict::Unsupported("pipes are not there yet".to_owned()),
        };
        let ends = !matches!(verdict, Verdict::Continue | Verdict::Jump(_));
        if verdict != Verdict::Continue {
            steps.push(Step::Verdict(verdict));
        }
        Some(ends)
    }

    fn target(&mut self, index: usize, way: Way) -> ChainId {
        self.chain(self.targets[index].unwrap_or(self.rules.len() - 1), way)
    }

    /// A call returns to the first rule of a higher number, which may not be the next one.
    fn call(&mut self, index: usize, way: Way) -> Verdict {
        let sub = self.target(index, Way { called: true, ..way });
        let number = self.rules[index].number;
        let after = self.rules.partition_point(|rule| rule.number <= number);
        if after == index + 1 {
            return Verdict::Jump(sub);
        }
        self.cuts.insert(after);
        let back = self.chain(after, way);
        let text = self.rules[index].text.clone();
        let rules = vec![
            self.written(index, text, vec![Step::Verdict(Verdict::Jump(sub))]),
            self.written(
                index,
                format!("(comes back at {})", self.rules[after].number),
                vec![Step::Verdict(Verdict::Goto(back))],
            ),
        ];
        Verdict::Goto(self.add(format!("ipfw {} call {number}", self.pass.name()), rules))
    }

    /// The chain that rejects a packet this way.
    fn rejecting(&mut self, kind: RejectKind) -> ChainId {
        if let Some(id) = self.rejecting.get(&kind) {
            return *id;
        }
        let id = self.add(format!("ipfw {} {kind:?}", self.pass.name()), guard::rejecting(kind));
        self.rejecting.insert(kind, id);
        id
    }

    /// The chain that sends packets of the neighbour's version of IP to it; it accepts others.
    fn forward(&mut self, index: usize, via: std::net::IpAddr) -> ChainId {
        let version = if via.is_ipv4() { 4 } else { 6 };
        let text = format!("(fwd {via})");
        let sends = vec![
            Step::Match(Match::is(Field::IpVersion, version)),
            Step::Do(IrAction::Forward { via, link: None }),
            Step::Verdict(Verdict::Accept),
        ];
        let rules = vec![
            self.written(index, text, sends),
            self.written(index, "(goes)".to_owned(), vec![Step::Verdict(Verdict::Accept)]),
        ];
        let number = self.rules[index].number;
        self.add(format!("ipfw {} fwd {number}", self.pass.name()), rules)
    }
}
