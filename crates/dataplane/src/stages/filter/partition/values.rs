//! A field's values as numbers of 32 bits, in their order.
//!
//! A short field's value is its number. For a long field, a lookup gives the number: of the most specific
//! prefix in the rules for IPv6 addresses, otherwise of the range between two ends of the rules' ranges.

use super::super::dim::{self, Dim, Lookup, Ranges};
use super::super::{Field, rules};
use super::area::{Numbers, Side};
use crate::id::NextHopId;
use crate::prefix::Prefix;

/// The lookup of a field's numbers, and the rules' numbers. `is_ip4` says whether every packet has IPv4 addresses.
/// None if memory is short.
pub(super) fn numbers(field: Field, ranges: &Ranges, is_ip4: bool) -> Option<(Dim, Numbers)> {
    if is_short(field, is_ip4) {
        let numbers = ranges.iter().map(|(rule, ranges)| (*rule, short(field, ranges)));
        return Some((Dim::of_numbers(field, Lookup::Value), numbers.collect()));
    }
    match field.bits() {
        128 if field.is_address() => in_trie(field, ranges),
        _ => Some(between_ends(field, ranges)),
    }
}

/// Says whether a field's values, and the lack of it, have different numbers: the lack is [`u32::MAX`].
const fn is_short(field: Field, is_ip4: bool) -> bool {
    match field {
        Field::Source4 | Field::Destination4 => is_ip4,
        Field::Mark => true,
        _ => field.bits() < u32::BITS,
    }
}

fn short(field: Field, ranges: &[(u128, u128)]) -> Vec<Side> {
    let max = field.max();
    let within = ranges.iter().filter(|range| range.0 <= max);
    within.map(|(first, last)| (*first as u32, (*last).min(max) as u32)).collect()
}

fn between_ends(field: Field, ranges: &Ranges) -> (Dim, Numbers) {
    let starts = dim::starts(ranges, field.bits());
    let last_at = |value: u128| starts.partition_point(|start| *start <= value) as u32 - 1;
    let side = |(first, last): &(u128, u128)| (last_at(*first), last_at(*last));
    let within = |ranges: &[(u128, u128)]| {
        let within = ranges.iter().filter(|range| range.0 <= field.max());
        within.map(side).collect()
    };
    let numbers = ranges.iter().map(|(rule, ranges)| (*rule, within(ranges))).collect();
    let search = Lookup::Search(starts.iter().copied().zip(0..).collect());
    (Dim::of_numbers(field, search), numbers)
}

fn in_trie(field: Field, ranges: &Ranges) -> Option<(Dim, Numbers)> {
    let mut prefixes = vec![Prefix::v6(0, 0)];
    for (first, last) in ranges.iter().flat_map(|(_, ranges)| ranges) {
        dim::for_each_prefix(*first, *last, field.bits(), |prefix| prefixes.push(prefix));
    }
    prefixes.sort_unstable_by_key(|prefix| (prefix.bits(), prefix.len()));
    prefixes.dedup();
    let (fib, root) = dim::fib(prefixes.len()).ok()?;
    for (number, prefix) in (0..).zip(&prefixes) {
        fib.insert(root, *prefix, NextHopId(number)).ok()?;
    }
    // A prefix comes directly before those inside it.
    let side = |prefix: Prefix| {
        let first =
            prefixes.partition_point(|one| (one.bits(), one.len()) < (prefix.bits(), prefix.len()));
        let after = prefixes[first..].partition_point(|one| prefix.contains(one.bits()));
        (first as u32, (first + after) as u32 - 1)
    };
    let numbers = |ranges: &[(u128, u128)]| {
        let mut sides = Vec::new();
        for (first, last) in ranges {
            dim::for_each_prefix(*first, *last, field.bits(), |prefix| {
                let (first, last) = side(prefix);
                sides.push((first.into(), last.into()));
            });
        }
        rules::join(sides).into_iter().map(|(first, last)| (first as u32, last as u32)).collect()
    };
    let numbers = ranges.iter().map(|(rule, ranges)| (*rule, numbers(ranges))).collect();
    let lookup = Lookup::Trie { fib: Box::new(fib), root };
    Some((Dim::of_numbers(field, lookup), numbers))
}
