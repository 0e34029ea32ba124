//! Splits comparisons of adjacent bytes, which nft merges into one (`payload_try_merge` in its
//! `src/payload.c`).

use super::condition::{Load, Location, Test};

/// The kernel's conditions, with merged comparisons split into the listed conditions and a remainder.
pub(super) fn apart(tests: &[Test], listed: &[Test]) -> Vec<Test> {
    let mut all = Vec::with_capacity(tests.len());
    for test in tests {
        match test.number().filter(|(load, _)| {
            !matches!(load.location, Location::Meta(_) | Location::Connection(_))
        }) {
            Some((load, number)) if !listed.contains(test) => {
                all.extend(parts(load, number, listed));
            }
            _ => all.push(test.clone()),
        }
    }
    all
}

fn parts(load: Load, number: u128, listed: &[Test]) -> Vec<Test> {
    let mut left = load.mask;
    let mut parts = Vec::new();
    for test in listed {
        let Some((other, wanted)) = test.number() else { continue };
        let Some(behind) = behind(&load, &other) else { continue };
        let mask = other.mask << behind;
        if left & mask == mask && number & mask == wanted << behind {
            left &= !mask;
            parts.push(test.clone());
        }
    }
    parts.extend(runs(Load { mask: left, ..load }, number));
    parts
}

/// The number of bits that follow `part` within `whole`.
fn behind(whole: &Load, part: &Load) -> Option<u32> {
    let (end, part_end) = (whole.offset + whole.bytes, part.offset + part.bytes);
    let is_within =
        part.location == whole.location && part.offset >= whole.offset && part_end <= end;
    // No load has more than 16 bytes.
    is_within.then(|| (end - part_end) * 8)
}

/// Runs of adjacent bytes with bits that matter, as conditions of their own.
fn runs(load: Load, number: u128) -> Vec<Test> {
    let mut runs = Vec::new();
    let mut left = load.mask;
    while left != 0 {
        let first = left.trailing_zeros() / 8 * 8;
        let mut end = first;
        while end < load.bytes * 8 && left >> end & 0xff != 0 {
            end += 8;
        }
        let below = |bits: u32| u128::MAX.checked_shl(bits).map_or(u128::MAX, |all| !all);
        let mask = left & below(end) & !below(first);
        runs.push(Test::range(Load { mask, ..load }, number & mask, number & mask, false));
        left &= !mask;
    }
    runs
}
