//! Lookup of values of up to 32 bits in many ranges: a table by their first bits, then a short search.

use std::hint::select_unpredictable;
use std::ops::Range;

use crate::burst::BURST;

/// A table with so few steps needs no more room for its first part.
const FEW_STEPS: u32 = 3;

/// The maximum number of steps of the search; values that lie closer together need another kind of
/// table.
const MOST_STEPS: u32 = 8;

/// The maximum number of bits of the table.
const MOST_BITS: u32 = 16;

/// The values at which a new class begins.
///
/// Related work: DXR (Zec, Rizzo and Mikuc, 2012). Every search takes the same number of steps, so
/// that no branch depends on the packet. A search may read bounds after those of a value's part of
/// the table, since these exceed the value anyway.
#[derive(Debug)]
pub(super) struct Cut {
    /// How far to shift a value down for the table.
    shift: u32,
    /// For each part of the table, the number of bounds that are not above its first value.
    top: Vec<u32>,
    /// Bounds in ascending order, padded with greatest values for searches that reach beyond the end.
    bounds: Vec<u32>,
    /// The class from each bound on, and first the class of values below all bounds.
    classes: Vec<u32>,
    steps: u32,
}

impl Cut {
    /// Creates a table for values of `bits` bits; `starts` are where `classes` begin, 0 first. None if
    /// they lie too close together.
    pub(super) fn new(starts: &[u128], classes: &[u32], bits: u32) -> Option<Self> {
        let bounds: Vec<u32> = starts.iter().skip(1).map(|start| *start as u32).collect();
        let wanted = (bounds.len().max(1) as u32).ilog2() + 3;
        let top_bits = wanted.clamp(8, MOST_BITS).min(bits);
        let mut cut = Self::with_top(bounds.clone(), classes, bits - top_bits);
        if cut.steps > 3 && top_bits < MOST_BITS.min(bits) {
            cut = Self::with_top(bounds, classes, bits - MOST_BITS.min(bits));
        }
        (cut.steps <= MOST_STEPS).then_some(cut)
    }

    /// Creates a table for values of 32 bits, however close together the bounds lie. `classes` are those
    /// from each bound on, and first that of values below all bounds.
    pub(super) fn of_bounds(bounds: Vec<u32>, classes: &[u32]) -> Self {
        let parts = (bounds.len().max(1) as u32).ilog2() + 3;
        // Values of fewer bits are in the last parts of the table.
        let bits = u32::BITS - bounds.last().map_or(0, |last| last.leading_zeros());
        let few = Self::with_top(bounds.clone(), classes, bits.saturating_sub(parts.max(8)));
        if few.steps <= FEW_STEPS {
            return few;
        }
        Self::with_top(bounds, classes, bits.saturating_sub(MOST_BITS))
    }

    fn with_top(mut bounds: Vec<u32>, classes: &[u32], shift: u32) -> Self {
        let parts = bounds.last().map_or(0, |last| last >> shift) + 1;
        let not_above = |part: u32| bounds.partition_point(|bound| *bound <= part << shift) as u32;
        let mut top: Vec<u32> = (0..parts).map(not_above).collect();
        // One more entry for all parts after the last bound.
        top.push(bounds.len() as u32);
        let most = top.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
        let steps = u32::BITS - most.leading_zeros();
        bounds.resize(bounds.len() + (1 << steps), u32::MAX);
        Self { shift, top, bounds, classes: classes.to_vec(), steps }
    }

    /// The class of a value.
    pub(super) fn class(&self, value: u32) -> u32 {
        let mut place = self.part(value);
        let mut step = self.first_step();
        while step > 0 {
            place = self.step(place, step, value);
            step >>= 1;
        }
        self.class_at(place)
    }

    /// The classes of a burst's values: each step for all of them, so that their loads overlap.
    #[inline(always)]
    pub(super) fn look_up(
        &self,
        value: &[u32; BURST],
        class: &mut [u32; BURST],
        lanes: Range<usize>,
    ) {
        for lane in lanes.clone() {
            let lane = lane & (BURST - 1);
            class[lane] = self.part(value[lane]);
        }
        let mut step = self.first_step();
        while step > 0 {
            for lane in lanes.clone() {
                let lane = lane & (BURST - 1);
                class[lane] = self.step(class[lane], step, value[lane]);
            }
            step >>= 1;
        }
        for lane in lanes {
            let lane = lane & (BURST - 1);
            class[lane] = self.class_at(class[lane]);
        }
    }

    /// The number of bounds that are not above the first value of a value's part.
    #[inline(always)]
    fn part(&self, value: u32) -> u32 {
        let last = self.top.len() - 1;
        let part = ((value >> self.shift) as usize).min(last);
        self.top.get(part).copied().unwrap_or(0)
    }

    const fn first_step(&self) -> u32 {
        1 << self.steps >> 1
    }

    /// Advances by `step` bounds if the value is not below the last of them. The result is
    /// unpredictable, so this must not become a branch.
    #[inline(always)]
    fn step(&self, place: u32, step: u32, value: u32) -> u32 {
        let bound = self.bounds.get((place + step - 1) as usize).copied().unwrap_or(u32::MAX);
        select_unpredictable(bound <= value, place + step, place)
    }

    #[inline(always)]
    fn class_at(&self, place: u32) -> u32 {
        // The greatest value is not below the padding of the bounds.
        let place = (place as usize).min(self.classes.len() - 1);
        self.classes.get(place).copied().unwrap_or(0)
    }

    /// The number of steps of every search.
    pub(super) const fn steps(&self) -> u32 {
        self.steps
    }

    pub(super) fn memory_bytes(&self) -> usize {
        (self.top.len() + self.bounds.len() + self.classes.len()) * size_of::<u32>()
    }
}
