//! Turns matches into conditions: resolves families, links, sets and negations.

use tollway_dataplane::stages::filter::Condition;
use tollway_dataplane::wire::eth::ethertype;

use super::Link;
use super::live::Live;
use crate::ir::{
    ConnectionField, Elements, Field, Item, Key, LinkPattern, Match, PayloadBase, Ruleset, Set,
    Test,
};

/// Ranges of one field.
pub(super) type Ranges = Vec<(u128, u128)>;

/// When a match holds, for packets of one version of IP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    /// For every packet.
    Always,
    /// For none.
    Never,
    /// If all conditions of one of these conjunctions hold.
    Any(Vec<Vec<Condition>>),
    /// If the packet has all of these fields, and in none of these conjunctions all conditions hold.
    Unless(Vec<Condition>, Vec<Vec<Condition>>),
}

/// A field in packets of one version.
enum Part {
    Field(Field),
    /// The same number for every packet.
    Is(u128),
    /// Lacking in every packet.
    Lacking,
}

/// The context in which matches are resolved.
#[derive(Clone, Copy)]
pub(super) struct Resolver<'a> {
    pub(super) rules: &'a Ruleset,
    pub(super) live: &'a Live,
    /// The links that rules see as ingress links; `outputs` likewise as egress links.
    pub(super) inputs: &'a [Link],
    pub(super) outputs: &'a [Link],
    /// The version of IP, or 0 for ARP.
    pub(super) version: u8,
}

impl Resolver<'_> {
    /// Returns when a match holds.
    pub(super) fn resolve(&self, one: &Match) -> Holds {
        if let Test::Set(set) = one.test
            && let Some(field) = self.live.field(set, &one.keys)
        {
            return match self.part(one.keys[0].field) {
                Part::Field(_) => {
                    let is_member = u128::from(!one.negate);
                    self::one(Condition::new(field, [(is_member, is_member)]))
                }
                Part::Is(_) | Part::Lacking => Holds::Never,
            };
        }
        let elements = match &one.test {
            Test::Ranges(ranges) => {
                vec![vec![ranges.iter().map(|range| (range.first, range.last)).collect()]]
            }
            Test::Link(patterns) => {
                let links = patterns.iter().flat_map(|pattern| self.links(one.keys[0], pattern));
                vec![vec![links.collect()]]
            }
            Test::Set(set) => self.elements(&one.keys, &self.rules.sets[set.0]),
        };
        self.tuples(&one.keys, elements, one.negate)
    }

    /// Returns when a set's element has the keys.
    pub(super) fn element(&self, keys: &[Key], items: &[Item]) -> Holds {
        let ranges = keys.iter().zip(items).map(|(key, item)| self.item(*key, item)).collect();
        self.tuples(keys, vec![ranges], false)
    }

    fn elements(&self, keys: &[Key], set: &Set) -> Vec<Vec<Ranges>> {
        match &set.elements {
            Elements::Ranges(ranges) => {
                vec![vec![ranges.iter().map(|range| (range.first, range.last)).collect()]]
            }
            Elements::Tuples(elements) => {
                let tuples = elements.iter().map(|element| keys.iter().zip(&element.key));
                let tuples = tuples
                    .map(|key| key.map(|(key, item)| self.item(*key, item)).collect::<Vec<_>>());
                if set.key.len() == 1 {
                    // A single key: one condition for all elements.
                    return vec![vec![tuples.flatten().flatten().collect()]];
                }
                tuples.collect()
            }
        }
    }

    fn item(&self, key: Key, item: &Item) -> Ranges {
        match item {
            Item::Range(range) => vec![(range.first, range.last)],
            Item::Link(pattern) => self.links(key, pattern),
        }
    }

    fn links(&self, key: Key, pattern: &LinkPattern) -> Ranges {
        let links = if key.field == Field::Output { self.outputs } else { self.inputs };
        let named = links.iter().enumerate().filter(|(_, link)| !link.name.is_empty());
        let links = named.filter(|(_, link)| link.is(pattern));
        links.map(|(number, _)| (number as u128, number as u128)).collect()
    }

    fn tuples(&self, keys: &[Key], elements: Vec<Vec<Ranges>>, negate: bool) -> Holds {
        let parts: Vec<_> = keys.iter().map(|key| self.part(key.field)).collect();
        if parts.iter().any(|part| matches!(part, Part::Lacking)) {
            return Holds::Never;
        }
        if let ([Part::Field(field)], true) = (&parts[..], negate) {
            let ranges: Ranges = elements.into_iter().flatten().flatten().collect();
            let inside = Condition { mask: keys[0].mask, ..Condition::new(*field, ranges) };
            return one(inside.outside());
        }
        let mut any = Vec::new();
        for element in elements {
            let mut all = Vec::new();
            let mut possible = true;
            for ((part, key), ranges) in parts.iter().zip(keys).zip(element) {
                match part {
                    Part::Field(field) => {
                        all.push(Condition { mask: key.mask, ..Condition::new(*field, ranges) });
                    }
                    Part::Is(number) => {
                        let number = number & key.mask;
                        possible &=
                            ranges.iter().any(|range| range.0 <= number && number <= range.1);
                    }
                    Part::Lacking => possible = false,
                }
            }
            if possible {
                any.push(all);
            }
        }
        match negate {
            false if any.is_empty() => Holds::Never,
            false if any.iter().any(Vec::is_empty) => Holds::Always,
            false => Holds::Any(any),
            true => {
                let fields = parts.iter().filter_map(|part| match part {
                    Part::Field(field) => Some(Condition::new(*field, [(0, (*field).max())])),
                    _ => None,
                });
                Holds::Unless(fields.collect(), any)
            }
        }
    }

    fn part(&self, field: Field) -> Part {
        let is_ip = matches!(self.version, 4 | 6);
        match field {
            Field::IpVersion => Part::Is(self.version.into()),
            // Rules see no other packets than those of IP, and ARP.
            Field::EtherType => Part::Is(u128::from(match self.version {
                4 => ethertype::IPV4,
                6 => ethertype::IPV6,
                _ => ethertype::ARP,
            })),
            Field::Source4 | Field::Destination4 if self.version != 4 => Part::Lacking,
            Field::Source6 | Field::Destination6 | Field::NextHeader6 if self.version != 6 => {
                Part::Lacking
            }
            Field::Connection(ConnectionField::Tuple(_, of))
                if of.version().is_some_and(|version| version != self.version) =>
            {
                Part::Lacking
            }
            // Only compiled rules have it.
            Field::InSet { .. } => Part::Lacking,
            field if is_of_ip(field) && !is_ip => Part::Lacking,
            field => Part::Field(field),
        }
    }
}

/// Says whether only IPv4 and IPv6 packets have this field.
const fn is_of_ip(field: Field) -> bool {
    !matches!(
        field,
        Field::EtherSource
            | Field::EtherDestination
            | Field::VlanId
            | Field::VlanPriority
            | Field::Input
            | Field::Output
            | Field::Mark
            | Field::Payload { base: PayloadBase::Link | PayloadBase::Network, .. }
    )
}

/// A single condition.
fn one(condition: Condition) -> Holds {
    if condition.ranges.is_empty() { Holds::Never } else { Holds::Any(vec![vec![condition]]) }
}
