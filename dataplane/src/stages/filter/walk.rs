//! From rule to rule, where the first that matches does not end the matter.

use super::build::MOST_DIMS;
use super::classifier::Classifier;
use super::first::{Work, one};
use super::head::Head;
use super::{Filter, LimitUnit, Logged, Op, Parsed, State, Steer};
use crate::verdict::{DropReason, PuntReason, Verdict};

/// Chains that may call each other, one in the other (nft: `NFT_JUMP_STACK_SIZE`).
const MOST_CALLS: usize = 16;

/// What rules have said of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// Where it leaves the road, if it does.
    pub(super) verdict: Option<Verdict>,
    /// How its header begins then, if they have written into it.
    pub(super) head: Option<Head>,
    /// Where they send it, if anywhere.
    pub(super) steer: Option<Steer>,
}

/// Where an op leads to.
enum Way {
    /// To the next op.
    On,
    /// Out of the rule.
    Next,
    /// To the rule behind this one in the line.
    Other,
    /// To another rule.
    To(u32),
    /// To the end.
    End(Option<Verdict>),
}

/// One packet on its way.
struct Walk<'a> {
    filter: &'a Filter,
    state: &'a mut State,
    parsed: Parsed<'a>,
    lane: usize,
    calls: [u32; MOST_CALLS],
    depth: usize,
    /// Where a return without a call leads to.
    end: u32,
    said: Said,
}

/// Takes a packet through the rules from its first on.
pub(super) fn walk(
    classifier: &Classifier,
    filter: &Filter,
    work: &Work<'_>,
    state: &mut State,
    lane: usize,
) -> Said {
    let mut at = state.room.first[lane];
    let parsed = work.parsed(classifier, lane);
    let (calls, end) = ([0; MOST_CALLS], classifier.end);
    let said = Said::default();
    let mut walk = Walk { filter, state, parsed, lane, calls, depth: 0, end, said };
    let mut classes = None;
    // The last rule matches whatever it is, so there is always a program.
    while let Some((ops, next)) = classifier.programs.get(at as usize) {
        let from = match walk.rule(ops, at, *next) {
            Ok(from) => from,
            Err(verdict) => {
                walk.said.verdict = verdict;
                return walk.said;
            }
        };
        let classes = classes.get_or_insert_with(|| walk.classes(classifier, work));
        at = classifier.next(classes, from);
    }
    walk.said
}

impl Walk<'_> {
    /// The packet's classes; where sets are one word, they have not been written down.
    fn classes(&self, classifier: &Classifier, work: &Work<'_>) -> [u32; MOST_DIMS] {
        let mut classes = [0; MOST_DIMS];
        for ((class, dim), room) in
            classes.iter_mut().zip(&classifier.dims).zip(&self.state.room.class)
        {
            *class = match classifier.width {
                1 => one(classifier, dim, &self.parsed, work.mark[self.lane]),
                _ => room[self.lane],
            };
        }
        classes
    }

    /// Where to go on behind a rule, or how it ended.
    fn rule(&mut self, ops: &[Op], at: u32, next: u32) -> Result<u32, Option<Verdict>> {
        for op in ops {
            match self.op(op, next) {
                Way::On => {}
                Way::Next => return Ok(next),
                // As if it had not matched: the next alternative is tried.
                Way::Other => return Ok(at + 1),
                Way::To(at) => return Ok(at),
                Way::End(verdict) => return Err(verdict),
            }
        }
        Ok(next)
    }

    fn log(&mut self, log: u32, limit: Option<u32>) {
        let bucket = limit.and_then(|limit| Some((limit, self.filter.limits.get(limit as usize)?)));
        if let Some((limit, bucket)) = bucket
            && !self.state.take(limit, bucket, 1)
        {
            self.state.log.limited += 1;
            return;
        }
        let now = (self.state.now_ns, self.state.mark[self.lane]);
        self.state.log.push(Logged::new(log, &self.parsed, self.said.head.as_ref(), now));
    }

    fn op(&mut self, op: &Op, next: u32) -> Way {
        match op {
            Op::Check(condition) => {
                let mark = self.state.mark[self.lane];
                let number = match &self.said.head {
                    Some(head) => self.parsed.number_with(head, condition.field, mark),
                    None => self.parsed.number(condition.field, mark),
                };
                return if condition.holds(number) { Way::On } else { Way::Other };
            }
            Op::Limit { limit, over } => {
                let Some(bucket) = self.filter.limits.get(*limit as usize) else {
                    return Way::Next;
                };
                let units = match bucket.unit {
                    LimitUnit::Packets => 1,
                    LimitUnit::Bytes => self.parsed.bytes(),
                };
                let within = self.state.take(*limit, bucket, units);
                return if within == *over { Way::Next } else { Way::On };
            }
            Op::Count(counter) => self.state.count(self.lane, *counter, self.parsed.bytes()),
            Op::Log { log, limit } => self.log(*log, *limit),
            Op::Forward(hop) => match self.filter.hops.get(*hop as usize) {
                Some(next) => self.said.steer = Some(Steer::Next(*next)),
                None => return Way::End(Some(Verdict::Punt(PuntReason::FilterUnsupported))),
            },
            Op::Fib(vrf) => {
                if !matches!(self.said.steer, Some(Steer::Next(_))) {
                    self.said.steer = Some(Steer::Vrf(*vrf));
                }
            }
            Op::Mark { keep, flip } => {
                let mark = &mut self.state.mark[self.lane];
                *mark = *mark & keep ^ flip;
            }
            Op::Dscp(dscp) => {
                self.said.head = self.said.head.or_else(|| self.parsed.head());
                if let Some(head) = &mut self.said.head {
                    head.set_dscp(*dscp);
                }
            }
            Op::Skip(at) => return Way::To(*at),
            Op::Chain { at, end } => {
                self.depth = 0;
                self.end = *end;
                return Way::To(*at);
            }
            Op::Leave => {
                self.depth = 0;
                return Way::To(self.end + 1);
            }
            Op::Call(at) => {
                let Some(slot) = self.calls.get_mut(self.depth) else {
                    return Way::End(Some(Verdict::Punt(PuntReason::FilterUnsupported)));
                };
                *slot = next;
                self.depth += 1;
                return Way::To(*at);
            }
            Op::Return if self.depth > 0 => {
                self.depth -= 1;
                return Way::To(self.calls[self.depth]);
            }
            Op::Return => return Way::To(self.end),
            Op::Accept => return Way::End(None),
            Op::Drop => return Way::End(Some(Verdict::Drop(DropReason::NetfilterDrop))),
            Op::Reject(reject) => {
                self.state.reject[self.lane] = *reject;
                return Way::End(Some(Verdict::Punt(PuntReason::Reject)));
            }
            Op::Unsupported => {
                return Way::End(Some(Verdict::Punt(PuntReason::FilterUnsupported)));
            }
        }
        Way::On
    }
}
