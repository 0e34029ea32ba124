//! Verifies rules of nft's listing against the kernel's expressions.
//!
//! nft omits from a listing the conditions that it considers implied, and the rules that it cannot parse. The
//! compiler's front end guesses what nft omitted; the kernel's expressions say what it was. So a condition
//! that the kernel has stays, one that it does not have goes, and a missing one is added. If the rule still
//! differs, packets that meet the known conditions take the kernel path.

use std::collections::BTreeSet;

use super::Kernel;
use super::condition::{
    IIF, IIFNAME, IIFTYPE, L4PROTO, Load, Location, NFPROTO, OIF, OIFNAME, PROTOCOL, Test,
};
use super::expression::{Expression, Rate};
use super::listed::{Site, is_presence};
use super::merged::apart;
use super::program::{Act, Part, Scope, parts};
use tollway_firewall::ir::{
    Action, Chain, ChainId, Counter, Family, Field, Hook, Limit, LimitUnit, MarkOf, Match,
    PayloadBase, Place, Range, Reject, Rule, Ruleset, Set, SetId, Step, Target, Verdict,
};

const DIFFERS: &str = "nft does not list it as the kernel has it";

/// Changes rules to match the kernel's expressions.
pub(in super::super) fn verify(rules: &mut Ruleset, kernel: &Kernel, scope: Scope) {
    let at_devices: Vec<_> =
        rules.chains.iter().filter(|chain| is_of_device(chain)).map(table).collect();
    let at_devices: Vec<_> = at_devices.into_iter().map(str::to_owned).collect();
    let names: Vec<_> = rules.chains.iter().map(|chain| chain.name.clone()).collect();
    let hooks = hooks(rules);
    let Ruleset { chains, sets, counters, limits, .. } = rules;
    for (chain, hooks) in chains.iter_mut().zip(&hooks) {
        let table = format!("{} ", table(chain));
        let is_at_device = at_devices.iter().any(|one| table.trim_end() == one);
        let verifier = Verifier {
            kernel,
            scope,
            sets: &sets[..],
            counters: &counters[..],
            limits: &limits[..],
            names: &names,
            table: &table,
            family: chain.family,
            hooks,
            is_at_device,
        };
        for mut rule in std::mem::take(&mut chain.rules) {
            // A rule that represents a whole unsupported chain has no counterpart in the kernel.
            if !matches!(&rule.steps[..], [Step::Unsupported(_)]) {
                let steps = std::mem::take(&mut rule.steps);
                let handle = rule.place.handle.unwrap_or_default();
                rule.steps = match kernel.expressions(&chain.name, handle) {
                    Some(expressions) => {
                        chain.rules.extend(without_ports(&steps, expressions));
                        verifier.rule(steps, expressions)
                    }
                    None => vec![Step::Unsupported("the kernel has no such rule".to_owned())],
                };
            }
            chain.rules.push(rule);
        }
    }
}

/// A rule to insert before one with the module `multiport`, which drops packets that end before their ports.
fn without_ports(steps: &[Step], expressions: &[Expression]) -> Option<Rule> {
    let is_module =
        |one: &Expression| matches!(one, Expression::Match { name, .. } if name == "multiport");
    if !expressions.iter().any(is_module) {
        return None;
    }
    let cut_off = Match::in_ranges(Field::TransportLength, [Range::new(0, 3)]);
    let is_port = |field| matches!(field, Field::SourcePort | Field::DestinationPort);
    // Conditions only: any other step before it belongs to the rule itself.
    let before = steps.iter().take_while(|step| {
        matches!(step, Step::Match(_)) && !step.keys().iter().any(|key| is_port(key.field))
    });
    let mut steps: Vec<_> = before.cloned().collect();
    steps.push(Step::Match(cut_off));
    steps
        .push(Step::Unsupported("the kernel drops packets that end before their ports".to_owned()));
    Some(Rule { place: Place::default(), text: "(ports that are cut off)".to_owned(), steps })
}

/// For each chain, the hooks whose packets reach it.
fn hooks(rules: &Ruleset) -> Vec<BTreeSet<Hook>> {
    let mut hooks = vec![BTreeSet::new(); rules.chains.len()];
    for (at, chain) in rules.chains.iter().enumerate() {
        let Some(base) = &chain.base else { continue };
        let mut open = vec![at];
        while let Some(at) = open.pop() {
            let (Some(chain), Some(here)) = (rules.chains.get(at), hooks.get_mut(at)) else {
                continue;
            };
            if here.insert(base.hook) {
                open.extend(rules.exits(chain).into_iter().map(|(next, _)| next.0));
            }
        }
    }
    hooks
}

fn table(chain: &Chain) -> &str {
    chain.name.rsplit_once(' ').map_or("", |(table, _)| table)
}

fn is_of_device(chain: &Chain) -> bool {
    let at_hook = |hook| matches!(hook, Hook::Ingress | Hook::Egress);
    matches!(chain.family, Family::Netdev | Family::Bridge)
        || chain.base.as_ref().is_some_and(|base| at_hook(base.hook))
}

/// The context that the rules of a chain are verified against.
struct Verifier<'a> {
    kernel: &'a Kernel,
    scope: Scope,
    sets: &'a [Set],
    counters: &'a [Counter],
    limits: &'a [Limit],
    /// Names of chains.
    names: &'a [String],
    /// The table after its family, with a trailing space.
    table: &'a str,
    family: Family,
    /// The hooks whose packets reach the chain.
    hooks: &'a BTreeSet<Hook>,
    is_at_device: bool,
}

impl Verifier<'_> {
    fn rule(&self, steps: Vec<Step>, expressions: &[Expression]) -> Vec<Step> {
        let sets = self.kernel.sets(self.table.trim_end());
        let mut listed = steps.into_iter().peekable();
        let (mut steps, mut known) = (Vec::new(), Vec::new());
        for mut part in parts(expressions, &sets, self.scope) {
            known.extend(part.tests.iter().cloned());
            let mut tests = Vec::new();
            while let Some(Step::Match(one)) = listed.next_if(|step| matches!(step, Step::Match(_)))
            {
                if is_never(&one) && part.tests.iter().any(is_of_link) {
                    // Packets cannot have such a device here.
                    steps.push(Step::Match(one));
                    return steps;
                }
                tests.push(one);
            }
            self.take_apart(&mut part, &tests, &mut known);
            let is_whole = self.tests(&part, tests, &known, &mut steps);
            let step = listed.next();
            match (&part.act, step) {
                (_, Some(step @ Step::Unsupported(_))) => {
                    steps.push(step);
                    return steps;
                }
                (None, None) if is_whole => return steps,
                (Some(act), Some(step)) if is_whole && self.is(act, &step, &known) => {
                    let ends = matches!(step, Step::Verdict(_));
                    steps.push(step);
                    if ends {
                        return steps;
                    }
                }
                _ => break,
            }
        }
        steps.push(Step::Unsupported(DIFFERS.to_owned()));
        steps
    }

    /// Splits conditions of the kernel that compare several loads at once, as the listing splits them.
    fn take_apart(&self, part: &mut Part, listed: &[Match], known: &mut Vec<Test>) {
        // The version of IP may be among them; without it the positions of other bytes are not clear.
        for _ in 0..2 {
            let site = self.site(known);
            let forms: Vec<_> = listed.iter().flat_map(|one| site.forms(one)).collect();
            let tests = apart(&part.tests, &forms);
            if tests == part.tests {
                return;
            }
            known.extend(tests.iter().cloned());
            part.tests = tests;
        }
    }

    /// Adds the conditions of a part. Returns whether they are all that the kernel has.
    fn tests(
        &self,
        part: &Part,
        listed: Vec<Match>,
        known: &[Test],
        steps: &mut Vec<Step>,
    ) -> bool {
        let site = self.site(known);
        let mut found = vec![false; part.tests.len()];
        for one in listed {
            let mut is_there = false;
            for (test, found) in part.tests.iter().zip(&mut found) {
                let is = site.is(&one, test) || is_presence(&one, test);
                *found |= is;
                is_there |= is;
            }
            if is_there {
                steps.push(Step::Match(one));
            }
        }
        let mut is_whole = true;
        for (test, _) in part.tests.iter().zip(found).filter(|(_, found)| !found) {
            if self.is_implied(test, steps, known) {
                continue;
            }
            match self.condition(test, site.version) {
                Some(one) => {
                    let step = Step::Match(one);
                    if !steps.contains(&step) {
                        steps.push(step);
                    }
                }
                None => is_whole = false,
            }
        }
        is_whole
    }

    fn site(&self, known: &[Test]) -> Site<'_> {
        let version = match self.family {
            Family::Ip => Some(4),
            Family::Ip6 => Some(6),
            _ => known.iter().find_map(|test| test.version(self.is_at_device)),
        };
        let Self { sets, names, table, is_at_device, .. } = *self;
        Site { sets, names, version, is_at_device, table }
    }

    /// Says whether a condition holds for all packets that fulfil the others.
    fn is_implied(&self, test: &Test, steps: &[Step], known: &[Test]) -> bool {
        /// `ARPHRD_ETHER`.
        const ETHER: u128 = 1;
        if self.is_of_no_link(test) {
            return true;
        }
        match test.number() {
            // All forwarded packets fulfil it, and the kernel checks it before the Ethernet header.
            Some((load, ETHER)) if load == Load::meta(IIFTYPE) => {
                let header = Location::Payload(PayloadBase::Link);
                known.iter().flat_map(Test::loads).any(|load| load.location == header)
            }
            Some((load, 0x8100)) if load == Load::payload(PayloadBase::Link, 12, 2) => {
                let is_tag = |field| matches!(field, Field::VlanId | Field::VlanPriority);
                self.is_at_device && steps.iter().flat_map(Step::keys).any(|key| is_tag(key.field))
            }
            Some(_) => {
                let own = match self.family {
                    Family::Ip => Some(4),
                    Family::Ip6 => Some(6),
                    _ => None,
                };
                own.is_some() && test.version(self.is_at_device) == own
            }
            None => false,
        }
    }

    /// Says whether the condition excludes an egress link at hooks where packets have none yet.
    fn is_of_no_link(&self, test: &Test) -> bool {
        let (Test::Range { negate, .. } | Test::Set { negate, .. } | Test::Ranges { negate, .. }) =
            test;
        let is_before =
            |hook: &Hook| matches!(hook, Hook::Ingress | Hook::Prerouting | Hook::Input);
        *negate
            && matches!(test.loads(), [load] if load.is_meta(&[OIF, OIFNAME]))
            && self.hooks.iter().all(is_before)
    }

    /// A condition that the listing does not have.
    fn condition(&self, test: &Test, ip: Option<u8>) -> Option<Match> {
        let Test::Range { load, first, last, negate } = test else { return None };
        if first != last {
            return None;
        }
        let network = |offset, bytes| Load::payload(PayloadBase::Network, offset, bytes);
        let one = if *load == Load::meta(NFPROTO) {
            let version = Test::range(*load, *first, *last, false).version(self.is_at_device)?;
            Match::is(Field::IpVersion, version.into())
        } else if *load == Load::meta(L4PROTO)
            || ip == Some(4) && !self.is_at_device && *load == network(9, 1)
        {
            Match::is(Field::Protocol, *first)
        } else if *load == Load::meta(PROTOCOL) {
            Match::is(Field::EtherType, *first)
        } else if ip == Some(6) && *load == network(6, 1) {
            Match::is(Field::NextHeader6, *first)
        } else {
            return None;
        };
        Some(if *negate { one.negated() } else { one })
    }

    /// Says whether a step does what the kernel does.
    fn is(&self, act: &Act, step: &Step, known: &[Test]) -> bool {
        let site = self.site(known);
        let set = |map: &SetId| self.sets.get(map.0);
        match (act, step) {
            (Act::Count(name), Step::Do(Action::Count(counter))) => {
                let counter =
                    self.counters.get(counter.0).and_then(|counter| counter.name.as_deref());
                match (name, counter) {
                    (Some(name), Some(counter)) => counter.strip_prefix(self.table) == Some(name),
                    (None, None) => true,
                    _ => false,
                }
            }
            (Act::Limit(rate), Step::Limit { limit, over }) => rate.is_none_or(|rate| {
                self.limits.get(limit.0).is_some_and(|limit| is_rate(&rate, limit, *over))
            }),
            (Act::Log { prefix, group }, Step::Do(Action::Log(log))) => {
                (prefix, group) == (&log.prefix, &log.group)
            }
            (Act::NoTrack, Step::Do(Action::NoTrack)) => true,
            (Act::Mark { keep, flip }, Step::Do(Action::Mark { keep: kept, flip: flipped })) => {
                (keep, flip) == (kept, flipped)
            }
            (Act::UpdateMark(update), Step::Do(Action::UpdateMark(own))) => update == own,
            (Act::Any(any), Step::Any(own)) => any == own,
            (Act::MarkBy { keys, map, target }, Step::Map { keys: own, map: id, target: to }) => {
                let is_target = match target {
                    MarkOf::Packet => *to == Target::Mark,
                    MarkOf::Connection => *to == Target::ConnectionMark,
                };
                is_target && set(id).is_some_and(|set| site.is_set(set, map, own, keys))
            }
            (Act::VerdictBy { keys, map }, Step::VerdictMap { keys: own, map: id }) => {
                set(id).is_some_and(|set| site.is_set(set, map, own, keys))
            }
            (Act::Dscp { version, dscp }, Step::Do(Action::Dscp(own))) => {
                site.version == Some(*version) && dscp == own
            }
            (Act::Verdict { code, chain }, Step::Verdict(verdict)) => {
                self.is_verdict(*code, chain.as_deref(), verdict)
            }
            (Act::Nat(nat), Step::Verdict(Verdict::Nat(own))) => nat == own,
            (Act::NatBy { keys, map }, Step::VerdictMap { keys: own, map: id }) => {
                set(id).is_some_and(|set| site.is_set(set, map, own, keys))
            }
            (Act::Reject { kind, code }, Step::Verdict(Verdict::Reject(reject))) => {
                match (kind, reject) {
                    (0, Reject::Icmp(own)) => site.version == Some(4) && own == code,
                    (0, Reject::Icmp6(own)) => site.version == Some(6) && own == code,
                    // Packets other than TCP get no reset.
                    (1, Reject::TcpReset) => {
                        known.iter().any(|test| test.is_tcp(site.version == Some(4)))
                    }
                    (2, Reject::Icmpx(own)) => own == code,
                    _ => false,
                }
            }
            _ => false,
        }
    }

    fn is_verdict(&self, code: i32, chain: Option<&str>, verdict: &Verdict) -> bool {
        let is_chain = |id: &ChainId| {
            let name = self.names.get(id.0).and_then(|name| name.strip_prefix(self.table));
            name.is_some() && name == chain
        };
        match verdict {
            Verdict::Drop => code == 0,
            Verdict::Accept => code == 1,
            Verdict::Jump(id) => code == -3 && is_chain(id),
            Verdict::Goto(id) => code == -4 && is_chain(id),
            Verdict::Return => code == -5,
            _ => false,
        }
    }
}

fn is_rate(own: &Rate, limit: &Limit, over: bool) -> bool {
    let burst = u64::from(own.burst);
    // The kernel's bucket for bytes also holds what arrives in one period.
    let (unit, burst) = match own.is_bytes {
        true => (LimitUnit::Bytes, own.rate.saturating_add(burst)),
        false => (LimitUnit::Packets, burst),
    };
    let period_ns = own.seconds.saturating_mul(1_000_000_000);
    *limit == Limit { rate: own.rate, period_ns, burst, unit } && own.is_over == over
}

/// Says whether no packet fulfils the condition.
fn is_never(one: &Match) -> bool {
    *one == Match::in_ranges(Field::IpVersion, [])
}

fn is_of_link(test: &Test) -> bool {
    test.loads().iter().any(|load| load.is_meta(&[IIF, OIF, IIFNAME, OIFNAME]))
}
