//! The memory of a FIB and its allocator.

use super::node::{Node, SLOTS};
use super::{Capacity, Entry};
use crate::memory::{Aligned, Memory, Part};
use crate::sync::{AtomicU32, AtomicU64};

/// The memory that readers see.
pub(super) struct Arenas {
    pub(super) roots: Aligned<AtomicU64>,
    pub(super) nodes: Aligned<Node>,
    pub(super) values: Aligned<AtomicU32>,
}

impl Arenas {
    pub(super) fn new(capacity: Capacity, memory: &Memory, parts: [Part; 3]) -> Self {
        let [roots, nodes, values] = parts;
        Self {
            // One more, for the generation.
            roots: Aligned::new(memory, roots, capacity.roots + 1),
            nodes: Aligned::new(memory, nodes, capacity.nodes),
            values: Aligned::new(memory, values, capacity.values),
        }
    }
}

/// Allocates ranges of 1 to 257 values and single nodes, and frees them.
///
/// A range is rounded up to one of a few sizes, so that freed ranges fit again.
#[derive(Debug)]
pub(super) struct Allocator {
    free_values: [Vec<u32>; SIZES.len()],
    free_nodes: Vec<u32>,
    next_value: u32,
    next_node: u32,
    value_limit: u32,
    node_limit: u32,
    /// Ranges were freed since free ranges were last joined.
    scattered: bool,
}

/// The maximum number of values in a node: one for each slot, and one for keys that are not under it.
pub(super) const MOST_VALUES: u32 = SLOTS as u32 + 1;

/// Sizes of ranges: at most a third is unused.
const SIZES: [u32; 18] =
    [2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, MOST_VALUES];

fn class(count: u32) -> usize {
    SIZES.iter().position(|size| *size >= count).unwrap_or(SIZES.len() - 1)
}

impl Allocator {
    pub(super) fn new(capacity: Capacity) -> Self {
        let limit = |count: usize, most: u32| u32::try_from(count).unwrap_or(most).min(most);
        Self {
            free_values: Default::default(),
            free_nodes: Vec::new(),
            next_value: 0,
            next_node: 0,
            // A place must not overflow with the values of a node.
            value_limit: limit(capacity.values, i32::MAX as u32),
            node_limit: limit(capacity.nodes, Entry::NUMBER),
            scattered: false,
        }
    }

    /// Says whether there is memory for that many nodes, each with as many values as a node can have.
    pub(super) fn has(&self, nodes: u32) -> bool {
        let stretches = (self.fresh_values() / MOST_VALUES) as usize;
        let stretches = stretches + self.free_values[SIZES.len() - 1].len();
        self.nodes_left().min(stretches) >= nodes as usize
    }

    /// The number of free nodes.
    pub(super) fn nodes_left(&self) -> usize {
        (self.node_limit - self.next_node) as usize + self.free_nodes.len()
    }

    /// The number of values that were never allocated.
    pub(super) fn fresh_values(&self) -> u32 {
        self.value_limit - self.next_value
    }

    /// Allocates `count` consecutive values: 1 to 257, or more if they are never freed.
    pub(super) fn values(&mut self, count: u32) -> Option<u32> {
        if count > MOST_VALUES {
            return self.fresh(count);
        }
        let class = class(count);
        let base = self.free_values[class].pop();
        base.or_else(|| self.fresh(SIZES[class])).or_else(|| self.cut_off(SIZES[class]))
    }

    fn fresh(&mut self, count: u32) -> Option<u32> {
        let base = self.next_value;
        self.next_value = base.checked_add(count).filter(|end| *end <= self.value_limit)?;
        Some(base)
    }

    /// Takes the beginning of a longer range, if no other memory is left.
    fn cut_off(&mut self, size: u32) -> Option<u32> {
        let fits = |longer: u32| longer >= size + SIZES[0];
        let (longer, bases) = SIZES
            .into_iter()
            .zip(&mut self.free_values)
            .find(|(longer, bases)| fits(*longer) && !bases.is_empty())?;
        let base = bases.pop()?;
        self.free_pieces(base + size, longer - size);
        Some(base)
    }

    pub(super) fn free_values(&mut self, base: u32, count: u32) {
        self.free_values[class(count)].push(base);
        self.scattered = true;
    }

    /// Joins adjacent free ranges, so that after many small ranges long ones can be allocated again. It
    /// takes time, so call it when memory is short.
    pub(super) fn join(&mut self) {
        if !std::mem::take(&mut self.scattered) {
            return;
        }
        let mut free = Vec::new();
        for (size, bases) in SIZES.into_iter().zip(&mut self.free_values) {
            free.extend(bases.drain(..).map(|base| (base, size)));
        }
        free.sort_unstable();
        let mut joined: Vec<(u32, u32)> = Vec::new();
        for (base, size) in free {
            match joined.last_mut() {
                Some((first, length)) if *first + *length == base => *length += size,
                _ => joined.push((base, size)),
            }
        }
        if let Some((base, size)) = joined.last().copied()
            && base + size == self.next_value
        {
            self.next_value = base;
            joined.pop();
        }
        for (base, size) in joined {
            self.free_pieces(base, size);
        }
    }

    /// Frees a range of any length from 2 on, in as few pieces as the sizes allow.
    fn free_pieces(&mut self, mut base: u32, mut length: u32) {
        // No size fits a single value, so none may be left over.
        let fits = |length: u32, size: u32| length == size || length >= size + SIZES[0];
        while let Some(class) = SIZES.iter().rposition(|size| fits(length, *size)) {
            self.free_values[class].push(base);
            base += SIZES[class];
            length -= SIZES[class];
        }
    }

    pub(super) fn node(&mut self) -> Option<u32> {
        if let Some(node) = self.free_nodes.pop() {
            return Some(node);
        }
        let node = self.next_node;
        (node < self.node_limit).then(|| self.next_node += 1)?;
        Some(node)
    }

    pub(super) fn free_node(&mut self, node: u32) {
        self.free_nodes.push(node);
    }

    /// Bytes of all memory that was ever allocated.
    pub(super) fn bytes(&self) -> usize {
        self.next_value as usize * size_of::<AtomicU32>()
            + self.next_node as usize * size_of::<Node>()
    }
}
