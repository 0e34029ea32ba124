//! A cache of the results for packets of the same classes.
//!
//! The first rule depends on the classes alone, so a result never becomes wrong while the rules stay.
//! There are fewer combinations of classes than flows, and each fits one word.

use super::super::bits::{MOST_DENSE, Sets};
use super::super::dim::Dim;
use super::Room;
use crate::burst::{BURST, Lanes};
use crate::cpu::prefetch;

/// The number of cached combinations: one word each.
const SLOTS: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 16;

/// Bits of a word for the rule; the others are for the classes.
const RULE_BITS: u32 = 16;

/// Packs classes into a word.
#[derive(Clone, Debug)]
pub(crate) struct Packing(Vec<u32>);

impl Packing {
    /// The packing for sets of many rules, if the classes of all fields fit.
    pub(crate) fn of(dims: &[Dim], width: usize) -> Option<Self> {
        let (mut shifts, mut bits) = (Vec::new(), 0);
        for dim in dims {
            shifts.push(bits);
            bits += u32::BITS - classes(&dim.sets).leading_zeros();
        }
        (width > MOST_DENSE && bits < u64::BITS - RULE_BITS).then_some(Self(shifts))
    }
}

fn classes(sets: &Sets) -> u32 {
    sets.classes.len() as u32
}

/// Creates an empty cache. An entry is found by its hash and has the classes, plus one so that none is
/// 0, and the rule.
pub(crate) fn new_cache() -> Vec<u64> {
    vec![0; SLOTS]
}

/// Writes the first rule of each packet with a cached result to [`Room::first`]; returns the others.
#[inline(always)]
pub(crate) fn recall(packing: &Packing, cache: &[u64], room: &mut Room, lanes: Lanes) -> Lanes {
    room.key = [1; BURST];
    for (shift, class) in packing.0.iter().zip(&room.class) {
        for (key, class) in room.key.iter_mut().zip(class) {
            *key += u64::from(*class) << shift;
        }
    }
    for (slot, key) in room.value.iter_mut().zip(&room.key) {
        *slot = slot_of(*key);
    }
    for slot in &room.value {
        prefetch(cache.as_ptr().wrapping_add(*slot as usize));
    }
    let mut unknown = Lanes::NONE;
    for lane in lanes {
        let word = cache.get(room.value[lane] as usize).copied().unwrap_or(0);
        room.first[lane] = word as u32 & ((1 << RULE_BITS) - 1);
        unknown.put(lane, word >> RULE_BITS != room.key[lane]);
    }
    unknown
}

/// Caches results.
pub(crate) fn keep(cache: &mut [u64], room: &Room, lanes: Lanes) {
    for lane in lanes {
        if let Some(word) = cache.get_mut(room.value[lane] as usize) {
            *word = room.key[lane] << RULE_BITS | u64::from(room.first[lane]);
        }
    }
}

#[inline(always)]
const fn slot_of(key: u64) -> u32 {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SLOT_BITS)) as u32
}
