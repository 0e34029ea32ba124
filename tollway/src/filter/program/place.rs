//! The program of rules: places every chain in it.

use std::net::IpAddr;

use tollway_dataplane::stages::filter::{Condition, Field, MOST_RULES, Op, Reject, Rule, Rules};

use super::conditions::{Holds, Resolver};
use super::levels::Level;
use super::live::Live;
use super::parts::Part;
use crate::filter::eval::Link;
use crate::filter::hops::{Hop, hops};
use crate::filter::ir::{
    self, Action, Base, Chain, ChainId, Family, Hook, Match, Policy, Ruleset, Selector, Step, Test,
    Verdict,
};
use crate::filter::undone::At;

/// There is no room for more rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMany;

/// A label: a position in the program that rules can refer to before it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label(u32);

/// The program under construction; jumps refer to labels instead of rule numbers.
pub(super) struct Layout<'a> {
    ruleset: &'a Ruleset,
    /// The live sets.
    live: &'a Live,
    /// The links that rules see, level by level; one level except at hooks ingress and prerouting.
    levels: &'a [Level],
    version: u8,
    at: At,
    rules: Vec<Rule>,
    /// The rule number of each label.
    labels: Vec<u32>,
    /// The start of each chain that is jumped to, by level.
    starts: Vec<Vec<Label>>,
    /// Next hops that rules name.
    hops: Vec<Hop<'a>>,
    /// The number of each rule's first log, by chain.
    logs: Vec<Vec<u32>>,
    /// The start of each base chain of these hooks, and the position of its policy.
    bases: Vec<(Label, Label)>,
}

/// The chain that contains a rule.
#[derive(Clone, Copy)]
pub(super) struct EnclosingChain {
    /// The number of the level.
    level: usize,
    /// The number of the base chain; `None` for a chain that is jumped to.
    base: Option<usize>,
}

impl<'a> Layout<'a> {
    pub(super) fn new(
        ruleset: &'a Ruleset,
        live: &'a Live,
        levels: &'a [Level],
        version: u8,
    ) -> Self {
        let mut layout = Self {
            ruleset,
            live,
            levels,
            version,
            at: At::default(),
            rules: Vec::new(),
            labels: Vec::new(),
            starts: Vec::new(),
            hops: hops(ruleset),
            logs: logs(ruleset),
            bases: Vec::new(),
        };
        for _ in levels {
            let starts = ruleset.chains.iter().map(|_| layout.label()).collect();
            layout.starts.push(starts);
        }
        layout
    }

    /// The context for resolving matches in a chain.
    pub(super) fn resolver(&self, within: EnclosingChain) -> Resolver<'a> {
        let level = self.levels.get(within.level);
        Resolver {
            rules: self.ruleset,
            live: self.live,
            inputs: level.map_or(&[][..], |level| &level.inputs),
            outputs: level.map_or(&[][..], |level| &level.outputs),
            version: self.version,
        }
    }

    /// Compiles the program for consecutive hooks; `None` if no chain sees these packets.
    pub(super) fn line(mut self, hooks: &[Hook]) -> Option<Result<Rules, TooMany>> {
        let rules = self.ruleset;
        let all = hooks.iter().flat_map(|hook| rules.base_chains(*hook));
        let bases: Vec<_> = all.filter(|(id, _)| self.sees(&rules.chains[id.0])).collect();
        if bases.is_empty() || self.levels.is_empty() {
            return None;
        }
        self.at = At::of(rules, hooks);
        Some(self.place(&bases).map(|()| self.finish()))
    }

    fn sees(&self, chain: &Chain) -> bool {
        match (chain.family, self.version) {
            (Family::Bridge, _) => false,
            (family, 0) => family == Family::Netdev,
            (family, 4) => family.has_ip4(),
            (family, _) => family.has_ip6(),
        }
    }

    fn place(&mut self, bases: &[(ChainId, &Base)]) -> Result<(), TooMany> {
        let count = bases.len() * self.levels.len();
        self.bases = (0..count).map(|_| (self.label(), self.label())).collect();
        let rules = self.ruleset;
        for number in 0..count {
            let (level, (id, base)) = (number / bases.len(), bases[number % bases.len()]);
            let within = EnclosingChain { level, base: Some(number) };
            let (start, end) = self.bases[number];
            self.bind(start);
            self.only_devices(base, within)?;
            self.only_sound(&rules.chains[id.0], base)?;
            self.chain(id, within)?;
            // The policy, followed by where accepted packets go on.
            self.bind(end);
            let accept = self.accept(within);
            let policy = match base.policy {
                Policy::Accept => accept.clone(),
                Policy::Drop => Op::Drop,
            };
            self.push(Vec::new(), vec![policy], None)?;
            self.push(Vec::new(), vec![accept], None)?;
        }
        for level in 0..self.levels.len() {
            for id in called(rules, bases) {
                self.bind(self.starts[level][id.0]);
                self.chain(id, EnclosingChain { level, base: None })?;
                self.push(Vec::new(), vec![Op::Return], None)?;
            }
        }
        self.push(Vec::new(), vec![Op::Accept], None)
    }

    /// Lets packets of other devices go on to the next base chain.
    fn only_devices(&mut self, base: &Base, within: EnclosingChain) -> Result<(), TooMany> {
        let levels = self.levels;
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
                self.push(vec![others], vec![self.accept(within)], None)?;
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
        let selector = if base.hook == Hook::Egress { Selector::Output } else { Selector::Input };
        let others = Match {
            keys: vec![selector.into()],
            test: Test::Link(base.devices.clone()),
            negate: true,
        };
        match self.resolver(within).resolve(&others) {
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

    /// Drops packets with inconsistent headers where the kernel does (`nft_do_chain_inet_ingress` in
    /// `net/netfilter/nft_chain_filter.c`).
    fn only_sound(&mut self, chain: &Chain, base: &Base) -> Result<(), TooMany> {
        if (chain.family, base.hook) != (Family::Inet, Hook::Ingress) {
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
        let ruleset = self.ruleset;
        for (number, rule) in ruleset.chains[id.0].rules.iter().enumerate() {
            let log = self.logs[id.0][number];
            let parts = super::parts::cut(self, rule, within, log)?;
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

    /// The point at which the program is evaluated.
    pub(super) const fn at(&self) -> At {
        self.at
    }

    /// The number of a next hop; `None` if it is of the other version of IP.
    pub(super) fn hop(&self, via: IpAddr, link: Option<&str>) -> Option<u32> {
        let number = self.hops.iter().position(|hop| *hop == (via, link))?;
        (via.is_ipv4() == (self.version == 4)).then_some(number as u32)
    }

    /// The number of the limit of a log.
    pub(super) fn limit_of_log(&self, log: u32) -> u32 {
        self.ruleset.limits.len() as u32 + log
    }

    /// The op for a verdict; `None` to go on with the next rule.
    pub(super) fn verdict(&self, verdict: &Verdict, within: EnclosingChain) -> Option<Op> {
        if self.at.verdict(verdict).is_some() {
            return Some(Op::Unsupported);
        }
        Some(match verdict {
            Verdict::Accept => self.accept(within),
            Verdict::Drop => Op::Drop,
            Verdict::Reject(reject) => Op::Reject(self.reject(*reject)),
            Verdict::Unsupported(_) => Op::Unsupported,
            Verdict::Continue => return None,
            Verdict::Return => Op::Return,
            Verdict::Jump(chain) => Op::Call(self.starts[within.level][chain.0].0),
            Verdict::Goto(chain) => Op::Skip(self.starts[within.level][chain.0].0),
        })
    }

    /// The error for the sender (`nft_reject_icmp_code`, `nft_reject_icmpv6_code`).
    fn reject(&self, reject: ir::Reject) -> Reject {
        let code = match reject {
            ir::Reject::TcpReset => return Reject::TcpReset,
            ir::Reject::Icmp(code) | ir::Reject::Icmp6(code) => code,
            ir::Reject::Icmpx(code) => {
                let codes = if self.version == 6 { [0, 4, 3, 1] } else { [0, 3, 1, 13] };
                codes.get(usize::from(code)).copied().unwrap_or(codes[1])
            }
        };
        Reject::Unreachable(code)
    }

    /// Where accepted packets go on.
    fn accept(&self, within: EnclosingChain) -> Op {
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

/// The number of each rule's first log, in the order of [`crate::filter::log::logs`].
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
