//! The result of the rules for a flow: for every packet of one key, as the XDP path distinguishes them.
//!
//! The XDP path repeats the decision on one packet, which is correct only if the rules matched on
//! nothing except the key. So this module evaluates the rules with the flow's key alone. A rule that
//! the key satisfies, but that also checks something else, may match one packet and not the next.

use super::classifier::Classifier;
use super::dim::MOST_DIMS;
use super::varies::{VARIES, VARIES_BY_PORT, sees_df};
use super::{Condition, Field, Filter, Op, Point, bits};
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
}

/// What the rules do with every packet of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowReport {
    /// The counters that the packets count in.
    pub touched: Touched,
    /// Where the packets are dropped; none if they are accepted, unchanged.
    pub dropped_at: Option<Point>,
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
    /// None if the result depends on more than the key (other fields, or a rate), if rules change,
    /// reject, reroute or log packets, if they count packets at hook ingress that they accept there, or
    /// if they count in more than [`MOST_TOUCHED`] counters.
    #[must_use]
    pub fn of_flow(&self, flow: &FlowKey) -> Option<FlowReport> {
        let points = [Point::Ingress, Point::Prerouting, Point::Forward];
        let count = if flow.output.is_some() { points.len() } else { points.len() - 1 };
        let (mut touched, mut mark) = (Touched::default(), 0);
        for point in points.into_iter().take(count) {
            let Some(classifier) = self.at(point, flow.version) else { continue };
            let (calls, end) = ([0; MOST_CALLS], classifier.end);
            let mut walk = Walk { classifier, flow, touched, mark, calls, depth: 0, end };
            let is_dropped = walk.run()?;
            (touched, mark) = (walk.touched, walk.mark);
            if is_dropped {
                return Some(FlowReport { touched, dropped_at: Some(point) });
            }
            // There the bytes after a packet count too, which later rules do not see. A flow has one
            // number of bytes for all of its counters.
            if point == Point::Ingress && touched != Touched::default() {
                return None;
            }
        }
        Some(FlowReport { touched, dropped_at: None })
    }
}

/// The walk of a flow through one list of rules.
struct Walk<'a> {
    classifier: &'a Classifier,
    flow: &'a FlowKey,
    touched: Touched,
    mark: u32,
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
        let varies = VARIES | if self.flow.ports.is_none() { VARIES_BY_PORT } else { 0 };
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
                self.touched.add(*counter)?;
                Jump::On
            }
            Op::Mark { keep, flip } => {
                self.mark = self.mark & keep ^ flip;
                Jump::On
            }
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
                let output = flow.output.filter(|_| self.classifier.point == Point::Forward);
                output.map(|link| link.0.into())
            }
            (Field::Mark, _) => Some(self.mark.into()),
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
