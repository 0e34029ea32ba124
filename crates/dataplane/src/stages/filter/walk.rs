//! Walks from rule to rule if the first that matches is not final.

use super::aliases::Aliased;
use super::classifier::{Classifier, Work};
use super::dim::MOST_DIMS;
use super::head::Head;
use super::states::{StatePacket, StateRefusal};
use super::tracking::Lookup;
use super::{
    Alias, Field, Filter, KeepState, LimitUnit, Logged, MarkOf, MarkUpdate, Op, Parsed, Point,
    PolicyRoute, State, StateName,
};
use crate::verdict::{DropReason, PuntReason, Verdict};

/// The maximum depth of nested chain calls (nft: `NFT_JUMP_STACK_SIZE`).
const MOST_CALLS: usize = 16;

/// The result of the rules for a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FilterReport {
    /// The verdict, if the packet exits the path.
    pub(super) verdict: Option<Verdict>,
    /// The start of its header, if rules have written into it.
    pub(super) head: Option<Head>,
    /// The target to which rules reroute it, if any.
    pub(super) policy_route: Option<PolicyRoute>,
}

/// The continuation after an op.
enum Jump {
    /// To the next op.
    On,
    /// To the next rule.
    Next,
    /// To the rule directly after this one in the list.
    Other,
    /// To another rule.
    To(u32),
    /// To the end.
    End(Option<Verdict>),
}

/// The walk of one packet.
struct Walk<'a> {
    filter: &'a Filter,
    state: &'a mut State,
    parsed: Parsed<'a>,
    point: Point,
    lane: usize,
    calls: [u32; MOST_CALLS],
    depth: usize,
    /// The target of a return without a call.
    end: u32,
    report: FilterReport,
}

/// Walks a packet through the rules, from its first matching rule on.
pub(super) fn walk(
    classifier: &Classifier,
    filter: &Filter,
    work: &Work<'_>,
    state: &mut State,
    lane: usize,
) -> FilterReport {
    let mut at = state.scratch.first[lane];
    let parsed = work.parsed(classifier, lane);
    let (point, calls, end) = (classifier.point, [0; MOST_CALLS], classifier.end);
    let report = FilterReport::default();
    let mut walk = Walk { filter, state, parsed, point, lane, calls, depth: 0, end, report };
    let mut classes = None;
    // The last rule matches every packet, so there is always a program.
    while let Some((ops, next)) = classifier.programs.get(at as usize) {
        let from = match walk.rule(ops, at, *next) {
            Ok(from) => from,
            Err(verdict) => {
                walk.report.verdict = verdict;
                return walk.report;
            }
        };
        let classes = classes.get_or_insert_with(|| walk.classes(classifier, work));
        at = classifier.next(classes, from);
    }
    walk.report
}

impl Walk<'_> {
    /// The packet's classes; if sets are one word, lookups have not stored them.
    fn classes(&self, classifier: &Classifier, work: &Work<'_>) -> [u32; MOST_DIMS] {
        let mut classes = [0; MOST_DIMS];
        for ((class, dim), scratch) in
            classes.iter_mut().zip(&classifier.dims).zip(&self.state.scratch.class)
        {
            *class = match classifier.width {
                1 => match dim.field {
                    Field::Connection(field) => {
                        dim.class(self.state.connections.number(self.lane, field))
                    }
                    _ => work.class_of(dim, &self.parsed, self.lane),
                },
                _ => scratch[self.lane],
            };
        }
        classes
    }

    /// Executes a rule; returns the rule to continue with, or the final verdict.
    fn rule(&mut self, ops: &[Op], at: u32, next: u32) -> Result<u32, Option<Verdict>> {
        for op in ops {
            match self.op(op, next) {
                Jump::On => {}
                Jump::Next => return Ok(next),
                // As if it had not matched: the next alternative is tried.
                Jump::Other => return Ok(at + 1),
                Jump::To(at) => return Ok(at),
                Jump::End(verdict) => return Err(verdict),
            }
        }
        Ok(next)
    }

    fn log(&mut self, log: u32, limit: Option<u32>) {
        let limit = limit.and_then(|limit| self.filter.limits.get(limit as usize));
        if limit.is_some_and(|limit| !limit.take(1, self.state.now_ns)) {
            self.state.log.limited += 1;
            return;
        }
        let now = (self.state.now_ns, self.state.mark[self.lane]);
        self.state.log.push(Logged::new(log, &self.parsed, self.report.head.as_ref(), now));
    }

    /// The rule to continue with if the packet has a state.
    fn check_state(&self, name: Option<StateName>, at: &[Option<u32>]) -> Option<u32> {
        let states = self.filter.states()?;
        let state_rule = states.check(&StatePacket::of(&self.parsed)?, name, self.state.now_ns)?;
        at.get(state_rule).copied().flatten()
    }

    /// Keeps a state of the packet; says whether that is possible.
    fn keep_state(&mut self, keep: &KeepState) -> bool {
        let (packet, states) = (StatePacket::of(&self.parsed), self.filter.states());
        let (Some(packet), Some(states)) = (packet, states) else {
            // Not a packet of IP (`EAFNOSUPPORT`).
            self.count(keep.counter);
            return false;
        };
        let refusal = match states.keep(&packet, keep.state_rule, self.state.now_ns) {
            Ok(()) => return true,
            Err(StateRefusal::OverLimit) => keep.over_limit,
            Err(StateRefusal::Full) => keep.full,
        };
        self.count(keep.counter);
        self.count(refusal);
        false
    }

    /// Finds what an instance changes in the packet; says whether the packet goes on.
    fn alias(&mut self, alias: &Alias) -> bool {
        let Some(aliases) = self.filter.aliases() else { return true };
        let (packet, now_ns) = (self.parsed.packet(), self.state.now_ns);
        let aliased = match alias.instance {
            Some(number) => aliases.translate(number, alias.pass, packet, now_ns),
            None => aliases.translate_global(alias.pass, packet, now_ns),
        };
        let counter = match aliased {
            Aliased::Ignored => return true,
            Aliased::Translated(translations) => {
                self.state.translations = Some(translations);
                return true;
            }
            Aliased::Denied => alias.denied,
            Aliased::Full => alias.full,
        };
        self.count(counter);
        false
    }

    /// Looks the packet's connection up; says whether there is room for it.
    fn track(&mut self) -> bool {
        let Some(tracker) = self.filter.tracker() else { return true };
        let packet = (self.parsed.version(), self.parsed.packet());
        let State { connections, now_ns, .. } = &mut *self.state;
        match connections.track(tracker, packet, self.lane, *now_ns) {
            Lookup::Found => true,
            Lookup::Invalid => {
                self.count(tracker.invalid());
                true
            }
            Lookup::Full => {
                self.count(tracker.full());
                false
            }
        }
    }

    /// Sets a mark; ends the rule if the packet has no connection whose mark to read.
    fn update_mark(&mut self, update: MarkUpdate) -> Jump {
        let connection = self.state.connections.of(self.lane);
        let connection = connection.tracked().map(|connection| connection.mark);
        let Some(mark) = update.number(self.state.mark[self.lane], connection) else {
            return Jump::Next;
        };
        match (update.target, self.filter.tracker()) {
            (MarkOf::Packet, _) => self.state.mark[self.lane] = mark,
            (MarkOf::Connection, Some(tracker)) => {
                let State { connections, now_ns, .. } = &mut *self.state;
                connections.set_mark(tracker, self.lane, mark, *now_ns);
            }
            (MarkOf::Connection, None) => {}
        }
        Jump::On
    }

    fn count(&mut self, counter: u32) {
        self.state.count(self.point, self.lane, counter, self.parsed.bytes());
    }

    fn op(&mut self, op: &Op, next: u32) -> Jump {
        match op {
            Op::Check(condition) => {
                let mark = self.state.mark[self.lane];
                let number = match (condition.field, &self.report.head) {
                    (Field::Connection(field), _) => {
                        self.state.connections.number(self.lane, field)
                    }
                    (field, Some(head)) => self.parsed.number_with(head, field, mark),
                    (field, None) => self.parsed.number(field, mark),
                };
                return if condition.holds(number) { Jump::On } else { Jump::Other };
            }
            Op::Limit { limit, over } => {
                let Some(shared) = self.filter.limits.get(*limit as usize) else {
                    return Jump::Next;
                };
                let units = match shared.limit.unit {
                    LimitUnit::Packets => 1,
                    LimitUnit::Bytes => self.parsed.bytes(),
                };
                let within = shared.take(units, self.state.now_ns);
                return if within == *over { Jump::Next } else { Jump::On };
            }
            Op::Count(counter) => self.count(*counter),
            Op::Log { log, limit } => self.log(*log, *limit),
            Op::Forward(hop) => match self.filter.hops.get(*hop as usize) {
                Some(next) => self.report.policy_route = Some(PolicyRoute::Next(*next)),
                None => return Jump::End(Some(Verdict::Punt(PuntReason::FilterUnsupported))),
            },
            Op::Fib(vrf) => {
                if !matches!(self.report.policy_route, Some(PolicyRoute::Next(_))) {
                    self.report.policy_route = Some(PolicyRoute::Vrf(*vrf));
                }
            }
            Op::Mark { keep, flip } => {
                let mark = &mut self.state.mark[self.lane];
                *mark = *mark & keep ^ flip;
            }
            Op::UpdateMark(update) => return self.update_mark(*update),
            Op::Track => {
                if !self.track() {
                    return Jump::End(Some(Verdict::Drop(DropReason::NetfilterDrop)));
                }
            }
            Op::NoTrack { .. } => self.state.connections.notrack(self.lane),
            Op::CheckState { name, at } => {
                if let Some(at) = self.check_state(*name, at) {
                    return Jump::To(at);
                }
            }
            Op::KeepState(keep) => {
                if !self.keep_state(keep) {
                    return Jump::End(Some(Verdict::Drop(DropReason::NetfilterDrop)));
                }
            }
            Op::Alias(alias) => {
                if !self.alias(alias) {
                    return Jump::End(Some(Verdict::Drop(DropReason::NetfilterDrop)));
                }
            }
            Op::Dscp(dscp) => {
                self.report.head = self.report.head.or_else(|| self.parsed.head());
                if let Some(head) = &mut self.report.head {
                    head.set_dscp(*dscp);
                }
            }
            Op::Nat(range) => {
                self.state.connections.order(self.lane, *range);
                return Jump::End(None);
            }
            Op::Skip(at) => return Jump::To(*at),
            Op::Chain { at, end } => {
                self.depth = 0;
                self.end = *end;
                return Jump::To(*at);
            }
            Op::Leave => {
                self.depth = 0;
                return Jump::To(self.end + 1);
            }
            Op::Call(at) => {
                let Some(slot) = self.calls.get_mut(self.depth) else {
                    return Jump::End(Some(Verdict::Punt(PuntReason::FilterUnsupported)));
                };
                *slot = next;
                self.depth += 1;
                return Jump::To(*at);
            }
            Op::Return if self.depth > 0 => {
                self.depth -= 1;
                return Jump::To(self.calls[self.depth]);
            }
            Op::Return => return Jump::To(self.end),
            Op::Accept => return Jump::End(None),
            Op::Drop => return Jump::End(Some(Verdict::Drop(DropReason::NetfilterDrop))),
            Op::Reject(reject) => {
                self.state.reject[self.lane] = *reject;
                return Jump::End(Some(Verdict::Punt(PuntReason::Reject)));
            }
            Op::Unsupported => {
                return Jump::End(Some(Verdict::Punt(PuntReason::FilterUnsupported)));
            }
        }
        Jump::On
    }
}
