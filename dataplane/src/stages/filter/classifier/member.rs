//! Looks up a burst's addresses in a live set.

use std::ops::Range;

use super::super::room::Room;
use super::super::{Address, Field, LiveSet};
use super::window::{take_words, window};
use super::{Classifier, Work};
use crate::burst::BURST;

/// Writes to [`Room::value`] for each packet whether the set has its address.
#[inline(always)]
pub(super) fn are_members(
    classifier: &Classifier,
    (set, of): (&LiveSet, Address),
    work: &Work<'_>,
    room: &mut Room,
    gathered: bool,
    lanes: Range<usize>,
) {
    if classifier.version == 4 {
        let Some(window) = window(of.field(4), 4, classifier.point) else { return };
        take_words(window, work, room, gathered, lanes.clone());
        set.look_up4(&mut room.value, &mut room.key, lanes);
        return;
    }
    let Some(at) = place6(of.field(6)) else { return };
    let address = |lane: usize| {
        let l3 = usize::from(work.burst.l3[lane & (BURST - 1)]);
        let addr = work.burst.addr[lane & (BURST - 1)];
        u128::from_be_bytes(*work.umem.bytes::<16>(addr, l3 + at))
    };
    set.look_up6(address, &mut room.value, &mut room.key, lanes);
}

/// The offset of an address in an IPv6 header.
pub(super) const fn place6(field: Field) -> Option<usize> {
    match field {
        Field::Source6 => Some(8),
        Field::Destination6 => Some(24),
        _ => None,
    }
}
