//! The line of rules: every chain at its place.

use tollway_dataplane::stages::filter::{Condition, MOST_RULES, Op, Rule, Rules};

use super::Link;
use super::conditions::{Holds, Resolver};
use super::live::Live;
use super::parts::Part;
use crate::filter::ir::{
    Base, Chain, ChainId, Family, Hook, Match, Policy, Ruleset, Selector, Test, Verdict,
};

/// There is no room for more rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMany;

/// A place in the line, known before it is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label(u32);

/// The line in the making; all that leads anywhere has labels in place of rules' numbers.
pub(super) struct Layout<'a> {
    pub(super) resolver: Resolver<'a>,
    rules: Vec<Rule>,
    /// The rule of each label.
    labels: Vec<u32>,
    /// Where each chain begins that is jumped to.
    starts: Vec<Label>,
    /// Where each base chain of these hooks begins, and where its policy is.
    bases: Vec<(Label, Label)>,
}

/// The chain that a rule is in.
#[derive(Clone, Copy)]
pub(super) struct Within {
    /// The number of the base chain, or none for one that is jumped to.
    base: Option<usize>,
}

impl<'a> Layout<'a> {
    pub(super) fn new(rules: &'a Ruleset, live: &'a Live, links: &'a [Link], version: u8) -> Self {
        let resolver = Resolver { rules, live, links, version };
        let mut layout = Self {
            resolver,
            rules: Vec::new(),
            labels: Vec::new(),
            starts: Vec::new(),
            bases: Vec::new(),
        };
        layout.starts = rules.chains.iter().map(|_| layout.label()).collect();
        layout
    }

    /// The line for hooks that follow each other; none where no chain is for these packets.
    pub(super) fn line(mut self, hooks: &[Hook]) -> Option<Result<Rules, TooMany>> {
        let rules = self.resolver.rules;
        let all = hooks.iter().flat_map(|hook| rules.base_chains(*hook));
        let bases: Vec<_> = all.filter(|(id, _)| self.sees(&rules.chains[id.0])).collect();
        if bases.is_empty() {
            return None;
        }
        Some(self.place(&bases).map(|()| self.finish()))
    }

    fn sees(&self, chain: &Chain) -> bool {
        match (chain.family, self.resolver.version) {
            (Family::Bridge, _) => false,
            (family, 4) => family.has_ip4(),
            (family, _) => family.has_ip6(),
        }
    }

    fn place(&mut self, bases: &[(ChainId, &Base)]) -> Result<(), TooMany> {
        self.bases = bases.iter().map(|_| (self.label(), self.label())).collect();
        let rules = self.resolver.rules;
        for (number, (id, base)) in bases.iter().enumerate() {
            let within = Within { base: Some(number) };
            let (start, end) = self.bases[number];
            self.bind(start);
            self.only_devices(base, within)?;
            self.chain(&rules.chains[id.0], within)?;
            // The policy, and behind it where those go on that are accepted.
            self.bind(end);
            let accept = self.accept(within);
            let policy = match base.policy {
                Policy::Accept => accept.clone(),
                Policy::Drop => Op::Drop,
            };
            self.push(Vec::new(), vec![policy], None)?;
            self.push(Vec::new(), vec![accept], None)?;
        }
        for id in called(rules, bases) {
            self.bind(self.starts[id.0]);
            self.chain(&rules.chains[id.0], Within { base: None })?;
            self.push(Vec::new(), vec![Op::Return], None)?;
        }
        self.push(Vec::new(), vec![Op::Accept], None)
    }

    /// Sends packets of other devices on to the next base chain.
    fn only_devices(&mut self, base: &Base, within: Within) -> Result<(), TooMany> {
        if base.devices.is_empty() {
            return Ok(());
        }
        let selector = if base.hook == Hook::Egress { Selector::Output } else { Selector::Input };
        let others = Match {
            keys: vec![selector.into()],
            test: Test::Link(base.devices.clone()),
            negate: true,
        };
        match self.resolver.resolve(&others) {
            Holds::Any(any) => {
                for conditions in any {
                    self.push(conditions, vec![self.accept(within)], None)?;
                }
                Ok(())
            }
            Holds::Always => self.push(Vec::new(), vec![self.accept(within)], None),
            Holds::Never | Holds::Unless(..) => Ok(()),
        }
    }

    fn chain(&mut self, chain: &Chain, within: Within) -> Result<(), TooMany> {
        for rule in &chain.rules {
            let parts = super::parts::cut(self, rule, within)?;
            self.rule(parts)?;
        }
        Ok(())
    }

    /// Lays the parts of a rule down.
    fn rule(&mut self, parts: Vec<Part>) -> Result<(), TooMany> {
        let after = self.label();
        let count = parts.len();
        for (number, part) in parts.into_iter().enumerate() {
            let next = (number + 1 < count).then(|| self.label());
            for conditions in part.unless {
                self.push(conditions, vec![Op::Skip(after.0)], Some(after))?;
            }
            for (conditions, mut ops) in part.alternatives {
                if let Some(next) = next {
                    ops.push(Op::Skip(next.0));
                }
                self.push(conditions, ops, Some(after))?;
            }
            if let Some(next) = next {
                self.push(Vec::new(), vec![Op::Skip(after.0)], Some(after))?;
                self.bind(next);
            }
        }
        self.bind(after);
        Ok(())
    }

    /// What is done for a verdict; none to go on with the next rule.
    pub(super) fn verdict(&self, verdict: &Verdict, within: Within) -> Option<Op> {
        use tollway_dataplane::verdict::PuntReason;
        Some(match verdict {
            Verdict::Accept => self.accept(within),
            Verdict::Drop => Op::Drop,
            Verdict::Reject(_) => Op::Punt(PuntReason::Reject),
            Verdict::Unsupported(_) => Op::Punt(PuntReason::FilterUnsupported),
            Verdict::Continue => return None,
            Verdict::Return => Op::Return,
            Verdict::Jump(chain) => Op::Call(self.starts[chain.0].0),
            Verdict::Goto(chain) => Op::Skip(self.starts[chain.0].0),
        })
    }

    /// Where packets go on that are accepted.
    fn accept(&self, within: Within) -> Op {
        match within.base {
            _ if self.bases.len() == 1 => Op::Accept,
            None => Op::Leave,
            Some(base) => match self.bases.get(base + 1) {
                Some((start, end)) => Op::Chain { at: start.0, end: end.0 },
                None => Op::Accept,
            },
        }
    }

    fn label(&mut self) -> Label {
        self.labels.push(0);
        Label(self.labels.len() as u32 - 1)
    }

    fn bind(&mut self, label: Label) {
        self.labels[label.0 as usize] = self.rules.len() as u32;
    }

    /// Adds a rule; `next` is where it goes on if no op says so, else the rule behind it.
    fn push(
        &mut self,
        conditions: Vec<Condition>,
        ops: Vec<Op>,
        next: Option<Label>,
    ) -> Result<(), TooMany> {
        if self.rules.len() >= MOST_RULES {
            return Err(TooMany);
        }
        let next = next.map_or(u32::MAX, |label| label.0);
        self.rules.push(Rule { conditions, ops, next });
        Ok(())
    }

    /// Puts numbers in the place of labels.
    fn finish(self) -> Rules {
        let Self { mut rules, labels, bases, .. } = self;
        let place = |label: &mut u32| *label = labels[*label as usize];
        for (number, rule) in rules.iter_mut().enumerate() {
            rule.next = match rule.next {
                u32::MAX => number as u32 + 1,
                label => labels[label as usize],
            };
            for op in &mut rule.ops {
                match op {
                    Op::Skip(at) | Op::Call(at) => place(at),
                    Op::Chain { at, end } => {
                        place(at);
                        place(end);
                    }
                    _ => {}
                }
            }
        }
        let end = bases.first().map_or(0, |(_, end)| labels[end.0 as usize]);
        Rules { rules, end }
    }
}

/// Chains that are jumped to from base chains, callers first.
fn called(rules: &Ruleset, bases: &[(ChainId, &Base)]) -> Vec<ChainId> {
    // Depth first, each chain noted behind all that it leads to: callers first from the end.
    let (mut seen, mut order) = (vec![false; rules.chains.len()], Vec::new());
    let mut stack: Vec<_> = bases.iter().map(|(id, _)| (*id, false)).collect();
    while let Some((id, left)) = stack.pop() {
        if left {
            order.push(id);
        } else if !std::mem::replace(&mut seen[id.0], true) {
            stack.push((id, true));
            stack.extend(rules.exits(&rules.chains[id.0]).into_iter().map(|(id, _)| (id, false)));
        }
    }
    order.reverse();
    order.retain(|id| bases.iter().all(|(base, _)| base != id));
    order
}
