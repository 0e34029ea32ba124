//! Values of options.

use std::net::IpAddr;

use super::words::Word;
use crate::ir::{Family, Range};
use crate::mistake::{SpannedFault, quoted, wrong};

/// A number in the notation of `strtoul`: decimal, 0x hexadecimal, 0 octal.
pub(super) fn plain(text: &str) -> Option<u64> {
    let digits = |text: &str, radix| {
        let sound = text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        sound.then(|| u64::from_str_radix(text, radix).ok()).flatten()
    };
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => digits(hex, 16),
        None if text.len() > 1 && text.starts_with('0') => digits(&text[1..], 8),
        None => digits(text, 10),
    }
}

/// A number up to `max`.
pub(super) fn number(word: &Word, max: u64) -> Result<u64, SpannedFault> {
    in_word(word, &word.text, max)
}

/// A number that is a part of a word.
pub(super) fn in_word(word: &Word, part: &str, max: u64) -> Result<u64, SpannedFault> {
    match plain(part).filter(|number| *number <= max) {
        Some(number) => Ok(number),
        None => wrong(
            &word.span,
            format!("{} is no number from 0 to {max}", quoted(part)),
            "write it as iptables-save does",
        ),
    }
}

/// A number, or two separated by a colon, either of which may be missing.
pub(super) fn range(word: &Word, max: u64) -> Result<Range, SpannedFault> {
    part_range(word, &word.text, max)
}

fn part_range(word: &Word, part: &str, max: u64) -> Result<Range, SpannedFault> {
    let (first, last) = match part.split_once(':') {
        None => {
            let number = in_word(word, part, max)?;
            (number, number)
        }
        Some((first, last)) => (
            if first.is_empty() { 0 } else { in_word(word, first, max)? },
            if last.is_empty() { max } else { in_word(word, last, max)? },
        ),
    };
    if first > last {
        return wrong(
            &word.span,
            format!("{} ends before it begins", quoted(part)),
            "swap its ends",
        );
    }
    Ok(Range::new(first.into(), last.into()))
}

/// Several numbers or ranges, separated by commas.
pub(super) fn ranges(word: &Word, max: u64) -> Result<Vec<Range>, SpannedFault> {
    word.text.split(',').map(|part| part_range(word, part, max)).collect()
}

/// A number with a mask after a slash; without one, the mask is `whole`.
pub(super) fn masked(word: &Word, max: u64, whole: u64) -> Result<(u64, u64), SpannedFault> {
    match word.text.split_once('/') {
        None => Ok((number(word, max)?, whole)),
        Some((value, mask)) => Ok((in_word(word, value, max)?, in_word(word, mask, max)?)),
    }
}

/// An address of the family as a number.
pub(super) fn address(word: &Word, part: &str, family: Family) -> Result<u128, SpannedFault> {
    match (part.parse::<IpAddr>(), family) {
        (Ok(IpAddr::V4(address)), Family::Ip) => Ok(u32::from(address).into()),
        (Ok(IpAddr::V6(address)), Family::Ip6) => Ok(u128::from(address)),
        _ => {
            let version = if family == Family::Ip6 { 6 } else { 4 };
            wrong(
                &word.span,
                format!("{} is no IPv{version} address", quoted(part)),
                "write one address, as iptables-save does",
            )
        }
    }
}

/// An address with a mask, given as a length or as an address.
pub(super) fn network(word: &Word, family: Family) -> Result<(u128, u128), SpannedFault> {
    let bits = if family == Family::Ip6 { 128 } else { 32 };
    let all = u128::MAX >> (128 - bits);
    let (part, mask) = match word.text.split_once('/') {
        None => (word.text.as_str(), all),
        Some((part, mask)) if mask.bytes().all(|byte| byte.is_ascii_digit()) => {
            let Some(len) = mask.parse::<u32>().ok().filter(|len| *len <= bits) else {
                return wrong(
                    &word.span,
                    format!("{} is no length of a prefix", quoted(mask)),
                    format!("write a number from 0 to {bits}"),
                );
            };
            (part, Range::prefix(all, len, bits).first)
        }
        Some((part, mask)) => (part, address(word, mask, family)?),
    };
    Ok((address(word, part, family)? & mask, mask))
}

/// Two addresses separated by a dash.
pub(super) fn address_range(word: &Word, family: Family) -> Result<Range, SpannedFault> {
    let Some((first, last)) = word.text.split_once('-') else {
        return wrong(
            &word.span,
            format!("{} is no range of addresses", quoted(&word.text)),
            "write FIRST-LAST",
        );
    };
    let range = Range::new(address(word, first, family)?, address(word, last, family)?);
    if range.first > range.last {
        return wrong(
            &word.span,
            format!("{} ends before it begins", quoted(&word.text)),
            "swap its ends",
        );
    }
    Ok(range)
}

/// A MAC address.
pub(super) fn mac(word: &Word) -> Result<u128, SpannedFault> {
    let parts: Vec<_> = word.text.split(':').collect();
    let byte = |part: &&str| {
        let sound = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        sound.then(|| u128::from_str_radix(part, 16).ok()).flatten()
    };
    let bytes: Option<Vec<_>> = parts.iter().map(byte).collect();
    match bytes {
        Some(bytes) if bytes.len() == 6 => Ok(bytes.iter().fold(0, |mac, byte| mac << 8 | byte)),
        _ => wrong(
            &word.span,
            format!("{} is no MAC address", quoted(&word.text)),
            "write six bytes, like 02:00:00:00:00:01",
        ),
    }
}
