//! Turns a rule's expressions into conditions and the actions that follow them.
//!
//! This module follows each register from load to use. An expression that it cannot follow becomes
//! [`Act::Unknown`]; the rest of the rule is then unknown.

mod bits;
mod nat;
mod writes;

use super::condition::{IIFNAME, Load, Location, Lookup, MARK, OIFNAME, Test, all, meta};
use super::elements::{KeyPart, SetItem, entries};
use super::expression::{Destination, Expression, Rate, Register, WORDS};
use super::{connection, conntrack, match_set, multiport};
use tollway_firewall::ir::{MarkOf, MarkUpdate, Match, NatVerdict, PayloadBase};

/// Conditions, all of which have to hold, and the action that follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) tests: Vec<Test>,
    /// `None` at the end of a rule.
    pub(super) act: Option<Act>,
}

/// An action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Counts, by the named object if there is one.
    Count(Option<String>),
    /// Applies a rate limit; an object defines it if there is no rate here.
    Limit(Option<Rate>),
    /// Writes to the log, or to a netlink group.
    Log {
        prefix: String,
        group: Option<u16>,
    },
    NoTrack,
    /// Sets the mark to `mark & keep ^ flip`.
    Mark {
        keep: u32,
        flip: u32,
    },
    /// Sets a mark to a map's datum.
    MarkBy {
        keys: Vec<Load>,
        map: Lookup,
        target: MarkOf,
    },
    /// Sets the connection's mark, or the packet's by it.
    UpdateMark(MarkUpdate),
    /// Continues if all conditions of an alternative hold: a module of iptables that tests connections.
    Any(Vec<Vec<Match>>),
    /// Writes the DSCP of packets of one version of IP.
    Dscp {
        version: u8,
        dscp: u8,
    },
    /// `NF_*` or `NFT_*`, with the chain that it leads to.
    Verdict {
        code: i32,
        chain: Option<String>,
    },
    /// Executes a map's verdict.
    VerdictBy {
        keys: Vec<Load>,
        map: Lookup,
    },
    /// Translates the packet's connection.
    Nat(NatVerdict),
    /// Translates it by a map's datum.
    NatBy {
        keys: Vec<Load>,
        map: Lookup,
    },
    /// `NFT_REJECT_*` and a code.
    Reject {
        kind: u32,
        code: u8,
    },
    /// An expression that is not understood.
    Unknown(String),
}

/// Whether expressions that test or set something of connections are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Scope {
    /// No: the rules are for packets.
    Packets,
    /// Yes: the rules are for flows of known connections.
    Connections,
}

/// Finds the sets of a table by their names.
pub(super) trait Sets {
    /// The version of IP of the table's packets, if its family has one.
    fn version(&self) -> Option<u8>;

    fn find(&self, name: &str) -> Option<SetContents<'_>>;

    /// The name that the rules use for ipset's set of this index, and the version of IP of its addresses.
    fn ipset(&self, index: u16) -> Option<(String, u8)>;
}

/// A set.
pub(super) struct SetContents<'a> {
    /// Length of its keys in bytes.
    pub(super) key: u32,
    /// Whether the set is anonymous.
    pub(super) is_anonymous: bool,
    /// Whether the kernel stores the ends of intervals.
    pub(super) is_interval: bool,
    /// The elements of an anonymous set, if they are known.
    pub(super) items: Option<&'a [SetItem]>,
}

/// Splits a rule into its parts.
pub(super) fn parts(expressions: &[Expression], sets: &dyn Sets, scope: Scope) -> Vec<Part> {
    let mut reader = RuleReader {
        sets,
        scope,
        words: std::array::from_fn(|_| None),
        parts: Vec::new(),
        tests: Vec::new(),
    };
    let mut rest = expressions;
    while let Some((first, behind)) = rest.split_first() {
        let taken = match reader.step(first, behind) {
            Some(taken) => taken,
            None => {
                reader.act(Act::Unknown(first.kind()));
                return reader.parts;
            }
        };
        rest = behind.get(taken..).unwrap_or_default();
    }
    reader.end(None);
    reader.parts
}

/// The content of a register.
#[derive(Clone, Debug)]
enum Value {
    /// `bytes & mask ^ flip`, in host or network order, with some low bits shifted out.
    Load {
        load: Load,
        flip: u128,
        is_host: bool,
        shift: u32,
    },
    Number(Vec<u8>),
}

impl Value {
    fn bytes(&self) -> u32 {
        match self {
            Self::Load { load, .. } => load.bytes,
            Self::Number(data) => data.len() as u32,
        }
    }
}

/// Reads one rule, and follows its registers.
struct RuleReader<'s> {
    sets: &'s dyn Sets,
    scope: Scope,
    /// Each register word has the value that begins there.
    words: [Option<Value>; WORDS],
    parts: Vec<Part>,
    tests: Vec<Test>,
}

impl RuleReader<'_> {
    /// Handles an expression. Returns how many of the expressions behind it were handled with it;
    /// `None` if it is not understood.
    fn step(&mut self, expression: &Expression, behind: &[Expression]) -> Option<usize> {
        match expression {
            Expression::Payload { to, base, offset, len } => {
                let load = payload(*base, *offset, *len)?;
                self.load(*to, load, false);
            }
            Expression::Meta { to, key } => {
                let (_, is_host) = meta(*key)?;
                self.load(*to, Load::meta(*key), is_host);
            }
            Expression::Connection { to, key, direction } => {
                self.connections()?;
                let (load, is_host) = connection::load(*key, *direction, self.sets.version())?;
                self.load(*to, load, is_host);
            }
            Expression::ConnectionSet { from, key: connection::MARK, direction: None } => {
                self.connections()?;
                let act = self.mark(*from, MarkOf::Connection)?;
                self.act(act);
            }
            Expression::Extension { to, header, offset, len, is_presence } => {
                let (location, len) = match is_presence {
                    true => (Location::Presence(*header), 1),
                    false => (Location::Extension(*header), *len),
                };
                let load = bytes(location, if *is_presence { 0 } else { *offset }, len)?;
                self.load(*to, load, false);
            }
            Expression::Compare { from, operator, data } => self.compare(*from, *operator, data)?,
            Expression::Range { from, negate, first, last } => {
                let load = self.plain(*from)?;
                let number = |data: &[u8]| number(data, load.bytes);
                self.tests.push(Test::range(load, number(first)?, number(last)?, *negate));
            }
            Expression::Mask { from, to, mask, flip } => self.mask(*from, *to, mask, flip)?,
            Expression::Shift { from, to, bits } => self.shift(*from, *to, *bits)?,
            Expression::Swap { from, to, len, size } => self.swap(*from, *to, *len, *size)?,
            Expression::Lookup { set, from, to, negate } => {
                return self.lookup(set, *from, *to, *negate, behind);
            }
            Expression::Number { to, data } => self.store(*to, Value::Number(data.clone())),
            Expression::MetaSet { from, key: MARK } => {
                let act = self.mark(*from, MarkOf::Packet)?;
                self.act(act);
            }
            Expression::PayloadWrite { from, base, offset, len } => {
                let written = payload(*base, *offset, *len)?;
                let act = self.dscp(*from, written)?;
                self.act(act);
            }
            Expression::Match { name, .. } if name == "comment" => {}
            Expression::Match { name, revision, info } => {
                let version = self.sets.version();
                if let Some(any) = conntrack::read((name, *revision), info, version) {
                    self.connections()?;
                    self.act(Act::Any(any));
                    return Some(0);
                }
                let test = match multiport::read(name, *revision, info) {
                    Some(ports) => ports.test()?,
                    None => {
                        let lookup = match_set::read(name, *revision, info)?;
                        let (set, version) = self.sets.ipset(lookup.index)?;
                        lookup.test(set, version)
                    }
                };
                self.tests.push(test);
            }
            Expression::Target { name, revision, info } => {
                self.connections()?;
                self.act(match conntrack::is_notrack(name, *revision, info) {
                    true => Act::NoTrack,
                    false => Act::UpdateMark(conntrack::target(name, *revision, info)?),
                });
            }
            Expression::Nat(nat) => {
                let act = self.nat(nat)?;
                self.act(act);
            }
            // What no flowtable takes, the next rule decides on.
            Expression::Other(name) if name == "flow_offload" => {
                self.connections()?;
                return Some(behind.len());
            }
            Expression::Other(_) => return None,
            // Continuing is the default.
            Expression::Verdict { code: -1, .. } => {}
            other => self.act(act(other)?),
        }
        Some(0)
    }

    /// Nothing, unless expressions about connections are understood.
    fn connections(&self) -> Option<()> {
        (self.scope == Scope::Connections).then_some(())
    }

    fn act(&mut self, act: Act) {
        self.end(Some(act));
        // The action may change the bytes that the registers were loaded from.
        self.words = std::array::from_fn(|_| None);
    }

    fn end(&mut self, act: Option<Act>) {
        let tests = self.tests.drain(..).map(Test::in_one_form).collect();
        self.parts.push(Part { tests, act });
    }

    fn load(&mut self, to: Register, load: Load, is_host: bool) {
        self.store(to, Value::Load { load, flip: 0, is_host, shift: 0 });
    }

    /// Stores a value; values that shared any of these words are lost.
    fn store(&mut self, to: Register, value: Value) {
        let words = |value: &Value| value.bytes().div_ceil(4) as usize;
        let end = to + words(&value);
        for at in 0..WORDS {
            let overlaps = |old: &Value| at < end && to < at + words(old);
            if self.words[at].as_ref().is_some_and(overlaps) {
                self.words[at] = None;
            }
        }
        if let Some(word) = self.words.get_mut(to) {
            *word = Some(value);
        }
    }

    fn value(&self, from: Register) -> Option<&Value> {
        self.words.get(from)?.as_ref()
    }

    /// A load whose bytes are as in the packet, neither inverted nor shifted.
    fn plain(&self, from: Register) -> Option<Load> {
        match self.value(from)? {
            Value::Load { load, flip: 0, is_host: false, shift: 0 } => Some(*load),
            _ => None,
        }
    }

    fn compare(&mut self, from: Register, operator: u32, data: &[u8]) -> Option<()> {
        let Value::Load { load, flip, is_host, shift: 0 } = *self.value(from)? else {
            return None;
        };
        let len = data.len() as u32;
        if operator > 1 {
            let load = self.plain(from)?;
            let number = number(data, load.bytes)?;
            let most = all(load.bytes);
            let (first, last) = match operator {
                2 => (0, number.checked_sub(1)?),
                3 => (0, number),
                4 if number < most => (number + 1, most),
                5 => (number, most),
                _ => return None,
            };
            self.bound(load, first, last);
            return Some(());
        }
        let number = match is_host {
            true => host_number(data, load.bytes)?,
            // Compares as many bytes as the data have.
            false => number(data, len)?.checked_shl((load.bytes.checked_sub(len)?) * 8)?,
        };
        let mut load = load;
        // iptables compares a name up to the zero that ends it, and the kernel fills up names with zeros.
        let is_name = load.is_meta(&[IIFNAME, OIFNAME]) && data.ends_with(&[0]);
        if !is_host && !is_name {
            load.mask &= !all(load.bytes - len);
        }
        let number = number ^ flip;
        if number & !load.mask != 0 {
            return None;
        }
        self.tests.push(Test::range(load, number, number, operator == 1));
        Some(())
    }

    /// Adds a bound. Two bounds of one load form a range.
    fn bound(&mut self, load: Load, first: u128, last: u128) {
        let most = all(load.bytes);
        let mut range = (first, last);
        let is_bounded =
            matches!(self.tests.last(), Some(Test::Range { load: other, .. }) if *other == load);
        if range == (0, most) && is_bounded {
            // The condition only says that the bytes are present; it is no bound.
            return;
        }
        if let (0, Some(Test::Range { load: other, first, last: end, negate: false })) =
            (first, self.tests.last())
            && *other == load
            && *end == most
            && last != most
        {
            range.0 = *first;
            self.tests.pop();
        }
        let (first, last) = range;
        self.tests.push(Test::Range { load, first, last, negate: false });
    }

    fn lookup(
        &mut self,
        set: &str,
        from: Register,
        to: Option<Destination>,
        negate: bool,
        behind: &[Expression],
    ) -> Option<usize> {
        let found = self.sets.find(set)?;
        let parts = self.keys(from, found.key)?;
        let keys = parts.iter().map(|part| part.load.as_key()).collect();
        let set = match found.is_anonymous {
            true => {
                let items = found.items.and_then(|all| entries(all, &parts, found.is_interval));
                Lookup::Anonymous(items)
            }
            false => Lookup::Named(set.to_owned()),
        };
        match (to, behind.first()) {
            (None, _) => self.tests.push(Test::Set { keys, set, negate }),
            (Some(_), _) if negate => return None,
            (Some(Destination::Verdict), _) => self.act(Act::VerdictBy { keys, map: set }),
            (Some(Destination::Register(to)), Some(Expression::Nat(nat))) => {
                self.connections()?;
                if !nat.reads(to) {
                    return None;
                }
                self.act(Act::NatBy { keys, map: set });
                return Some(1);
            }
            (Some(Destination::Register(to)), Some(behind)) => {
                let target = self.mark_set(to, behind)?;
                self.act(Act::MarkBy { keys, map: set, target });
                return Some(1);
            }
            (Some(Destination::Register(_)), None) => return None,
        }
        Some(0)
    }

    /// The loads that a key of this many bytes consists of.
    fn keys(&self, from: Register, len: u32) -> Option<Vec<KeyPart>> {
        let mut keys = Vec::new();
        let (mut word, end) = (from, from + len.div_ceil(4) as usize);
        while word < end {
            let Value::Load { load, flip: 0, shift, is_host } = *self.value(word)? else {
                return None;
            };
            // The load is unshifted, or the shift removes exactly the bits below the mask.
            if shift != 0 && shift != load.mask.trailing_zeros() {
                return None;
            }
            keys.push(KeyPart { load, is_host, shift });
            word += load.bytes.div_ceil(4) as usize;
        }
        (word == end).then_some(keys)
    }
}

/// The action of an expression that needs no register.
fn act(expression: &Expression) -> Option<Act> {
    /// `NFT_OBJECT_COUNTER`, `NFT_OBJECT_LIMIT`.
    const COUNTER: u32 = 1;
    const LIMIT: u32 = 4;
    Some(match expression {
        Expression::Counter => Act::Count(None),
        Expression::Limit(rate) => Act::Limit(Some(*rate)),
        Expression::Object { kind: LIMIT, .. } => Act::Limit(None),
        Expression::Object { kind: COUNTER, name } => Act::Count(Some(name.clone())),
        Expression::Log { prefix, group } => Act::Log { prefix: prefix.clone(), group: *group },
        Expression::NoTrack => Act::NoTrack,
        Expression::Verdict { code, chain } => Act::Verdict { code: *code, chain: chain.clone() },
        Expression::Reject { kind, code } => Act::Reject { kind: *kind, code: *code },
        _ => return None,
    })
}

/// A load of the packet's bytes; the base is an `NFT_PAYLOAD_*_HEADER`.
fn payload(base: u32, offset: u32, len: u32) -> Option<Load> {
    let base = match base {
        0 => PayloadBase::Link,
        1 => PayloadBase::Network,
        2 => PayloadBase::Transport,
        _ => return None,
    };
    bytes(Location::Payload(base), offset, len)
}

fn bytes(location: Location, offset: u32, len: u32) -> Option<Load> {
    (1..=16).contains(&len).then(|| Load::whole(location, offset, len))
}

/// A number of this many bytes in network order.
fn number(data: &[u8], len: u32) -> Option<u128> {
    if data.len() != len as usize || len > 16 {
        return None;
    }
    Some(data.iter().fold(0, |all, byte| all << 8 | u128::from(*byte)))
}

/// A number of two or four bytes in host order.
fn host_number(data: &[u8], len: u32) -> Option<u128> {
    if data.len() != len as usize {
        return None;
    }
    match *data {
        [a, b] => Some(u16::from_ne_bytes([a, b]).into()),
        [a, b, c, d] => Some(u32::from_ne_bytes([a, b, c, d]).into()),
        _ => None,
    }
}

impl Expression {
    /// The expression's name, for messages.
    fn kind(&self) -> String {
        match self {
            Self::Other(name) | Self::Target { name, .. } | Self::Match { name, .. } => {
                name.clone()
            }
            Self::Connection { .. } | Self::ConnectionSet { .. } => "ct".to_owned(),
            Self::Payload { .. } | Self::PayloadWrite { .. } => "payload".to_owned(),
            Self::Meta { .. } | Self::MetaSet { .. } => "meta".to_owned(),
            Self::Extension { .. } => "exthdr".to_owned(),
            Self::Lookup { .. } => "lookup".to_owned(),
            Self::Nat(nat) => nat.kind.name().to_owned(),
            _ => "an operation".to_owned(),
        }
    }
}
