//! The result of the rules for a flow: for every packet of one key, as the XDP path distinguishes them.
//!
//! The XDP path repeats the decision on one packet, which is correct only if the rules matched on
//! nothing except the key. So this module evaluates the rules with the flow's key alone. A rule that
//! the key satisfies, but that also checks something else, may match one packet and not the next.

use std::sync::Arc;

use super::classifier::Classifier;
use super::dim::MOST_DIMS;
use super::varies::{VARIES, VARIES_BY_CONNECTION, VARIES_BY_PORT, sees_df};
use super::{
    Condition, Field, Filter, FlowConnection, Limit, LiveSet, MarkOf, MarkUpdate, Op, Point,
    Subject, bits,
};
use crate::id::LinkId;
use crate::wire::eth::ethertype;

/// The maximum number of counters that a flow's packets may count in.
pub const MOST_TOUCHED: usize = 8;

/// The maximum depth of nested calls, as in the walk of one packet.
const MOST_CALLS: usize = 16;

/// The properties that all packets of a flow share: none is a fragment, has options or extension
/// headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowKey {
    /// 4 or 6.
    pub version: u8,
    /// Source address.
    pub source: u128,
    /// Destination address.
    pub destination: u128,
    /// Transport protocol.
    pub protocol: u8,
    /// Source and destination port; none if they are not part of the key.
    pub ports: Option<(u16, u16)>,
    /// The link that they arrive on.
    pub input: LinkId,
    /// The egress link; none if they are dropped before the route lookup, or by their route.
    pub output: Option<LinkId>,
    /// What connection tracking says of them; none if that is not known.
    pub connection: Option<FlowConnection>,
}

/// What the rules do with every packet of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowReport {
    /// The counters that the packets count in.
    pub touched: Touched,
    /// Where the packets are dropped; none if they are accepted, unchanged.
    pub dropped_at: Option<Point>,
    /// The mark that rules give to the packets, which have none before.
    pub mark: u32,
    /// Whether a rule keeps the packets out of connection tracking: of a flow that is said to be untracked.
    pub is_untracked: bool,
}

/// The counters that every packet of a flow counts in, in the order of the rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Touched {
    counters: [u32; MOST_TOUCHED],
    count: u8,
}

impl Touched {
    /// The numbers of the counters.
    #[must_use]
    pub fn counters(&self) -> &[u32] {
        self.counters.get(..usize::from(self.count)).unwrap_or_default()
    }

    fn add(&mut self, counter: u32) -> Option<()> {
        *self.counters.get_mut(usize::from(self.count))? = counter;
        self.count += 1;
        Some(())
    }
}

impl Filter {
    /// What the rules do with every packet of a flow: accept it unchanged, or drop it. Without an
    /// egress link, the rules before the route lookup alone count.
    ///
    /// None if connections are tracked here, if the result depends on more than the key (other fields, or a rate), if rules change,
    /// reject, reroute or log packets, give a connection another mark, if they count packets at hook ingress that they accept there, or
    /// if they count in more than [`MOST_TOUCHED`] counters.
    #[must_use]
    pub fn of_flow(&self, flow: &FlowKey) -> Option<FlowReport> {
        if self.tracker.is_some() {
            // Each packet changes its connection.
            return None;
        }
        let points = [Point::Ingress, Point::Prerouting, Point::Forward];
        let count = if flow.output.is_some() { points.len() } else { points.len() - 1 };
        let mut report = FlowReport::default();
        for point in points.into_iter().take(count) {
            let Some(classifier) = self.at(point, flow.version) else { continue };
            let result = |flow: &FlowKey| {
                let (calls, end) = ([0; MOST_CALLS], classifier.end);
                let mut walk = Walk { classifier, flow, report, calls, depth: 0, end };
                let is_dropped = walk.run()?;
                Some(FlowReport { dropped_at: is_dropped.then_some(point), ..walk.report })
            };
            let (seen, also_seen) = self.translated(point, flow);
            let found = result(&seen)?;
            // Where rules on both sides of a translation are one list, it has to be the same to them.
            if also_seen.is_some_and(|also_seen| result(&also_seen) != Some(found)) {
                return None;
            }
            report = found;
            if report.dropped_at.is_some() {
                return Some(report);
            }
            // There the bytes after a packet count too, which later rules do not see. A flow has one
            // number of bytes for all of its counters.
            if point == Point::Ingress && report.touched != Touched::default() {
                return None;
            }
        }
        Some(report)
    }
}

/// A filter for flows only, whose rules may test connections. It never decides about a packet on the user
/// path, whose connection is not known there.
#[derive(Debug, Default)]
pub struct FlowFilter(Filter);

impl FlowFilter {
    /// Creates a filter as [`Filter::new`] does; `fill` sets its rules.
    ///
    /// # Errors
    /// The error of `fill`.
    pub fn with<E>(
        counters: usize,
        limits: Vec<Limit>,
        fill: impl FnOnce(&mut Filter) -> Result<(), E>,
    ) -> Result<Self, E> {
        let mut filter = Filter { subject: Subject::Flows, ..Filter::new(counters, limits) };
        fill(&mut filter).map(|()| Self(filter))
    }

    /// Sets where rules stand beside the kernel's translation of addresses.
    pub const fn set_translation_order(&mut self, order: TranslationOrder) {
        self.0.translation_order = order;
    }

    /// What the rules do with every packet of a flow, see [`Filter::of_flow`]. None also if a rule that they
    /// may come to tests a connection, and the flow's is not known.
    #[must_use]
    pub fn of_flow(&self, flow: &FlowKey) -> Option<FlowReport> {
        self.0.of_flow(flow)
    }

    /// Whether some rule keeps packets out of connection tracking.
    #[must_use]
    pub const fn untracks(&self) -> bool {
        self.0.untracks
    }

    /// The sets that change while the rules stay.
    #[must_use]
    pub fn live_sets(&self) -> &[Arc<LiveSet>] {
        self.0.live_sets()
    }
}

/// Where rules stand beside the kernel's translation of addresses, which happens at priority -100 of hook prerouting, and
/// at 100 of postrouting (`enum nf_ip_hook_priorities`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TranslationOrder {
    /// Some rules of hook prerouting see the destination as it arrives.
    pub some_before_destination: bool,
    /// Some rules of hook prerouting see the destination as it leaves.
    pub some_behind_destination: bool,
    /// Some rules of hooks postrouting and egress see the source as it leaves.
    pub some_behind_source: bool,
}

impl Filter {
    /// The flow as the rules of a point see it, and as some of them see it instead, if its connection is translated.
    fn translated(&self, point: Point, flow: &FlowKey) -> (FlowKey, Option<FlowKey>) {
        let connection = flow.connection.as_ref().and_then(FlowConnection::tracked);
        let (Some(connection), Some((source_port, _))) = (connection, flow.ports) else {
            return (*flow, None);
        };
        let leaves = connection.leaves();
        let to = FlowKey {
            destination: leaves.destination,
            ports: Some((source_port, leaves.destination_port)),
            ..*flow
        };
        let ports = Some((leaves.source_port, leaves.destination_port));
        let whole = FlowKey { source: leaves.source, ports, ..to };
        let order = self.translation_order;
        match point {
            Point::Ingress | Point::DestinationNat | Point::BehindNat | Point::SourceNat => {
                (*flow, None)
            }
            Point::Prerouting if !order.some_behind_destination => (*flow, None),
            Point::Prerouting => (to, Some(*flow).filter(|_| order.some_before_destination)),
            Point::Forward => (to, Some(whole).filter(|_| order.some_behind_source)),
        }
    }
}

/// The walk of a flow through one list of rules.
struct Walk<'a> {
    classifier: &'a Classifier,
    flow: &'a FlowKey,
    /// What the rules have done so far.
    report: FlowReport,
    calls: [u32; MOST_CALLS],
    depth: usize,
    end: u32,
}

/// The continuation after an op.
enum Jump {
    On,
    To(u32),
    Accept,
    Drop,
}

/// The error for fields whose value is not the same for all packets of a flow.
struct Varies;

impl Walk<'_> {
    /// Walks the rules; says whether they drop all packets of the flow, or accept all; else none.
    fn run(&mut self) -> Option<bool> {
        let classes = self.classes();
        let varies = VARIES
            | if self.flow.ports.is_none() { VARIES_BY_PORT } else { 0 }
            | if self.flow.connection.is_none() { VARIES_BY_CONNECTION } else { 0 };
        let mut from = 0;
        loop {
            let at = self.next(&classes, from);
            let (ops, next) = self.classifier.programs.get(at as usize)?;
            if self.classifier.varies.get(at as usize)? & varies != 0 {
                // No packet of the flow matches if the key fails one of the checks.
                let mut checks = ops.iter().map_while(|op| match op {
                    Op::Check(condition) => Some(self.check(condition)),
                    _ => None,
                });
                if !checks.any(|held| held == Some(false)) {
                    return None;
                }
                from = at + 1;
                continue;
            }
            from = *next;
            for op in ops {
                match self.op(op, at, *next)? {
                    Jump::On => {}
                    Jump::To(at) => {
                        from = at;
                        break;
                    }
                    Jump::Accept => return Some(false),
                    Jump::Drop => return Some(true),
                }
            }
        }
    }

    /// Executes an op; none if the flow has no common result.
    fn op(&mut self, op: &Op, at: u32, next: u32) -> Option<Jump> {
        Some(match op {
            Op::Check(condition) if self.check(condition)? => Jump::On,
            Op::Check(_) => Jump::To(at + 1),
            Op::Count(counter) => {
                self.report.touched.add(*counter)?;
                Jump::On
            }
            Op::Mark { keep, flip } => {
                self.report.mark = self.report.mark & keep ^ flip;
                Jump::On
            }
            Op::UpdateMark(update) => return self.update_mark(*update, next),
            Op::NoTrack { again } => self.notrack(*again)?,
            Op::Skip(at) => Jump::To(*at),
            Op::Chain { at, end } => {
                self.depth = 0;
                self.end = *end;
                Jump::To(*at)
            }
            Op::Leave => {
                self.depth = 0;
                Jump::To(self.end + 1)
            }
            Op::Call(at) => {
                *self.calls.get_mut(self.depth)? = next;
                self.depth += 1;
                Jump::To(*at)
            }
            Op::Return if self.depth > 0 => {
                self.depth -= 1;
                Jump::To(self.calls[self.depth])
            }
            Op::Return => Jump::To(self.end),
            Op::Accept => Jump::Accept,
            Op::Drop => Jump::Drop,
            // For other ops, it is not enough to repeat the verdict.
            _ => return None,
        })
    }

    /// Keeps packets out of connection tracking; none if they would be other packets then.
    fn notrack(&mut self, again: bool) -> Option<Jump> {
        match (self.flow.connection.as_ref()?, again) {
            (FlowConnection::Untracked, false) => self.report.is_untracked = true,
            (FlowConnection::Untracked | FlowConnection::Tracked(_), true) => {}
            _ => return None,
        }
        Some(Jump::On)
    }

    /// Sets a mark; none if the connection would get another one, which only the kernel can give it.
    fn update_mark(&mut self, update: MarkUpdate, next: u32) -> Option<Jump> {
        let connection = self.flow.connection.as_ref()?.tracked().map(|connection| connection.mark);
        let Some(mark) = update.number(self.report.mark, connection) else {
            return Some(Jump::To(next));
        };
        match (update.target, connection) {
            (MarkOf::Packet, _) => self.report.mark = mark,
            (MarkOf::Connection, Some(before)) if before != mark => return None,
            (MarkOf::Connection, _) => {}
        }
        Some(Jump::On)
    }

    /// Says whether a condition holds for all packets of the flow; none if that varies.
    fn check(&self, condition: &Condition) -> Option<bool> {
        if condition.field == Field::Fragment && sees_df(condition, self.flow.version) {
            return None;
        }
        self.number(condition.field).ok().map(|number| condition.holds(number))
    }

    /// The value of a field in all packets of the flow; none if they all lack it.
    fn number(&self, field: Field) -> Result<Option<u128>, Varies> {
        let flow = self.flow;
        Ok(match (field, flow.version) {
            (Field::IpVersion, version) => Some(version.into()),
            (Field::EtherType, 6) => Some(ethertype::IPV6.into()),
            (Field::EtherType, _) => Some(ethertype::IPV4.into()),
            (Field::Source4, 4) | (Field::Source6, 6) => Some(flow.source),
            (Field::Destination4, 4) | (Field::Destination6, 6) => Some(flow.destination),
            (Field::Source4 | Field::Destination4 | Field::Source6 | Field::Destination6, _) => {
                None
            }
            (Field::Protocol, _) | (Field::NextHeader6, 6) => Some(flow.protocol.into()),
            (Field::NextHeader6, _) => None,
            (Field::SourcePort, _) => Some(flow.ports.ok_or(Varies)?.0.into()),
            (Field::DestinationPort, _) => Some(flow.ports.ok_or(Varies)?.1.into()),
            // Except for IPv4's DF, on which no rule matches here.
            (Field::Fragment, 4) | (Field::FragmentOffset, _) => Some(0),
            (Field::Fragment, _) => None,
            (Field::Input, _) => Some(flow.input.0.into()),
            (Field::Output, _) => {
                let output = flow.output.filter(|_| self.classifier.point.is_behind_route());
                output.map(|link| link.0.into())
            }
            (Field::Mark, _) => Some(self.report.mark.into()),
            (Field::Connection(field), version) => {
                let connection = flow.connection.as_ref().ok_or(Varies)?;
                connection.number(field, version, flow.protocol)
            }
            (Field::InSet { set, of }, _) => {
                let Some(address) = self.number(of.field(flow.version))? else {
                    return Err(Varies);
                };
                let live = self.classifier.live.get(usize::from(set)).ok_or(Varies)?;
                Some(live.has(address).into())
            }
            _ => return Err(Varies),
        })
    }

    /// The flow's class of each field; none if that differs from packet to packet.
    fn classes(&self) -> [Option<u32>; MOST_DIMS] {
        let mut classes = [None; MOST_DIMS];
        for (class, dim) in classes.iter_mut().zip(&self.classifier.dims) {
            let unsure = dim.field == Field::Fragment && self.classifier.sees_df;
            let number = if unsure { Err(Varies) } else { self.number(dim.field) };
            *class = number.ok().map(|number| dim.class(number));
        }
        classes
    }

    /// The first rule from `from` on that the flow's key does not exclude.
    fn next(&self, classes: &[Option<u32>; MOST_DIMS], from: u32) -> u32 {
        let classifier = self.classifier;
        if let Some(partition) = &classifier.partition {
            return partition.next(|dim| classes.get(dim).copied().flatten(), from);
        }
        let known = || {
            let dims = classifier.dims.iter().zip(classes);
            dims.filter_map(|(dim, class)| Some((dim, (*class)?)))
        };
        let candidates =
            known().fold(u64::MAX, |all, (dim, class)| all & dim.sets.summary(class).blocks);
        let mut word = from as usize / 64;
        let mut mask = u64::MAX << (from % 64);
        while word < classifier.width {
            let is_sparse = classifier.width > bits::MOST_DENSE;
            if is_sparse && candidates >> (word / bits::BLOCK) & 1 == 0 {
                word = (word / bits::BLOCK + 1) * bits::BLOCK;
                mask = u64::MAX;
                continue;
            }
            let all = classifier.all[word] & mask;
            let set = known().fold(all, |set, (dim, class)| set & dim.sets.word(class, word));
            if set != 0 {
                return word as u32 * 64 + set.trailing_zeros();
            }
            word += 1;
            mask = u64::MAX;
        }
        u32::MAX
    }
}
