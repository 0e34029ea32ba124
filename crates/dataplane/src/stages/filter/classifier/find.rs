//! Finds the first rule that a packet matches from the packet's classes.

use std::ops::Range;

use super::super::bits::{BLOCK, BLOCK_BITS, Block};
use super::super::dim::MOST_DIMS;
use super::super::scratch::{self, Scratch};
use super::super::wide::Wide;
use super::Classifier;
use crate::burst::{BURST, Lanes};
use crate::cpu::prefetch;

/// Finds the first rules from the classes of a burst's packets.
#[inline(always)]
pub(super) fn find_first<V: Wide>(
    classifier: &Classifier,
    scratch: &mut Scratch,
    lanes: Range<usize>,
    exactly: Lanes,
) {
    match classifier.width {
        1 => {
            for (first, set) in scratch.first.iter_mut().zip(&scratch.set) {
                *first = set.trailing_zeros();
            }
        }
        2 => find::<2>(classifier, scratch, lanes, 0),
        4 => find::<4>(classifier, scratch, lanes, 0),
        8 => find_wide::<V, 1, 8>(classifier, scratch, lanes, 0),
        16 => find_wide::<V, 2, 16>(classifier, scratch, lanes, 0),
        _ => find_in_many::<V>(classifier, scratch, exactly),
    }
}

/// Finds the first rule from `from` on of each of these packets, in a list of more than 64 rules.
#[inline(always)]
pub(super) fn find_from<V: Wide>(
    classifier: &Classifier,
    scratch: &mut Scratch,
    lanes: Lanes,
    from: u32,
) {
    match classifier.width {
        2 => find::<2>(classifier, scratch, lanes, from),
        4 => find::<4>(classifier, scratch, lanes, from),
        8 => find_wide::<V, 1, 8>(classifier, scratch, lanes, from),
        16 => find_wide::<V, 2, 16>(classifier, scratch, lanes, from),
        _ => {
            for lane in lanes {
                let mut classes = [0; MOST_DIMS];
                for (class, of_burst) in classes.iter_mut().zip(&scratch.class) {
                    *class = of_burst[lane];
                }
                scratch.first[lane] = classifier.next(&classes, from);
            }
        }
    }
}

/// The bits of a word of a set for the rules from `from` on.
#[inline(always)]
fn mask_from(word: usize, from: u32) -> u64 {
    match (from as usize).checked_sub(word * 64) {
        Some(below) if below >= 64 => 0,
        Some(below) => u64::MAX << below,
        None => u64::MAX,
    }
}

/// Intersects the sets of each packet's classes, and writes the first rule from `from` on.
#[inline(always)]
fn find<const W: usize>(
    classifier: &Classifier,
    scratch: &mut Scratch,
    lanes: impl IntoIterator<Item = usize>,
    from: u32,
) {
    let mut all = [0; W];
    for (word, (all, of_all)) in all.iter_mut().zip(&classifier.all).enumerate() {
        *all = of_all & mask_from(word, from);
    }
    let mut rows: [&[[u64; W]]; MOST_DIMS] = [&[]; MOST_DIMS];
    for (row, dim) in rows.iter_mut().zip(&classifier.dims) {
        *row = dim.sets.dense.as_chunks().0;
    }
    let rows = &rows[..classifier.dims.len().min(MOST_DIMS)];
    for lane in lanes {
        let lane = lane & (BURST - 1);
        let mut set = all;
        for (row, class) in rows.iter().zip(&scratch.class) {
            if let Some(part) = row.get(class[lane] as usize) {
                for word in 0..W {
                    set[word] &= part[word];
                }
            }
        }
        scratch.first[lane] = lowest(&set);
    }
}

/// The first bit of a small set.
#[inline(always)]
fn lowest<const W: usize>(set: &[u64; W]) -> u32 {
    let mut first = 0;
    for word in (0..W).rev() {
        let here = word as u32 * 64 + set[word].trailing_zeros();
        first = if set[word] != 0 { here } else { first };
    }
    first
}

/// Like `find`, for sets of `N` blocks, `W` words.
#[inline(always)]
fn find_wide<V: Wide, const N: usize, const W: usize>(
    classifier: &Classifier,
    scratch: &mut Scratch,
    lanes: impl IntoIterator<Item = usize>,
    from: u32,
) {
    let mut rows: [&[[Block; N]]; MOST_DIMS] = [&[]; MOST_DIMS];
    for (row, dim) in rows.iter_mut().zip(&classifier.dims) {
        *row = dim.sets.dense.as_chunks().0.as_chunks().0;
    }
    let rows = &rows[..classifier.dims.len().min(MOST_DIMS)];
    let mut all = [0; W];
    for (word, (all, of_all)) in all.iter_mut().zip(&classifier.all).enumerate() {
        *all = of_all & mask_from(word, from);
    }
    let all: &[Block] = all.as_chunks().0;
    for lane in lanes {
        let lane = lane & (BURST - 1);
        let mut set = [V::load(&all[0]); N];
        for block in 1..N {
            set[block] = V::load(&all[block]);
        }
        for (row, class) in rows.iter().zip(&scratch.class) {
            if let Some(part) = row.get(class[lane] as usize) {
                for block in 0..N {
                    set[block] = set[block].and(V::load(&part[block]));
                }
            }
        }
        let (mut words, mut plain) = (0, [[0; BLOCK]; N]);
        for block in 0..N {
            words |= set[block].nonzero() << (block * BLOCK);
            set[block].store(&mut plain[block]);
        }
        let word = words.trailing_zeros();
        let bits = plain.as_flattened().get(word as usize).map_or(0, |bits| bits.trailing_zeros());
        scratch.first[lane] = word * 64 + bits;
    }
}

/// Like `find`, for many rules: finds them by parts, or takes known results from the cache, and finds and
/// keeps the others.
#[inline(always)]
fn find_in_many<V: Wide>(classifier: &Classifier, scratch: &mut Scratch, lanes: Lanes) {
    if let Some(partition) = &classifier.partition {
        return partition.find::<V>(scratch, lanes);
    }
    let Some(packing) = &classifier.packing else {
        return find_in_blocks::<V>(classifier, scratch, lanes);
    };
    let Some(cache) = scratch.caches.get_mut(classifier.index()) else { return };
    let mut cache = std::mem::take(cache);
    let unknown = scratch::look_up(packing, &cache, scratch, lanes);
    if !unknown.is_empty() {
        find_in_blocks::<V>(classifier, scratch, unknown);
        scratch::store(&mut cache, scratch, unknown);
    }
    scratch.caches[classifier.index()] = cache;
}

/// Reads only blocks in which all the summaries have a bit.
#[inline(always)]
fn find_in_blocks<V: Wide>(classifier: &Classifier, scratch: &mut Scratch, lanes: Lanes) {
    for lane in lanes {
        let mut candidates = u64::MAX;
        for (dim, class) in classifier.dims.iter().zip(&scratch.class) {
            candidates &= dim.sets.summary(class[lane]).blocks;
        }
        scratch.set[lane] = candidates;
        for (dim, class) in classifier.dims.iter().zip(&scratch.class) {
            let place = dim.sets.summary(class[lane]).place(candidates.trailing_zeros());
            prefetch(dim.sets.blocks.as_ptr().wrapping_add(place));
        }
    }
    let mut pending = lanes;
    while !pending.is_empty() {
        let mut more = Lanes::NONE;
        for lane in pending {
            let candidates = scratch.set[lane];
            let block = candidates.trailing_zeros();
            let mut set = V::load(&[u64::MAX; BLOCK]);
            for (dim, class) in classifier.dims.iter().zip(&scratch.class) {
                let place = dim.sets.summary(class[lane]).place(block);
                if let Some(part) = dim.sets.blocks.get(place) {
                    set = set.and(V::load(part));
                }
            }
            let (words, mut plain) = (set.nonzero(), [0; BLOCK]);
            set.store(&mut plain);
            let word = words.trailing_zeros();
            let bits = plain.get(word as usize).map_or(0, |bits| bits.trailing_zeros());
            scratch.first[lane] = block.wrapping_mul(BLOCK_BITS as u32) + word * 64 + bits;
            let rest = candidates & candidates.wrapping_sub(1);
            scratch.set[lane] = rest;
            more.put(lane, words == 0 && rest != 0);
        }
        pending = more;
    }
}
