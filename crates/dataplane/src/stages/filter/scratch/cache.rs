//! A cache of the results for packets of the same classes.
//!
//! The first rule depends on the classes alone, so a result never becomes wrong while the rules stay.
//! There are fewer combinations of classes than flows, and each fits one word.

use super::super::bits::{MOST_DENSE, Sets};
use super::super::dim::Dim;
use super::Scratch;
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

/// Creates an empty cache. The hash of the classes is the index of an entry. An entry has the classes,
/// plus one so that none is 0, and the rule.
pub(crate) fn new_cache() -> Vec<u64> {
    vec![0; SLOTS]
}

/// Writes the first rule of each packet with a cached result to [`Scratch::first`]; returns the others.
#[inline(always)]
pub(crate) fn look_up(
    packing: &Packing,
    cache: &[u64],
    scratch: &mut Scratch,
    lanes: Lanes,
) -> Lanes {
    scratch.key = [1; BURST];
    for (shift, class) in packing.0.iter().zip(&scratch.class) {
        for (key, class) in scratch.key.iter_mut().zip(class) {
            *key += u64::from(*class) << shift;
        }
    }
    for (slot, key) in scratch.value.iter_mut().zip(&scratch.key) {
        *slot = slot_of(*key);
    }
    for slot in &scratch.value {
        prefetch(cache.as_ptr().wrapping_add(*slot as usize));
    }
    let mut unknown = Lanes::NONE;
    for lane in lanes {
        let word = cache.get(scratch.value[lane] as usize).copied().unwrap_or(0);
        scratch.first[lane] = word as u32 & ((1 << RULE_BITS) - 1);
        unknown.put(lane, word >> RULE_BITS != scratch.key[lane]);
    }
    unknown
}

/// Caches the results of these packets.
pub(crate) fn store(cache: &mut [u64], scratch: &Scratch, lanes: Lanes) {
    for lane in lanes {
        if let Some(word) = cache.get_mut(scratch.value[lane] as usize) {
            *word = scratch.key[lane] << RULE_BITS | u64::from(scratch.first[lane]);
        }
    }
}

#[inline(always)]
const fn slot_of(key: u64) -> u32 {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SLOT_BITS)) as u32
}
