//! What statements and maps translate addresses to.

use serde_json::Value;

use super::json::{inner, number, pair, several};
use super::named_bits::Kind;
use super::value;
use crate::ir::{NatTarget, NatVerdict, Range, Verdict};

/// What a statement says besides the addresses or ports that a map has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct NatMap {
    pub(super) verdict: NatVerdict,
    pub(super) is_netmap: bool,
    /// Whether the map has ports, and no addresses.
    pub(super) has_ports: bool,
}

impl NatMap {
    /// The verdict of an element with this datum.
    pub(super) fn verdict(&self, datum: &Value) -> Result<Verdict, String> {
        let mut verdict = self.verdict;
        match (inner(datum, "concat").map(several), self.has_ports) {
            (Some([address, ports]), false) => {
                set_addresses(&mut verdict, self.is_netmap, address)?;
                verdict.range.ports = Some(self::ports(ports)?);
            }
            (None, false) => set_addresses(&mut verdict, self.is_netmap, datum)?,
            (None, true) => verdict.range.ports = Some(ports(datum)?),
            (Some(_), _) => return Err(format!("{datum} is no address and no port")),
        }
        Ok(Verdict::Nat(verdict))
    }
}

/// Sets the addresses that a statement translates to.
pub(super) fn set_addresses(
    verdict: &mut NatVerdict,
    is_netmap: bool,
    value: &Value,
) -> Result<(), String> {
    let (kind, width) = match verdict.version {
        Some(4) => (Kind::Ip4, 32),
        Some(_) => (Kind::Ip6, 128),
        None => return Err("the version of IP of its address is not known".to_owned()),
    };
    let range = range(kind, width, value)?;
    let (first, last) = (range.first, range.last);
    verdict.range.target = match (verdict.range.target, is_netmap) {
        (NatTarget::Source(_), false) => NatTarget::Source(Some((first, last))),
        (NatTarget::Source(_), true) => NatTarget::SourceNetwork(first, last),
        (_, false) => NatTarget::Destination(Some((first, last))),
        (_, true) => NatTarget::DestinationNetwork(first, last),
    };
    Ok(())
}

/// A port or a range of ports.
pub(super) fn ports(value: &Value) -> Result<(u16, u16), String> {
    let Range { first, last } = range(Kind::Plain, 16, value)?;
    let port = |number| u16::try_from(number).map_err(|_| format!("no port is {number}"));
    Ok((port(first)?, port(last)?))
}

fn range(kind: Kind, width: u32, value: &Value) -> Result<Range, String> {
    let of = |value| value::number(kind, value);
    let range = if let Some((first, last)) = inner(value, "range").and_then(pair) {
        Range::new(of(first)?, of(last)?)
    } else if let Some(prefix) = inner(value, "prefix") {
        let len = number(prefix, "len").and_then(|len| u32::try_from(len).ok());
        let len = len.filter(|len| *len <= width).ok_or("a prefix is too long")?;
        Range::prefix(of(prefix.get("addr").unwrap_or(&Value::Null))?, len, width)
    } else {
        Range::one(of(value)?)
    };
    match range.first <= range.last {
        true => Ok(range),
        false => Err(format!("{value} ends before it begins")),
    }
}
