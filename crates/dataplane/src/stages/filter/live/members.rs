//! The elements of a live set where BPF programs find them: in a FIB for sets, in memory that the programs read.
//!
//! An element is one prefix, or several; the next hop of a prefix is the number of elements that it is part of. A
//! program finds a member as it finds a route, and each change is one store. Nobody else looks here:
//! the user path's own tables of a set take fewer cache lines.
//!
//! Limits: those of the memory. When there is no room for a change, the set is lost: programs find neither members nor
//! others, and decide nothing by rules that look into it ([`Fib::clear`]). Many changes at once, or a successor of these
//! rules, may lack only the memory that programs still read. So the set gets another FIB when there is more room, or when
//! it has much fewer elements, a few times.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, TryLockError};

use super::LiveSet;
use crate::epoch::Epochs;
use crate::fib::{Fib, Root};
use crate::id::NextHopId;
use crate::memory::Memory;
use crate::prefix::Prefix;

/// The elements of all live sets that BPF programs look into.
#[derive(Debug)]
pub(crate) struct EngineSets {
    pub(super) fib: Fib,
    /// How many sets were lost so far.
    losses: AtomicU64,
}

impl EngineSets {
    /// Takes its parts of this memory.
    pub(crate) fn new(epochs: &Arc<Epochs>, memory: &Memory) -> Arc<Self> {
        Self::over(Fib::of_sets(epochs, memory))
    }

    pub(super) fn over(fib: Fib) -> Arc<Self> {
        Arc::new(Self { fib, losses: AtomicU64::new(0) })
    }

    /// How many sets were lost so far.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.load(Acquire)
    }
}

/// A set that was lost tries to return when it has fewer than this part of its elements.
const FEW: usize = 4;

/// How many FIBs a set has one after the other.
const MOST_ROOTS: usize = 4;

/// A live set's elements for BPF programs.
#[derive(Debug)]
pub(super) struct Members {
    sets: Arc<EngineSets>,
    /// The FIB that has the elements, behind those that had them before. Programs may still look into these.
    roots: Vec<Root>,
    state: State,
}

/// Whether programs find the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// All of them.
    Whole,
    /// None, for lack of room.
    Out {
        /// The free nodes with which another try is worth it.
        nodes: usize,
        /// The number of elements below which it is, too.
        elements: usize,
    },
}

impl Members {
    fn new(sets: &Arc<EngineSets>) -> Self {
        let state = State::Out { nodes: 0, elements: 0 };
        Self { sets: Arc::clone(sets), roots: Vec::new(), state }
    }

    /// Puts all elements into a FIB that no program knows yet, by their prefixes.
    fn fill(&mut self, elements: usize, prefixes: impl IntoIterator<Item = Prefix>) {
        let free = self.sets.fib.free_nodes();
        match self.sets.fib.add_filled(prefixes) {
            Ok(root) => {
                self.roots.push(root);
                self.state = State::Whole;
            }
            Err(_) => {
                self.state = State::Out { nodes: free + free / 4 + 64, elements: elements / 2 };
            }
        }
    }

    /// Where programs find the elements, if they are among these sets, and all of them.
    fn root_in(&self, sets: &Arc<EngineSets>) -> Option<Root> {
        let is_there = self.state == State::Whole && Arc::ptr_eq(&self.sets, sets);
        self.roots.last().copied().filter(|_| is_there)
    }

    /// Whether there may be room for so many elements, all that the set has.
    fn may_return(&self, elements: usize) -> bool {
        let State::Out { nodes, elements: few } = self.state else { return false };
        self.roots.len() < MOST_ROOTS && (elements < few || self.sets.fib.free_nodes() >= nodes)
    }

    /// Adds an element that the set did not have, by its prefixes; it has so many elements now.
    pub(super) fn add(&mut self, elements: usize, prefixes: &[Prefix]) {
        self.change(elements, prefixes, |count| count + 1);
    }

    /// Removes an element that the set had, by its prefixes; it has so many elements now.
    pub(super) fn remove(&mut self, elements: usize, prefixes: &[Prefix]) {
        self.change(elements, prefixes, |count| count.saturating_sub(1));
    }

    fn change(&mut self, elements: usize, prefixes: &[Prefix], changed: impl Fn(u32) -> u32) {
        let (State::Whole, Some(root)) = (self.state, self.roots.last().copied()) else { return };
        let fib = &self.sets.fib;
        let done = prefixes.iter().all(|prefix| {
            let count = changed(fib.get(root, *prefix).map_or(0, |count| count.0));
            match count {
                0 => fib.take(root, *prefix).is_ok(),
                _ => fib.put(root, *prefix, NextHopId(count)).is_ok(),
            }
        });
        if !done {
            // Most prefixes have a node.
            self.state = State::Out { nodes: fib.count(root), elements: (elements / FEW).max(1) };
            fib.clear(root);
            self.sets.losses.fetch_add(1, Release);
        }
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        for root in &self.roots {
            self.sets.fib.clear(*root);
            self.sets.fib.give_back(*root);
        }
    }
}

impl LiveSet {
    /// Where BPF programs find all elements among these sets, to which this adds them the first time; none if that has
    /// no room.
    pub(in super::super) fn root_in(&self, sets: &Arc<EngineSets>) -> Option<Root> {
        let mut writer = self.lock();
        let mut members = writer.members.take().unwrap_or_else(|| Members::new(sets));
        let count = writer.count();
        if members.may_return(count) {
            let elements = self.elements_of(&writer).into_iter();
            members.fill(count, elements.flat_map(|element| self.pieces_of(element)));
        }
        writer.members.insert(members).root_in(sets)
    }

    /// Whether [`LiveSet::root_in`] may find room for a lost set now; false while somebody changes it.
    pub(in super::super) fn may_return(&self) -> bool {
        let Ok(writer) = self.writer.try_lock() else { return false };
        writer.members.as_ref().is_some_and(|members| members.may_return(writer.count()))
    }

    /// Whether somebody changes it at this moment.
    pub(in super::super) fn is_busy(&self) -> bool {
        matches!(self.writer.try_lock(), Err(TryLockError::WouldBlock))
    }
}
