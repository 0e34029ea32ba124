//! The expressions of a rule as the kernel stores them (`enum nft_*_attributes` of
//! `include/uapi/linux/netfilter/nf_tables.h`). An expression with any unknown part is [`Expression::Other`].

use super::super::message::{attribute, be_word, name};
use tollway_linux::netlink::attributes;

/// A register, identified by its first word; see [`register`].
pub(super) type Register = usize;

/// One expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expression {
    /// Loads bytes of a header.
    Payload { to: Register, base: u32, offset: u32, len: u32 },
    /// Writes bytes of a header.
    PayloadWrite { from: Register, base: u32, offset: u32, len: u32 },
    /// Loads metadata of the packet.
    Meta { to: Register, key: u32 },
    /// Writes metadata of the packet.
    MetaSet { from: Register, key: u32 },
    /// Loads a property of the packet's connection (`NFT_CT_*`), of one direction if there is one.
    Connection { to: Register, key: u32, direction: Option<u8> },
    /// Sets a property of the packet's connection.
    ConnectionSet { from: Register, key: u32, direction: Option<u8> },
    /// Loads bytes of an IPv6 extension header, or whether it is present.
    Extension { to: Register, header: u8, offset: u32, len: u32, is_presence: bool },
    /// Breaks unless the comparison with the register holds.
    Compare { from: Register, operator: u32, data: Vec<u8> },
    /// Breaks unless the register is in the range; with `negate`, if it is.
    Range { from: Register, negate: bool, first: Vec<u8>, last: Vec<u8> },
    /// Masks bits, then inverts some.
    Mask { from: Register, to: Register, mask: Vec<u8>, flip: Vec<u8> },
    /// Shifts bits to the right.
    Shift { from: Register, to: Register, bits: u32 },
    /// Swaps bytes between host order and network order.
    Swap { from: Register, to: Register, len: u32, size: u32 },
    /// Looks up a set, or a map if there is a destination for the datum.
    Lookup { set: String, from: Register, to: Option<Destination>, negate: bool },
    /// Loads a constant.
    Number { to: Register, data: Vec<u8> },
    /// A verdict, with the chain that it leads to.
    Verdict { code: i32, chain: Option<String> },
    /// Counts.
    Counter,
    /// Applies a rate limit.
    Limit(Rate),
    /// Writes to the log, or to a netlink group.
    Log { prefix: String, group: Option<u16> },
    /// Keeps the packet out of connection tracking.
    NoTrack,
    /// A named object, by its kind (`NFT_OBJECT_*`).
    Object { kind: u32, name: String },
    /// Translates the packet's connection.
    Nat(Nat),
    /// Rejects the packet with an error to its sender.
    Reject { kind: u32, code: u8 },
    /// A match of iptables.
    Match { name: String, revision: u32, info: Vec<u8> },
    /// A target of iptables.
    Target { name: String, revision: u32, info: Vec<u8> },
    /// Any other expression, by its name.
    Other(String),
}

/// A translation of addresses: what it translates, and the registers with addresses and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nat {
    pub(super) kind: NatKind,
    pub(super) addresses: Option<(Register, Register)>,
    pub(super) ports: Option<(Register, Register)>,
    /// `NF_NAT_RANGE_*`.
    pub(super) flags: u32,
}

/// What is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NatKind {
    /// Of this version of IP.
    Source(u8),
    Destination(u8),
    Masquerade,
    Redirect,
}

impl NatKind {
    /// The expression's name.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Source(_) | Self::Destination(_) => "nat",
            Self::Masquerade => "masq",
            Self::Redirect => "redir",
        }
    }
}

/// A rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    pub(super) rate: u64,
    /// The period.
    pub(super) seconds: u64,
    pub(super) burst: u32,
    /// Whether it limits bytes instead of packets.
    pub(super) is_bytes: bool,
    /// Whether packets beyond it continue.
    pub(super) is_over: bool,
}

/// Destination of a map's datum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    /// The datum is a verdict.
    Verdict,
    /// The datum is a number.
    Register(Register),
}

/// Number of words that make up the registers.
pub(super) const WORDS: usize = 16;

/// Parses the expressions of `NFTA_RULE_EXPRESSIONS`.
pub(super) fn expressions(list: &[u8]) -> Vec<Expression> {
    attributes(list, 0).map(|element| expression(element.value)).collect()
}

fn expression(element: &[u8]) -> Expression {
    let kind = attribute(element, 1).unwrap_or_default();
    let kind = std::str::from_utf8(kind.strip_suffix(&[0]).unwrap_or(kind)).unwrap_or_default();
    let data = attribute(element, 2).unwrap_or_default();
    known(kind, &Attributes(data)).unwrap_or_else(|| Expression::Other(kind.to_owned()))
}

/// An expression's own attributes.
struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// `None` if there are attributes of types beyond `most`.
    fn within(&self, most: u16) -> Option<()> {
        attributes(self.0, 0).all(|one| one.kind <= most).then_some(())
    }

    fn bytes(&self, kind: u16) -> Option<&'a [u8]> {
        attribute(self.0, kind)
    }

    fn word(&self, kind: u16) -> Option<u32> {
        self.bytes(kind).and_then(be_word)
    }

    /// A word; 0 if the attribute is missing.
    fn flags(&self, kind: u16) -> Option<u32> {
        self.bytes(kind).map_or(Some(0), be_word)
    }

    fn register(&self, kind: u16) -> Option<Register> {
        self.word(kind).and_then(register)
    }

    /// Two registers, the second of which is the first if it is missing; none if both are.
    fn registers(&self, kind: u16) -> Option<Option<(Register, Register)>> {
        if self.bytes(kind).is_none() {
            return Some(None);
        }
        let first = self.register(kind)?;
        let last = if self.bytes(kind + 1).is_some() { self.register(kind + 1)? } else { first };
        Some(Some((first, last)))
    }

    /// The value of nested `nft_data_attributes`.
    fn value(&self, kind: u16) -> Option<Vec<u8>> {
        Some(attribute(self.bytes(kind)?, 1)?.to_vec())
    }

    fn text(&self, kind: u16) -> Option<String> {
        self.bytes(kind).and_then(name)
    }
}

/// The first word of a register (`nft_parse_register`): those of 16 bytes, then those of 4.
fn register(number: u32) -> Option<Register> {
    let word = match number {
        1..=4 => (number - 1) * 4,
        8..=23 => number - 8,
        _ => return None,
    };
    usize::try_from(word).ok()
}

fn known(kind: &str, of: &Attributes<'_>) -> Option<Expression> {
    Some(match kind {
        "payload" => return payload(of),
        "meta" => return meta(of),
        "exthdr" => return extension(of),
        "cmp" => {
            of.within(3)?;
            Expression::Compare { from: of.register(1)?, operator: of.word(2)?, data: of.value(3)? }
        }
        "range" => {
            of.within(4)?;
            let negate = match of.word(2)? {
                0 => false,
                1 => true,
                _ => return None,
            };
            let (first, last) = (of.value(3)?, of.value(4)?);
            Expression::Range { from: of.register(1)?, negate, first, last }
        }
        "bitwise" => return bitwise(of),
        "byteorder" => {
            of.within(5)?;
            let (from, to) = (of.register(1)?, of.register(2)?);
            Expression::Swap { from, to, len: of.word(4)?, size: of.word(5)? }
        }
        "lookup" => return lookup(of),
        "immediate" => return immediate(of),
        "counter" => Expression::Counter,
        "limit" => return limit(of),
        "log" => {
            of.within(6)?;
            let group = match of.bytes(1) {
                Some(group) => Some(u16::from_be_bytes(group.try_into().ok()?)),
                None => None,
            };
            Expression::Log { prefix: of.bytes(2).map_or(Some(String::new()), name)?, group }
        }
        "notrack" => Expression::NoTrack,
        "objref" => {
            of.within(2)?;
            Expression::Object { kind: of.word(1)?, name: of.text(2)? }
        }
        "reject" => {
            of.within(2)?;
            let code = of.bytes(2).map_or(Some(0), |code| code.first().copied())?;
            Expression::Reject { kind: of.word(1)?, code }
        }
        "match" => {
            let (name, revision) = (of.text(1)?, of.word(2)?);
            Expression::Match { name, revision, info: of.bytes(3)?.to_vec() }
        }
        "target" => {
            let info = of.bytes(3).unwrap_or_default().to_vec();
            Expression::Target { name: of.text(1)?, revision: of.flags(2)?, info }
        }
        "ct" => return connection(of),
        "nat" => return nat(of),
        "masq" => {
            of.within(3)?;
            let ports = of.registers(2)?;
            let (kind, flags) = (NatKind::Masquerade, of.flags(1)?);
            Expression::Nat(Nat { kind, addresses: None, ports, flags })
        }
        "redir" => {
            of.within(3)?;
            let ports = of.registers(1)?;
            let (kind, flags) = (NatKind::Redirect, of.flags(3)?);
            Expression::Nat(Nat { kind, addresses: None, ports, flags })
        }
        _ => return None,
    })
}

fn payload(of: &Attributes<'_>) -> Option<Expression> {
    of.within(8)?;
    let (base, offset, len) = (of.word(2)?, of.word(3)?, of.word(4)?);
    if of.bytes(1).is_some() {
        return Some(Expression::Payload { to: of.register(1)?, base, offset, len });
    }
    Some(Expression::PayloadWrite { from: of.register(5)?, base, offset, len })
}

fn meta(of: &Attributes<'_>) -> Option<Expression> {
    of.within(3)?;
    let key = of.word(2)?;
    if of.bytes(1).is_some() {
        return Some(Expression::Meta { to: of.register(1)?, key });
    }
    Some(Expression::MetaSet { from: of.register(3)?, key })
}

fn connection(of: &Attributes<'_>) -> Option<Expression> {
    of.within(4)?;
    let key = of.word(2)?;
    let direction = match of.bytes(3) {
        Some(direction) => Some(*direction.first()?),
        None => None,
    };
    if of.bytes(1).is_some() {
        return Some(Expression::Connection { to: of.register(1)?, key, direction });
    }
    Some(Expression::ConnectionSet { from: of.register(4)?, key, direction })
}

fn extension(of: &Attributes<'_>) -> Option<Expression> {
    /// `NFT_EXTHDR_F_PRESENT`.
    const PRESENT: u32 = 1;
    of.within(6)?;
    let flags = of.flags(5)?;
    // Of these, only `NFT_EXTHDR_OP_IPV6` concerns IP.
    if of.flags(6)? != 0 || flags & !PRESENT != 0 {
        return None;
    }
    let header = *of.bytes(2)?.first()?;
    let (offset, len) = (of.word(3)?, of.word(4)?);
    let is_presence = flags == PRESENT;
    Some(Expression::Extension { to: of.register(1)?, header, offset, len, is_presence })
}

fn bitwise(of: &Attributes<'_>) -> Option<Expression> {
    of.within(7)?;
    let (from, to) = (of.register(1)?, of.register(2)?);
    match of.flags(6)? {
        0 => Some(Expression::Mask { from, to, mask: of.value(4)?, flip: of.value(5)? }),
        // `NFT_BITWISE_RSHIFT`; its data are in host order.
        2 => {
            let bits = of.value(7)?;
            let bits = u32::from_ne_bytes(bits.try_into().ok()?);
            Some(Expression::Shift { from, to, bits })
        }
        _ => None,
    }
}

fn lookup(of: &Attributes<'_>) -> Option<Expression> {
    /// `NFT_LOOKUP_F_INV`.
    const NOT: u32 = 1;
    of.within(5)?;
    let flags = of.flags(5)?;
    if flags & !NOT != 0 {
        return None;
    }
    let to = match of.bytes(3).map(be_word) {
        None => None,
        Some(Some(0)) => Some(Destination::Verdict),
        Some(number) => Some(Destination::Register(number.and_then(register)?)),
    };
    let negate = flags == NOT;
    Some(Expression::Lookup { set: of.text(1)?, from: of.register(2)?, to, negate })
}

fn nat(of: &Attributes<'_>) -> Option<Expression> {
    of.within(7)?;
    let version = match of.word(2)? {
        2 => 4,
        10 => 6,
        _ => return None,
    };
    let kind = match of.word(1)? {
        0 => NatKind::Source(version),
        1 => NatKind::Destination(version),
        _ => return None,
    };
    let (addresses, ports) = (of.registers(3)?, of.registers(5)?);
    Some(Expression::Nat(Nat { kind, addresses, ports, flags: of.flags(7)? }))
}

fn limit(of: &Attributes<'_>) -> Option<Expression> {
    /// `NFT_LIMIT_F_INV`.
    const OVER: u32 = 1;
    of.within(6)?;
    let long = |kind| Some(u64::from_be_bytes(of.bytes(kind)?.try_into().ok()?));
    let is_bytes = match of.flags(4)? {
        0 => false,
        1 => true,
        _ => return None,
    };
    let flags = of.flags(5)?;
    let rate = Rate {
        rate: long(1)?,
        seconds: long(2)?,
        burst: of.flags(3)?,
        is_bytes,
        is_over: flags == OVER,
    };
    (flags & !OVER == 0).then_some(Expression::Limit(rate))
}

fn immediate(of: &Attributes<'_>) -> Option<Expression> {
    of.within(2)?;
    if of.word(1)? != 0 {
        return Some(Expression::Number { to: of.register(1)?, data: of.value(2)? });
    }
    let verdict = attribute(of.bytes(2)?, 2)?;
    let code = attribute(verdict, 1).and_then(be_word)?.cast_signed();
    let chain = attribute(verdict, 2).and_then(name);
    Some(Expression::Verdict { code, chain })
}
