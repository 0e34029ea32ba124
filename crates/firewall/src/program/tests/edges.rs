//! Packets at the edges of rules: fields at, just below and above every bound.

use tollway_dataplane::wire::checksum;

use crate::ir::*;
use crate::links::Link;
use crate::testkit::dice::Dice;
use crate::testkit::eval::Packet;

/// A field and a number at the edge of a condition on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Edge {
    field: Field,
    number: u128,
}

/// The greatest length of a packet.
const LONGEST: usize = 1400;

/// The distinct edges of a ruleset.
pub(super) fn edges(rules: &Ruleset) -> Vec<Edge> {
    let mut edges = Vec::new();
    for step in rules.chains.iter().flat_map(|chain| &chain.rules).flat_map(|rule| &rule.steps) {
        match step {
            Step::Match(one) => of_match(rules, one, &mut edges),
            Step::Any(any) => {
                any.iter().flatten().for_each(|one| of_match(rules, one, &mut edges));
            }
            Step::Map { keys, map, .. } | Step::VerdictMap { keys, map } => {
                of_set(rules, keys, *map, &mut edges);
            }
            _ => {}
        }
    }
    edges.sort();
    edges.dedup();
    edges
}

fn of_match(rules: &Ruleset, one: &Match, edges: &mut Vec<Edge>) {
    match &one.test {
        Test::Ranges(ranges) => {
            ranges.iter().for_each(|range| of_range(one.keys[0], *range, edges));
        }
        Test::Set(set) => of_set(rules, &one.keys, *set, edges),
        Test::Link(_) => {}
    }
}

fn of_set(rules: &Ruleset, keys: &[Key], set: SetId, edges: &mut Vec<Edge>) {
    match &rules.sets[set.0].elements {
        Elements::Ranges(ranges) => {
            ranges.iter().for_each(|range| of_range(keys[0], *range, edges));
        }
        Elements::Tuples(elements) => {
            for (key, item) in elements.iter().flat_map(|one| keys.iter().zip(&one.key)) {
                if let Item::Range(range) = item {
                    of_range(*key, *range, edges);
                }
            }
        }
    }
}

fn of_range(key: Key, range: Range, edges: &mut Vec<Edge>) {
    let Range { first, last } = range;
    let field = key.field;
    for number in [first.wrapping_sub(1), first, last, last.wrapping_add(1)] {
        edges.push(Edge { field, number: number & field.max() });
    }
}

impl Edge {
    /// Writes the number into a frame that has the field, unless that would keep the frame from the rules.
    pub(super) fn put(self, frame: &mut Vec<u8>, dice: &mut Dice) {
        let l3 = if frame[12] == 0x81 { 18 } else { 14 };
        let version = match frame[l3 - 2..l3] {
            [0x08, 0x00] => 4,
            [0x86, 0xdd] => 6,
            _ => 0,
        };
        let number = self.number;
        let low = number as usize;
        match (self.field, version) {
            (Field::EtherSource, _) => write(frame, 6, 6, number),
            (Field::Source4, 4) if is_routed4(number) => write(frame, l3 + 12, 4, number),
            (Field::Destination4, 4) if is_routed4(number) => write(frame, l3 + 16, 4, number),
            (Field::Source6, 6) if is_routed6(number) => write(frame, l3 + 8, 16, number),
            (Field::Destination6, 6) if is_routed6(number) => write(frame, l3 + 24, 16, number),
            (Field::Protocol, 4) => write(frame, l3 + 9, 1, number),
            (Field::Protocol | Field::NextHeader6, 6) if is_last(frame[l3 + 6], number) => {
                write(frame, l3 + 6, 1, number);
            }
            (Field::TrafficClass, 4) => write(frame, l3 + 1, 1, number),
            (Field::TrafficClass, 6) => write(frame, l3, 2, 0x6000 | number << 4),
            (Field::Ttl, 4 | 6) => {
                // Rules behind the route see one less.
                let ttl = (low + dice.below(2)).clamp(2, 255);
                write(frame, l3 + if version == 4 { 8 } else { 7 }, 1, ttl as u128);
            }
            (Field::Length, 4 | 6) => resize(frame, l3, version, low),
            (Field::TransportLength, 4 | 6) => {
                if let Some(start) = transport(frame, l3) {
                    resize(frame, l3, version, (start - l3).saturating_add(low));
                }
            }
            (Field::Fragment, 4) => write(frame, l3 + 6, 2, number & 0x7fff),
            (Field::FragmentOffset, 4) => write(frame, l3 + 6, 2, number & 0x1fff),
            (Field::Payload { base: PayloadBase::Network, offset, bytes }, 4 | 6) => {
                let (at, bytes) = (usize::from(offset), usize::from(bytes));
                let may = if version == 4 { [1..2, 4..8] } else { [1..4, 1..4] };
                if may.iter().any(|may| may.start <= at && at + bytes <= may.end) {
                    write(frame, l3 + at, bytes, number);
                }
            }
            (selector, _) => {
                if let Some((at, bytes)) = in_transport(selector)
                    && let Some(start) = transport(frame, l3)
                {
                    write(frame, start + at, bytes, number);
                }
            }
        }
    }
}

/// The offset of a frame's transport header, if the frame has one.
fn transport(frame: &[u8], l3: usize) -> Option<usize> {
    let link = Link::default();
    let parsed = Packet::new(frame, l3, &link).parsed();
    parsed.transport.filter(|_| parsed.offset == 0).map(|(_, start)| l3 + start)
}

/// A field's offset in the transport header, and its length in bytes.
fn in_transport(field: Field) -> Option<(usize, usize)> {
    Some(match field {
        Field::SourcePort => (0, 2),
        Field::DestinationPort => (2, 2),
        Field::TcpFlags => (13, 1),
        Field::IcmpType => (0, 1),
        Field::IcmpCode => (1, 1),
        Field::Payload { base: PayloadBase::Transport, offset, bytes } => {
            (offset.into(), bytes.into())
        }
        _ => return None,
    })
}

/// Says whether neither number denotes an IPv6 extension header that other headers follow.
fn is_last(now: u8, number: u128) -> bool {
    ![u128::from(now), number].iter().any(|one| matches!(one, 0 | 43 | 44 | 51 | 60))
}

fn is_routed4(address: u128) -> bool {
    !matches!(address >> 24, 0 | 127 | 224..)
}

fn is_routed6(address: u128) -> bool {
    address >> 112 == 0x2001
}

/// Gives a packet this length, if possible.
fn resize(frame: &mut Vec<u8>, l3: usize, version: u8, length: usize) {
    let header = if version == 4 { usize::from(frame[l3] & 15) * 4 } else { 40 };
    let length = length.clamp(header, LONGEST);
    frame.resize(l3 + length, 0);
    match version {
        4 => write(frame, l3 + 2, 2, length as u128),
        _ => write(frame, l3 + 4, 2, (length - 40) as u128),
    }
}

/// Writes a number into the frame, if it is long enough.
fn write(frame: &mut [u8], at: usize, bytes: usize, number: u128) {
    if let Some(place) = frame.get_mut(at..at + bytes) {
        place.copy_from_slice(&number.to_be_bytes()[16 - bytes..]);
    }
}

/// Corrects the checksum of an IPv4 header.
pub(super) fn finish(frame: &mut [u8]) {
    let l3 = if frame[12] == 0x81 { 18 } else { 14 };
    if frame[l3 - 2..l3] != [8, 0] {
        return;
    }
    let end = l3 + usize::from(frame[l3] & 15) * 4;
    frame[l3 + 10..l3 + 12].fill(0);
    let sum = !checksum::sum(&frame[l3..end]);
    frame[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
}
