//! The matches `conntrack`, `state` and `connmark` of iptables, and its targets `CONNMARK` and `CT`
//! (`include/uapi/linux/netfilter/xt_conntrack.h`, `xt_state.h`, `xt_connmark.h`, `xt_CT.h`).
//!
//! A match becomes alternatives, each with conditions that all have to hold.

#[cfg(test)]
mod tests;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops;

use serde_json::{Value, json};

use tollway_firewall::conntrack::{ConntrackMatch, ConntrackStates, key, states};
use tollway_firewall::ir::{
    ConnectionField, Direction, Field, MarkOf, MarkUpdate, Match, Range, Test, TupleField,
};

/// Parses a match in a table of this version of IP; `None` if it is another one, or has options that are not known here.
pub(super) fn read(
    (name, revision): (&str, u32),
    info: &[u8],
    version: Option<u8>,
) -> Option<Vec<Vec<Match>>> {
    match (name, revision) {
        ("conntrack", 1..=3) => Some(Conntrack::read(revision, info, version)?.alternatives()),
        ("state", 0) => {
            let mask = u128::from(word(info, 0)?);
            Some(vec![vec![states(|bit| bit & mask != 0)]])
        }
        ("connmark", 1) => {
            let (mark, mask, invert) = (word(info, 0)?, word(info, 4)?, *info.get(8)?);
            let one = Match::is(key(ConnectionField::Mark, mask.into()), mark.into());
            Some(vec![vec![if invert == 0 { one } else { one.negated() }]])
        }
        _ => None,
    }
}

/// `struct xt_conntrack_mtinfo1` to `3`, without what is not known here.
struct Conntrack {
    flags: u16,
    inverted: u16,
    states: u16,
    status: u16,
    protocol: u8,
    /// Conditions on the tuples.
    tuples: Vec<Match>,
}

/// `XT_CONNTRACK_*`.
const STATE: u16 = 1;
const PROTOCOL: u16 = 1 << 1;
const STATUS: u16 = 1 << 6;
const DIRECTION: u16 = 1 << 12;
/// The rule was written with the match `state`.
const ALIAS: u16 = 1 << 13;
/// Each address of a tuple: its flag, and what it is. They lie at the start, in this order, each with its mask.
const ADDRESSES: [(u16, Direction, [TupleField; 2]); 4] = [
    (1 << 2, Direction::Original, [TupleField::Source4, TupleField::Source6]),
    (1 << 3, Direction::Original, [TupleField::Destination4, TupleField::Destination6]),
    (1 << 4, Direction::Reply, [TupleField::Source4, TupleField::Source6]),
    (1 << 5, Direction::Reply, [TupleField::Destination4, TupleField::Destination6]),
];
/// Bytes of `union nf_inet_addr`.
const ADDRESS: usize = 16;
/// The same of ports; the first is at [`PORTS_AT`], and the end of its range at [`ENDS_AT`].
const PORTS: [(u16, Direction, TupleField); 4] = [
    (1 << 8, Direction::Original, TupleField::SourcePort),
    (1 << 9, Direction::Original, TupleField::DestinationPort),
    (1 << 10, Direction::Reply, TupleField::SourcePort),
    (1 << 11, Direction::Reply, TupleField::DestinationPort),
];
const PORTS_AT: usize = 138;
const ENDS_AT: usize = 154;
/// All options on tuples.
const TUPLES: u16 = 0xf << 2 | 0xf << 8;

/// Two bytes in host order.
fn half(info: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*info.get(at..)?.first_chunk()?))
}

/// Parses the conditions on tuples that these flags name.
fn tuples(
    revision: u32,
    info: &[u8],
    (flags, inverted): (u16, u16),
    version: Option<u8>,
) -> Option<Vec<Match>> {
    let mut all = Vec::new();
    let mut add = |flag: u16, direction, field, range| {
        let of = Field::Connection(ConnectionField::Tuple(direction, field));
        let one = Match::in_ranges(of, [range]);
        all.push(if inverted & flag == 0 { one } else { one.negated() });
    };
    for (number, (flag, direction, fields)) in ADDRESSES.into_iter().enumerate() {
        if flags & flag != 0 {
            let is_six = version? == 6;
            let at = 2 * number * ADDRESS;
            let range = network(info.get(at..at + 2 * ADDRESS)?, is_six)?;
            add(flag, direction, fields[usize::from(is_six)], range);
        }
    }
    for (number, (flag, direction, field)) in PORTS.into_iter().enumerate() {
        if flags & flag != 0 {
            let port = half(info, PORTS_AT + 2 * number)?;
            let (first, last) = match revision {
                3 => (port, half(info, ENDS_AT + 2 * number)?),
                // As in the packet.
                _ => (u16::from_be(port), u16::from_be(port)),
            };
            // No port lies in a range that ends before it begins.
            (first <= last)
                .then(|| add(flag, direction, field, Range::new(first.into(), last.into())))?;
        }
    }
    Some(all)
}

/// The addresses of a network: an address and a mask, which are numbers in network byte order. `None` if they are not those of
/// a prefix.
fn network(bytes: &[u8], is_six: bool) -> Option<Range> {
    let (address, mask) = bytes.split_at_checked(ADDRESS)?;
    let number = |bytes: &[u8]| match is_six {
        true => Some(u128::from_be_bytes(*bytes.first_chunk()?)),
        false => Some(u128::from(u32::from_be_bytes(*bytes.first_chunk()?))),
    };
    let (address, mask) = (number(address)?, number(mask)?);
    let rest = !mask & if is_six { u128::MAX } else { u32::MAX.into() };
    (rest & rest.wrapping_add(1) == 0).then(|| Range::new(address & mask, address & mask | rest))
}

impl Conntrack {
    fn read(revision: u32, info: &[u8], version: Option<u8>) -> Option<Self> {
        // The addresses and the times to live come first.
        let half = |at: usize| half(info, at);
        let (states, status) = match revision {
            1 => ((*info.get(150)?).into(), (*info.get(151)?).into()),
            _ => (half(150)?, half(152)?),
        };
        let (flags, inverted) = (half(146)?, half(148)?);
        let protocol = half(136)?;
        let is_known = flags & !(STATE | PROTOCOL | STATUS | DIRECTION | ALIAS | TUPLES) == 0;
        let tuples = tuples(revision, info, (flags, inverted), version)?;
        let protocol = match flags & PROTOCOL {
            0 => 0,
            _ => u8::try_from(protocol).ok()?,
        };
        (is_known && flags & !ALIAS != 0).then_some(Self {
            flags,
            inverted,
            states,
            status,
            protocol,
            tuples,
        })
    }

    /// When it matches.
    fn alternatives(&self) -> Vec<Vec<Match>> {
        let is_inverted = |flag| self.inverted & flag != 0;
        let states =
            ConntrackStates { states: self.state_bits().into(), translated: self.translated() };
        let mut conntrack = ConntrackMatch {
            states: (self.flags & STATE != 0).then(|| (states, is_inverted(STATE))),
            others: self.tuples.clone(),
        };
        if self.flags & DIRECTION != 0 {
            conntrack.direction(is_inverted(DIRECTION));
        }
        if self.flags & PROTOCOL != 0 {
            conntrack.protocol(self.protocol, is_inverted(PROTOCOL));
        }
        if self.flags & STATUS != 0 {
            conntrack.status(self.status.into(), is_inverted(STATUS));
        }
        conntrack.alternatives()
    }

    /// The states as bits of `NF_CT_STATE_*`.
    const fn state_bits(&self) -> u16 {
        const UNTRACKED: u16 = 1 << 8;
        self.states & 0xf | if self.states & UNTRACKED == 0 { 0 } else { 64 }
    }

    /// The states `SNAT` and `DNAT` as bits of `enum ip_conntrack_status`.
    const fn translated(&self) -> u32 {
        (self.states as u32 >> 6 & 3) << 4
    }
}

/// Parses the target `CONNMARK`; `None` if it is another one, or shifts marks.
pub(super) fn target(name: &str, revision: u32, info: &[u8]) -> Option<MarkUpdate> {
    let (mark, of_connection, of_packet) = (word(info, 0)?, word(info, 4)?, word(info, 8)?);
    let mode = match (name, revision) {
        ("CONNMARK", 1) => info.get(12)?,
        // Shifted by no bit.
        ("CONNMARK", 2) if info.get(13) == Some(&0) => info.get(14)?,
        _ => return None,
    };
    let update = |target, packet, connection, flip| MarkUpdate {
        target,
        packet,
        connection: Some(connection),
        flip,
    };
    Some(match mode {
        0 => update(MarkOf::Connection, 0, !of_connection, mark),
        1 => update(MarkOf::Connection, of_packet, !of_connection, 0),
        2 => update(MarkOf::Packet, !of_packet, of_connection, 0),
        _ => return None,
    })
}

/// Whether a target is `CT` without a timeout policy (`include/uapi/linux/netfilter/xt_CT.h`). A connection's entry, or its zone,
/// shows all else that the target gives to it.
pub(super) fn keeps_timeouts(name: &str, revision: u32, info: &[u8]) -> bool {
    /// `timeout` of `struct xt_ct_target_info_v1`.
    const POLICY: ops::Range<usize> = 28..60;
    match (name, revision) {
        ("CT", 0) => true,
        ("CT", 1 | 2) => info.get(POLICY).is_some_and(|policy| policy[0] == 0),
        _ => false,
    }
}

/// Whether a target is `CT --notrack`.
pub(super) fn is_notrack(name: &str, revision: u32, info: &[u8]) -> bool {
    /// `XT_CT_NOTRACK` of `flags`.
    const NOTRACK: u16 = 1;
    name == "CT" && revision <= 2 && half(info, 0).is_some_and(|flags| flags & NOTRACK != 0)
}

/// A word in host order.
fn word(info: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*info.get(at..)?.first_chunk()?))
}

/// The alternatives of a match in nft's JSON.
pub(super) fn listed(alternatives: &[Vec<Match>]) -> Value {
    let condition = |one: &Match| {
        let (keys, Test::Ranges(ranges)) = (&one.keys, &one.test) else { return Value::Null };
        if let Some(Field::Connection(ConnectionField::Tuple(direction, field))) =
            keys.first().map(|key| key.field)
        {
            return listed_tuple(direction, field, ranges, one.negate);
        }
        let range = |range: &Range| json!({ "range": [number(range.first), number(range.last)] });
        let left = keys.first().map(|key| json!({ "&": [ct(key.field), number(key.mask)] }));
        json!({ "match": {
            "op": if one.negate { "!=" } else { "==" },
            "left": left,
            "right": { "set": ranges.iter().map(range).collect::<Vec<_>>() },
        } })
    };
    let all = |all: &Vec<Match>| all.iter().map(condition).collect::<Vec<_>>();
    json!({ "any": alternatives.iter().map(all).collect::<Vec<_>>() })
}

/// A condition on a tuple in nft's JSON.
fn listed_tuple(direction: Direction, field: TupleField, ranges: &[Range], negate: bool) -> Value {
    let (key, is_address) = match field {
        TupleField::Source4 => ("ip saddr", true),
        TupleField::Destination4 => ("ip daddr", true),
        TupleField::Source6 => ("ip6 saddr", true),
        TupleField::Destination6 => ("ip6 daddr", true),
        TupleField::SourcePort => ("proto-src", false),
        TupleField::DestinationPort => ("proto-dst", false),
    };
    let direction = match direction {
        Direction::Original => "original",
        Direction::Reply => "reply",
    };
    let value = |value: u128| match (is_address, u32::try_from(value)) {
        (true, Ok(four)) if !key.starts_with("ip6") => json!(Ipv4Addr::from(four).to_string()),
        (true, _) => json!(Ipv6Addr::from(value).to_string()),
        (false, _) => json!(number(value)),
    };
    let range = |range: &Range| json!({ "range": [value(range.first), value(range.last)] });
    json!({ "match": {
        "op": if negate { "!=" } else { "==" },
        "left": { "ct": { "key": key, "dir": direction } },
        "right": { "set": ranges.iter().map(range).collect::<Vec<_>>() },
    } })
}

/// The setting of a mark in nft's JSON.
pub(super) fn listed_update(update: &MarkUpdate) -> Value {
    let ct = || json!({ "ct": { "key": "mark" } });
    let meta = || json!({ "meta": { "key": "mark" } });
    let key = match update.target {
        MarkOf::Packet => meta(),
        MarkOf::Connection => ct(),
    };
    let connection = update.connection.map(|bits| json!({ "&": [ct(), bits] }));
    let parts = [json!({ "&": [meta(), update.packet] }), json!(update.flip)];
    let parts: Vec<_> = connection.into_iter().chain(parts).collect();
    json!({ "mangle": { "key": key, "value": { "^": parts } } })
}

fn ct(field: Field) -> Value {
    let key = match field {
        Field::Connection(ConnectionField::State) => "state",
        Field::Connection(ConnectionField::Direction) => "direction",
        Field::Connection(ConnectionField::Status) => "status",
        Field::Connection(ConnectionField::Protocol) => "protocol",
        _ => "mark",
    };
    json!({ "ct": { "key": key } })
}

/// A number of at most 32 bits.
const fn number(number: u128) -> u64 {
    number as u64
}
