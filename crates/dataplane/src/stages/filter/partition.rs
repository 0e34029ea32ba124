//! Many rules, parted by one field at a time, so that a packet is compared with only a few of them.
//!
//! ```text
//! level 0, by destination   | part | part | part | ...    each value is in one part of a level
//! level 1, by source        |   part   |   part   | ...    rules that fit into no part of level 0
//! ...
//! rest                      rules that fit into no part of any level
//! ```
//!
//! A part has few leaves, and a leaf has up to 16 rules, which are compared at once. Each rule is an
//! [`area::Area`]: a range of values of each field, which is all values if the rule does not match on the
//! field. An area is in a part that holds the whole of its range. So no area is stored twice. A packet's
//! first rule is the first of those that its part of each level has for it.
//!
//! Sets of rules as bits (`bits.rs`) need memory by the square of the number of rules if most values
//! differ. Areas need it by their number. But rules that combine the same few values of each field in
//! all ways fit into no small parts. [`Partition::build`] then finds nothing, and the classifier uses sets.
//!
//! Related work: Daly and others, "TupleMerge", 2019 (a few tables, each for many shapes of rules); Li
//! and others, "CutSplit", 2018 (parts by the fields in which rules are small).

mod area;
mod leaf;
mod split;
#[cfg(test)]
mod tests;
mod values;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::Field;
use super::bits::{self, BLOCK, MOST_DENSE};
use super::cut::Cut;
use super::dim::{Dim, Ranges};
use super::scratch::Scratch;
use super::wide::Wide;
use crate::burst::{BURST, Lanes};
use area::Exact;
use leaf::Leaves;

/// The number of fields that are compared first.
const HEAD: usize = 2;

/// No rule has this number.
const NONE: u32 = u32::MAX;

/// The maximum number of leaves that a packet may be compared with.
const MOST_LEAVES: usize = 24;

/// The same for each block of a set that has all rules. Finding a rule in that many leaves takes no longer
/// than in the block.
const LEAVES_PER_BLOCK: usize = 3;

/// Sets of rules of up to this many bytes lie in the processor's caches, and are faster then: of 4.4 MB, 119 clocks a
/// packet instead of 170. Of 30 MB, they took 321 instead of 196.
const MOST_SETS_BYTES: usize = 8 << 20;

/// Rules parted by fields.
#[derive(Debug)]
pub(super) struct Partition {
    levels: Vec<Level>,
    leaves: Leaves,
    /// The first leaf of the rules that are in no level.
    rest: u32,
    exact: Exact,
}

/// A field's values in parts.
#[derive(Debug)]
struct Level {
    /// The index of the field among those that are looked up.
    dim: usize,
    /// From a value to the first leaf of its part.
    cut: Cut,
    /// The first leaf of the first part, and the number of leaves.
    leaves: (u32, u32),
    /// Whether a part has more than one leaf.
    is_deep: bool,
}

/// The most leaves for sets of so many words.
fn most_leaves(width: usize) -> usize {
    MOST_LEAVES.min(LEAVES_PER_BLOCK * width / BLOCK)
}

/// About as many bytes as sets of rules would take: one set for each range.
fn sets_bytes(fields: &BTreeMap<Field, Ranges>, width: usize) -> usize {
    let distinct = |ranges: &Ranges| {
        let mut all: Vec<_> = ranges.iter().flat_map(|(_, ranges)| ranges).collect();
        all.sort_unstable();
        all.dedup();
        all.len()
    };
    fields.values().map(distinct).sum::<usize>() * width * size_of::<u64>()
}

impl Partition {
    /// Parts `count` rules; returns the lookups of their fields, too. None if sets of rules take less
    /// time: the rules are few, or a packet might be compared with too many of them. `is_ip4` says whether
    /// every packet has IPv4 addresses.
    pub(super) fn build(
        fields: &BTreeMap<Field, Ranges>,
        count: usize,
        is_ip4: bool,
    ) -> Option<(Self, Vec<Dim>)> {
        let width = bits::width(count);
        if width <= MOST_DENSE || sets_bytes(fields, width) <= MOST_SETS_BYTES {
            return None;
        }
        Self::within(fields, count, most_leaves(width), is_ip4)
    }

    /// The same for any number of rules, with at most `most` leaves for a packet.
    fn within(
        fields: &BTreeMap<Field, Ranges>,
        count: usize,
        most: usize,
        is_ip4: bool,
    ) -> Option<(Self, Vec<Dim>)> {
        let numbers = fields.iter().map(|(field, ranges)| {
            let (dim, numbers) = values::numbers(*field, ranges, is_ip4)?;
            Some((dim, (*field, numbers)))
        });
        let mut numbers: Vec<_> = numbers.collect::<Option<_>>()?;
        numbers.sort_by_cached_key(|(_, (_, numbers))| Reverse(area::small(numbers)));
        let (dims, numbers): (Vec<_>, Vec<_>) = numbers.into_iter().unzip();
        let (areas, exact) = area::areas(&numbers, count)?;
        let (levels, leaves, rest) = split::split(&areas, fields.len(), most)?;
        Some((Self { levels, leaves, rest, exact }, dims))
    }

    /// Writes the first rule of each packet to [`Scratch::first`]. Requires the values of the fields in
    /// [`Scratch::class`].
    #[inline(always)]
    pub(super) fn find<V: Wide>(&self, scratch: &mut Scratch, lanes: Lanes) {
        let Some(lowest) = lanes.lowest() else { return };
        let range = lowest..BURST - lanes.0.leading_zeros() as usize;
        // The other packets' rules are already known.
        for lane in lanes {
            scratch.first[lane] = NONE;
        }
        for level in &self.levels {
            let Some(values) = scratch.class.get(level.dim) else { continue };
            level.cut.look_up(values, &mut scratch.value, range.clone());
            self.compare::<V>(scratch, lanes);
            if level.is_deep {
                self.compare_others::<V>(scratch, lanes);
            }
        }
        let mut later = Lanes::NONE;
        for lane in lanes {
            later.put(lane, self.leaves.begins(self.rest) < scratch.first[lane]);
        }
        scratch.value = [self.rest; BURST];
        self.compare::<V>(scratch, later);
        self.compare_others::<V>(scratch, later);
    }

    /// Compares each packet with the rules of one leaf, [`Scratch::value`]: first in the fields that exclude
    /// most, then those that are left in the others. Thus most leaves are not read to the end.
    #[inline(always)]
    fn compare<V: Wide>(&self, scratch: &mut Scratch, lanes: Lanes) {
        let mut left = Lanes::NONE;
        for lane in lanes {
            let sides = self.leaves.sides(scratch.value[lane]);
            let hits = match sides.first_chunk::<HEAD>() {
                Some(head) => V::hits(head, &scratch.class, lane),
                None => V::hits(sides, &scratch.class, lane),
            };
            scratch.set[lane] = hits.into();
            left.put(lane, hits != 0);
        }
        for lane in left {
            let leaf = scratch.value[lane];
            let others = self.leaves.sides(leaf).get(HEAD..).unwrap_or_default();
            let hits = scratch.set[lane] as u32 & V::hits(others, &scratch.class[HEAD..], lane);
            let first = match self.exact.is_empty() {
                true => self.leaves.rule(leaf, hits.trailing_zeros()),
                false => self.first_exact(leaf, hits, scratch, lane),
            };
            scratch.first[lane] = scratch.first[lane].min(first);
        }
    }

    /// Compares packets with the other leaves of their parts, as far as those have earlier rules than the
    /// one that is found.
    #[inline(always)]
    fn compare_others<V: Wide>(&self, scratch: &mut Scratch, lanes: Lanes) {
        let mut pending = lanes;
        while !pending.is_empty() {
            let mut more = Lanes::NONE;
            for lane in pending {
                let goes_on = self.leaves.next_begins(scratch.value[lane]) < scratch.first[lane];
                scratch.value[lane] += u32::from(goes_on);
                more.put(lane, goes_on);
            }
            self.compare::<V>(scratch, more);
            pending = more;
        }
    }

    /// The first rule among a leaf's hits that a packet matches in every field.
    fn first_exact(&self, leaf: u32, mut hits: u32, scratch: &Scratch, lane: usize) -> u32 {
        while hits != 0 {
            let rule = self.leaves.rule(leaf, hits.trailing_zeros());
            if self.exact.holds(rule, |dim| Some(scratch.class.get(dim)?[lane])) {
                return rule;
            }
            hits &= hits - 1;
        }
        NONE
    }

    /// The first rule from `from` on that a packet of these values matches; beyond the last if none does. A
    /// field without a value excludes no rule.
    pub(super) fn next(&self, value: impl Fn(usize) -> Option<u32>, from: u32) -> u32 {
        let mut first = NONE;
        for level in &self.levels {
            match value(level.dim) {
                Some(number) => self.search(level.cut.class(number), &value, from, &mut first),
                None => {
                    let (begin, count) = level.leaves;
                    for leaf in begin..begin + count {
                        first = first.min(self.first_in(leaf, &value, from));
                    }
                }
            }
        }
        self.search(self.rest, &value, from, &mut first);
        first
    }

    /// Searches the leaves of a part from the first on.
    fn search(
        &self,
        mut leaf: u32,
        value: &impl Fn(usize) -> Option<u32>,
        from: u32,
        first: &mut u32,
    ) {
        loop {
            *first = self.first_in(leaf, value, from).min(*first);
            if self.leaves.next_begins(leaf) >= *first {
                return;
            }
            leaf += 1;
        }
    }

    fn first_in(&self, leaf: u32, value: &impl Fn(usize) -> Option<u32>, from: u32) -> u32 {
        let mut hits = self.leaves.not_before(leaf, from);
        for (dim, side) in self.leaves.sides(leaf).iter().enumerate() {
            hits &= value(dim).map_or(u32::MAX, |value| side.hits(value));
        }
        while hits != 0 {
            let rule = self.leaves.rule(leaf, hits.trailing_zeros());
            if self.exact.holds(rule, value) {
                return rule;
            }
            hits &= hits - 1;
        }
        NONE
    }

    /// The number of leaves that one packet may be compared with.
    #[cfg(test)]
    fn most_leaves(&self) -> usize {
        let parts = |level: &Level| level.leaves.0..level.leaves.0 + level.leaves.1;
        let longest = |leaves: std::ops::Range<u32>| {
            let (mut longest, mut length) = (0, 0);
            for leaf in leaves {
                length += 1;
                longest = length.max(longest);
                length *= usize::from(self.leaves.next_begins(leaf) != NONE);
            }
            longest
        };
        let levels: usize = self.levels.iter().map(|level| longest(parts(level))).sum();
        levels + longest(self.rest..self.leaves.count())
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let cuts: usize = self.levels.iter().map(|level| level.cut.memory_bytes()).sum();
        cuts + self.leaves.memory_bytes() + self.exact.memory_bytes()
    }
}
