//! Sets of rules as bits, one set for each class of a field's values.

use std::collections::HashMap;

/// The maximum number of rules per point and family: the bits of a summary times those of a block.
pub const MOST_RULES: usize = SUMMARY_BITS * BLOCK_BITS;

/// Words that are read at once: a cache line.
pub(super) const BLOCK: usize = 8;
pub(super) const BLOCK_BITS: usize = BLOCK * 64;
const SUMMARY_BITS: usize = 64;

/// The number of words above which a set has a summary.
pub(super) const MOST_DENSE: usize = 16;

/// The bits of a block.
pub(super) type Block = [u64; BLOCK];

/// The number of words to store sets of `rules` rules in: one for which the loop is built.
pub(super) const fn width(rules: usize) -> usize {
    match rules.div_ceil(64) {
        0 | 1 => 1,
        2 => 2,
        3 | 4 => 4,
        5..=8 => 8,
        9..=16 => 16,
        words => words.next_multiple_of(BLOCK),
    }
}

/// The sets of all classes.
#[derive(Debug)]
pub(super) struct Sets {
    /// Words of a set.
    width: usize,
    /// Sets of few rules, one after the other.
    pub(super) dense: Vec<u64>,
    /// For sets of many rules, the blocks that have a bit, and where they begin.
    pub(super) classes: Vec<Summary>,
    /// The blocks that have a bit.
    pub(super) blocks: Vec<Block>,
}

/// The summary of a large set.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(16))]
pub(super) struct Summary {
    /// Blocks that have a bit.
    pub(super) blocks: u64,
    /// The index of the first of them in [`Sets::blocks`].
    pub(super) first: u32,
}

impl Summary {
    /// The index of a block that has a bit; for another block, any index.
    #[inline(always)]
    pub(super) const fn place(self, block: u32) -> usize {
        let before = self.blocks & ((1 << (block & 63)) - 1);
        (self.first + before.count_ones()) as usize
    }
}

impl Sets {
    /// One word of a class's set.
    pub(super) fn word(&self, class: u32, word: usize) -> u64 {
        if self.width <= MOST_DENSE {
            return self.dense.get(class as usize * self.width + word).copied().unwrap_or(0);
        }
        let summary = self.summary(class);
        let block = (word / BLOCK) as u32;
        if summary.blocks >> block & 1 == 0 {
            return 0;
        }
        self.blocks.get(summary.place(block)).map_or(0, |block| block[word % BLOCK])
    }

    /// The blocks of a large set that have a bit; for a small set, all blocks.
    #[inline(always)]
    pub(super) fn summary(&self, class: u32) -> Summary {
        self.classes.get(class as usize).copied().unwrap_or_default()
    }

    /// The number of classes.
    pub(super) fn classes(&self) -> u32 {
        let dense = self.dense.len() / self.width.max(1);
        (if self.width <= MOST_DENSE { dense } else { self.classes.len() }) as u32
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.dense.len() * size_of::<u64>()
            + self.classes.len() * size_of::<Summary>()
            + self.blocks.len() * size_of::<Block>()
    }
}

/// Collects sets, storing equal ones once.
pub(super) struct Collector {
    width: usize,
    known: HashMap<Box<[u64]>, u32>,
    sets: Sets,
    /// Whether equal sets share one class.
    share: bool,
    count: u32,
}

impl Collector {
    /// Creates a collector for sets of `width` words; `share` says whether equal sets share one class.
    pub(super) fn new(width: usize, share: bool) -> Self {
        let sets = Sets { width, dense: Vec::new(), classes: Vec::new(), blocks: Vec::new() };
        Self { width, known: HashMap::new(), sets, share, count: 0 }
    }

    /// The class of a set.
    pub(super) fn class(&mut self, set: &[u64]) -> u32 {
        if self.share
            && let Some(class) = self.known.get(set)
        {
            return *class;
        }
        let class = self.count;
        self.count += 1;
        if self.share {
            self.known.insert(set.into(), class);
        }
        if self.width <= MOST_DENSE {
            self.sets.dense.extend_from_slice(set);
        } else {
            self.push_blocks(set);
        }
        class
    }

    fn push_blocks(&mut self, set: &[u64]) {
        let first = self.sets.blocks.len() as u32;
        let mut summary = Summary { blocks: 0, first };
        for (index, block) in set.as_chunks::<BLOCK>().0.iter().enumerate() {
            if *block != [0; BLOCK] {
                summary.blocks |= 1 << index;
                self.sets.blocks.push(*block);
            }
        }
        self.sets.classes.push(summary);
    }

    /// The number of classes so far.
    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn finish(self) -> Sets {
        self.sets
    }
}

/// Adds a rule to a set.
pub(super) fn put(set: &mut [u64], rule: u32) {
    set[rule as usize / 64] |= 1 << (rule % 64);
}

/// Removes a rule from a set.
pub(super) fn take(set: &mut [u64], rule: u32) {
    set[rule as usize / 64] &= !(1 << (rule % 64));
}
