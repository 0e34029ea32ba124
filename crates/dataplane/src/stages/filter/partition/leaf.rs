//! Leaves: up to 16 rules, which a packet is compared with at once.

use super::super::wide::{SIDE, Side};
use super::NONE;
use super::area::Area;

/// All leaves, one after the other.
#[derive(Debug)]
pub(super) struct Leaves {
    /// Fields of an area.
    dims: usize,
    /// For each leaf, the sides of its areas, field by field.
    sides: Vec<Side>,
    /// For each leaf, the rules of its areas in ascending order, then [`NONE`].
    rules: Vec<[u32; SIDE]>,
    /// For each leaf, the first rule of the next one in the same part; [`NONE`] for the last.
    next: Vec<u32>,
}

impl Leaves {
    pub(super) const fn new(dims: usize) -> Self {
        Self { dims, sides: Vec::new(), rules: Vec::new(), next: Vec::new() }
    }

    /// Adds the areas of a part; returns its first leaf. A part without areas has none.
    pub(super) fn push(&mut self, mut areas: Vec<&Area>) -> u32 {
        areas.sort_by_key(|area| area.rule);
        let begin = self.count();
        for leaf in areas.chunks(SIDE) {
            if self.count() > begin
                && let Some(next) = self.next.last_mut()
            {
                *next = leaf[0].rule;
            }
            let mut rules = [NONE; SIDE];
            for (own, area) in rules.iter_mut().zip(leaf) {
                *own = area.rule;
            }
            self.rules.push(rules);
            self.next.push(NONE);
            let side = |dim: usize| Side::of(leaf.iter().map(|area| area.sides[dim]));
            self.sides.extend((0..self.dims).map(side));
        }
        begin
    }

    pub(super) fn count(&self) -> u32 {
        self.rules.len() as u32
    }

    /// The first rule of a leaf; [`NONE`] beyond the last.
    #[inline(always)]
    pub(super) fn begins(&self, leaf: u32) -> u32 {
        self.rule(leaf, 0)
    }

    /// The sides of a leaf.
    #[inline(always)]
    pub(super) fn sides(&self, leaf: u32) -> &[Side] {
        let begin = leaf as usize * self.dims;
        self.sides.get(begin..begin + self.dims).unwrap_or_default()
    }

    /// The rule of an area; [`NONE`] beyond the last.
    #[inline(always)]
    pub(super) fn rule(&self, leaf: u32, area: u32) -> u32 {
        let rules = self.rules.get(leaf as usize);
        rules.and_then(|rules| rules.get(area as usize)).copied().unwrap_or(NONE)
    }

    /// The first rule of the next leaf in the same part, or [`NONE`].
    #[inline(always)]
    pub(super) fn next_begins(&self, leaf: u32) -> u32 {
        self.next.get(leaf as usize).copied().unwrap_or(NONE)
    }

    /// The areas of the rules from `from` on.
    pub(super) fn not_before(&self, leaf: u32, from: u32) -> u32 {
        let Some(rules) = self.rules.get(leaf as usize) else { return 0 };
        let bits = rules.iter().map(|rule| u32::from(*rule >= from && *rule != NONE));
        bits.enumerate().fold(0, |hits, (area, bit)| hits | bit << area)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&self.sides[..]) + size_of_val(&self.rules[..]) + size_of_val(&self.next[..])
    }
}
