//! The conditions of a rule in nft's listing, in the same form as the kernel's.

use super::condition::{
    IIF, IIFNAME, L4PROTO, LEN, Load, Location, Lookup, MARK, NFPROTO, OIF, OIFNAME, PROTOCOL,
    Test, all,
};
use super::connection;
use tollway_firewall::ir::{
    Field, Key, LinkPattern, Match, PayloadBase, Range, Set, Test as ListedTest,
};

/// The context of a condition.
#[derive(Clone, Copy)]
pub(super) struct Site<'a> {
    pub(super) sets: &'a [Set],
    /// Names of chains.
    pub(super) names: &'a [String],
    /// The version of IP of packets in the chain, if that is known.
    pub(super) version: Option<u8>,
    /// Whether frames are as a device has received them.
    pub(super) is_at_device: bool,
    /// The table after its family, with a trailing space.
    pub(super) table: &'a str,
}

impl Site<'_> {
    /// Says whether a condition of the kernel is this one.
    pub(super) fn is(&self, one: &Match, test: &Test) -> bool {
        match (&one.test, &one.keys[..]) {
            (ListedTest::Link(patterns), [key]) => self.is_link(key, patterns, one.negate, test),
            (ListedTest::Ranges(ranges), [key]) => self.is_ranges(key, ranges, one.negate, test),
            (ListedTest::Set(set), keys) => {
                let Test::Set { keys: loads, set: name, negate } = test else { return false };
                let Some(set) = self.sets.get(set.0) else { return false };
                *negate == one.negate && self.is_set(set, name, keys, loads)
            }
            _ => false,
        }
    }

    /// Says whether a set is the one that the kernel looks up, by the same loads.
    pub(super) fn is_set(&self, listed: &Set, own: &Lookup, keys: &[Key], loads: &[Load]) -> bool {
        let is = match own {
            Lookup::Anonymous(Some(own)) => {
                listed.name.is_empty() && self.has(&listed.elements, keys, loads, own)
            }
            Lookup::Anonymous(None) => false,
            Lookup::Named(name) => listed.name.strip_prefix(self.table) == Some(name),
        };
        is && self.are(keys, loads)
    }

    /// Says whether the loads are those of the keys.
    fn are(&self, keys: &[Key], loads: &[Load]) -> bool {
        let is = |(key, load): (&Key, &Load)| self.is_key(key, load);
        keys.len() == loads.len() && keys.iter().zip(loads).all(is)
    }

    fn is_key(&self, key: &Key, load: &Load) -> bool {
        match key.field {
            Field::Input => load.is_meta(&[IIF, IIFNAME]),
            Field::Output => load.is_meta(&[OIF, OIFNAME]),
            Field::IpVersion => *load == Load::meta(NFPROTO),
            _ => self.places(key).iter().any(|place| place.load.as_key() == *load),
        }
    }

    fn is_ranges(&self, key: &Key, ranges: &[Range], negate: bool, test: &Test) -> bool {
        match test {
            // Ranges written in the rule form an anonymous set.
            Test::Set { keys, set: Lookup::Anonymous(Some(own)), negate: other } => {
                let [load] = &keys[..] else { return false };
                *other == negate
                    && self.is_key(key, load)
                    && self.has_ranges(ranges, key, load, own)
            }
            Test::Set { .. } => false,
            Test::Ranges { load, ranges: others, negate: other } => {
                let same = |(one, other): (&Range, &(u128, u128))| (one.first, one.last) == *other;
                *other == negate
                    && self.is_key(key, load)
                    && ranges.len() == others.len()
                    && ranges.iter().zip(others).all(same)
            }
            Test::Range { .. } => match ranges {
                [range] => self.forms_of(key, *range, negate).contains(test),
                _ => false,
            },
        }
    }

    /// The conditions that the kernel may have for one on a range of one key.
    pub(super) fn forms(&self, one: &Match) -> Vec<Test> {
        match (&one.test, &one.keys[..]) {
            (ListedTest::Ranges(ranges), [key]) => match ranges[..] {
                [range] => self.forms_of(key, range, one.negate),
                _ => Vec::new(),
            },
            _ => Vec::new(),
        }
    }

    fn forms_of(&self, key: &Key, range: Range, negate: bool) -> Vec<Test> {
        if key.field == Field::IpVersion {
            return self.versions(range, negate);
        }
        let form = |place: &FieldPlace| {
            let (first, last) = (place.number(range.first)?, place.number(range.last)?);
            // The load may have more bits than the field.
            let last = match range.last == key.field.max() && place.up == 0 {
                true => all(place.load.bytes),
                false => last,
            };
            let last = if place.load.mask == all(place.load.bytes) {
                last
            } else {
                last.min(place.load.mask)
            };
            Some(Test::range(place.load, first, last, negate))
        };
        self.places(key).iter().filter_map(form).collect()
    }

    fn versions(&self, range: Range, negate: bool) -> Vec<Test> {
        let (protocol, kind) = match (range.first, range.last) {
            (4, 4) => (2, 0x0800),
            (6, 6) => (10, 0x86dd),
            _ => return Vec::new(),
        };
        let is = |load: Load, number| Test::range(load, number, number, negate);
        let mut forms = vec![is(Load::meta(NFPROTO), protocol), is(Load::meta(PROTOCOL), kind)];
        if !negate {
            // Behind a tag, or where the kernel has removed it.
            let at = if self.is_at_device { 16 } else { 12 };
            forms.push(is(Load::payload(PayloadBase::Link, at, 2), kind));
        }
        forms
    }

    fn is_link(&self, key: &Key, patterns: &[LinkPattern], negate: bool, test: &Test) -> bool {
        let (number, name) = match key.field {
            Field::Input => (IIF, IIFNAME),
            _ => (OIF, OIFNAME),
        };
        match (test, patterns) {
            (Test::Set { keys, set: Lookup::Anonymous(Some(own)), negate: other }, _) => {
                let [load] = &keys[..] else { return false };
                *other == negate
                    && load.is_meta(&[number, name])
                    && self.has_links(patterns, key, load, own)
            }
            // nft has queried the device's name.
            (Test::Range { load, negate: other, .. }, [LinkPattern::Name(_)])
                if *load == Load::meta(number) =>
            {
                *other == negate
            }
            (Test::Range { .. }, [pattern]) => named(name, pattern, negate) == Some(test.clone()),
            _ => false,
        }
    }

    /// Where the kernel finds the field of a key, if in this load.
    pub(super) fn place_of(&self, key: &Key, load: &Load) -> Option<FieldPlace> {
        self.places(key).into_iter().find(|place| place.load.as_key() == *load)
    }

    /// All places where the kernel may find the field of a key.
    fn places(&self, key: &Key) -> Vec<FieldPlace> {
        let whole = |location, offset, bytes| FieldPlace::new(location, offset, bytes, key.mask);
        let payload = |base, offset, bytes| whole(Location::Payload(base), offset, bytes);
        let network = |offset, bytes| payload(PayloadBase::Network, offset, bytes);
        let transport = |offset, bytes| payload(PayloadBase::Transport, offset, bytes);
        let link = |offset, bytes| payload(PayloadBase::Link, offset, bytes);
        let meta =
            |of| FieldPlace { load: Load { mask: key.mask, ..Load::meta(of) }, up: 0, down: 0 };
        let (is_4, is_6) = (self.version == Some(4), self.version == Some(6));
        let mut places = Vec::new();
        let mut add = |is: bool, place: FieldPlace| places.extend(is.then_some(place));
        match key.field {
            Field::EtherType => {
                add(true, meta(PROTOCOL));
                add(!self.is_at_device, link(12, 2));
            }
            Field::EtherSource => add(true, link(6, 6)),
            Field::EtherDestination => add(true, link(0, 6)),
            Field::VlanId => add(true, link(14, 2)),
            Field::VlanPriority => add(true, link(14, 1).shifted(5, 0)),
            Field::Source4 => add(is_4, network(12, 4)),
            Field::Destination4 => add(is_4, network(16, 4)),
            Field::Source6 => add(is_6, network(8, 16)),
            Field::Destination6 => add(is_6, network(24, 16)),
            Field::Protocol => {
                add(true, meta(L4PROTO));
                add(is_4 && !self.is_at_device, network(9, 1));
            }
            Field::NextHeader6 => add(is_6, network(6, 1)),
            Field::SourcePort => add(true, transport(0, 2)),
            Field::DestinationPort => add(true, transport(2, 2)),
            Field::TcpFlags => add(true, transport(13, 1)),
            Field::IcmpType => add(true, transport(0, 1)),
            Field::IcmpCode => add(true, transport(1, 1)),
            Field::TrafficClass => {
                add(is_4, network(1, 1));
                add(is_6, network(0, 2).shifted(4, 0));
            }
            Field::Length => {
                // The field has fewer bits than the kernel's number.
                let mask = if key.mask == key.field.max() { all(4) } else { key.mask };
                let of_meta = FieldPlace { load: Load { mask, ..Load::meta(LEN) }, up: 0, down: 0 };
                add(true, of_meta);
                add(is_4 && !self.is_at_device, network(2, 2));
            }
            Field::Ttl => {
                add(is_4, network(8, 1));
                add(is_6, network(7, 1));
            }
            Field::Fragment => {
                let offset = key.mask & !0x1fff == 0;
                let more = key.mask == 0x2000;
                let extension = whole(Location::Extension(44), 2, 2);
                add(offset, extension.shifted(3, 0));
                add(more, whole(Location::Extension(44), 3, 1).shifted(0, 13));
            }
            Field::Mark => add(true, meta(MARK)),
            Field::Payload { base, offset, bytes } => {
                add(true, payload(base, offset.into(), bytes.into()));
            }
            Field::Connection(field) => {
                let load = connection::of(field);
                // Of the kernel's number of the state, the field has all bits that are ever set.
                let mask = if key.mask == key.field.max() { load.mask } else { key.mask };
                add(true, FieldPlace { load: Load { mask, ..load }, up: 0, down: 0 });
            }
            Field::IpVersion
            | Field::TransportLength
            | Field::FragmentOffset
            | Field::Input
            | Field::Output
            | Field::InSet { .. } => {}
        }
        places
    }
}

/// A load, and the position of a field's number in it.
#[derive(Clone, Copy)]
pub(super) struct FieldPlace {
    pub(super) load: Load,
    up: u32,
    down: u32,
}

impl FieldPlace {
    const fn new(location: Location, offset: u32, bytes: u32, mask: u128) -> Self {
        Self { load: Load { location, offset, bytes, mask }, up: 0, down: 0 }
    }

    /// Moves the field's number up or down in the load.
    const fn shifted(mut self, up: u32, down: u32) -> Self {
        self.load.mask = self.load.mask << up >> down;
        (self.up, self.down) = (up, down);
        self
    }

    /// Converts a number of the field into one of the load.
    pub(super) fn number(&self, number: u128) -> Option<u128> {
        let moved = number.checked_shl(self.up)? >> self.down;
        (moved <= all(self.load.bytes)).then_some(moved)
    }
}

/// A condition on a device's name.
fn named(key: u32, pattern: &LinkPattern, negate: bool) -> Option<Test> {
    let (first, last) = name_range(pattern)?;
    let load = Load { mask: !(last - first), ..Load::meta(key) };
    Some(Test::range(load, first, first, negate))
}

/// The names that match a pattern, as a range of numbers.
pub(super) fn name_range(pattern: &LinkPattern) -> Option<(u128, u128)> {
    let (name, len) = match pattern {
        // Including the trailing NULs.
        LinkPattern::Name(name) => (name, 16),
        LinkPattern::Prefix(prefix) => (prefix, prefix.len()),
        LinkPattern::Vrf(_) => return None,
    };
    let behind = 16_u32.checked_sub(u32::try_from(len).ok()?)? * 8;
    let bytes = name.bytes().chain(std::iter::repeat(0)).take(16);
    let first = bytes.fold(0, |all, byte| all << 8 | u128::from(byte));
    let open = !u128::MAX.checked_shl(behind).unwrap_or(0);
    (name.len() <= 16).then_some((first, first | open))
}

/// Says whether `test` is the presence of a fragment header, on any IPv6 packet.
pub(super) fn is_presence(one: &Match, test: &Test) -> bool {
    let presence = Match::in_ranges(Field::Fragment, [Range::new(0, Field::Fragment.max())]);
    let there = Load::whole(Location::Presence(44), 0, 1);
    *one == presence && test.number() == Some((there, 1))
}
