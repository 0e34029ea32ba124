//! The effect of a change on the slots of a node and of a top.

use super::node::{KEY_BITS, NODE_BITS, Node, SLOTS};
use super::runs::Runs;
use super::{Entry, Fib, Top};
use crate::id::NextHopId;
use crate::prefix::Prefix;

/// A change of the final values under a prefix.
#[derive(Clone, Copy)]
pub(super) struct Change {
    /// The values that it replaces.
    pub(super) old: Replaces,
    /// Length of the prefix that the new value comes from.
    pub(super) len: u8,
    /// The new value.
    pub(super) next: NextHopId,
}

/// Selects the values that a change replaces.
#[derive(Clone, Copy)]
pub(super) enum Replaces {
    /// Those from prefixes of this length and shorter ones.
    UpTo(u8),
    /// Those from prefixes of exactly this length.
    Just(u8),
}

impl Change {
    const fn concerns(self, len: u8) -> bool {
        match self.old {
            Replaces::UpTo(most) => len <= most,
            Replaces::Just(just) => len == just,
        }
    }

    /// The new value in a level that begins at this bit.
    const fn entry(self, level: u32) -> Entry {
        Inherited { len: self.len, next: self.next }.below(level)
    }
}

/// The value that slots of a node have without any route that ends in it.
#[derive(Clone, Copy)]
pub(super) struct Inherited {
    /// Length of the prefix that it comes from.
    pub(super) len: u8,
    pub(super) next: NextHopId,
}

impl Inherited {
    pub(super) fn of(fib: &Fib, node: &Node) -> Self {
        Self { len: node.inherited(), next: fib.entry(node.base()).next() }
    }

    /// The entry in the node itself.
    pub(super) const fn entry(self) -> Entry {
        Entry::leaf(0, self.next)
    }

    /// The entry in a level that begins at this bit, which may be before the prefix ends.
    pub(super) const fn below(self, level: u32) -> Entry {
        Entry::leaf((self.len as u32).saturating_sub(level) as u8, self.next)
    }
}

/// The eight bits of an address that start at this bit.
pub(super) const fn slot_of(bits: u128, level: u32) -> usize {
    (bits << level >> (128 - NODE_BITS)) as usize
}

/// Changes the entry at a place of a top. Nodes below are changed in place, which needs no memory: all
/// the values that they inherit change in the same way.
pub(super) fn replace(fib: &Fib, place: u32, change: Change) {
    let old = fib.entry(place);
    let new = changed(fib, old, 0, 0, change);
    if new != old {
        fib.set(place, new);
    }
}

/// Applies a change to the slots that a prefix covers, which ends in their level.
pub(super) fn cover(
    fib: &Fib,
    runs: &mut Runs,
    level: u32,
    inherited: u8,
    prefix: Prefix,
    change: Change,
) {
    let first = slot_of(prefix.bits(), level);
    let count = 1 << (level + NODE_BITS - u32::from(prefix.len()));
    runs.map(first..first + count, |entry| changed(fib, entry, level, inherited, change));
}

/// The result of a change for an entry in a level that begins at this bit.
fn changed(fib: &Fib, entry: Entry, level: u32, inherited: u8, change: Change) -> Entry {
    if let Some(node) = entry.node() {
        push_down(fib, fib.node(node), change);
        return entry;
    }
    let len = if entry.depth() == 0 { inherited } else { level as u8 + entry.depth() };
    if change.concerns(len) { change.entry(level) } else { entry }
}

/// Applies a change of a prefix that ends above a node to it and to the nodes below.
fn push_down(fib: &Fib, node: &Node, change: Change) {
    if !change.concerns(node.inherited()) {
        // No value below can come from a shorter prefix than the inherited one.
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

/// Says whether a node with certain slots is necessary.
pub(super) enum Use {
    /// No: all slots are inherited.
    Inherits,
    /// No: the slots point to one node, which the level above can point to.
    LeadsTo(Entry),
    /// Yes: it has several branches, or a route ends in it.
    Parts,
}

impl Use {
    pub(super) fn of(fib: &Fib, runs: &Runs, level: u32, inherited: Inherited) -> Self {
        // A single slot among inherited ones makes three runs at most.
        if runs.changes().count() > 3 {
            return Self::Parts;
        }
        let mut others = runs.values().filter(|value| *value != inherited.entry());
        match (others.next(), others.next()) {
            (None, _) => Self::Inherits,
            (Some(below), None) => match below.node() {
                // A node below is under one slot, so this run is one slot long.
                Some(node) => {
                    let node = fib.node(node);
                    // The halves of an address are different keys, so a pointer cannot leap from one to
                    // the other. And if a route ends above the node below, it must not cover other
                    // addresses.
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

/// The entries of a wide top for one of a narrow top: the slots from bit 8 to bit 16.
pub(super) fn at_the_top(fib: &Fib, entry: Entry) -> [Entry; SLOTS] {
    let Some(number) = entry.node() else { return [entry; SLOTS] };
    let node = fib.node(number);
    let slots = if node.level() == Top::NARROW_BITS {
        Runs::of(fib, node).expand()
    } else {
        let mut slots = [Inherited::of(fib, node).entry(); SLOTS];
        slots[node.slot_above(Top::NARROW_BITS)] = entry;
        slots
    };
    slots.map(|slot| with_length(slot, node.inherited()))
}

/// Converts an entry of a level that begins at bit 8 to a level that begins at bit 0.
fn with_length(entry: Entry, inherited: u8) -> Entry {
    match (entry.node(), entry.depth()) {
        (Some(_), _) => entry,
        (None, 0) => Entry::leaf(inherited, entry.next()),
        (None, depth) => Entry::leaf(Top::NARROW_BITS as u8 + depth, entry.next()),
    }
}
