//! The FIBs of all VRFs for one family: a compressed trie that workers read while it changes.
//!
//! Each level resolves eight bits. A node is one cache line. It has a bitmap of its 256 slots, in which
//! a bit marks a slot whose value differs from the one before, and the place of its values. A lookup
//! finds a slot's value by counting bits. A value is a next hop or points to a node below. A pointer
//! may leap over many bits; the lookup then compares the bits between. Shorter prefixes are pushed into
//! the leaves, so that a lookup never has to backtrack. The top of a FIB is a plain table, of 8 bits
//! while routes are few and of 16 when they are many.
//!
//! Related work: Degermark and others, "Small forwarding tables for fast routing lookups", 1997
//! (bitmaps of changes); Asai and Ohara, "Poptrie", 2015 (population counts).
//!
//! Readers take no lock: an entry is one word. If the bitmap stays as it is, a change is one store.
//! Otherwise the writer rebuilds the node and installs it with one store. It reuses the old node when
//! every reader has passed a burst boundary ([`crate::epoch`]).

mod arena;
mod entry;
mod flat;
#[cfg(all(test, loom))]
mod models;
mod node;
mod rib;
mod runs;
mod slots;
#[cfg(test)]
mod threads;
mod update;

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, PoisonError};

use crate::burst::{BURST, Lanes};
use crate::cpu::prefetch;
use crate::epoch::Epochs;
use crate::id::NextHopId;
pub use crate::memory::Capacity;
use crate::memory::{Aligned, Apart, Memory, Part};
use crate::prefix::Prefix;
use crate::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard};

pub(crate) use entry::Entry;

use arena::Arenas;
use node::{NODE_BITS, Node};
use update::Writer;

/// The number of a FIB: one VRF's routes of one family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Root(pub u32);

/// Why a route could not be inserted or removed; the table is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FibError {
    /// No memory, or no number, is left for another FIB or node.
    Full,
    /// The next hop's number does not fit an entry.
    NextHopRange,
}

/// The FIBs of all VRFs for one family.
///
/// Any number of threads may look up; changes lock out each other.
pub struct Fib {
    /// The top of each FIB ([`Top`]).
    roots: Aligned<AtomicU64>,
    nodes: Aligned<Node>,
    values: Aligned<AtomicU32>,
    epochs: Arc<Epochs>,
    /// The IP version, if changes are recorded by prefix.
    version: Option<u8>,
    writer: Apart<Mutex<Writer>>,
}

/// One word: where a FIB's top begins in the values, and how far to shift a key down for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Top(u64);

impl Top {
    const NARROW_BITS: u32 = 8;
    const WIDE_BITS: u32 = 16;
    const SHIFT_SHIFT: u32 = 32;

    /// The top of a FIB that is cleared: it has no entry for any key.
    const NOWHERE: Self = Self(1 << 31 | 63 << Self::SHIFT_SHIFT);

    const fn new(base: u32, bits: u32) -> Self {
        Self(base as u64 | ((64 - bits) as u64) << Self::SHIFT_SHIFT)
    }

    const fn base(self) -> u32 {
        self.0 as u32
    }

    const fn bits(self) -> u32 {
        64 - (self.0 >> Self::SHIFT_SHIFT) as u32
    }

    /// The place of the entry for a key, which is left-aligned.
    #[inline(always)]
    pub(crate) const fn place(self, key: u64) -> u32 {
        // A missing top has shift 0, which most likely gives a missing place, too.
        (self.0 as u32).wrapping_add((key >> (self.0 >> Self::SHIFT_SHIFT & 63)) as u32)
    }

    /// The slot for a key in the node one step below.
    #[inline(always)]
    pub(crate) const fn slot_below(self, key: u64) -> u8 {
        let shift = (self.0 >> Self::SHIFT_SHIFT).wrapping_sub(NODE_BITS as u64);
        (key >> (shift & 63)) as u8
    }
}

impl Fib {
    /// Creates a table without FIBs; removed items are freed when the readers of `epochs` have passed.
    #[must_use]
    pub fn new(epochs: Arc<Epochs>, capacity: Capacity) -> Self {
        Self::make(
            epochs,
            capacity,
            Arenas::new(capacity, &Memory::default(), Part::of_fib(4)),
            None,
        )
    }

    /// Creates the table of an IP version, with this memory: it records changes by their prefixes, instead of counting
    /// them for all addresses.
    pub(crate) fn of_version(version: u8, epochs: &Arc<Epochs>, memory: &Memory) -> Self {
        let (capacities, parts) = (memory.capacities(), Part::of_fib(version));
        let capacity = if version == 4 { capacities.fib4 } else { capacities.fib6 };
        let arenas = Arenas::new(capacity, memory, parts);
        Self::make(Arc::clone(epochs), capacity, arenas, Some(version))
    }

    /// Creates the table of sets of addresses for BPF programs, with this memory.
    pub(crate) fn of_sets(epochs: &Arc<Epochs>, memory: &Memory) -> Self {
        let capacity = memory.capacities().sets;
        let arenas = Arenas::new(capacity, memory, Part::OF_SETS);
        Self::make(Arc::clone(epochs), capacity, arenas, None)
    }

    fn make(epochs: Arc<Epochs>, capacity: Capacity, arenas: Arenas, version: Option<u8>) -> Self {
        let Arenas { roots, nodes, values } = arenas;
        let writer = Apart(Mutex::new(Writer::new(Arc::clone(&epochs), capacity)));
        // What programs have kept of another table must not seem to be of this one.
        if let Some(generation) = roots.get().last() {
            generation.store(RandomState::new().build_hasher().finish(), Release);
        }
        Self { roots, nodes, values, epochs, version, writer }
    }

    fn note(&self, prefix: Prefix) {
        match self.version {
            Some(version) => self.epochs.changes.note_route(version, prefix),
            None => self.epochs.changes.note(),
        }
    }

    /// The next hop for an address, which is left-aligned.
    #[inline]
    #[must_use]
    pub fn lookup(&self, root: Root, bits: u128) -> NextHopId {
        let view = self.view();
        let (upper, lower) = ((bits >> 64) as u64, bits as u64);
        let mut entry = view.entry(view.top(root.0).place(upper));
        while let Some(node) = view.node(entry) {
            entry = view.entry(node.place(if node.is_low() { lower } else { upper }));
        }
        entry.next()
    }

    /// The next hops for the keys of a burst's packets, each the first up to 64 bits of an address. It
    /// works level by level, so that the loads of different packets overlap.
    #[inline(always)]
    pub(crate) fn look_up_keys(
        &self,
        root: Root,
        keys: &[u64; BURST],
        next: &mut [u32; BURST],
        lanes: Range<usize>,
    ) {
        let view = self.view();
        let top = view.top(root.0);
        let mut pending = Lanes::NONE;
        for lane in lanes {
            let lane = lane & (BURST - 1);
            let entry = view.entry(top.place(keys[lane]));
            next[lane] = entry.0;
            view.prefetch_node(entry);
            pending.put(lane, entry.is_node());
        }
        while !pending.is_empty() {
            let mut deeper = Lanes::NONE;
            for lane in pending {
                let Some(node) = view.node(Entry(next[lane])) else { continue };
                let entry = view.entry(node.place(keys[lane]));
                next[lane] = entry.0;
                view.prefetch_node(entry);
                deeper.put(lane, entry.is_node());
            }
            pending = deeper;
        }
        for next in next {
            *next = Entry(*next).next().0;
        }
    }

    /// The next hop of the route to exactly this prefix, if any.
    #[must_use]
    pub fn get(&self, root: Root, prefix: Prefix) -> Option<NextHopId> {
        self.lock().rib.get(root, prefix)
    }

    /// The route with the longest prefix that covers `prefix`, including `prefix` itself. For an
    /// address's host prefix, it is the route that [`Fib::lookup`] follows.
    #[must_use]
    pub fn longest(&self, root: Root, prefix: Prefix) -> Option<(Prefix, NextHopId)> {
        self.lock().rib.longest(root, prefix)
    }

    /// The routes of one FIB that lie within a prefix, including the prefix itself, in address order.
    ///
    /// Changes wait for it, some milliseconds for a full Internet table; lookups do not.
    #[must_use]
    pub fn within(&self, root: Root, prefix: Prefix) -> Vec<(Prefix, NextHopId)> {
        let mut routes = self.lock().rib.within(root, prefix);
        routes.sort_unstable_by_key(|(prefix, _)| *prefix);
        routes
    }

    /// The number of routes in all FIBs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().rib.len()
    }

    /// Says whether there is no route.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory in use: nodes, values, roots, and the routes kept beside them.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.lock().memory_bytes()
    }

    /// Adds an empty FIB.
    ///
    /// # Errors
    /// [`FibError::Full`].
    pub fn add_root(&self) -> Result<Root, FibError> {
        self.lock().add_root(self)
    }

    /// Adds a FIB with these prefixes, whose next hops count how often they come. No reader knows it yet, so what an
    /// insertion replaces is free at once, and all of it after an error.
    pub(crate) fn add_filled(
        &self,
        prefixes: impl IntoIterator<Item = Prefix>,
    ) -> Result<Root, FibError> {
        self.lock().add_filled(self, prefixes)
    }

    /// The number of nodes that are free, in all FIBs together.
    pub(crate) fn free_nodes(&self) -> usize {
        self.lock().free_nodes()
    }

    /// The number of routes in one FIB.
    pub(crate) fn count(&self, root: Root) -> usize {
        self.lock().rib.count(root) as usize
    }

    /// Removes all routes of a FIB at once. From then on, a BPF program finds neither a route nor that there is none,
    /// and a lookup of user space none. Insert nothing until the number is another FIB's ([`Fib::give_back`]).
    pub(crate) fn clear(&self, root: Root) {
        self.lock().clear(self, root);
    }

    /// Gives the number of a cleared FIB back: no reader has it any more, or none ever knew it.
    pub(crate) fn give_back(&self, root: Root) {
        self.lock().give_back(root);
    }

    /// Inserts a route, replacing any route to the same prefix.
    ///
    /// # Errors
    /// See [`FibError`].
    pub fn insert(&self, root: Root, prefix: Prefix, next: NextHopId) -> Result<(), FibError> {
        if self.put(root, prefix, next)? {
            self.note(prefix);
        }
        Ok(())
    }

    /// Like [`Fib::insert`], for callers that count changes themselves; says whether it is a change.
    pub(crate) fn put(
        &self,
        root: Root,
        prefix: Prefix,
        next: NextHopId,
    ) -> Result<bool, FibError> {
        self.lock().insert(self, root, prefix, next)
    }

    /// Removes a route; false if there was none.
    ///
    /// # Errors
    /// [`FibError::Full`], if a node has to be rebuilt and no memory is left for it.
    pub fn remove(&self, root: Root, prefix: Prefix) -> Result<bool, FibError> {
        let removed = self.take(root, prefix)?;
        if removed {
            self.note(prefix);
        }
        Ok(removed)
    }

    /// Like [`Fib::remove`], for callers that count changes themselves.
    pub(crate) fn take(&self, root: Root, prefix: Prefix) -> Result<bool, FibError> {
        self.lock().remove(self, root, prefix)
    }

    fn lock(&self) -> MutexGuard<'_, Writer> {
        // A change that panicked may have left its route half way; lookups stay safe, since every index
        // is checked.
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer.is_unread = false;
        writer
    }

    /// The view that lookups read.
    #[inline(always)]
    pub(crate) fn view(&self) -> FibView<'_> {
        FibView { roots: self.roots.get(), nodes: self.nodes.get(), values: self.values.get() }
    }

    fn top(&self, root: Root) -> Top {
        self.view().top(root.0)
    }

    fn entry(&self, place: u32) -> Entry {
        self.view().entry(place)
    }

    /// The node with a number from an entry.
    fn node(&self, number: usize) -> &Node {
        &self.nodes.get()[number]
    }

    /// Begins another generation, after a change. Until then, readers may keep what they have looked up.
    /// The generation lies behind the roots, so that BPF programs see it (`recent.h` of the crate `xdp`).
    fn begin_generation(&self) {
        let Some(generation) = self.roots.get().last() else { return };
        // Only one writer has the lock.
        generation.store(generation.load(Relaxed).wrapping_add(1), Release);
    }

    #[cfg(all(test, loom))]
    fn generation(&self) -> u64 {
        self.roots.get().last().map_or(0, |generation| generation.load(Acquire))
    }

    fn set_top(&self, root: Root, top: Top) {
        self.roots.get()[root.0 as usize].store(top.0, Release);
    }

    /// Writes the entry at a place. Readers see it as a whole, and first what it points to.
    fn set(&self, place: u32, entry: Entry) {
        self.values.get()[place as usize].store(entry.0, Release);
    }
}

/// A [`Fib`] as lookups read it: no index can point outside, since each is checked.
#[derive(Clone, Copy)]
pub(crate) struct FibView<'a> {
    roots: &'a [AtomicU64],
    nodes: &'a [Node],
    values: &'a [AtomicU32],
}

impl<'a> FibView<'a> {
    /// The top of a FIB.
    #[inline(always)]
    pub(crate) fn top(self, root: u32) -> Top {
        Top(self.roots.get(root as usize).map_or(0, |root| root.load(Acquire)))
    }

    /// The entry at a place.
    #[inline(always)]
    pub(crate) fn entry(self, place: u32) -> Entry {
        Entry(self.values.get(place as usize).map_or(0, |value| value.load(Acquire)))
    }

    /// Prefetches the entry at a place.
    #[inline(always)]
    pub(crate) fn prefetch_entry(self, place: u32) {
        prefetch(self.values.as_ptr().wrapping_add(place as usize));
    }

    /// Prefetches the node that an entry points to (for another entry: any memory).
    #[inline(always)]
    pub(crate) fn prefetch_node(self, entry: Entry) {
        prefetch(self.nodes.as_ptr().wrapping_add((entry.0 & Entry::NUMBER) as usize));
    }

    /// The node that a step points to; for another entry any node.
    #[inline(always)]
    pub(crate) fn next_node(self, entry: Entry) -> Option<&'a Node> {
        self.nodes.get(if entry.is_step() { entry.0 & Entry::NUMBER } else { 0 } as usize)
    }

    /// The node that an entry points to.
    #[inline(always)]
    pub(crate) fn node(self, entry: Entry) -> Option<&'a Node> {
        self.nodes.get(entry.node()?)
    }
}

impl std::fmt::Debug for Fib {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Fib").field("routes", &self.len()).finish_non_exhaustive()
    }
}
