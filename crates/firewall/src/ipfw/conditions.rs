//! Turns tests into matches, for one pass of the list over a packet.
//!
//! A test of ipfw holds or not, and `not` inverts it. A match of the intermediate form holds neither way if
//! the packet lacks the field. So this module writes each test, and its inverse, as alternatives: "not port
//! 80" becomes a protocol without ports, or a later fragment, or another port.

use std::collections::BTreeMap;

use tollway_dataplane::wire::l4;

use super::rule::{Bits, LinkSelector, Links, Lookup, Rule, Side, Term, Test};
use super::table::{Kind, Tables};
use crate::ir::{
    Elements, Field, Hook, Key, LinkPattern, Match, PayloadBase, Range, Ruleset, Set, SetId, Step,
    Test as IrTest,
};

/// Alternatives; all matches of at least one must hold. Empty: never; one alternative without matches:
/// always.
type Any = Vec<Vec<Match>>;

/// Protocols whose header begins with ports.
const WITH_PORTS: [u8; 4] = [l4::TCP, l4::UDP, l4::SCTP, l4::UDP_LITE];

/// A pass of the list over a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// Layer 3, received.
    In,
    /// Layer 3, to be sent.
    Out,
    /// Layer 2, received.
    EtherIn,
    /// Layer 2, to be sent.
    EtherOut,
}

impl Pass {
    pub(super) const fn hook(self) -> Hook {
        match self {
            Self::In => Hook::Prerouting,
            Self::Out => Hook::Forward,
            Self::EtherIn => Hook::Ingress,
            Self::EtherOut => Hook::Egress,
        }
    }

    pub(super) const fn is_in(self) -> bool {
        matches!(self, Self::In | Self::EtherIn)
    }

    pub(super) const fn is_ether(self) -> bool {
        matches!(self, Self::EtherIn | Self::EtherOut)
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
            Self::EtherIn => "in layer2",
            Self::EtherOut => "out layer2",
        }
    }
}

/// Data that the rules of all passes share.
pub(super) struct Sets<'a> {
    tables: &'a Tables,
    added: BTreeMap<(String, u8, Option<u32>), SetId>,
}

impl<'a> Sets<'a> {
    pub(super) fn new(tables: &'a Tables) -> Self {
        Self { tables, added: BTreeMap::new() }
    }
}

/// Turns the tests of one pass's rules into matches.
pub(super) struct Conditions<'s, 'a> {
    pub(super) pass: Pass,
    pub(super) sets: &'s mut Sets<'a>,
    pub(super) rules: &'s mut Ruleset,
}

impl Conditions<'_, '_> {
    /// The conditions of a rule; none if it never matches in this pass.
    pub(super) fn rule(&mut self, rule: &Rule) -> Option<Vec<Step>> {
        let mut steps = Vec::new();
        for block in &rule.blocks {
            let any: Any = block.iter().flat_map(|term| self.term(term)).collect();
            if any.iter().any(Vec::is_empty) {
                continue;
            }
            match &joined(any)[..] {
                [] => return None,
                [all] => steps.extend(all.iter().cloned().map(Step::Match)),
                any => steps.push(Step::Any(any.to_vec())),
            }
        }
        Some(steps)
    }

    fn term(&mut self, term: &Term) -> Any {
        let not = term.not;
        match &term.test {
            Test::Any => constant(!not),
            Test::In => constant(self.pass.is_in() != not),
            Test::Layer2 => constant(self.pass.is_ether() != not),
            Test::Version(version) => {
                vec![vec![one_of(Field::IpVersion, &[*version]).negated_if(not)]]
            }
            Test::Protocol(protocol) => self.field(one_of(Field::Protocol, &[*protocol]), not),
            Test::Four(side, list) => addresses4(*side, list, not),
            Test::Six(side, list) => addresses6(*side, list, not),
            Test::Table(side, name, value) => self.table(*side, name, *value, not),
            Test::Lookup(Lookup::Address(side), name) => self.table(*side, name, None, not),
            Test::Lookup(what, name) => self.lookup(*what, name, not),
            Test::Ports(side, ranges) => self.ports(*side, to_ranges(ranges), not),
            Test::Link(which, links) => self.link(*which, links, not),
            Test::Fragment(bits) => self.fragment(*bits, not),
            Test::TcpFlags(bits) => self.tcp_flags(*bits, not),
            Test::Established => {
                let key = Key::masked(Field::TcpFlags, 0x16);
                self.tcp(Match::is(key, 0x02).negated(), not)
            }
            Test::Icmp(types) => self.transport(&[1], one_of(Field::IcmpType, types), not),
            Test::Icmp6(types) => {
                let mut any = self.transport(&[58], one_of(Field::IcmpType, types), not);
                let six = Match::is(Field::IpVersion, 6);
                match not {
                    true => any.push(vec![six.negated()]),
                    false => any.iter_mut().for_each(|all| all.insert(0, six.clone())),
                }
                any
            }
            Test::Length(ranges) => {
                self.field(Match::in_ranges(Field::Length, to_ranges(ranges)), not)
            }
            Test::Ttl(ranges) => ipv4_only(Match::in_ranges(Field::Ttl, to_ranges(ranges)), not),
            Test::Id(ranges) => ipv4_only(Match::in_ranges(network(4, 2), to_ranges(ranges)), not),
            Test::Tos(bits) => match mask_and_value(*bits) {
                Some((mask, set)) => {
                    let key = Key::masked(Field::TrafficClass, mask);
                    ipv4_only(Match::is(key, set), not)
                }
                None => constant(not),
            },
            Test::Precedence(level) => {
                let key = Key::masked(Field::TrafficClass, 0xe0);
                ipv4_only(Match::is(key, u128::from(*level) << 5), not)
            }
            Test::Dscp(all) => self.field(dscp(all.iter().map(|dscp| (*dscp).into())), not),
            Test::TcpData(ranges) => self.tcp_data(ranges, not),
            Test::TcpSequence(number) => {
                self.tcp(Match::is(transport(4, 4), (*number).into()), not)
            }
            Test::TcpAck(number) => self.tcp(Match::is(transport(8, 4), (*number).into()), not),
            Test::TcpWindow(ranges) => {
                self.tcp(Match::in_ranges(transport(14, 2), to_ranges(ranges)), not)
            }
            Test::Mac(addresses) => self.mac(addresses, not),
            Test::EtherType(ranges) => match self.pass.is_ether() {
                true => {
                    vec![vec![
                        Match::in_ranges(Field::EtherType, to_ranges(ranges)).negated_if(not),
                    ]]
                }
                false => constant(not),
            },
        }
    }

    /// A field that all IP packets that reach the rules have.
    fn field(&self, one: Match, not: bool) -> Any {
        let mut any = vec![vec![one.negated_if(not)]];
        if not {
            any.extend(self.no_ip());
        }
        any
    }

    /// Packets that are not IP occur at layer 2 only.
    fn no_ip(&self) -> Any {
        let none = || vec![Match::in_ranges(Field::IpVersion, [Range::new(4, 6)]).negated()];
        self.pass.is_ether().then(none).into_iter().collect()
    }

    /// A field of the transport header of certain protocols.
    fn transport(&self, protocols: &[u8], one: Match, not: bool) -> Any {
        let protocol = one_of(Field::Protocol, protocols);
        if !not {
            return vec![vec![protocol, one]];
        }
        let mut any = vec![vec![protocol.negated()], vec![later_fragment()], vec![one.negated()]];
        any.extend(self.no_ip());
        any
    }

    fn tcp(&self, one: Match, not: bool) -> Any {
        self.transport(&[6], one, not)
    }

    fn tcp_flags(&self, bits: Bits, not: bool) -> Any {
        match mask_and_value(bits) {
            Some((mask, set)) => self.tcp(Match::is(Key::masked(Field::TcpFlags, mask), set), not),
            None => constant(not),
        }
    }

    fn ports(&self, side: Side, ranges: Vec<Range>, not: bool) -> Any {
        let field = match side {
            Side::Source => Field::SourcePort,
            Side::Destination => Field::DestinationPort,
        };
        self.transport(&WITH_PORTS, Match::in_ranges(field, ranges), not)
    }

    /// Number of data bytes: those of transport header and data, less the length of the header. Since that
    /// length is a nibble, there is one alternative for each.
    fn tcp_data(&self, ranges: &[(u16, u16)], not: bool) -> Any {
        let mut any = Any::new();
        if not {
            any.push(vec![Match::is(Field::Protocol, l4::TCP.into()).negated()]);
            any.push(vec![later_fragment()]);
            any.extend(self.no_ip());
        }
        for words in 0_u32..16 {
            let is = Match::is(Key::masked(transport(12, 1).field, 0xf0), (words << 4).into());
            let lengths: Vec<_> =
                ranges.iter().flat_map(|range| with_header(*range, words * 4)).collect();
            let length = Match::in_ranges(Field::TransportLength, lengths.clone());
            match (lengths.is_empty(), not) {
                (true, true) => any.push(vec![is]),
                (true, false) => {}
                (false, true) => any.push(vec![is, length.negated()]),
                (false, false) => {
                    any.push(vec![Match::is(Field::Protocol, l4::TCP.into()), is, length]);
                }
            }
        }
        any
    }

    /// `mf`, `df` and `rf` apply to IPv4 only, `offset` to IPv6 too.
    fn fragment(&self, bits: Bits, not: bool) -> Any {
        let Some((mask, set)) = mask_and_value(bits) else { return constant(not) };
        let four = Match::is(Field::IpVersion, 4);
        if (mask, set) == (1, 1) {
            return self.field(later_fragment(), not);
        }
        let flags = (mask & 0xe0 != 0).then(|| {
            let key = Key::masked(network(6, 2).field, (mask & 0xe0) << 8);
            Match::is(key, (set & 0xe0) << 8)
        });
        let offset = (mask & 1 != 0).then(|| later_fragment().negated_if(set & 1 == 0));
        let parts: Vec<_> = flags.into_iter().chain(offset).collect();
        if !not {
            return vec![[vec![four], parts].concat()];
        }
        let mut any = vec![vec![four.clone().negated()]];
        any.extend(parts.into_iter().map(|part| vec![four.clone(), part.negated()]));
        any
    }

    fn mac(&self, addresses: &[(u64, u64); 2], not: bool) -> Any {
        if !self.pass.is_ether() {
            return constant(not);
        }
        let parts = [Field::EtherDestination, Field::EtherSource].into_iter().zip(addresses);
        let parts = parts.filter(|(_, (_, mask))| *mask != 0).map(|(selector, (address, mask))| {
            Match::is(Key::masked(selector, (*mask).into()), (*address).into()).negated_if(not)
        });
        match not {
            true => parts.map(|part| vec![part]).collect(),
            false => vec![parts.collect()],
        }
    }

    fn link(&mut self, which: LinkSelector, links: &Links, not: bool) -> Any {
        let field = match (which, self.pass.is_in()) {
            (LinkSelector::Recv, _) | (LinkSelector::Via, true) => Field::Input,
            (LinkSelector::Xmit | LinkSelector::Via, false) => Field::Output,
            (LinkSelector::Xmit, true) => return constant(not),
        };
        let patterns = match links {
            Links::Any => return constant(!not),
            Links::Name(name) => vec![LinkPattern::Name(name.clone())],
            Links::Prefix(prefix) => vec![LinkPattern::Prefix(prefix.clone())],
            Links::Table(name, value) => {
                let table = self.sets.tables.get(name).filter(|table| table.kind == Kind::Link);
                let names = table.map(|table| table.links(*value)).unwrap_or_default();
                names.into_iter().map(LinkPattern::Name).collect()
            }
        };
        if patterns.is_empty() {
            return constant(not);
        }
        let test = IrTest::Link(patterns);
        vec![vec![Match { keys: vec![field.into()], test, negate: not }]]
    }

    /// An address in a table.
    fn table(&mut self, side: Side, name: &str, value: Option<u32>, not: bool) -> Any {
        let mut any = Any::new();
        for version in [4, 6] {
            let is = Match::is(Field::IpVersion, version.into());
            match (self.set(name, version, value), not) {
                (None, false) => {}
                (None, true) => any.push(vec![is]),
                (Some(set), _) => {
                    any.push(vec![Match::in_set(address(side, version), set).negated_if(not)]);
                }
            }
        }
        if not {
            any.extend(self.no_ip());
        }
        any
    }

    /// The set of a table's addresses of one version; `None` if there are none.
    fn set(&mut self, name: &str, version: u8, value: Option<u32>) -> Option<SetId> {
        let key = (name.to_owned(), version, value);
        if let Some(set) = self.sets.added.get(&key) {
            return Some(*set);
        }
        let ranges = self.sets.tables.get(name)?.prefixes(version, value);
        if ranges.is_empty() {
            return None;
        }
        let of = value.map(|value| format!(" value {value}")).unwrap_or_default();
        let set = self.rules.add_set(Set {
            name: format!("ipfw table {name} ip{version}{of}"),
            key: vec![address(Side::Source, version).into()],
            dynamic: false,
            elements: Elements::Ranges(ranges),
        });
        self.sets.added.insert(key, set);
        Some(set)
    }

    fn lookup(&self, what: Lookup, name: &str, not: bool) -> Any {
        let table = self.sets.tables.get(name).filter(|table| table.kind == Kind::Number);
        let most = if what == Lookup::Dscp { 63 } else { 65_535 };
        let mut numbers = table.map(|table| table.numbers(None)).unwrap_or_default();
        numbers.retain(|range| range.first <= most);
        numbers.iter_mut().for_each(|range| range.last = range.last.min(most));
        if numbers.is_empty() {
            return constant(not);
        }
        match what {
            Lookup::Port(side) => self.ports(side, numbers, not),
            _ => {
                let all = numbers.iter().flat_map(|range| range.first..=range.last);
                self.field(dscp(all), not)
            }
        }
    }
}

trait Negate {
    fn negated_if(self, not: bool) -> Self;
}

impl Negate for Match {
    fn negated_if(self, not: bool) -> Self {
        if not { self.negated() } else { self }
    }
}

fn constant(holds: bool) -> Any {
    if holds { vec![Vec::new()] } else { Vec::new() }
}

/// The field is one of these.
pub(super) fn one_of(field: Field, numbers: &[u8]) -> Match {
    let ranges: Vec<_> = numbers.iter().map(|number| Range::one((*number).into())).collect();
    Match::in_ranges(field, ranges)
}

/// A later fragment.
fn later_fragment() -> Match {
    Match::in_ranges(Field::FragmentOffset, [Range::new(1, 0x1fff)])
}

fn to_ranges(ranges: &[(u16, u16)]) -> Vec<Range> {
    ranges.iter().map(|(first, last)| Range::new((*first).into(), (*last).into())).collect()
}

fn dscp(all: impl Iterator<Item = u128>) -> Match {
    let ranges: Vec<_> = all.map(|dscp| Range::one(dscp << 2)).collect();
    Match::in_ranges(Key::masked(Field::TrafficClass, 0xfc), ranges)
}

/// The bits that matter, and those of them that are set; `None` if a bit must be both set and clear.
fn mask_and_value(bits: Bits) -> Option<(u128, u128)> {
    (bits.set & bits.clear == 0).then(|| ((bits.set | bits.clear).into(), bits.set.into()))
}

fn network(offset: u8, bytes: u8) -> Key {
    Field::Payload { base: PayloadBase::Network, offset, bytes }.into()
}

fn transport(offset: u8, bytes: u8) -> Key {
    Field::Payload { base: PayloadBase::Transport, offset, bytes }.into()
}

/// A match that applies only to IPv4 packets.
fn ipv4_only(one: Match, not: bool) -> Any {
    let four = Match::is(Field::IpVersion, 4);
    match not {
        true => vec![vec![four.clone().negated()], vec![four, one.negated()]],
        false => vec![vec![four, one]],
    }
}

fn address(side: Side, version: u8) -> Field {
    match (side, version) {
        (Side::Source, 4) => Field::Source4,
        (Side::Destination, 4) => Field::Destination4,
        (Side::Source, _) => Field::Source6,
        (Side::Destination, _) => Field::Destination6,
    }
}

fn addresses4(side: Side, list: &[(u32, u32)], not: bool) -> Any {
    let (mut ranges, mut masked) = (Vec::new(), Vec::new());
    for (address, mask) in list {
        let len = mask.leading_ones();
        match mask.count_ones() == len {
            true => ranges.push(Range::prefix((*address).into(), len, 32)),
            false => masked.push((*address, *mask)),
        }
    }
    let field = address(side, 4);
    let whole = (!ranges.is_empty()).then(|| Match::in_ranges(field, ranges));
    let parts = masked
        .into_iter()
        .map(|(address, mask)| Match::is(Key::masked(field, mask.into()), address.into()));
    of_version(4, whole.into_iter().chain(parts), not)
}

fn addresses6(side: Side, list: &[(u128, u8)], not: bool) -> Any {
    let ranges: Vec<_> =
        list.iter().map(|(address, len)| Range::prefix(*address, (*len).into(), 128)).collect();
    of_version(6, std::iter::once(Match::in_ranges(address(side, 6), ranges)), not)
}

/// At least one of several matches on a field that only this version has.
fn of_version(version: u8, parts: impl Iterator<Item = Match>, not: bool) -> Any {
    match not {
        false => parts.map(|part| vec![part]).collect(),
        true => vec![
            vec![Match::is(Field::IpVersion, version.into()).negated()],
            parts.map(Match::negated).collect(),
        ],
    }
}

/// Total lengths of header and data for which the data are in a range. The kernel computes with 16 bits, so a
/// header longer than the packet leaves a very large number.
fn with_header((first, last): (u16, u16), header: u32) -> Vec<Range> {
    let (first, last) = (u32::from(first) + header, u32::from(last) + header);
    let plain = (first <= 65_535).then(|| (first, last.min(65_535)));
    let wrapped = (last > 65_535).then(|| (first.saturating_sub(65_536), last - 65_536));
    let all = plain.into_iter().chain(wrapped);
    all.map(|(first, last)| Range::new(first.into(), last.into())).collect()
}

/// Merges alternatives on one field into one.
fn joined(any: Any) -> Any {
    let mut out = Any::new();
    for all in any {
        if let ([one], Some([last])) = (&all[..], out.last_mut().map(Vec::as_mut_slice)) {
            let alike = one.keys == last.keys && !one.negate && !last.negate;
            if let (true, IrTest::Ranges(ranges), IrTest::Ranges(before)) =
                (alike, &one.test, &mut last.test)
            {
                before.extend(ranges);
                continue;
            }
        }
        out.push(all);
    }
    out
}
