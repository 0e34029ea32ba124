//! The 256 slots of a node while it changes, and what a change makes of them.

use super::node::{Changes, KEY_BITS, NODE_BITS, Node, SLOTS};
use super::{Entry, Fib, Prefix, Top};
use crate::id::NextHopId;

/// What a change does to the final values under a prefix.
#[derive(Clone, Copy)]
pub(super) struct Change {
    /// The values that it replaces.
    pub(super) old: Replaces,
    /// Length of the prefix that the new value is from.
    pub(super) len: u8,
    /// The new value.
    pub(super) next: NextHopId,
}

/// Which values a change replaces.
#[derive(Clone, Copy)]
pub(super) enum Replaces {
    /// Those from prefixes of this length and shorter ones.
    UpTo(u8),
    /// Those from prefixes of just this length.
    Just(u8),
}

impl Change {
    const fn concerns(self, len: u8) -> bool {
        match self.old {
            Replaces::UpTo(most) => len <= most,
            Replaces::Just(just) => len == just,
        }
    }

    /// The new value in a level that begins at a bit.
    const fn entry(self, level: u32) -> Entry {
        Inherited { len: self.len, next: self.next }.below(level)
    }
}

/// What the slots of a node are without any route that ends in it.
#[derive(Clone, Copy)]
pub(super) struct Inherited {
    /// Length of the prefix that it is from.
    pub(super) len: u8,
    pub(super) next: NextHopId,
}

impl Inherited {
    pub(super) fn of(fib: &Fib, node: &Node) -> Self {
        Self { len: node.inherited(), next: fib.entry(node.base()).next() }
    }

    /// In the node itself.
    pub(super) const fn entry(self) -> Entry {
        Entry::leaf(0, self.next)
    }

    /// In a level that begins at a bit, which may be before the prefix ends.
    pub(super) const fn below(self, level: u32) -> Entry {
        Entry::leaf((self.len as u32).saturating_sub(level) as u8, self.next)
    }
}

/// Changes the entry at a place of a top. Nodes below are changed in place, which needs no memory,
/// since all the values that they inherit change alike.
pub(super) fn replace(fib: &Fib, place: u32, change: Change) {
    let old = fib.entry(place);
    let new = changed(fib, old, 0, 0, change);
    if new != old {
        fib.set(place, new);
    }
}

/// Carries a change out in the slots that a prefix covers, which ends in their level.
pub(super) fn cover(
    fib: &Fib,
    slots: &mut [u32; SLOTS],
    level: u32,
    inherited: u8,
    prefix: Prefix,
    change: Change,
) {
    let first = (prefix.bits() << level >> (128 - NODE_BITS)) as usize;
    let count = 1 << (level + NODE_BITS - u32::from(prefix.len()));
    for slot in &mut slots[first..first + count] {
        *slot = changed(fib, Entry(*slot), level, inherited, change).0;
    }
}

/// What a change makes of an entry in a level that begins at a bit.
fn changed(fib: &Fib, entry: Entry, level: u32, inherited: u8, change: Change) -> Entry {
    if let Some(node) = entry.node() {
        push_down(fib, fib.node(node), change);
        return entry;
    }
    let len = if entry.depth() == 0 { inherited } else { level as u8 + entry.depth() };
    if change.concerns(len) { change.entry(level) } else { entry }
}

/// Carries a change of a prefix that ends above a node into it and what is below.
fn push_down(fib: &Fib, node: &Node, change: Change) {
    if !change.concerns(node.inherited()) {
        // Nothing below can be from a shorter prefix than what is inherited here.
        return;
    }
    for place in node.base()..=node.base() + node.changes().count() {
        let old = fib.entry(place);
        match old.node() {
            Some(below) => push_down(fib, fib.node(below), change),
            None if old.depth() == 0 => fib.set(place, Entry::leaf(0, change.next)),
            None => {}
        }
    }
    node.set_inherited(change.len);
}

/// The 256 slots of a node.
pub(super) fn expand(fib: &Fib, node: &Node) -> [u32; SLOTS] {
    let (changes, mut place) = (node.changes(), node.base());
    let mut slots = [0; SLOTS];
    let mut value = 0;
    for (slot, target) in slots.iter_mut().enumerate() {
        if changes.at(slot) {
            place += 1;
            value = fib.entry(place).0;
        }
        *target = value;
    }
    slots
}

/// The first value of each run.
pub(super) fn runs(slots: &[u32; SLOTS], changes: Changes) -> impl Iterator<Item = u32> {
    slots.iter().enumerate().filter(move |(slot, _)| changes.at(*slot)).map(|(_, value)| *value)
}

/// What a node with certain slots is good for.
pub(super) enum Use {
    /// Nothing: all of them are inherited.
    Inherits,
    /// Nothing: they lead to one node, which can be led to from above.
    LeadsTo(Entry),
    /// Ways part in it, or a route ends.
    Parts,
}

impl Use {
    pub(super) fn of(
        fib: &Fib,
        slots: &[u32; SLOTS],
        changes: Changes,
        level: u32,
        inherited: Inherited,
    ) -> Self {
        // A single slot among inherited ones makes three runs at most.
        if changes.count() > 3 {
            return Self::Parts;
        }
        let mut others = slots.iter().filter(|slot| **slot != inherited.entry().0);
        match (others.next().map(|slot| Entry(*slot)), others.next()) {
            (None, _) => Self::Inherits,
            (Some(below), None) => match below.node() {
                Some(node) => {
                    let node = fib.node(node);
                    // The halves of an address are different keys: no way leaps from one to the
                    // other. And where a route ends above the node below, others must not get it.
                    let leaps = level < KEY_BITS && node.is_low();
                    let ends = node.inherited() != inherited.len;
                    if leaps || ends { Self::Parts } else { Self::LeadsTo(below) }
                }
                None => Self::Parts,
            },
            _ => Self::Parts,
        }
    }
}

/// What a wide top has for an entry of a narrow one: the slots from bit 8 to bit 16.
pub(super) fn at_the_top(fib: &Fib, entry: Entry) -> [u32; SLOTS] {
    let Some(number) = entry.node() else { return [entry.0; SLOTS] };
    let node = fib.node(number);
    let slots = if node.level() == Top::NARROW_BITS {
        expand(fib, node)
    } else {
        let mut slots = [Inherited::of(fib, node).entry().0; SLOTS];
        slots[node.slot_above(Top::NARROW_BITS)] = entry.0;
        slots
    };
    slots.map(|slot| with_length(Entry(slot), node.inherited()).0)
}

/// An entry of a level that begins at bit 8, as one that begins at bit 0 says it.
fn with_length(entry: Entry, inherited: u8) -> Entry {
    match (entry.node(), entry.depth()) {
        (Some(_), _) => entry,
        (None, 0) => Entry::leaf(inherited, entry.next()),
        (None, depth) => Entry::leaf(Top::NARROW_BITS as u8 + depth, entry.next()),
    }
}
