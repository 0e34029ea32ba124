//! The program of rules: places every chain in it.

use tollway_dataplane::stages::filter::{Condition, MOST_RULES, Op, Rule, Rules};

use super::conditions::Holds;
use super::context::{EnclosingChain, Label, ProgramContext, TooMany};
use super::levels::Level;
use super::live::Live;
use super::parts::{Part, cut};
use crate::hops::hops;
use crate::ir::{
    self, Action, Base, Chain, ChainId, Family, Field, Hook, Match, Policy, Ruleset, Step, Test,
};
use crate::links::Link;
use crate::undone::At;

/// The program under construction; jumps refer to labels instead of rule numbers.
pub(super) struct Layout<'a> {
    context: ProgramContext<'a>,
    rules: Vec<Rule>,
    /// The rule number of each label.
    labels: Vec<u32>,
    /// The number of each rule's first log, by chain.
    logs: Vec<Vec<u32>>,
}

impl<'a> Layout<'a> {
    pub(super) fn new(
        ruleset: &'a Ruleset,
        live: &'a Live,
        levels: &'a [Level],
        version: u8,
        tracks: bool,
    ) -> Self {
        let context = ProgramContext {
            ruleset,
            live,
            levels,
            version,
            tracks,
            is_prerouting: false,
            at: At::default(),
            starts: Vec::new(),
            hops: hops(ruleset),
            bases: Vec::new(),
        };
        let mut layout =
            Self { context, rules: Vec::new(), labels: Vec::new(), logs: logs(ruleset) };
        for _ in levels {
            let starts = ruleset.chains.iter().map(|_| layout.label()).collect();
            layout.context.starts.push(starts);
        }
        layout
    }

    /// Compiles the program for these base chains of consecutive hooks; `None` if no chain sees these packets.
    pub(super) fn line(
        mut self,
        hooks: &[Hook],
        is_part: fn(&Base) -> bool,
    ) -> Option<Result<Rules, TooMany>> {
        let rules = self.context.ruleset;
        let all = hooks.iter().flat_map(|hook| rules.base_chains(*hook));
        let all = all.filter(|(_, base)| is_part(base));
        let bases: Vec<_> = all.filter(|(id, _)| self.sees(&rules.chains[id.0])).collect();
        if bases.is_empty() || self.context.levels.is_empty() {
            return None;
        }
        self.context.at = At::of(rules, hooks);
        self.context.is_prerouting = hooks.contains(&Hook::Prerouting);
        Some(self.place(&bases).map(|()| self.finish()))
    }

    fn sees(&self, chain: &Chain) -> bool {
        match (chain.family, self.context.version) {
            (Family::Bridge, _) => false,
            (family, 0) => family == Family::Netdev,
            (family, 4) => family.has_ip4(),
            (family, _) => family.has_ip6(),
        }
    }

    fn place(&mut self, bases: &[(ChainId, &Base)]) -> Result<(), TooMany> {
        let count = bases.len() * self.context.levels.len();
        self.context.bases = (0..count).map(|_| (self.label(), self.label())).collect();
        let rules = self.context.ruleset;
        for number in 0..count {
            let (level, (id, base)) = (number / bases.len(), bases[number % bases.len()]);
            let within = EnclosingChain { level, base: Some(number) };
            let (start, end) = self.context.bases[number];
            self.bind(start);
            if rules.tracking.is_some() && is_first_behind_tracking(bases, number % bases.len()) {
                self.push(Vec::new(), vec![Op::Track], None)?;
            }
            self.only_devices(base, within)?;
            self.only_sound(&rules.chains[id.0], base)?;
            self.chain(id, within)?;
            // The policy, followed by where accepted packets go on.
            self.bind(end);
            let accept = self.context.accept(within);
            let policy = match base.policy {
                Policy::Accept => accept.clone(),
                Policy::Drop => Op::Drop,
            };
            self.push(Vec::new(), vec![policy], None)?;
            self.push(Vec::new(), vec![accept], None)?;
        }
        for level in 0..self.context.levels.len() {
            for id in called(rules, bases) {
                self.bind(self.context.starts[level][id.0]);
                self.chain(id, EnclosingChain { level, base: None })?;
                self.push(Vec::new(), vec![Op::Return], None)?;
            }
        }
        self.push(Vec::new(), vec![Op::Accept], None)
    }

    /// Lets packets of other devices go on to the next base chain.
    fn only_devices(&mut self, base: &Base, within: EnclosingChain) -> Result<(), TooMany> {
        let levels = self.context.levels;
        let Some(level) = levels.get(within.level) else { return Ok(()) };
        let one_of = |field, links: Vec<usize>| {
            let ranges: Vec<_> = links.iter().map(|link| (*link as u128, *link as u128)).collect();
            Condition::new(field, ranges)
        };
        let input = |links| one_of(Field::Input, links);
        let is_device = |link: &Link| base.devices.iter().any(|device| link.is(device));
        let is_mine = |number: &usize| {
            let link = &level.inputs[*number];
            !link.name.is_empty() && (base.devices.is_empty() || is_device(link))
        };
        if matches!(base.hook, Hook::Ingress | Hook::Prerouting) {
            let others = input((0..level.inputs.len()).filter(|link| !is_mine(link)).collect());
            if !others.ranges.is_empty() {
                self.push(vec![others], vec![self.context.accept(within)], None)?;
            }
            // Rules there see nothing behind a second tag (`skb->protocol` is the tag's).
            let tagged = input(level.tagged.iter().copied().filter(is_mine).collect());
            if !tagged.ranges.is_empty() {
                self.push(vec![tagged], vec![Op::Unsupported], None)?;
            }
            return Ok(());
        }
        if base.devices.is_empty() {
            return Ok(());
        }
        if base.hook == Hook::Egress {
            // The packet meets the devices below as well, one after the other.
            let above = one_of(Field::Output, level.above(&base.devices));
            if !above.ranges.is_empty() {
                self.push(vec![above], vec![Op::Unsupported], None)?;
            }
        }
        let field = if base.hook == Hook::Egress { Field::Output } else { Field::Input };
        let others = Match {
            keys: vec![field.into()],
            test: Test::Link(base.devices.clone()),
            negate: true,
        };
        match self.context.resolver(within).resolve(&others) {
            Holds::Any(any) => {
                for conditions in any {
                    self.push(conditions, vec![self.context.accept(within)], None)?;
                }
                Ok(())
            }
            Holds::Always => self.push(Vec::new(), vec![self.context.accept(within)], None),
            Holds::Never | Holds::Unless(..) => Ok(()),
        }
    }

    /// Drops packets with inconsistent headers where the chain wants that, see [`Chain::is_only_sound`].
    fn only_sound(&mut self, chain: &Chain, base: &Base) -> Result<(), TooMany> {
        let may_be_unsound = match self.context.version {
            // Hook prerouting sees no IPv4 packet with inconsistent headers.
            4 => base.hook == Hook::Ingress,
            version => version == 6,
        };
        if !chain.is_only_sound() || !may_be_unsound {
            return Ok(());
        }
        let sound = self.label();
        let any = Condition::new(Field::Protocol, vec![(0, 255)]);
        self.push(vec![any], vec![Op::Skip(sound.0)], None)?;
        self.push(Vec::new(), vec![Op::Drop], None)?;
        self.bind(sound);
        Ok(())
    }

    fn chain(&mut self, id: ChainId, within: EnclosingChain) -> Result<(), TooMany> {
        let ruleset = self.context.ruleset;
        for (number, rule) in ruleset.chains[id.0].rules.iter().enumerate() {
            let log = self.logs[id.0][number];
            let parts = cut(&self.context, rule, within, log)?;
            self.rule(parts)?;
        }
        Ok(())
    }

    /// Adds the parts of a rule to the program.
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

    fn label(&mut self) -> Label {
        self.labels.push(0);
        Label(self.labels.len() as u32 - 1)
    }

    fn bind(&mut self, label: Label) {
        self.labels[label.0 as usize] = self.rules.len() as u32;
    }

    /// Adds a rule; `next` is where packets go on if no op decides, by default the following rule.
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

    /// Replaces labels by rule numbers.
    fn finish(self) -> Rules {
        let Self { context: ProgramContext { bases, .. }, mut rules, labels, .. } = self;
        let place = |label: &mut u32| *label = labels[*label as usize];
        for (number, rule) in rules.iter_mut().enumerate() {
            rule.next = match rule.next {
                u32::MAX => number as u32 + 1,
                label => labels[label as usize],
            };
            for op in &mut rule.ops {
                match op {
                    Op::Skip(at) | Op::Call(at) => place(at),
                    Op::CheckState { at, .. } => at.iter_mut().flatten().for_each(place),
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

/// Says whether a base chain is the first behind connection tracking, and others are before it.
fn is_first_behind_tracking(bases: &[(ChainId, &Base)], number: usize) -> bool {
    let is_early =
        |(_, base): &(ChainId, &Base)| base.hook == Hook::Prerouting && base.is_before_tracking();
    let before = number.checked_sub(1).and_then(|before| bases.get(before));
    before.is_some_and(is_early) && bases.get(number).is_some_and(|base| !is_early(base))
}

/// The number of each rule's first log, in the order of [`crate::log::logs`].
fn logs(rules: &Ruleset) -> Vec<Vec<u32>> {
    let mut next = 0;
    let mut first = |rule: &ir::Rule| {
        let own = rule.steps.iter().filter(|step| matches!(step, Step::Do(Action::Log(_))));
        let first = next;
        next += own.count() as u32;
        first
    };
    rules.chains.iter().map(|chain| chain.rules.iter().map(&mut first).collect()).collect()
}

/// Chains that base chains jump to, callers first.
fn called(rules: &Ruleset, bases: &[(ChainId, &Base)]) -> Vec<ChainId> {
    // Depth first, each chain after all that it leads to; reversed, callers come first.
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
