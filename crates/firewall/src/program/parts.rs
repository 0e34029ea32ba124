//! Cuts a rule into parts: each has conditions, followed by actions.

use tollway_dataplane::id::VrfId;
use tollway_dataplane::stages::filter::{Alias, Condition, KeepState, Op};

use super::conditions::{Holds, Resolver};
use super::context::{EnclosingChain, ProgramContext, TooMany};

use crate::ir::{
    Action, Datum, Element, Elements, Key, MarkOf, MarkUpdate, Match, Rule, SetId, Step, Target,
    Verdict,
};

/// The most alternatives that the conditions of one rule may be multiplied out to.
const MOST_ALTERNATIVES: usize = 4096;

/// A part of a rule.
#[derive(Debug)]
pub(super) struct Part {
    /// Excludes packets that meet all conditions of one of these.
    pub(super) unless: Vec<Vec<Condition>>,
    /// The first alternative whose conditions all hold is executed.
    pub(super) alternatives: Vec<(Vec<Condition>, Vec<Op>)>,
    /// Whether the part already has an action, so that further conditions begin another part.
    acts: bool,
}

impl Part {
    fn new() -> Self {
        Self { unless: Vec::new(), alternatives: vec![(Vec::new(), Vec::new())], acts: false }
    }

    fn act(&mut self, op: &Op) {
        self.acts = true;
        for (_, ops) in &mut self.alternatives {
            ops.push(op.clone());
        }
    }

    fn narrow(&mut self, conditions: &[Condition]) {
        for (all, _) in &mut self.alternatives {
            all.extend_from_slice(conditions);
        }
    }
}

/// A rule being cut.
struct Cut<'l, 'a> {
    context: &'l ProgramContext<'a>,
    within: EnclosingChain,
    parts: Vec<Part>,
    /// The number of the next log.
    log: u32,
}

/// What follows a step.
enum Then {
    More,
    Nothing,
}

/// Cuts a rule into parts; `log` is the number of its first log.
///
/// # Errors
/// The rule has too many alternatives.
pub(super) fn cut(
    context: &ProgramContext<'_>,
    rule: &Rule,
    within: EnclosingChain,
    log: u32,
) -> Result<Vec<Part>, TooMany> {
    let mut cut = Cut { context, within, parts: vec![Part::new()], log };
    for step in &rule.steps {
        if let Then::Nothing = cut.step(step)? {
            break;
        }
    }
    let mut parts = cut.parts;
    // Drop the last parts if they are conditions without an action.
    while parts.last().is_some_and(|part| !part.acts) {
        parts.pop();
    }
    Ok(parts)
}

impl<'a> Cut<'_, 'a> {
    fn resolver(&self) -> Resolver<'_> {
        self.context.resolver(self.within)
    }

    fn step(&mut self, step: &Step) -> Result<Then, TooMany> {
        Ok(match step {
            Step::Match(one) => {
                let holds = self.resolver().resolve(one);
                self.condition(holds)
            }
            Step::Any(any) => {
                let holds = self.any(any)?;
                self.condition(holds)
            }
            Step::Limit { limit, over } => {
                self.act(&Op::Limit { limit: limit.0 as u32, over: *over });
                Then::More
            }
            Step::CheckState(check) => {
                self.act(&self.context.check_state(check, self.within));
                Then::More
            }
            Step::KeepState(keep) => {
                self.act(&Op::KeepState(KeepState {
                    state_rule: keep.state_rule.0 as u32,
                    counter: keep.counter.0 as u32,
                    over_limit: keep.over_limit.0 as u32,
                    full: keep.full.0 as u32,
                }));
                Then::More
            }
            Step::Alias(alias) => {
                self.act(&Op::Alias(Alias {
                    instance: alias.instance.map(|id| id.0 as u32),
                    pass: alias.pass,
                    denied: alias.denied.0 as u32,
                    full: alias.full.0 as u32,
                }));
                Then::More
            }
            Step::Do(action) => self.action(action),
            Step::Map { keys, map, target } => {
                self.map(keys, *map, |datum| match (datum, target) {
                    (Datum::Number(number), Target::Mark) => {
                        Some(Op::Mark { keep: 0, flip: *number as u32 })
                    }
                    (Datum::Number(number), Target::ConnectionMark) => {
                        let (target, flip) = (MarkOf::Connection, *number as u32);
                        let (packet, connection) = (0, None);
                        Some(Op::UpdateMark(MarkUpdate { target, packet, connection, flip }))
                    }
                    (Datum::Number(number), Target::Dscp) => Some(Op::Dscp(*number as u8 & 63)),
                    (Datum::Verdict(_), _) => None,
                });
                self.parts.push(Part::new());
                Then::More
            }
            Step::VerdictMap { keys, map } => {
                let (context, within) = (self.context, self.within);
                self.map(keys, *map, |datum| match datum {
                    Datum::Verdict(verdict) => context.verdict(verdict, within),
                    Datum::Number(_) => None,
                });
                if !self.continues(*map) {
                    return Ok(Then::Nothing);
                }
                // A verdict ends the rule; packets of an element that says continue go on to the next part.
                self.parts.push(Part::new());
                Then::More
            }
            Step::Verdict(verdict) => {
                self.verdict(verdict);
                Then::Nothing
            }
            Step::Unsupported(_) => {
                self.act(&Op::Unsupported);
                Then::Nothing
            }
        })
    }

    fn verdict(&mut self, verdict: &Verdict) {
        if let Some(op) = self.context.verdict(verdict, self.within) {
            self.act(&op);
        }
    }

    fn action(&mut self, action: &Action) -> Then {
        if self.context.at.action(action).is_some() {
            self.act(&Op::Unsupported);
            return Then::Nothing;
        }
        let op = match action {
            Action::Count(counter) => Op::Count(counter.0 as u32),
            Action::Mark { keep, flip } => Op::Mark { keep: *keep, flip: *flip },
            Action::UpdateMark(update) => Op::UpdateMark(*update),
            Action::Dscp(dscp) => Op::Dscp(*dscp),
            Action::NoTrack if self.context.tracks => {
                Op::NoTrack { again: self.context.is_behind_tracking(self.within) }
            }
            Action::NoTrack => return Then::More,
            Action::Log(log) => {
                let number = self.log;
                self.log += 1;
                let limit = self.context.limit_of_log(number);
                Op::Log { log: number, limit: log.group.is_none().then_some(limit) }
            }
            Action::Forward { via, link } => match self.context.hop(*via, link.as_deref()) {
                Some(hop) => Op::Forward(hop),
                None => return Then::More,
            },
            Action::Fib(number) => Op::Fib(VrfId(u16::try_from(*number).unwrap_or(u16::MAX))),
        };
        self.act(&op);
        Then::More
    }

    /// The current part; a new one if that already has an action.
    fn part(&mut self) -> &mut Part {
        if self.parts.last().is_none_or(|part| part.acts) {
            self.parts.push(Part::new());
        }
        let last = self.parts.len() - 1;
        &mut self.parts[last]
    }

    fn act(&mut self, op: &Op) {
        if let Some(part) = self.parts.last_mut() {
            part.act(op);
        }
    }

    fn condition(&mut self, holds: Holds) -> Then {
        match holds {
            Holds::Always => {}
            Holds::Never => {
                self.never();
                return Then::Nothing;
            }
            Holds::Any(any) => match &any[..] {
                [conditions] => self.part().narrow(conditions),
                _ => self.branch(any.into_iter().map(|all| (all, Vec::new())).collect()),
            },
            Holds::Unless(fields, elements) => {
                let part = self.part();
                part.narrow(&fields);
                part.unless.extend(elements);
            }
        }
        Then::More
    }

    /// Ends the rule for all packets at this point; earlier actions stay.
    fn never(&mut self) {
        let part = self.part();
        part.alternatives.clear();
        part.acts = false;
    }

    /// Adds alternatives to a part that has none yet, so that their numbers never multiply.
    fn branch(&mut self, alternatives: Vec<(Vec<Condition>, Vec<Op>)>) {
        if self.part().alternatives.len() != 1 {
            self.parts.push(Part::new());
        }
        let part = self.part();
        let (before, _) = part.alternatives.remove(0);
        for (conditions, ops) in alternatives {
            part.alternatives.push(([before.clone(), conditions].concat(), ops));
        }
    }

    fn map(&mut self, keys: &[Key], map: SetId, op: impl Fn(&Datum) -> Option<Op>) {
        let resolver = self.resolver();
        let Elements::Tuples(elements) = &resolver.rules.sets[map.0].elements else {
            return self.never();
        };
        let mut alternatives = Vec::new();
        for Element { key, datum } in elements {
            let Some(datum) = datum else { continue };
            let any = match resolver.element(keys, key) {
                Holds::Always => vec![Vec::new()],
                Holds::Any(any) => any,
                Holds::Never | Holds::Unless(..) => continue,
            };
            for conditions in any {
                alternatives.push((conditions, op(datum).into_iter().collect()));
            }
        }
        if alternatives.is_empty() {
            return self.never();
        }
        self.branch(alternatives);
        self.part().acts = true;
    }

    /// Says whether an element of a map lets packets continue with the rule.
    fn continues(&self, map: SetId) -> bool {
        let elements = &self.resolver().rules.sets[map.0].elements;
        let Elements::Tuples(elements) = elements else { return false };
        elements.iter().any(|one| one.datum == Some(Datum::Verdict(Verdict::Continue)))
    }

    /// Returns when at least one of several conjunctions holds.
    fn any(&self, any: &[Vec<Match>]) -> Result<Holds, TooMany> {
        let mut alternatives = Vec::new();
        for all in any {
            let mut product = vec![Vec::new()];
            for one in all {
                product = match self.resolver().resolve(one) {
                    Holds::Always => product,
                    Holds::Any(any) => times(&product, &any)?,
                    Holds::Never => Vec::new(),
                    Holds::Unless(fields, elements) => {
                        times(&product, &without(&fields, &elements)?)?
                    }
                };
            }
            alternatives.extend(product);
        }
        Ok(if alternatives.is_empty() {
            Holds::Never
        } else if alternatives.iter().any(Vec::is_empty) {
            Holds::Always
        } else {
            Holds::Any(alternatives)
        })
    }
}

/// The conjunctions of each of `left` with each of `right`.
fn times(
    left: &[Vec<Condition>],
    right: &[Vec<Condition>],
) -> Result<Vec<Vec<Condition>>, TooMany> {
    if left.len() * right.len() > MOST_ALTERNATIVES {
        return Err(TooMany);
    }
    let pair =
        |one: &Vec<Condition>| right.iter().map(|other| [&one[..], other].concat()).collect();
    Ok(left.iter().flat_map::<Vec<_>, _>(pair).collect())
}

/// The conjunctions in which all fields hold, but of no element all conditions.
fn without(
    fields: &[Condition],
    elements: &[Vec<Condition>],
) -> Result<Vec<Vec<Condition>>, TooMany> {
    let mut product = vec![fields.to_vec()];
    for element in elements {
        let outside: Vec<_> = element.iter().map(|one| vec![one.outside()]).collect();
        product = times(&product, &outside)?;
    }
    Ok(product)
}
