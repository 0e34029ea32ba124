//! Splits comparisons of adjacent fields, which nft merges into one (`payload_try_merge` in its
//! `src/payload.c`).

use super::field::{Base, Field, Test};

/// The kernel's conditions, with merged comparisons split into the listed conditions and a remainder.
pub(super) fn apart(tests: &[Test], listed: &[Test]) -> Vec<Test> {
    let mut all = Vec::with_capacity(tests.len());
    for test in tests {
        match test.number().filter(|(field, _)| !matches!(field.base, Base::Meta(_))) {
            Some((field, number)) if !listed.contains(test) => {
                all.extend(parts(field, number, listed));
            }
            _ => all.push(test.clone()),
        }
    }
    all
}

fn parts(field: Field, number: u128, listed: &[Test]) -> Vec<Test> {
    let mut left = field.mask;
    let mut parts = Vec::new();
    for test in listed {
        let Some((other, wanted)) = test.number() else { continue };
        let Some(behind) = behind(&field, &other) else { continue };
        let mask = other.mask << behind;
        if left & mask == mask && number & mask == wanted << behind {
            left &= !mask;
            parts.push(test.clone());
        }
    }
    parts.extend(runs(Field { mask: left, ..field }, number));
    parts
}

/// The number of bits that follow `part` within `whole`.
fn behind(whole: &Field, part: &Field) -> Option<u32> {
    let (end, part_end) = (whole.offset + whole.bytes, part.offset + part.bytes);
    let is_within = part.base == whole.base && part.offset >= whole.offset && part_end <= end;
    // No field has more than 16 bytes.
    is_within.then(|| (end - part_end) * 8)
}

/// Runs of adjacent bytes with bits that matter, as conditions of their own.
fn runs(field: Field, number: u128) -> Vec<Test> {
    let mut runs = Vec::new();
    let mut left = field.mask;
    while left != 0 {
        let first = left.trailing_zeros() / 8 * 8;
        let mut end = first;
        while end < field.bytes * 8 && left >> end & 0xff != 0 {
            end += 8;
        }
        let below = |bits: u32| u128::MAX.checked_shl(bits).map_or(u128::MAX, |all| !all);
        let mask = left & below(end) & !below(first);
        runs.push(Test::range(Field { mask, ..field }, number & mask, number & mask, false));
        left &= !mask;
    }
    runs
}
