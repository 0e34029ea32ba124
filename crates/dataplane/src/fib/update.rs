//! Changes of a FIB, one at a time, while readers look up.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::arena::Allocator;
use super::node::{KEY_BITS, Location, NODE_BITS, SLOTS};
use super::rib::Rib;
use super::runs::Runs;
use super::slots::{Change, Inherited, Replaces, Use, at_the_top, cover, replace, slot_of};
use super::{Capacity, Entry, Fib, FibError, Root, Top};
use crate::epoch::{Epochs, Retired};
use crate::id::NextHopId;
use crate::prefix::Prefix;

/// The number of routes from which a FIB's top has 16 bits: below, its 256 KB would exceed the memory
/// of the routes.
const WIDE_FROM: u32 = 4096;

/// The maximum number of nodes that a removal needs: one rebuilt node.
const REMOVAL_NODES: u32 = 1;

/// Nodes that must be free for an insertion: one for a branch, two for the new prefix, one rebuilt (the
/// one below, or the last above). The rest is for removals, so that full tables can shrink again.
const INSERTION_NODES: u32 = 4 + 8 * REMOVAL_NODES;

/// The last level in the upper half of an address.
const LAST_OF_UPPER_HALF: u32 = KEY_BITS - NODE_BITS;

/// Items taken out before the writer computes again what is free: this takes a lock, and a cache line
/// from every reader.
const RECLAIM_FROM: usize = 64;

/// The writers' state, behind one lock.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) rib: Rib,
    memory: Allocator,
    retired: Retired<Part>,
    roots: u32,
    root_limit: u32,
    /// The tops of cleared FIBs. Longer ranges of values are never freed, so the next FIB of that number has them.
    cleared: BTreeMap<u32, Top>,
    /// Cleared FIBs whose number no reader has.
    free_roots: Vec<Root>,
    /// No reader knows the FIB that is changed. Only until the lock is released.
    pub(super) is_unread: bool,
}

/// Memory that readers may still look at.
#[derive(Clone, Copy, Debug)]
enum Part {
    Node(u32),
    Values { base: u32, count: u32 },
}

impl Part {
    fn free_in(self, memory: &mut Allocator) {
        match self {
            Self::Node(node) => memory.free_node(node),
            Self::Values { base, count } => memory.free_values(base, count),
        }
    }
}

/// A node on the path down, and the place that points to it.
#[derive(Clone, Copy)]
struct Step {
    place: u32,
    node: usize,
    level: u32,
}

/// The entry of a slot that ends before bit `end`, pointing to a node that begins there or further
/// below.
fn entry_to(fib: &Fib, end: u32, node: u32) -> Entry {
    let level = fib.node(node as usize).level();
    // The halves of an address are different keys, so no step crosses from one to the other.
    Entry::of_node(node, level != end || level == KEY_BITS)
}

impl Writer {
    pub(super) fn new(epochs: Arc<Epochs>, capacity: Capacity) -> Self {
        let root_limit = u32::try_from(capacity.roots).unwrap_or(u32::MAX).min(Rib::MAX_ROOT);
        Self {
            rib: Rib::default(),
            memory: Allocator::new(capacity),
            retired: Retired::new(epochs),
            roots: 0,
            root_limit,
            cleared: BTreeMap::new(),
            free_roots: Vec::new(),
            is_unread: false,
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.memory.bytes() + self.rib.memory_bytes() + self.roots as usize * size_of::<u64>()
    }

    pub(super) fn add_root(&mut self, fib: &Fib) -> Result<Root, FibError> {
        if let Some(root) = self.free_roots.pop()
            && let Some(top) = self.cleared.remove(&root.0)
        {
            Self::empty(fib, top);
            fib.set_top(root, top);
            return Ok(root);
        }
        if self.roots >= self.root_limit {
            return Err(FibError::Full);
        }
        self.make_sure(INSERTION_NODES)?;
        let base = self.memory.values(1 << Top::NARROW_BITS).ok_or(FibError::Full)?;
        let (root, top) = (Root(self.roots), Top::new(base, Top::NARROW_BITS));
        Self::empty(fib, top);
        fib.set_top(root, top);
        self.roots += 1;
        Ok(root)
    }

    fn empty(fib: &Fib, top: Top) {
        for place in top.base()..top.base() + (1 << top.bits()) {
            fib.set(place, Entry::leaf(0, NextHopId::NO_ROUTE));
        }
    }

    pub(super) fn clear(&mut self, fib: &Fib, root: Root) {
        if root.0 >= self.roots || self.cleared.contains_key(&root.0) {
            return;
        }
        let top = fib.top(root);
        self.cleared.insert(root.0, top);
        fib.set_top(root, Top::NOWHERE);
        for place in top.base()..top.base() + (1 << top.bits()) {
            self.retire_below(fib, fib.entry(place));
        }
        self.rib.clear(root);
        fib.begin_generation();
        // The next set may need the memory.
        self.retired.mark();
    }

    pub(super) fn give_back(&mut self, root: Root) {
        if self.cleared.contains_key(&root.0) && !self.free_roots.contains(&root) {
            self.free_roots.push(root);
        }
    }

    /// Inserts a route; false if it was already there.
    pub(super) fn insert(
        &mut self,
        fib: &Fib,
        root: Root,
        prefix: Prefix,
        next: NextHopId,
    ) -> Result<bool, FibError> {
        if next.0 > NextHopId::MASK {
            return Err(FibError::NextHopRange);
        }
        if root.0 >= self.roots {
            return Err(FibError::Full);
        }
        self.make_sure(INSERTION_NODES)?;
        self.widen(fib, root);
        let len = prefix.len();
        self.apply(fib, root, prefix, Change { old: Replaces::UpTo(len), len, next });
        fib.begin_generation();
        let changed = self.rib.insert(root, prefix, next) != Some(next);
        self.make_ready();
        Ok(changed)
    }

    pub(super) fn add_filled(
        &mut self,
        fib: &Fib,
        prefixes: impl IntoIterator<Item = Prefix>,
    ) -> Result<Root, FibError> {
        let root = self.add_root(fib)?;
        self.is_unread = true;
        let mut prefixes = prefixes.into_iter();
        let done = prefixes.try_for_each(|prefix| {
            let count = self.rib.get(root, prefix).map_or(0, |count| count.0);
            self.insert(fib, root, prefix, NextHopId(count + 1)).map(drop)
        });
        if done.is_err() {
            self.clear(fib, root);
            self.give_back(root);
        }
        done.map(|()| root)
    }

    pub(super) fn remove(
        &mut self,
        fib: &Fib,
        root: Root,
        prefix: Prefix,
    ) -> Result<bool, FibError> {
        if self.rib.get(root, prefix).is_none() {
            return Ok(false);
        }
        self.make_sure(REMOVAL_NODES)?;
        let (len, next) = self.rib.cover(root, prefix).unwrap_or((0, NextHopId::NO_ROUTE));
        self.apply(fib, root, prefix, Change { old: Replaces::Just(prefix.len()), len, next });
        fib.begin_generation();
        self.rib.remove(root, prefix);
        self.make_ready();
        Ok(true)
    }

    /// Checks the memory before a change begins, and refuses the change if it is short.
    fn make_sure(&mut self, nodes: u32) -> Result<(), FibError> {
        // Reclaim even before a removal that needs less: memory kept longer fragments what is left.
        if self.retired.unmarked() >= RECLAIM_FROM || !self.memory.has(INSERTION_NODES) {
            self.reclaim();
        }
        if !self.memory.has(nodes) {
            self.memory.join();
        }
        if self.memory.has(nodes) { Ok(()) } else { Err(FibError::Full) }
    }

    /// If the next change depends on the memory that this one took out, starts an epoch for it now.
    fn make_ready(&mut self) {
        if !self.memory.has(INSERTION_NODES) {
            self.retired.mark();
        }
    }

    /// Applies a change; `make_sure` has checked the memory.
    fn apply(&mut self, fib: &Fib, root: Root, prefix: Prefix, change: Change) {
        let top = fib.top(root);
        let first = top.place((prefix.bits() >> KEY_BITS) as u64);
        let len = u32::from(prefix.len());
        if len <= top.bits() {
            for place in first..first + (1 << (top.bits() - len)) {
                replace(fib, place, change);
            }
            return;
        }
        let mut path = Vec::with_capacity(16);
        let (mut place, mut end) = (first, top.bits());
        while let Some(number) = fib.entry(place).node() {
            let node = fib.node(number);
            let level = node.level();
            if len <= level || node.apart_from(prefix.bits()) < level {
                self.part(fib, place, end, prefix, change);
                return;
            }
            path.push(Step { place, node: number, level });
            if len <= level + NODE_BITS {
                self.change_node(fib, &path, prefix, change);
                return;
            }
            place = node.place(Location { level, bits: prefix.bits() }.key());
            end = level + NODE_BITS;
        }
        self.grow(fib, &path, place, end, prefix, change);
    }

    /// Changes the slots of the last node on the path down that the prefix covers.
    fn change_node(&mut self, fib: &Fib, path: &[Step], prefix: Prefix, change: Change) {
        let Some(step) = path.last() else { return };
        let node = fib.node(step.node);
        let mut runs = Runs::of(fib, node);
        cover(fib, &mut runs, step.level, node.inherited(), prefix, change);
        self.store(fib, path, prefix, &runs);
    }

    /// Inserts a node between a place and the node that it points to, where the prefix ends or
    /// diverges.
    ///
    /// The node below is rebuilt: a reader on its way to the old one from above may have an address
    /// that is not under the new node, and must not see changes that apply only there.
    fn part(&mut self, fib: &Fib, place: u32, end: u32, prefix: Prefix, change: Change) {
        let Some(below) = fib.entry(place).node() else { return };
        let node = fib.node(below);
        let last = u32::from(prefix.len()) - 1;
        let level = node.apart_from(prefix.bits()).min(last) / NODE_BITS * NODE_BITS;
        let inherited = Inherited::of(fib, node);
        let mut runs = Runs::all(inherited.entry());
        let copy = self.copy(fib, below);
        runs.set(node.slot_above(level), entry_to(fib, level + NODE_BITS, copy));
        if last < level + NODE_BITS {
            cover(fib, &mut runs, level, inherited.len, prefix, change);
        } else {
            let chain = self.chain(fib, level + NODE_BITS, inherited, prefix, change);
            runs.set(slot_of(prefix.bits(), level), entry_to(fib, level + NODE_BITS, chain));
        }
        let at = Location { level, bits: prefix.bits() };
        let parting = self.node(fib, at, &runs, inherited);
        fib.set(place, entry_to(fib, end, parting));
        self.retire_node(fib, below);
    }

    /// Creates a node with the same slots, which no reader can reach yet.
    fn copy(&mut self, fib: &Fib, number: usize) -> u32 {
        let node = fib.node(number);
        let at = Location { level: node.level(), bits: node.bits() };
        self.node(fib, at, &Runs::of(fib, node), Inherited::of(fib, node))
    }

    /// Adds the nodes for a prefix below a final entry, whose slot ends before bit `end`.
    fn grow(
        &mut self,
        fib: &Fib,
        path: &[Step],
        place: u32,
        end: u32,
        prefix: Prefix,
        change: Change,
    ) {
        let old = fib.entry(place);
        let len = match path.last() {
            None => old.depth(),
            Some(step) if old.depth() == 0 => fib.node(step.node).inherited(),
            Some(step) => step.level as u8 + old.depth(),
        };
        let chain = self.chain(fib, end, Inherited { len, next: old.next() }, prefix, change);
        let to = entry_to(fib, end, chain);
        match path.last() {
            None => fib.set(place, to),
            Some(step) => {
                let mut runs = Runs::of(fib, fib.node(step.node));
                runs.set(slot_of(prefix.bits(), step.level), to);
                self.store(fib, path, prefix, &runs);
            }
        }
    }

    /// Creates the node in which a prefix ends that extends beyond bit `end`. If the path down crosses
    /// from the upper half of an address to the lower, which are different keys, it adds a node above.
    fn chain(
        &mut self,
        fib: &Fib,
        end: u32,
        inherited: Inherited,
        prefix: Prefix,
        change: Change,
    ) -> u32 {
        let level = (u32::from(prefix.len()) - 1) / NODE_BITS * NODE_BITS;
        let mut runs = Runs::all(inherited.entry());
        cover(fib, &mut runs, level, inherited.len, prefix, change);
        let bits = prefix.bits();
        let lowest = self.node(fib, Location { level, bits }, &runs, inherited);
        if end >= KEY_BITS || level < KEY_BITS {
            return lowest;
        }
        let level = LAST_OF_UPPER_HALF;
        let mut runs = Runs::all(inherited.entry());
        runs.set(slot_of(bits, level), entry_to(fib, KEY_BITS, lowest));
        self.node(fib, Location { level, bits }, &runs, inherited)
    }

    /// Stores the slots of the last node on the path down to a prefix: in place if the bitmap stays,
    /// otherwise in a rebuilt node. A node that is no longer needed is removed.
    fn store(&mut self, fib: &Fib, path: &[Step], prefix: Prefix, runs: &Runs) {
        let Some((step, above)) = path.split_last() else { return };
        let node = fib.node(step.node);
        let inherited = Inherited::of(fib, node);
        let with = match Use::of(fib, runs, step.level, inherited) {
            Use::Inherits => inherited.below(above.last().map_or(0, |parent| parent.level)),
            Use::LeadsTo(below) => below.leaping(),
            Use::Parts if node.changes() == runs.changes() => {
                for (place, value) in (node.base() + 1..).zip(runs.values()) {
                    // Most are unchanged, and a store would take their cache line from the readers.
                    if fib.entry(place) != value {
                        fib.set(place, value);
                    }
                }
                return;
            }
            Use::Parts => {
                let at = Location { level: step.level, bits: node.bits() };
                Entry::of_node(self.node(fib, at, runs, inherited), fib.entry(step.place).leaps())
            }
        };
        match (with.node(), above.last()) {
            (None, Some(parent)) => {
                let mut runs = Runs::of(fib, fib.node(parent.node));
                runs.set(slot_of(prefix.bits(), parent.level), with);
                self.store(fib, above, prefix, &runs);
            }
            _ => fib.set(step.place, with),
        }
        self.retire_node(fib, step.node);
    }

    /// Creates a node with these slots, which no reader can reach yet.
    ///
    /// `make_sure` has checked the memory. If that were wrong, this returns node 0, which is valid.
    fn node(&mut self, fib: &Fib, at: Location, runs: &Runs, inherited: Inherited) -> u32 {
        let changes = runs.changes();
        let memory = self.memory.node().zip(self.memory.values(changes.count() + 1));
        debug_assert!(memory.is_some(), "a change needs no more than was made sure of");
        let Some((number, base)) = memory else { return 0 };
        fib.set(base, inherited.entry());
        for (place, value) in (base + 1..).zip(runs.values()) {
            fib.set(place, value);
        }
        fib.node(number as usize).fill(at, changes, base, inherited.len);
        number
    }

    /// Gives a FIB with many routes a top of 16 bits, if there is memory for it.
    fn widen(&mut self, fib: &Fib, root: Root) {
        let top = fib.top(root);
        if top.bits() == Top::WIDE_BITS || self.rib.count(root) < WIDE_FROM {
            return;
        }
        let room = 1 << Top::WIDE_BITS;
        // Not from the last memory: the FIB's growth takes precedence.
        let nodes = 1 << Top::NARROW_BITS;
        if self.memory.fresh_values() / 3 < room || !self.memory.has(INSERTION_NODES + nodes) {
            return;
        }
        let Some(base) = self.memory.values(room) else { return };
        for index in 0..1 << Top::NARROW_BITS {
            let mut entry = fib.entry(top.base() + index);
            if let Some(number) = entry.node()
                && fib.node(number).level() != Top::NARROW_BITS
            {
                // For the same reason as in `part`.
                entry = entry_to(fib, Top::WIDE_BITS, self.copy(fib, number));
            }
            let slots = at_the_top(fib, entry);
            for (place, slot) in (base + index * SLOTS as u32..).zip(slots) {
                fib.set(place, slot);
            }
        }
        fib.set_top(root, Top::new(base, Top::WIDE_BITS));
        for index in 0..1 << Top::NARROW_BITS {
            if let Some(number) = fib.entry(top.base() + index).node() {
                self.retire_node(fib, number);
            }
        }
        self.take_out(Part::Values { base: top.base(), count: 1 << Top::NARROW_BITS });
    }

    fn retire_node(&mut self, fib: &Fib, number: usize) {
        let node = fib.node(number);
        let count = node.changes().count() + 1;
        self.take_out(Part::Values { base: node.base(), count });
        self.take_out(Part::Node(number as u32));
    }

    /// Takes out the node that an entry points to, and all nodes below it.
    fn retire_below(&mut self, fib: &Fib, entry: Entry) {
        let Some(number) = entry.node() else { return };
        for below in Runs::of(fib, fib.node(number)).values() {
            self.retire_below(fib, below);
        }
        self.retire_node(fib, number);
    }

    /// Keeps what readers may still look at.
    fn take_out(&mut self, part: Part) {
        if self.is_unread {
            part.free_in(&mut self.memory);
        } else {
            self.retired.push(part);
        }
    }

    pub(super) fn free_nodes(&mut self) -> usize {
        self.reclaim();
        self.memory.nodes_left()
    }

    /// Frees the items that every reader has passed.
    fn reclaim(&mut self) {
        let memory = &mut self.memory;
        self.retired.reclaim(|part| part.free_in(memory));
    }
}
