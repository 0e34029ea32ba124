//! The elements of a live set where BPF programs find them: in a FIB for sets, in memory that the programs read.
//!
//! An element is one prefix, or several; the next hop of a prefix is the number of elements that it is part of. A
//! program finds a member as it finds a route, and each change is in force with one store. Nobody else looks here:
//! the user path's own tables of a set take fewer cache lines.
//!
//! Limits: those of the memory. When it has no more room, the set gives up: from then on, programs find neither
//! members nor others, and do not decide ([`Fib::clear`]). It returns to another FIB when there is room again: many
//! changes at once take memory that programs may still read.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::LiveSet;
use crate::fib::{Fib, Root};
use crate::id::NextHopId;
use crate::prefix::Prefix;

/// Free nodes for each element with which a set that has given up returns. Most elements take one.
const ROOM: usize = 2;
/// How often a set has a FIB. What takes the room each time is not the memory that programs still read.
const MOST_ROOTS: usize = 16;

/// A live set's elements for BPF programs.
#[derive(Debug)]
pub(super) struct Members {
    fib: Arc<Fib>,
    /// The FIB that has the elements, behind those that had them before. Programs may still look into these.
    roots: Vec<Root>,
    state: State,
}

/// Whether programs find all elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Whole,
    GivenUp,
}

impl Members {
    /// A set that no program finds yet.
    pub(super) fn new(fib: &Arc<Fib>) -> Self {
        Self { fib: Arc::clone(fib), roots: Vec::new(), state: State::GivenUp }
    }

    /// Where programs find the elements, if they are in this FIB, and all of them.
    pub(super) fn root_in(&self, fib: &Arc<Fib>) -> Option<Root> {
        let is_there = self.state == State::Whole && Arc::ptr_eq(&self.fib, fib);
        self.roots.last().copied().filter(|_| is_there)
    }

    /// Whether there was no room for some element.
    pub(super) fn have_given_up(&self) -> bool {
        self.state == State::GivenUp
    }

    /// Whether there seems to be room again for so many elements, all that the set has.
    pub(super) fn may_return(&self, count: usize) -> bool {
        self.have_given_up()
            && self.roots.len() < MOST_ROOTS
            && self.fib.free_nodes() >= ROOM * count
    }

    /// Puts all elements into a FIB that no program knows yet, by their prefixes.
    pub(super) fn fill(&mut self, prefixes: impl IntoIterator<Item = Prefix>) {
        let Ok(root) = self.fib.add_root() else { return };
        self.roots.push(root);
        let mut counts: BTreeMap<Prefix, u32> = BTreeMap::new();
        prefixes.into_iter().for_each(|prefix| *counts.entry(prefix).or_default() += 1);
        let routes = counts.into_iter().map(|(prefix, count)| (prefix, NextHopId(count)));
        match self.fib.fill(root, routes) {
            Ok(()) => self.state = State::Whole,
            Err(_) => self.fib.clear(root),
        }
    }

    /// Adds an element that the set did not have, by its prefixes.
    pub(super) fn add(&mut self, prefixes: &[Prefix]) {
        self.change(prefixes, |count| count + 1);
    }

    /// Removes an element that the set had, by its prefixes.
    pub(super) fn remove(&mut self, prefixes: &[Prefix]) {
        self.change(prefixes, |count| count.saturating_sub(1));
    }

    fn change(&mut self, prefixes: &[Prefix], changed: impl Fn(u32) -> u32) {
        let (State::Whole, Some(root)) = (self.state, self.roots.last().copied()) else { return };
        let fib = &self.fib;
        let done = prefixes.iter().all(|prefix| {
            let count = changed(fib.get(root, *prefix).map_or(0, |count| count.0));
            match count {
                0 => fib.take(root, *prefix).is_ok(),
                _ => fib.put(root, *prefix, NextHopId(count)).is_ok(),
            }
        });
        if !done {
            self.state = State::GivenUp;
            fib.clear(root);
        }
    }
}

impl LiveSet {
    /// Where BPF programs find all elements in a FIB for sets, to which this adds them the first time; none if that has
    /// no room. The elements stay there until the set is dropped.
    pub(in super::super) fn root_in(&self, fib: &Arc<Fib>) -> Option<Root> {
        let mut writer = self.lock();
        let mut members = writer.members.take().unwrap_or_else(|| Members::new(fib));
        if members.may_return(writer.count()) {
            let elements = self.elements_of(&writer);
            members.fill(elements.into_iter().flat_map(|element| self.pieces_of(element)));
        }
        writer.members.insert(members).root_in(fib)
    }

    /// Whether BPF programs do not find all elements, since there was no room.
    pub(in super::super) fn has_given_up(&self) -> bool {
        self.lock().members.as_ref().is_some_and(Members::have_given_up)
    }

    /// Whether [`LiveSet::root_in`] may find room for such a set now.
    pub(in super::super) fn may_return(&self) -> bool {
        let writer = self.lock();
        writer.members.as_ref().is_some_and(|members| members.may_return(writer.count()))
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        for root in &self.roots {
            self.fib.clear(*root);
            self.fib.give_back(*root);
        }
    }
}
