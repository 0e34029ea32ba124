//! The FIBs of all VRFs for one family: a compressed trie that workers read while it changes.
//!
//! Eight bits a level. A node is one cache line: a bitmap of the 256 slots, in which a bit marks a
//! slot that differs from the one before, and where its values are; the slot's value is found by
//! counting bits. A value is a next hop or leads to a node below, which may be many bits below: what
//! is between is compared. Shorter prefixes are pushed into
//! the leaves, so that there is nothing to go back to. The top of a FIB is a plain table, of 8 bits
//! while routes are few, of 16 when they are many.
//!
//! Kin: Degermark and others, "Small forwarding tables for fast routing lookups", 1997 (bitmaps of
//! changes); Asai and Ohara, "Poptrie", 2015 (population counts).
//!
//! Readers take no lock: an entry is one word. A change is a store where the bitmap stays as it is;
//! else the node is built anew and put in with one store, and the old one is used again when every
//! reader has passed a burst boundary ([`crate::epoch`]).

mod arena;
mod entry;
mod node;
mod prefix;
mod rib;
mod runs;
mod slots;
mod update;

use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, PoisonError};

use crate::burst::{BURST, Lanes};
use crate::cpu::prefetch;
use crate::epoch::Epochs;
use crate::id::NextHopId;
use crate::memory::{Aligned, Apart};
use crate::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard};
pub use prefix::Prefix;

pub(super) use entry::Entry;

use arena::Arenas;
use node::NODE_BITS;
pub(crate) use node::Node;
use update::Writer;

/// The number of a FIB: one VRF's routes of one family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Root(pub u32);

/// Why a route could not be put in or taken out; the table is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FibError {
    /// No memory, or no number, is left for another FIB or node.
    Full,
    /// The next hop's number does not fit an entry.
    NextHopRange,
}

/// How much a [`Fib`] may grow; memory is taken as it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// FIBs.
    pub roots: usize,
    /// Nodes, 64 bytes each.
    pub nodes: usize,
    /// Values, 4 bytes each.
    pub values: usize,
}

impl Default for Capacity {
    /// 65,536 VRFs, 4 million nodes, 64 million values: some 10 million routes of any mixture.
    fn default() -> Self {
        Self { roots: 1 << 16, nodes: 1 << 22, values: 1 << 26 }
    }
}

/// The FIBs of all VRFs for one family.
///
/// Any number of threads may look up; changes take a lock among themselves.
pub struct Fib {
    /// For each FIB where its top is ([`Top`]).
    roots: Box<[AtomicU64]>,
    nodes: Aligned<Node>,
    values: Box<[AtomicU32]>,
    epochs: Arc<Epochs>,
    /// Of IP, where its changes are written down by prefix.
    version: Option<u8>,
    writer: Apart<Mutex<Writer>>,
}

/// Where a FIB's top begins in the values, and how far a key is shifted down for it: one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Top(u64);

impl Top {
    const NARROW_BITS: u32 = 8;
    const WIDE_BITS: u32 = 16;
    const SHIFT_SHIFT: u32 = 32;

    const fn new(base: u32, bits: u32) -> Self {
        Self(base as u64 | ((64 - bits) as u64) << Self::SHIFT_SHIFT)
    }

    const fn base(self) -> u32 {
        self.0 as u32
    }

    const fn bits(self) -> u32 {
        64 - (self.0 >> Self::SHIFT_SHIFT) as u32
    }

    /// Where the entry for a key is, its first bit at the upper end.
    #[inline(always)]
    pub(super) const fn place(self, key: u64) -> u32 {
        // The shift of a top that is not there is 0, and the place then likely none either.
        (self.0 as u32).wrapping_add((key >> (self.0 >> Self::SHIFT_SHIFT & 63)) as u32)
    }

    /// The slot for a key in a node that is a step below.
    #[inline(always)]
    pub(super) const fn slot_below(self, key: u64) -> u8 {
        let shift = (self.0 >> Self::SHIFT_SHIFT).wrapping_sub(NODE_BITS as u64);
        (key >> (shift & 63)) as u8
    }
}

impl Fib {
    /// No FIB yet; what is taken out is freed when the readers of `epochs` have passed.
    #[must_use]
    pub fn new(epochs: Arc<Epochs>, capacity: Capacity) -> Self {
        let Arenas { roots, nodes, values } = Arenas::new(capacity);
        let writer = Apart(Mutex::new(Writer::new(Arc::clone(&epochs), capacity)));
        Self { roots, nodes, values, epochs, version: None, writer }
    }

    /// Has changes written down by the prefixes that they are about, as such of a version of IP, where they
    /// were counted for all addresses.
    #[must_use]
    pub fn of_version(mut self, version: u8) -> Self {
        self.version = Some(version);
        self
    }

    fn note(&self, prefix: Prefix) {
        match self.version {
            Some(version) => self.epochs.changes.note_route(version, prefix),
            None => self.epochs.changes.note(),
        }
    }

    /// The next hop for an address, its bits at the upper end.
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

    /// The next hops for the keys of a burst's packets, each the first bits of an address of up to 64;
    /// level by level, so that the loads of different packets overlap.
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

    /// The next hop of a route, where there is one to exactly this prefix.
    #[must_use]
    pub fn get(&self, root: Root, prefix: Prefix) -> Option<NextHopId> {
        self.lock().rib.get(root, prefix)
    }

    /// The route with the longest prefix that covers `prefix`, itself included: for an address, its
    /// host prefix, the one that [`Fib::lookup`] follows.
    #[must_use]
    pub fn longest(&self, root: Root, prefix: Prefix) -> Option<(Prefix, NextHopId)> {
        self.lock().rib.longest(root, prefix)
    }

    /// The routes of one FIB that lie within a prefix, itself included, in the order of addresses.
    ///
    /// Changes wait meanwhile, some milliseconds for a full Internet table; lookups do not.
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

    /// Says if there is no route.
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

    /// Puts a route in, over one to the same prefix.
    ///
    /// # Errors
    /// See [`FibError`].
    pub fn insert(&self, root: Root, prefix: Prefix, next: NextHopId) -> Result<(), FibError> {
        if self.put(root, prefix, next)? {
            self.note(prefix);
        }
        Ok(())
    }

    /// The same for who counts changes themselves; says if it is one.
    pub(crate) fn put(
        &self,
        root: Root,
        prefix: Prefix,
        next: NextHopId,
    ) -> Result<bool, FibError> {
        self.lock().insert(self, root, prefix, next)
    }

    /// Takes a route out; false where there was none.
    ///
    /// # Errors
    /// [`FibError::Full`], where a node has to be built anew and no memory is left for it.
    pub fn remove(&self, root: Root, prefix: Prefix) -> Result<bool, FibError> {
        let removed = self.take(root, prefix)?;
        if removed {
            self.note(prefix);
        }
        Ok(removed)
    }

    /// The same for who counts changes themselves.
    pub(crate) fn take(&self, root: Root, prefix: Prefix) -> Result<bool, FibError> {
        self.lock().remove(self, root, prefix)
    }

    fn lock(&self) -> MutexGuard<'_, Writer> {
        // A change that panicked may have left its route half way; lookups stay sound, since every
        // index is checked.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a lookup reads.
    #[inline(always)]
    pub(super) fn view(&self) -> View<'_> {
        View { roots: &self.roots, nodes: self.nodes.get(), values: &self.values }
    }

    fn top(&self, root: Root) -> Top {
        self.view().top(root.0)
    }

    fn entry(&self, place: u32) -> Entry {
        self.view().entry(place)
    }

    /// A node whose number an entry gave.
    fn node(&self, number: usize) -> &Node {
        &self.nodes.get()[number]
    }

    fn set_top(&self, root: Root, top: Top) {
        self.roots[root.0 as usize].store(top.0, Release);
    }

    /// Writes the entry at a place; readers see it whole, and what it leads to before it.
    fn set(&self, place: u32, entry: Entry) {
        self.values[place as usize].store(entry.0, Release);
    }
}

/// A [`Fib`] as lookups read it: no index can lead out of it, since each is checked.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    roots: &'a [AtomicU64],
    nodes: &'a [Node],
    values: &'a [AtomicU32],
}

impl<'a> View<'a> {
    /// The top of a FIB.
    #[inline(always)]
    pub(super) fn top(self, root: u32) -> Top {
        Top(self.roots.get(root as usize).map_or(0, |root| root.load(Acquire)))
    }

    /// The entry at a place.
    #[inline(always)]
    pub(super) fn entry(self, place: u32) -> Entry {
        Entry(self.values.get(place as usize).map_or(0, |value| value.load(Acquire)))
    }

    /// Asks for the entry at a place.
    #[inline(always)]
    pub(super) fn prefetch_entry(self, place: u32) {
        prefetch(self.values.as_ptr().wrapping_add(place as usize));
    }

    /// Asks for the node that an entry leads to (for another entry: for any memory).
    #[inline(always)]
    pub(super) fn prefetch_node(self, entry: Entry) {
        prefetch(self.nodes.as_ptr().wrapping_add((entry.0 & Entry::NUMBER) as usize));
    }

    /// The node that a step leads to, and for another entry any node.
    #[inline(always)]
    pub(super) fn next_node(self, entry: Entry) -> Option<&'a Node> {
        self.nodes.get(if entry.is_step() { entry.0 & Entry::NUMBER } else { 0 } as usize)
    }

    /// The node that an entry leads to.
    #[inline(always)]
    pub(super) fn node(self, entry: Entry) -> Option<&'a Node> {
        self.nodes.get(entry.node()?)
    }
}

impl std::fmt::Debug for Fib {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Fib").field("routes", &self.len()).finish_non_exhaustive()
    }
}
