//! Elements of anonymous sets, which nft lists where rules use them.

use super::condition::{Datum, Entry, IIF, LEN, Load, Location, OIF, all};
use crate::message::{attribute, be_word, name};
use tollway_linux::netlink::attributes;

/// An element of a set in the kernel, or one end of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SetItem {
    /// `None` for the catch-all element.
    key: Option<Vec<u8>>,
    /// The last key, if the kernel stores both ends in one.
    last: Option<Vec<u8>>,
    /// Whether an interval ends before it.
    is_end: bool,
    datum: Option<Datum>,
}

/// A part of a key: its content and its encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyPart {
    pub(super) load: Load,
    /// Whether its bytes are in host order.
    pub(super) is_host: bool,
    /// Bits that were shifted out.
    pub(super) shift: u32,
}

/// The elements of a list (`NFTA_SET_ELEM_LIST_ELEMENTS`); `None` if one is more than a key and a datum.
pub(super) fn items(list: &[u8]) -> Option<Vec<SetItem>> {
    attributes(list, 0).map(|element| item(element.value)).collect()
}

fn item(element: &[u8]) -> Option<SetItem> {
    const KEY: u16 = 1;
    const DATA: u16 = 2;
    const FLAGS: u16 = 3;
    const USERDATA: u16 = 6;
    const PADDING: u16 = 8;
    const LAST: u16 = 10;
    const IS_END: u32 = 1;
    const IS_REST: u32 = 2;
    let mut item = SetItem { key: None, last: None, is_end: false, datum: None };
    let mut flags = 0;
    for one in attributes(element, 0) {
        match one.kind {
            KEY => item.key = Some(attribute(one.value, 1)?.to_vec()),
            LAST => item.last = Some(attribute(one.value, 1)?.to_vec()),
            DATA => item.datum = Some(datum(one.value)?),
            FLAGS => flags = be_word(one.value)?,
            USERDATA | PADDING => {}
            _ => return None,
        }
    }
    item.is_end = flags & IS_END != 0;
    let is_known = flags & !(IS_END | IS_REST) == 0;
    (is_known && item.key.is_none() == (flags & IS_REST != 0)).then_some(item)
}

fn datum(data: &[u8]) -> Option<Datum> {
    if let Some(number) = attribute(data, 1) {
        return Some(Datum::Number(number.to_vec()));
    }
    let verdict = attribute(data, 2)?;
    let code = attribute(verdict, 1).and_then(be_word)?.cast_signed();
    Some(Datum::Verdict { code, chain: attribute(verdict, 2).and_then(name) })
}

/// The elements of a set whose keys have these parts, in the form of [`in_one_form`].
pub(super) fn entries(
    items: &[SetItem],
    parts: &[KeyPart],
    is_interval: bool,
) -> Option<Vec<Entry>> {
    let mut entries = Vec::with_capacity(items.len());
    let mut ends = Vec::new();
    for item in items {
        let Some(key) = &item.key else {
            let every = parts.iter().map(|part| (0, all(part.load.bytes))).collect();
            entries.push((every, item.datum.clone()));
            continue;
        };
        let first = numbers(key, parts)?;
        match (&item.last, item.is_end, &first[..], is_interval) {
            (Some(last), false, _, _) => {
                let last = numbers(last, parts)?;
                entries.push((first.into_iter().zip(last).collect(), item.datum.clone()));
            }
            (None, false, _, false) => {
                entries.push((first.iter().map(|one| (*one, *one)).collect(), item.datum.clone()));
            }
            (None, is_end, [one], true) => ends.push((*one, is_end, item.datum.clone())),
            _ => return None,
        }
    }
    entries.extend(intervals(ends, all(parts.first()?.load.bytes)));
    let mut shifted = Vec::with_capacity(entries.len());
    for (key, datum) in entries {
        let key = key.into_iter().zip(parts);
        let up = |(number, part): (u128, &KeyPart)| number.checked_shl(part.shift);
        let key = key.map(|((first, last), part)| Some((up((first, part))?, up((last, part))?)));
        shifted.push((key.collect::<Option<Vec<_>>>()?, datum));
    }
    let loads: Vec<_> = parts.iter().map(|part| part.load).collect();
    Some(in_one_form(shifted, &loads))
}

/// Intervals whose ends the kernel stores separately; one without an end extends to the last number.
fn intervals(mut ends: Vec<(u128, bool, Option<Datum>)>, most: u128) -> Vec<Entry> {
    // At one number, the end of an interval sorts before the beginning of the next.
    ends.sort_by_key(|(number, is_end, _)| (*number, !*is_end));
    let mut intervals = Vec::new();
    let mut open: Option<(u128, Option<Datum>)> = None;
    for (number, is_end, datum) in ends {
        if let Some((first, datum)) = open.take() {
            intervals.push((vec![(first, number.saturating_sub(1))], datum));
        }
        if !is_end {
            open = Some((number, datum));
        }
    }
    intervals.extend(open.map(|(first, datum)| (vec![(first, most)], datum)));
    intervals
}

/// The numbers that a key consists of.
fn numbers(key: &[u8], parts: &[KeyPart]) -> Option<Vec<u128>> {
    let mut rest = key;
    let mut numbers = Vec::with_capacity(parts.len());
    for part in parts {
        let bytes = usize::try_from(part.load.bytes).ok()?;
        let own = rest.get(..bytes)?;
        // Each part occupies whole words, except the only part of a key.
        rest = rest.get(bytes.next_multiple_of(4)..).unwrap_or_default();
        let all = |all, byte: &u8| all << 8 | u128::from(*byte);
        numbers.push(match part.is_host && cfg!(target_endian = "little") {
            true => own.iter().rev().fold(0, all),
            false => own.iter().fold(0, all),
        });
    }
    Some(numbers)
}

/// Elements in canonical form, regardless of their source: without bits that do not matter, and in order.
/// Adjacent ranges of a single load are merged.
pub(super) fn in_one_form(entries: Vec<Entry>, loads: &[Load]) -> Vec<Entry> {
    let short = |(key, datum): Entry| {
        let key = key.into_iter().zip(loads).map(|(range, load)| bounds(range, load));
        (key.collect::<Vec<_>>(), datum)
    };
    let mut entries: Vec<_> = entries.into_iter().map(short).collect();
    entries.sort_by(|(one, a), (other, b)| (one, is_data(a)).cmp(&(other, is_data(b))));
    let is_plain = loads.len() == 1 && entries.iter().all(|(_, datum)| datum.is_none());
    if is_plain {
        entries.dedup_by(|(next, _), (before, _)| join(before, next));
    }
    entries
}

const fn is_data(datum: &Option<Datum>) -> bool {
    datum.is_some()
}

/// Merges a range into the one before it, if they are adjacent.
fn join(before: &mut [(u128, u128)], next: &[(u128, u128)]) -> bool {
    let ([before], [next]) = (before, next) else { return false };
    let is_next = next.0 <= before.1.saturating_add(1);
    if is_next {
        before.1 = before.1.max(next.1);
    }
    is_next
}

/// The ends of a range, as numbers that the load can have.
fn bounds((first, last): (u128, u128), load: &Load) -> (u128, u128) {
    let low = load.mask & load.mask.wrapping_neg();
    let below = low.wrapping_sub(1);
    let most = if load.is_meta(&[LEN]) { 0xffff } else { load.mask };
    if low == 0 {
        return (first, last);
    }
    let (first, last) = (first.saturating_add(below) & !below, last.min(most) & !below);
    let behind = load.trimmed().1;
    (first >> behind, last >> behind)
}

/// Says whether the load contains device numbers, which cannot be compared with names.
pub(super) fn is_number_of_device(load: &Load) -> bool {
    matches!(load.location, Location::Meta(IIF | OIF))
}
