//! Defines the meaning of a ruleset: takes one packet through it, rule by rule, in the order of writing.
//!
//! It is slow and plain on purpose: it is the reference for the classifier and everything in between. nft's
//! semantics apply (`net/netfilter/nf_tables_core.c`):
//!
//! - The base chains of a hook run in order of priority.
//! - Accept ends the packet's base chain; the next base chain still sees the packet.
//! - Drop ends everything.
//! - A packet that reaches the end of a base chain, or returns in it, meets its policy.

mod connection;
mod packet;
pub mod states;
#[cfg(test)]
mod tests;

pub use packet::{Packet, Parsed};
use states::{Kept, States};

use tollway_dataplane::stages::filter::FlowConnection;

use crate::ir::{
    Action, Base, Chain, ChainId, CheckState, Datum, Elements, Hook, Item, KeepState, Key, Limit,
    LimitUnit, Log, MarkOf, MarkUpdate, Match, Policy, Reject, Rule, Ruleset, SetId, Step, Target,
    Test, Verdict,
};
use crate::links::Link;

/// The verdict of a packet at a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleVerdict {
    /// The packet goes on.
    Accept,
    /// The packet is dropped.
    Drop,
    /// The packet is dropped, and its sender receives an error.
    Reject(Reject),
    /// The packet has reached a rule that Tollway cannot execute, and why.
    Unsupported(String),
}

/// State that packets change: counts, and the fill of each limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Packets and bytes, one for each of the ruleset's counters.
    pub counts: Vec<(u64, u64)>,
    /// What was logged, in order.
    pub logged: Vec<Log>,
    /// The states that rules keep.
    pub states: States,
    /// The fill of each limit, in units times the period, and the time of that in ns.
    buckets: Vec<(u128, u64)>,
}

impl State {
    /// The initial state of a ruleset.
    #[must_use]
    pub fn new(rules: &Ruleset) -> Self {
        let counts = rules.counters.iter().map(|counter| (counter.packets, counter.bytes));
        let buckets = rules.limits.iter().map(|limit| (full(limit), 0));
        Self {
            counts: counts.collect(),
            logged: Vec::new(),
            states: States::default(),
            buckets: buckets.collect(),
        }
    }

    /// Says whether `units` more are within a limit; if so, uses them.
    fn take(&mut self, index: usize, limit: &Limit, units: u64, now_ns: u64) -> bool {
        let (tokens, since) = &mut self.buckets[index];
        let gained = u128::from(now_ns.saturating_sub(*since)) * u128::from(limit.rate);
        *tokens = full(limit).min(*tokens + gained);
        *since = now_ns;
        let wanted = u128::from(units) * u128::from(limit.period_ns);
        let within = *tokens >= wanted;
        if within {
            *tokens -= wanted;
        }
        within
    }
}

fn full(limit: &Limit) -> u128 {
    u128::from(limit.burst) * u128::from(limit.period_ns)
}

/// Returns a packet's verdict at a hook. Changes the mark and the DSCP of `packet` as the rules do.
pub fn run(
    rules: &Ruleset,
    state: &mut State,
    hook: Hook,
    packet: &mut Packet<'_>,
    now_ns: u64,
) -> RuleVerdict {
    packet.past_auth = rules.past_auth;
    for (id, base) in rules.base_chains(hook) {
        let chain = &rules.chains[id.0];
        if !sees(chain, base, packet) {
            continue;
        }
        let is_ip = packet.version() != 0;
        if chain.is_only_sound() && is_ip && packet.parsed_at(hook).transport.is_none() {
            return RuleVerdict::Drop;
        }
        let connection = packet.connection;
        if is_before_tracking(base) && connection.is_some() {
            packet.connection = Some(FlowConnection::Invalid);
        }
        let mut run = Run { rules, state, hook, packet, now_ns };
        let end = run.chain(id);
        if packet.connection == Some(FlowConnection::Invalid) {
            packet.connection = connection;
        }
        let verdict = match end {
            End::Verdict(verdict) => verdict,
            End::Done => match base.policy {
                Policy::Accept => RuleVerdict::Accept,
                Policy::Drop => RuleVerdict::Drop,
            },
        };
        if verdict != RuleVerdict::Accept {
            return verdict;
        }
    }
    RuleVerdict::Accept
}

/// Says whether packets meet the chain before connection tracking sees them (`NF_IP_PRI_CONNTRACK`).
fn is_before_tracking(base: &Base) -> bool {
    base.hook == Hook::Ingress || base.hook == Hook::Prerouting && base.priority < -200
}

fn sees(chain: &Chain, base: &Base, packet: &Packet<'_>) -> bool {
    // Hooks of bridges have the same names as those of routed packets but are different ones.
    use crate::ir::Family::{Inet, Ip, Ip6, Netdev};
    let family =
        matches!((chain.family, packet.version()), (Ip | Inet, 4) | (Ip6 | Inet, 6) | (Netdev, _));
    // Only the first packet of a connection meets them.
    let is_left_out = chain.is_nat() && packet.connection.is_some();
    let device = match base.hook {
        Hook::Egress => packet.output,
        _ => Some(packet.input),
    };
    let is_there = |link: &Link| base.devices.iter().any(|device| link.is(device));
    family && !is_left_out && (base.devices.is_empty() || device.is_some_and(is_there))
}

/// How a chain ended.
enum End {
    /// The packet is done with the base chain.
    Verdict(RuleVerdict),
    /// The packet reached the end, or returned.
    Done,
}

/// How a rule ended.
enum Outcome {
    /// The next rule follows.
    Next,
    /// The chain ended like this.
    Ends(End),
}

/// One packet in one base chain.
struct Run<'a, 'p> {
    rules: &'a Ruleset,
    state: &'a mut State,
    hook: Hook,
    packet: &'a mut Packet<'p>,
    now_ns: u64,
}

impl<'a> Run<'a, '_> {
    fn chain(&mut self, id: ChainId) -> End {
        let rules = self.rules;
        for rule in &rules.chains[id.0].rules {
            if let Outcome::Ends(end) = self.rule(rule) {
                return end;
            }
        }
        End::Done
    }

    fn rule(&mut self, rule: &Rule) -> Outcome {
        for step in &rule.steps {
            let goes_on = match step {
                Step::Match(one) => self.holds(one),
                Step::Any(any) => any.iter().any(|all| all.iter().all(|one| self.holds(one))),
                Step::Limit { limit, over } => self.within(limit.0) != *over,
                Step::CheckState(check) => match self.check_state(check) {
                    Some(chain) => return self.verdict(&Verdict::Goto(chain)),
                    None => true,
                },
                Step::KeepState(keep) => {
                    if !self.keep_state(keep) {
                        return Outcome::Ends(End::Verdict(RuleVerdict::Drop));
                    }
                    true
                }
                // It translates nothing.
                Step::Alias(_) => true,
                Step::Do(Action::UpdateMark(update)) => self.update_mark(update),
                Step::Do(action) => {
                    self.act(action);
                    true
                }
                Step::Map { keys, map, target } => match self.find(keys, *map) {
                    Some(Some(Datum::Number(number))) => {
                        self.store(*target, *number);
                        true
                    }
                    _ => false,
                },
                Step::VerdictMap { keys, map } => match self.find(keys, *map) {
                    // The kernel continues with the same rule.
                    Some(Some(Datum::Verdict(Verdict::Continue))) => true,
                    Some(Some(Datum::Verdict(verdict))) => return self.verdict(verdict),
                    _ => false,
                },
                Step::Verdict(verdict) => return self.verdict(verdict),
                Step::Unsupported(why) => {
                    return Outcome::Ends(End::Verdict(RuleVerdict::Unsupported(why.clone())));
                }
            };
            if !goes_on {
                return Outcome::Next;
            }
        }
        Outcome::Next
    }

    fn verdict(&mut self, verdict: &Verdict) -> Outcome {
        Outcome::Ends(match verdict {
            Verdict::Accept | Verdict::Nat(_) => End::Verdict(RuleVerdict::Accept),
            Verdict::Drop => End::Verdict(RuleVerdict::Drop),
            Verdict::Reject(reject) => End::Verdict(RuleVerdict::Reject(*reject)),
            Verdict::Unsupported(why) => End::Verdict(RuleVerdict::Unsupported(why.clone())),
            Verdict::Continue => return Outcome::Next,
            Verdict::Return => End::Done,
            Verdict::Goto(chain) => self.chain(*chain),
            Verdict::Jump(chain) => match self.chain(*chain) {
                End::Done => return Outcome::Next,
                end => end,
            },
        })
    }

    /// The chain to continue in, if the packet has a state.
    fn check_state(&mut self, check: &CheckState) -> Option<ChainId> {
        let packet = self.packet.flow(self.hook)?;
        let found = self.state.states.check(&packet, check.name, self.now_ns)?;
        check.chains[found]
    }

    /// Keeps a state of the packet; says whether that is possible.
    fn keep_state(&mut self, keep: &KeepState) -> bool {
        let kept = self.packet.flow(self.hook).map(|packet| {
            let state_rule = &self.rules.state_rules[keep.state_rule.0];
            self.state.states.keep(&packet, keep.state_rule.0, state_rule, self.now_ns)
        });
        let refusal = match kept {
            Some(Kept::Yes) => return true,
            Some(Kept::OverLimit) => Some(keep.over_limit),
            Some(Kept::Full) => Some(keep.full),
            None => None,
        };
        for counter in [Some(keep.counter), refusal].into_iter().flatten() {
            self.act(&Action::Count(counter));
        }
        false
    }

    fn act(&mut self, action: &Action) {
        match action {
            Action::Count(counter) => {
                let length = self.length();
                let count = &mut self.state.counts[counter.0];
                *count = (count.0 + 1, count.1 + length);
            }
            Action::Mark { keep, flip } => self.packet.mark = self.packet.mark & keep ^ flip,
            Action::Dscp(dscp) => self.packet.set_dscp(*dscp),
            Action::Forward { via, .. } => self.packet.via = Some(*via),
            Action::Fib(fib) => self.packet.fib = Some(*fib),
            Action::Log(log) => self.state.logged.push(log.clone()),
            Action::UpdateMark(update) => _ = self.update_mark(update),
            // Only if connection tracking has not seen the packet yet.
            Action::NoTrack if self.packet.connection == Some(FlowConnection::Invalid) => {
                self.packet.connection = Some(FlowConnection::Untracked);
            }
            Action::NoTrack => {}
        }
    }

    fn store(&mut self, target: Target, number: u128) {
        match target {
            Target::Mark => self.packet.mark = number as u32,
            Target::ConnectionMark => self.packet.set_connection_mark(number as u32),
            Target::Dscp => self.packet.set_dscp(number as u8 & 63),
        }
    }

    /// Sets a mark; false if the packet has no connection whose mark to read.
    fn update_mark(&mut self, update: &MarkUpdate) -> bool {
        let mut mark = self.packet.mark & update.packet ^ update.flip;
        if let Some(bits) = update.connection {
            let Some(of_connection) = self.packet.connection_mark() else { return false };
            mark ^= of_connection & bits;
        }
        match update.target {
            MarkOf::Packet => self.packet.mark = mark,
            MarkOf::Connection => self.packet.set_connection_mark(mark),
        }
        true
    }

    fn length(&self) -> u64 {
        self.packet.bytes(self.hook)
    }

    fn within(&mut self, index: usize) -> bool {
        let limit = &self.rules.limits[index];
        let units = match limit.unit {
            LimitUnit::Packets => 1,
            LimitUnit::Bytes => self.length(),
        };
        self.state.take(index, limit, units, self.now_ns)
    }

    fn number(&self, key: Key) -> Option<u128> {
        Some(self.packet.number(key.field, self.hook)? & key.mask)
    }

    fn holds(&self, one: &Match) -> bool {
        let found = match (&one.test, &one.keys[..]) {
            (Test::Ranges(ranges), [key]) => {
                self.number(*key).map(|number| ranges.iter().any(|range| range.has(number)))
            }
            (Test::Link(patterns), [key]) => {
                let link = self.packet.link(key.field);
                link.map(|link| patterns.iter().any(|pattern| link.is(pattern)))
            }
            (Test::Set(set), keys) => {
                let there = keys.iter().all(|key| match key.field.is_link() {
                    true => self.packet.link(key.field).is_some(),
                    false => self.number(*key).is_some(),
                });
                there.then(|| self.find(keys, *set).is_some())
            }
            _ => None,
        };
        found.is_some_and(|found| found != one.negate)
    }

    /// The datum of the first element that has the packet's keys.
    fn find(&self, keys: &[Key], set: SetId) -> Option<Option<&'a Datum>> {
        let rules = self.rules;
        match &rules.sets[set.0].elements {
            Elements::Ranges(ranges) => {
                let number = self.number(*keys.first()?)?;
                ranges.iter().any(|range| range.has(number)).then_some(None)
            }
            Elements::Tuples(elements) => {
                let has = |(item, key): (&Item, &Key)| match item {
                    Item::Range(range) => self.number(*key).is_some_and(|number| range.has(number)),
                    Item::Link(pattern) => {
                        self.packet.link(key.field).is_some_and(|link| link.is(pattern))
                    }
                };
                let element = elements.iter().find(|one| one.key.iter().zip(keys).all(has))?;
                Some(element.datum.as_ref())
            }
        }
    }
}
