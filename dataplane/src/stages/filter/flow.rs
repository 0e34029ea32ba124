//! What rules say of a flow: of every packet of one key, as an express lane tells them apart.
//!
//! The lane repeats what was decided for one packet, which is right where nothing but the key was looked
//! at. So a flow is taken through the rules by its key alone: a rule that its key speaks for, and that
//! asks for something else as well, may match one packet and not the next.

use super::build::MOST_DIMS;
use super::classifier::Classifier;
use super::{Condition, Field, Filter, Op, Point, Rules, bits};
use crate::id::LinkId;

/// Counters that a flow's packets may count in.
pub const MOST_TOUCHED: usize = 8;

/// Calls that may be in each other, as in the walk of one packet.
const MOST_CALLS: usize = 16;

/// What all packets of a flow have: none is a fragment, has options or extension headers.
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
    /// Source and destination port; none where they are not of the key.
    pub ports: Option<(u16, u16)>,
    /// The link that they arrive on.
    pub input: LinkId,
    /// The link that they leave by.
    pub output: LinkId,
}

/// The counters that every packet of a flow counts in, in the order in which it meets them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Touched {
    counters: [u32; MOST_TOUCHED],
    count: u8,
}

impl Touched {
    /// The counters' numbers.
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

/// What of a rule depends on more than a flow's key.
pub(super) const VARIES: u8 = 1;
/// The same, where ports are not of the key.
pub(super) const VARIES_BY_PORT: u8 = 2;

/// What of a condition on a field depends on more than a flow's key; `any_sees_df` is as the function of
/// that name says of the line.
pub(super) const fn varies(field: Field, any_sees_df: bool) -> u8 {
    match field {
        Field::SourcePort | Field::DestinationPort => VARIES_BY_PORT,
        Field::Fragment if any_sees_df => VARIES,
        field if is_key(field) => 0,
        _ => VARIES,
    }
}

/// Whether a condition on the fragment field sees IPv4's DF, which differs from packet to packet.
fn sees_df(condition: &Condition, version: u8) -> bool {
    version == 4 && condition.mask & 0x4000 != 0
}

/// Whether some rule asks for IPv4's DF.
pub(super) fn any_sees_df(rules: &Rules, version: u8) -> bool {
    let conditions = rules.rules.iter().flat_map(|rule| &rule.conditions);
    conditions.filter(|one| one.field == Field::Fragment).any(|one| sees_df(one, version))
}

/// Fields that all packets of a flow share.
const fn is_key(field: Field) -> bool {
    matches!(
        field,
        Field::EtherType
            | Field::Source
            | Field::Destination
            | Field::Protocol
            | Field::NextHeader6
            | Field::SourcePort
            | Field::DestinationPort
            | Field::Fragment
            | Field::FragmentOffset
            | Field::Input
            | Field::Output
            | Field::Mark
            // Whoever changes a set counts it as a change, so that what was said of flows is void.
            | Field::InSet { .. }
    )
}

impl Filter {
    /// The counters that every packet of a flow counts in, where rules let all of them go on as they
    /// are. None where that depends on more than the key: on other fields, or a rate; where they are
    /// changed or told of; where they count at hook ingress, or in more than [`MOST_TOUCHED`] counters.
    #[must_use]
    pub fn of_flow(&self, flow: &FlowKey) -> Option<Touched> {
        let (mut touched, mut mark) = (Touched::default(), 0);
        for point in [Point::Ingress, Point::Prerouting, Point::Forward] {
            if let Some(classifier) = self.at(point, flow.version) {
                let (calls, end) = ([0; MOST_CALLS], classifier.end);
                let mut walk = Walk { classifier, flow, touched, mark, calls, depth: 0, end };
                walk.run()?;
                (touched, mark) = (walk.touched, walk.mark);
            }
        }
        Some(touched)
    }
}

/// A flow on its way through one line of rules.
struct Walk<'a> {
    classifier: &'a Classifier,
    flow: &'a FlowKey,
    touched: Touched,
    mark: u32,
    calls: [u32; MOST_CALLS],
    depth: usize,
    end: u32,
}

/// Where an op leads to.
enum Way {
    On,
    To(u32),
    Out,
}

/// Fields whose number is not the same for all packets of a flow.
struct Varies;

impl Walk<'_> {
    /// Whether all packets of the flow go on behind these rules.
    fn run(&mut self) -> Option<()> {
        let classes = self.classes();
        let varies = VARIES | if self.flow.ports.is_none() { VARIES_BY_PORT } else { 0 };
        let mut from = 0;
        loop {
            let at = self.next(&classes, from);
            let (ops, next) = self.classifier.programs.get(at as usize)?;
            if self.classifier.varies.get(at as usize)? & varies != 0 {
                // No packet of the flow matches if the key fails what is checked besides.
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
                    Way::On => {}
                    Way::To(at) => {
                        from = at;
                        break;
                    }
                    Way::Out => return Some(()),
                }
            }
        }
    }

    /// Where an op leads to; none where the flow can not be told as one.
    fn op(&mut self, op: &Op, at: u32, next: u32) -> Option<Way> {
        Some(match op {
            Op::Check(condition) if self.check(condition)? => Way::On,
            Op::Check(_) => Way::To(at + 1),
            // There the bytes behind a packet count too, which a lane does not see.
            Op::Count(_) if self.classifier.point == Point::Ingress => return None,
            Op::Count(counter) => {
                self.touched.add(*counter)?;
                Way::On
            }
            Op::Mark { keep, flip } => {
                self.mark = self.mark & keep ^ flip;
                Way::On
            }
            Op::Skip(at) => Way::To(*at),
            Op::Chain { at, end } => {
                self.depth = 0;
                self.end = *end;
                Way::To(*at)
            }
            Op::Leave => {
                self.depth = 0;
                Way::To(self.end + 1)
            }
            Op::Call(at) => {
                *self.calls.get_mut(self.depth)? = next;
                self.depth += 1;
                Way::To(*at)
            }
            Op::Return if self.depth > 0 => {
                self.depth -= 1;
                Way::To(self.calls[self.depth])
            }
            Op::Return => Way::To(self.end),
            Op::Accept => Way::Out,
            // Whatever needs more than to be repeated.
            _ => return None,
        })
    }

    /// Whether a condition holds for all packets of the flow, or for none; none where that varies.
    fn check(&self, condition: &Condition) -> Option<bool> {
        if condition.field == Field::Fragment && sees_df(condition, self.flow.version) {
            return None;
        }
        self.number(condition.field).ok().map(|number| condition.holds(number))
    }

    /// The number of a field in all packets of the flow; none where they all lack it.
    fn number(&self, field: Field) -> Result<Option<u128>, Varies> {
        let flow = self.flow;
        Ok(match (field, flow.version) {
            (Field::EtherType, 6) => Some(0x86dd),
            (Field::EtherType, _) => Some(0x0800),
            (Field::Source, _) => Some(flow.source),
            (Field::Destination, _) => Some(flow.destination),
            (Field::Protocol, _) | (Field::NextHeader6, 6) => Some(flow.protocol.into()),
            (Field::NextHeader6, _) => None,
            (Field::SourcePort, _) => Some(flow.ports.ok_or(Varies)?.0.into()),
            (Field::DestinationPort, _) => Some(flow.ports.ok_or(Varies)?.1.into()),
            // But for IPv4's DF, which nobody asks for who comes here.
            (Field::Fragment, 4) | (Field::FragmentOffset, _) => Some(0),
            (Field::Fragment, _) => None,
            (Field::Input, _) => Some(flow.input.0.into()),
            (Field::Output, _) => {
                (self.classifier.point == Point::Forward).then_some(flow.output.0.into())
            }
            (Field::Mark, _) => Some(self.mark.into()),
            (Field::InSet { set, of }, _) => {
                let Some(address) = self.number(of.field())? else { return Err(Varies) };
                let live = self.classifier.live.get(usize::from(set)).ok_or(Varies)?;
                Some(live.has(address).into())
            }
            _ => return Err(Varies),
        })
    }

    /// The flow's class of each field; none where that differs from packet to packet.
    fn classes(&self) -> [Option<u32>; MOST_DIMS] {
        let mut classes = [None; MOST_DIMS];
        for (class, dim) in classes.iter_mut().zip(&self.classifier.dims) {
            let bits = super::build::bits_of(dim.field, self.classifier.version);
            let unsure = dim.field == Field::Fragment && self.classifier.sees_df;
            let number = if unsure { Err(Varies) } else { self.number(dim.field) };
            *class = number.ok().map(|number| dim.class(number, bits));
        }
        classes
    }

    /// The first rule from `from` on that the flow's key does not speak against.
    fn next(&self, classes: &[Option<u32>; MOST_DIMS], from: u32) -> u32 {
        let classifier = self.classifier;
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
