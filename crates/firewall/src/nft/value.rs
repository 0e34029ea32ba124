//! What bits are compared with: numbers, ranges, prefixes, links.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde_json::Value;

use super::json::{inner, only, pair};
use super::named_bits::{Kind, NamedBits};
use super::names;
use crate::ir::{Item, LinkPattern, Range};

/// The number of a value; a value of flags may be a list.
pub(super) fn number(kind: Kind, value: &Value) -> Result<u128, String> {
    match value {
        Value::Number(number) => {
            let number = number.as_u64().ok_or_else(|| format!("{value} is no number of nft's"))?;
            match kind {
                Kind::Nfproto => nfproto(number),
                _ => Ok(number.into()),
            }
        }
        Value::String(word) => word_number(kind, word),
        Value::Bool(is) => Ok((*is).into()),
        Value::Array(flags) => flags.iter().try_fold(0, |all, flag| Ok(all | number(kind, flag)?)),
        _ => operation(kind, value),
    }
}

fn nfproto(number: u64) -> Result<u128, String> {
    match number {
        2 => Ok(4),
        10 => Ok(6),
        _ => Err(format!("nfproto {number} is no version of IP")),
    }
}

fn word_number(kind: Kind, word: &str) -> Result<u128, String> {
    // What nft 1.0.6 adds to ports of connections in sets.
    let word = word.strip_suffix(" [invalid type]").unwrap_or(word);
    let number = match kind {
        Kind::Ip4 => word.parse::<Ipv4Addr>().ok().map(|address| address.to_bits().into()),
        Kind::Ip6 => word.parse::<Ipv6Addr>().ok().map(Ipv6Addr::to_bits),
        Kind::Mac => mac(word),
        _ => names::number(kind, word),
    };
    let plain = || match word.strip_prefix("0x") {
        Some(digits) => u128::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    };
    number.or_else(plain).ok_or_else(|| format!("{word:?} is a word that is not known here"))
}

fn mac(word: &str) -> Option<u128> {
    let bytes: Vec<u8> =
        word.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect::<Option<_>>()?;
    (bytes.len() == 6).then(|| bytes.iter().fold(0, |all, byte| all << 8 | u128::from(*byte)))
}

/// Why a value is unsupported where a constant is needed.
pub(super) fn no_constant(value: &Value) -> String {
    format!("{value} is no constant that is known here")
}

fn operation(kind: Kind, value: &Value) -> Result<u128, String> {
    let unknown = || no_constant(value);
    let (operator, operands) =
        only(value).filter(|(name, _)| matches!(*name, "|" | "&" | "^")).ok_or_else(unknown)?;
    let mut operands = operands.as_array().ok_or_else(unknown)?.iter();
    let first = number(kind, operands.next().ok_or_else(unknown)?)?;
    operands.try_fold(first, |all, operand| {
        let operand = number(kind, operand)?;
        Ok(match operator {
            "|" => all | operand,
            "&" => all & operand,
            _ => all ^ operand,
        })
    })
}

/// A value for bits: an element of a set, or the single value of a comparison.
pub(super) fn item(bits: &NamedBits, value: &Value) -> Result<Item, String> {
    match bits.kind {
        Kind::Link => link(value).map(Item::Link),
        _ => range(bits, value).map(Item::Range),
    }
}

/// A value as a range of the field.
pub(super) fn range(bits: &NamedBits, value: &Value) -> Result<Range, String> {
    let number = |value| number(bits.kind, value);
    let range = if value.as_str() == Some("*") {
        Range::new(0, all(bits))
    } else if let Some((first, last)) = inner(value, "range").and_then(pair) {
        Range::new(number(first)?, number(last)?)
    } else if let Some(prefix) = inner(value, "prefix") {
        let address = number(prefix.get("addr").unwrap_or(&Value::Null))?;
        let len = super::json::number(prefix, "len").and_then(|len| u32::try_from(len).ok());
        let len = len.filter(|len| *len <= bits.width).ok_or("a prefix is too long")?;
        let range = Range::prefix(address, len, bits.width);
        if range.first != address {
            // nft lists `meta mark & 0xff00 == 1` like this: the kernel compares with bits that are never
            // set.
            return Err("a prefix with more bits than it has matches no packet".to_owned());
        }
        range
    } else {
        Range::one(number(value)?)
    };
    if bits.kind == Kind::Nfproto && range.first != range.last {
        return Err("a range of nfproto is not known here".to_owned());
    }
    shifted(bits, range)
}

/// Converts a range of the bits' numbers into one of their field.
pub(super) fn shifted(bits: &NamedBits, range: Range) -> Result<Range, String> {
    if range.first > range.last || range.last > all(bits) {
        return Err(format!("{} to {} is no range of the field", range.first, range.last));
    }
    // In the kernel they may be more than the field has, whose numbers never get that large.
    let most = bits.key.field.max() >> bits.shift;
    if range.first > most {
        return Err(format!("{} is more than there can be here", range.first));
    }
    Ok(Range::new(range.first << bits.shift, range.last.min(most) << bits.shift))
}

/// The greatest number of these bits.
pub(super) fn all(bits: &NamedBits) -> u128 {
    u128::MAX >> (128 - bits.width.clamp(1, 128))
}

/// A link by its name; a star at the end makes it a prefix.
pub(super) fn link(value: &Value) -> Result<LinkPattern, String> {
    let Some(name) = value.as_str() else {
        return Err(format!("interface {value} has no name; write iifname or oifname"));
    };
    Ok(match name.strip_suffix('*') {
        Some(literal) if literal.ends_with('\\') => {
            LinkPattern::Name(format!("{}*", &literal[..literal.len() - 1]))
        }
        Some(prefix) => LinkPattern::Prefix(prefix.to_owned()),
        None => LinkPattern::Name(name.to_owned()),
    })
}
