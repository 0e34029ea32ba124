//! Targets that translate addresses: `SNAT`, `DNAT`, `MASQUERADE`, `REDIRECT`, `NETMAP`.

use super::Family;
use super::value;
use super::words::{Cursor, Word};
use crate::ir::{NatRange, NatTarget};
use crate::mistake::{SpannedFault, quoted, wrong};

/// What a target of this name translates, before its options say more.
pub(super) fn range(name: &str) -> Option<NatRange> {
    let target = match name {
        "SNAT" => NatTarget::Source(None),
        "DNAT" => NatTarget::Destination(None),
        "MASQUERADE" => NatTarget::Masquerade,
        "REDIRECT" => NatTarget::Redirect,
        // In a chain behind the routing, its network is one of sources.
        "NETMAP" => NatTarget::DestinationNetwork(0, 0),
        _ => return None,
    };
    Some(NatRange::new(target))
}

/// Says whether such a target says nothing without an option.
pub(super) fn needs_option(name: &str) -> bool {
    matches!(name, "SNAT" | "DNAT" | "NETMAP")
}

/// Parses an option of such a target. Returns whether it has one of this name.
pub(super) fn option(
    range: &mut NatRange,
    target: &str,
    option: &Word,
    words: &mut Cursor<'_>,
    family: Family,
) -> Result<bool, SpannedFault> {
    match (target, option.text.as_str()) {
        ("SNAT", "--to-source") => {
            let (addresses, ports) = ends(words.value(option)?, family)?;
            (range.target, range.ports) = (NatTarget::Source(addresses), ports);
        }
        ("DNAT", "--to-destination") => {
            let (addresses, ports) = ends(words.value(option)?, family)?;
            (range.target, range.ports) = (NatTarget::Destination(addresses), ports);
        }
        ("MASQUERADE" | "REDIRECT", "--to-ports") => {
            let word = words.value(option)?;
            range.ports = Some(ports(word, &word.text)?);
        }
        ("NETMAP", "--to") => {
            let (first, mask) = value::network(words.value(option)?, family)?;
            let all = if family == Family::Ip6 { u128::MAX } else { u32::MAX.into() };
            range.target = NatTarget::DestinationNetwork(first, first | !mask & all);
        }
        ("SNAT" | "DNAT" | "MASQUERADE" | "REDIRECT", "--random")
        | ("SNAT" | "MASQUERADE", "--random-fully") => range.is_random = true,
        ("SNAT" | "DNAT", "--persistent") => range.is_persistent = true,
        _ => return Ok(false),
    }
    Ok(true)
}

/// First and last address, and first and last port.
type Ends = (Option<(u128, u128)>, Option<(u16, u16)>);

/// Addresses and ports like `10.0.0.1-10.0.0.9:1024-2047`, or `[fd00::1]:80`; either may be missing.
fn ends(word: &Word, family: Family) -> Result<Ends, SpannedFault> {
    let text = word.text.as_str();
    let (addresses, behind) = match (text.strip_prefix('['), family) {
        (Some(rest), _) => match rest.split_once(']') {
            Some((addresses, "")) => (addresses, None),
            Some((addresses, behind)) => (addresses, behind.strip_prefix(':').or(Some(behind))),
            None => return wrong(&word.span, "this [ has no ]", "write it behind the address"),
        },
        (None, Family::Ip6) => (text, None),
        (None, _) => match text.split_once(':') {
            Some((addresses, behind)) => (addresses, Some(behind)),
            None => (text, None),
        },
    };
    let addresses = match addresses.split_once('-') {
        _ if addresses.is_empty() => None,
        Some((first, last)) => Some((first, last)),
        None => Some((addresses, addresses)),
    };
    let addresses = match addresses {
        Some((first, last)) => {
            let ends = (value::address(word, first, family)?, value::address(word, last, family)?);
            if ends.0 > ends.1 {
                let what = format!("{} ends before it begins", quoted(text));
                return wrong(&word.span, what, "swap its ends");
            }
            Some(ends)
        }
        None => None,
    };
    Ok((addresses, behind.map(|behind| ports(word, behind)).transpose()?))
}

/// Ports like `1024-2047`.
fn ports(word: &Word, text: &str) -> Result<(u16, u16), SpannedFault> {
    if text.contains('/') {
        let what = format!("{} shifts ports, which Tollway cannot do", quoted(text));
        return wrong(&word.span, what, "write one rule for each port");
    }
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |part| value::in_word(word, part, 0xffff).map(|number| number as u16);
    let (first, last) = (number(first)?, number(last)?);
    if first > last {
        let what = format!("{} ends before it begins", quoted(text));
        return wrong(&word.span, what, "swap its ends");
    }
    Ok((first, last))
}
