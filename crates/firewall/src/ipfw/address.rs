//! Addresses in rules.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::names;
use super::rule::{Bits, Links, Ranges, Side, Test};
use super::words::{Word, number};
use crate::mistake::{SpannedFault, quoted, wrong};

/// The most addresses in one `{...}` list.
const MOST_IN_LIST: usize = 4096;

/// Rejects `not any`: FreeBSD treats it as `any`, which is not what the user means.
pub(super) fn reject_not_any<T>(word: &Word) -> Result<T, SpannedFault> {
    wrong(&word.span, format!("not {} matches no packet", word.text), "remove not, or the rule")
}

/// Parses the word after `from` or `to`.
pub(super) fn address(word: &Word, side: Side) -> Result<Test, SpannedFault> {
    let text = word.text.as_str();
    match text {
        "any" => return Ok(Test::Any),
        "me" | "me6" => {
            return wrong(
                &word.span,
                format!("\"{text}\" are the router's own addresses, which rules do not know"),
                "write the addresses, or a table of them",
            );
        }
        _ => {}
    }
    if let Some((name, value)) = table(word)? {
        return Ok(Test::Table(side, name, value));
    }
    let parsed = if text.contains('{') {
        four_list(text)
    } else if text.split(['/', ',']).next().is_some_and(|first| first.parse::<Ipv6Addr>().is_ok()) {
        text.split(',').map(six).collect::<Option<_>>().map(|list| Test::Six(side, list))
    } else {
        text.split(',').map(four).collect::<Option<_>>().map(|list| Test::Four(side, list))
    };
    let listed = match parsed {
        Some(Test::Four(_, list)) => Some(Test::Four(side, list)),
        other => other,
    };
    let remedy =
        "write addresses as 192.0.2.1, 192.0.2.0/24 or 2001:db8::/32, without names of hosts";
    listed.map_or_else(|| wrong(&word.span, format!("{} is no address", quoted(text)), remedy), Ok)
}

/// Parses IPv6 addresses (`src-ip6`).
pub(super) fn address6(word: &Word, side: Side) -> Result<Test, SpannedFault> {
    match address(word, side)? {
        Test::Four(..) => wrong(
            &word.span,
            format!("{} is no IPv6 address", quoted(&word.text)),
            "write src-ip or dst-ip for IPv4",
        ),
        test => Ok(test),
    }
}

/// `table(name)` and `table(name,value)`.
fn table(word: &Word) -> Result<Option<(String, Option<u32>)>, SpannedFault> {
    let Some(inner) = word.text.strip_prefix("table(") else { return Ok(None) };
    let Some(inner) = inner.strip_suffix(')') else {
        return wrong(&word.span, "the bracket of table( is not closed", "write table(name)");
    };
    let (name, given) = match inner.split_once(',') {
        Some((name, given)) => (name, Some(given)),
        None => (inner, None),
    };
    if !table_name(name) {
        return wrong(
            &word.span,
            format!("{} is no name of a table", quoted(name)),
            "write letters, digits, - and _",
        );
    }
    match given.map(value) {
        Some(None) => wrong(
            &word.span,
            format!("{} is no value of a table", quoted(given.unwrap_or_default())),
            "write a number",
        ),
        value => Ok(Some((name.to_owned(), value.flatten()))),
    }
}

/// Says whether this is a valid name of a table.
pub(super) fn table_name(name: &str) -> bool {
    let sound = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    !name.is_empty() && name.len() < 64 && name.chars().all(sound)
}

/// A value of a table: a number, or an address in its place.
pub(super) fn value(text: &str) -> Option<u32> {
    number(text, u32::MAX).or_else(|| text.parse::<Ipv4Addr>().ok().map(u32::from))
}

/// `addr`, `addr/len`, `addr:mask`.
pub(super) fn four(text: &str) -> Option<(u32, u32)> {
    let (address, mask) = if let Some((address, len)) = text.split_once('/') {
        match number(len, 32) {
            Some(len) => (address, mask4(len)),
            None => (address, u32::from(len.parse::<Ipv4Addr>().ok()?)),
        }
    } else if let Some((address, mask)) = text.split_once(':') {
        (address, u32::from(mask.parse::<Ipv4Addr>().ok()?))
    } else {
        (text, u32::MAX)
    };
    let address = u32::from(address.parse::<Ipv4Addr>().ok()?);
    Some((address & mask, mask))
}

fn mask4(len: u32) -> u32 {
    u32::MAX.checked_shl(32 - len).unwrap_or(0)
}

/// `addr`, `addr/len`.
pub(super) fn six(text: &str) -> Option<(u128, u8)> {
    let (address, len) = text.split_once('/').unwrap_or((text, "128"));
    let (address, len) = (u128::from(address.parse::<Ipv6Addr>().ok()?), number(len, 128)?);
    let mask = u128::MAX.checked_shl(128 - len).unwrap_or(0);
    Some((address & mask, len as u8))
}

/// `addr/len{a,b-c}`: addresses that differ in their last byte.
fn four_list(text: &str) -> Option<Test> {
    let (base, list) = text.split_once('{')?;
    let list = list.strip_suffix('}')?;
    let (address, len) = base.split_once('/').unwrap_or((base, "24"));
    let (base, len) = (u32::from(address.parse::<Ipv4Addr>().ok()?), number(len, 32)?);
    if len < 24 {
        return None;
    }
    let (mask, mut all) = (mask4(len), Vec::new());
    for part in list.split([',', ' ']).filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first, 255)?, number(last, 255)?);
        for byte in first..=last {
            let one = base & 0xffff_ff00 | byte;
            if one & mask != base & mask || all.len() > MOST_IN_LIST {
                return None;
            }
            all.push((one, u32::MAX));
        }
    }
    (!all.is_empty()).then_some(Test::Four(Side::Source, all))
}

/// A link by name.
pub(super) fn link(word: &Word) -> Result<Links, SpannedFault> {
    let text = word.text.as_str();
    if text == "any" {
        return Ok(Links::Any);
    }
    if let Some((name, value)) = table(word)? {
        return Ok(Links::Table(name, value));
    }
    if text.starts_with(|first: char| first.is_ascii_digit()) {
        return wrong(
            &word.span,
            format!("{} is a link by its address, which rules do not know", quoted(text)),
            "write the link's name",
        );
    }
    match text.strip_suffix('*') {
        Some(prefix) if !prefix.contains(['*', '?', '[']) => Ok(Links::Prefix(prefix.to_owned())),
        None if !text.contains(['*', '?', '[']) => Ok(Links::Name(text.to_owned())),
        _ => wrong(
            &word.span,
            format!("{} is a pattern with something behind its *, or with ? or [", quoted(text)),
            "write the names, or their beginning with one * at the end",
        ),
    }
}

/// A list of numbers and ranges; `one` parses a single number.
pub(super) fn ranges(
    word: &Word,
    what: &str,
    one: impl Fn(&str) -> Option<u16>,
) -> Result<Ranges, SpannedFault> {
    let part = |text: &str| {
        if let Some(number) = one(text) {
            return Some((number, number));
        }
        let (first, last) = text.split_once('-')?;
        let (first, last) = (one(first)?, one(last)?);
        // As in ipfw(8), the ends may be in either order.
        Some((first.min(last), first.max(last)))
    };
    let all: Option<Ranges> = word.text.split(',').map(part).collect();
    all.map_or_else(
        || {
            wrong(
                &word.span,
                format!("{} is no {what}", quoted(&word.text)),
                "write numbers, ranges a-b, or several with commas",
            )
        },
        Ok,
    )
}

/// A list of ports.
pub(super) fn ports(word: &Word) -> Result<Ranges, SpannedFault> {
    ranges(word, "list of ports", names::port)
}

/// A list of names; `!` before a name means that its bit must be clear.
pub(super) fn bits(word: &Word, names: &[(&str, u8)]) -> Result<Bits, SpannedFault> {
    let mut bits = Bits::default();
    for part in word.text.split(',') {
        let (name, target) = match part.strip_prefix('!') {
            Some(name) => (name, &mut bits.clear),
            None => (part, &mut bits.set),
        };
        match names::named(names, name) {
            Some(bit) => *target |= bit,
            None => {
                return wrong(
                    &word.span,
                    format!("{} is no known name", quoted(name)),
                    format!("write some of {}", names::list(names)),
                );
            }
        }
    }
    Ok(bits)
}

/// A MAC address or `any`, with the bits that matter: `addr`, `addr/len`, `addr&mask`.
pub(super) fn mac(word: &Word) -> Result<(u64, u64), SpannedFault> {
    const ALL: u64 = 0xffff_ffff_ffff;
    let text = word.text.as_str();
    let read = || {
        if text == "any" {
            return Some((0, 0));
        }
        let (address, mask) = if let Some((address, len)) = text.split_once('/') {
            (address, ALL.checked_shl(48 - number(len, 48)?).unwrap_or(0) & ALL)
        } else if let Some((address, mask)) = text.split_once('&') {
            (address, mac_address(mask)?)
        } else {
            (text, ALL)
        };
        Some((mac_address(address)? & mask, mask))
    };
    let remedy = "write it as 02:00:00:00:00:01, with /24 or &ff:ff:ff:00:00:00 for a part";
    read().map_or_else(
        || wrong(&word.span, format!("{} is no MAC address", quoted(text)), remedy),
        Ok,
    )
}

fn mac_address(text: &str) -> Option<u64> {
    let bytes: Vec<_> = text.split(':').collect();
    if bytes.len() != 6 {
        return None;
    }
    let byte = |text: &&str| match text.len() {
        1 | 2 if !text.starts_with('+') => u8::from_str_radix(text, 16).ok(),
        _ => None,
    };
    bytes.iter().try_fold(0, |all, text| Some(all << 8 | u64::from(byte(text)?)))
}
