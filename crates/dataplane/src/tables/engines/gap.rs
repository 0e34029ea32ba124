//! Room between ranges that are in use.

use std::ops::Range;

/// The first gap of a size between ranges, within limits.
pub(super) fn gap<'a>(
    used: impl Iterator<Item = &'a Range<u32>>,
    first: u32,
    end: u32,
    size: u32,
) -> Option<Range<u32>> {
    let mut used: Vec<_> = used.filter(|range| !range.is_empty()).collect();
    used.sort_unstable_by_key(|range| range.start);
    let mut start = first;
    for range in used {
        if range.start - start >= size {
            break;
        }
        start = range.end;
    }
    let behind = start.checked_add(size).filter(|behind| *behind <= end)?;
    Some(start..behind)
}
