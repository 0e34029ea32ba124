//! Looks up a burst's addresses in a live set.

use std::ops::Range;

use super::super::scratch::Scratch;
use super::super::{Address, Field, LiveSet};
use super::window::{take_words, window};
use super::{Classifier, Work};
use crate::burst::BURST;

/// Writes to [`Scratch::value`] for each packet whether the set has its address.
#[inline(always)]
pub(super) fn are_members(
    classifier: &Classifier,
    (set, address): (&LiveSet, Address),
    work: &Work<'_>,
    scratch: &mut Scratch,
    gathered: bool,
    lanes: Range<usize>,
) {
    if classifier.version == 4 {
        let Some(window) = window(address.field(4), 4, classifier.point) else { return };
        take_words(window, work, scratch, gathered, lanes.clone());
        set.look_up4(&mut scratch.value, &mut scratch.key, lanes);
        return;
    }
    let Some(at) = offset6(address.field(6)) else { return };
    let bits = |lane: usize| {
        let l3 = usize::from(work.burst.l3[lane & (BURST - 1)]);
        let addr = work.burst.addr[lane & (BURST - 1)];
        u128::from_be_bytes(*work.umem.bytes::<16>(addr, l3 + at))
    };
    set.look_up6(bits, &mut scratch.value, &mut scratch.key, lanes);
}

/// The offset of an address in an IPv6 header.
pub(super) const fn offset6(field: Field) -> Option<usize> {
    match field {
        Field::Source6 => Some(8),
        Field::Destination6 => Some(24),
        _ => None,
    }
}
