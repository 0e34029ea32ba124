//! Live sets: sets of addresses for rules, whose elements come and go while packets flow.
//!
//! Kernel equivalent: a named set (`net/netfilter/nft_set_hash.c`, `nft_set_rbtree.c`), changed by `nft
//! add element` and `nft delete element`. The rules stay unchanged. To the classifier, a set is a field
//! of two values, member or not ([`super::Field::InSet`]), which it looks up once for each packet.
//!
//! Single addresses are in a hash table, because a million random addresses would take two cache lines
//! each in a trie. Prefixes are in a FIB of their own, whose next hops count the elements of each
//! prefix. Other ranges are split into prefixes. If a set has neither, lookups skip the trie.
//!
//! Readers take no lock. A result was true at some moment during the lookup. The set counts many
//! changes as one ([`crate::changes`]), so that caches of the path's decisions need not discard
//! them after each change.
//!
//! BPF programs look up elements elsewhere (`members.rs`).
//!
//! Limits: 20 million IPv4 addresses, 8 million IPv6 addresses, and prefixes up to the capacity of a
//! [`Fib`] of 2 million nodes. A set that has grown keeps its earlier tables, which together take
//! as much memory as the current one. Elements do not time out.

mod lookup;
mod members;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Arc, PoisonError};

use super::dim::for_each_prefix;
use crate::epoch::Epochs;
use crate::fib::{Capacity, Fib, Root};
use crate::id::NextHopId;
use crate::prefix::Prefix;
use crate::sync::{AtomicU32, Mutex, MutexGuard};
pub(crate) use members::EngineSets;
use members::Members;
use table::Table;

/// The number of changes that are counted as one: those of a millisecond, at the rate of one thread.
const NOTE_EVERY: usize = 1024;

/// An address or a range of addresses, both ends included, as numbers of 32 or 128 bits.
pub type Element = (u128, u128);

/// Why a set was not changed as requested. Elements before the reported one are changed; it and those
/// behind it are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveSetError {
    /// No room is left for this element; the number is its position in the request.
    Full(usize),
    /// This element is not in the set.
    Missing(usize),
    /// This element is not a range of the set's family.
    NotARange(usize),
}

/// A set of addresses of one family for rules.
#[derive(Debug)]
pub struct LiveSet {
    name: String,
    version: u8,
    four: Table<1>,
    six: Table<2>,
    prefixes: Arc<Fib>,
    root: Root,
    /// The number of prefixes in the trie.
    pieces: AtomicU32,
    is_changed: AtomicBool,
    epochs: Arc<Epochs>,
    writer: Mutex<Writer>,
}

/// The writers' state.
#[derive(Debug)]
struct Writer {
    four: table::Writer<1>,
    six: table::Writer<2>,
    /// The number of prefixes that are elements themselves.
    prefixes: usize,
    /// Elements that are neither addresses nor prefixes.
    ranges: BTreeSet<Element>,
    /// All elements again, if BPF programs look them up.
    members: Option<Members>,
}

impl Writer {
    fn count(&self) -> usize {
        self.four.count() + self.six.count() + self.prefixes + self.ranges.len()
    }
}

/// The tries that the sets of a filter share, with one FIB for each set.
pub(super) fn tries(epochs: &Arc<Epochs>) -> Arc<Fib> {
    let capacity = Capacity { roots: 1 << 12, nodes: 1 << 21, values: 1 << 24 };
    Arc::new(Fib::new(Arc::clone(epochs), capacity))
}

/// Where an element is stored.
enum Kind {
    Four([u64; 1]),
    Six([u64; 2]),
    Prefix(Prefix),
    Range,
}

/// The key of an IPv4 address: never 0.
#[inline(always)]
const fn key4(address: u32) -> [u64; 1] {
    [address as u64 | 1 << 32]
}

/// The key of an IPv6 address; its first word is 0 for addresses that are stored as prefixes.
#[inline(always)]
const fn key6(address: u128) -> [u64; 2] {
    [(address >> 64) as u64, address as u64]
}

/// The next hop of a prefix that is an element itself; each range that contains it as a part adds 2.
const ELEMENT: u32 = 1;
const PART: u32 = 2;

impl LiveSet {
    /// Creates an empty set; memory that was taken out is reused when the readers of `epochs` have
    /// passed.
    pub(super) fn new(
        name: &str,
        version: u8,
        epochs: &Arc<Epochs>,
        prefixes: &Arc<Fib>,
    ) -> Option<Self> {
        let writer = Writer {
            four: table::Writer::new(epochs),
            six: table::Writer::new(epochs),
            prefixes: 0,
            ranges: BTreeSet::new(),
            members: None,
        };
        Some(Self {
            name: name.to_owned(),
            version,
            four: Table::new(),
            six: Table::new(),
            root: prefixes.add_root().ok()?,
            prefixes: Arc::clone(prefixes),
            pieces: AtomicU32::new(0),
            is_changed: AtomicBool::new(false),
            epochs: Arc::clone(epochs),
            writer: Mutex::new(writer),
        })
    }

    /// The set's name in the rules.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The IP version of its addresses, 4 or 6.
    #[must_use]
    pub const fn version(&self) -> u8 {
        self.version
    }

    /// The number of elements.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lock().count()
    }

    /// Says whether it was changed since the rules were installed.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        self.is_changed.load(Relaxed)
    }

    /// Says whether an element covers an address.
    #[must_use]
    pub fn covers(&self, address: u128) -> bool {
        // The lock prevents changes during this lookup: the caller is not a reader of the epochs.
        let _writer = self.lock();
        self.has(address)
    }

    /// All elements in address order. Changes wait for it; lookups do not.
    #[must_use]
    pub fn elements(&self) -> Vec<Element> {
        self.elements_of(&self.lock())
    }

    fn elements_of(&self, writer: &Writer) -> Vec<Element> {
        let bits = self.bits();
        let four = self.four.keys().into_iter().map(|[key]| u128::from(key as u32));
        let six = self.six.keys();
        let six = six.into_iter().map(|[high, low]| u128::from(high) << 64 | u128::from(low));
        let mut all: Vec<_> = four.chain(six).map(|address| (address, address)).collect();
        let prefixes = self.prefixes.within(self.root, Prefix::v6(0, 0));
        let own = prefixes.into_iter().filter(|(_, next)| next.0 & ELEMENT != 0);
        all.extend(own.map(|(prefix, _)| {
            let first = prefix.bits() >> (128 - bits);
            (first, first | below(bits - u32::from(prefix.len())))
        }));
        all.extend(&writer.ranges);
        all.sort_unstable();
        all
    }

    /// Adds elements; existing ones stay. Returns how many are new.
    ///
    /// # Errors
    /// See [`LiveSetError`].
    pub fn add(&self, elements: &[Element]) -> Result<usize, LiveSetError> {
        self.note_changed(self.add_all(elements))
    }

    /// Like [`LiveSet::add`], for the initial elements of the rules.
    pub(super) fn fill(&self, elements: &[Element]) -> Result<usize, LiveSetError> {
        let singles = elements.iter().filter(|(first, last)| first == last).count();
        let mut writer = self.lock();
        // In one step, if there is room; otherwise the loop below reports it.
        let _ = match self.version {
            4 => writer.four.reserve(&self.four, singles),
            _ => writer.six.reserve(&self.six, singles),
        };
        drop(writer);
        self.add_all(elements)
    }

    fn add_all(&self, elements: &[Element]) -> Result<usize, LiveSetError> {
        self.change(elements, |set, writer, element, at| {
            let is_new = set.add_one(writer, element).ok_or(LiveSetError::Full(at))?;
            let count = writer.count();
            if let Some(members) = writer.members.as_mut().filter(|_| is_new) {
                members.add(count, &set.pieces_of(element));
            }
            Ok(is_new)
        })
    }

    /// Removes elements. Returns how many.
    ///
    /// # Errors
    /// See [`LiveSetError`]: all must exist.
    pub fn remove(&self, elements: &[Element]) -> Result<usize, LiveSetError> {
        self.note_changed(self.change(elements, |set, writer, element, at| {
            let was_there = set.remove_one(writer, element).ok_or(LiveSetError::Full(at))?;
            if !was_there {
                return Err(LiveSetError::Missing(at));
            }
            let count = writer.count();
            if let Some(members) = &mut writer.members {
                members.remove(count, &set.pieces_of(element));
            }
            Ok(true)
        }))
    }

    fn note_changed(&self, done: Result<usize, LiveSetError>) -> Result<usize, LiveSetError> {
        if done != Ok(0) {
            self.is_changed.store(true, Relaxed);
        }
        done
    }

    /// Bytes of memory for single addresses; the sets of a filter share the trie.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.four.memory_bytes() + self.six.memory_bytes()
    }

    fn change(
        &self,
        elements: &[Element],
        one: impl Fn(&Self, &mut Writer, Element, usize) -> Result<bool, LiveSetError>,
    ) -> Result<usize, LiveSetError> {
        let mut writer = self.lock();
        let (mut changed, mut noted) = (0, 0);
        let mut outcome = Ok(());
        for (at, element) in elements.iter().enumerate() {
            let max = below(self.bits());
            outcome = match element.0 <= element.1 && element.1 <= max {
                true => {
                    one(self, &mut writer, *element, at).map(|done| changed += usize::from(done))
                }
                false => Err(LiveSetError::NotARange(at)),
            };
            if outcome.is_err() {
                break;
            }
            if changed - noted >= NOTE_EVERY {
                noted = changed;
                self.epochs.changes.note();
            }
        }
        if changed > noted {
            self.epochs.changes.note();
        }
        outcome.map(|()| changed)
    }

    /// Says whether the element is new; none if no room is left.
    fn add_one(&self, writer: &mut Writer, element: Element) -> Option<bool> {
        match self.kind(element) {
            Kind::Four(key) => writer.four.insert(&self.four, key).ok(),
            Kind::Six(key) => writer.six.insert(&self.six, key).ok(),
            Kind::Prefix(prefix) => {
                let value = self.value(prefix);
                if value & ELEMENT != 0 {
                    return Some(false);
                }
                self.set_value(prefix, value | ELEMENT)?;
                writer.prefixes += 1;
                Some(true)
            }
            Kind::Range if writer.ranges.contains(&element) => Some(false),
            Kind::Range => {
                let pieces = self.pieces_of(element);
                for (done, piece) in pieces.iter().enumerate() {
                    if self.set_value(*piece, self.value(*piece) + PART).is_none() {
                        self.take_pieces(&pieces[..done]);
                        return None;
                    }
                }
                writer.ranges.insert(element);
                Some(true)
            }
        }
    }

    /// Says whether the element existed; none if no room is left for the change.
    fn remove_one(&self, writer: &mut Writer, element: Element) -> Option<bool> {
        Some(match self.kind(element) {
            Kind::Four(key) => writer.four.remove(&self.four, key),
            Kind::Six(key) => writer.six.remove(&self.six, key),
            Kind::Prefix(prefix) => {
                let value = self.value(prefix);
                if value & ELEMENT == 0 {
                    return Some(false);
                }
                self.set_value(prefix, value & !ELEMENT)?;
                writer.prefixes -= 1;
                true
            }
            Kind::Range if !writer.ranges.contains(&element) => false,
            Kind::Range => {
                let pieces = self.pieces_of(element);
                let left = self.take_pieces(&pieces);
                if left > 0 {
                    // Restores what was removed: the memory for it has just become free, or soon will.
                    for piece in &pieces[..pieces.len() - left] {
                        self.set_value(*piece, self.value(*piece) + PART)?;
                    }
                    return None;
                }
                writer.ranges.remove(&element)
            }
        })
    }

    /// Removes a range's part of its prefixes, until that fails; returns how many are left.
    fn take_pieces(&self, pieces: &[Prefix]) -> usize {
        let take = |piece: &&Prefix| {
            let value = self.value(**piece).saturating_sub(PART);
            self.set_value(**piece, value).is_some()
        };
        pieces.len() - pieces.iter().take_while(take).count()
    }

    fn kind(&self, (first, last): Element) -> Kind {
        let bits = self.bits();
        match (first == last, self.version) {
            (true, 4) => return Kind::Four(key4(first as u32)),
            (true, _) if key6(first)[0] != 0 => return Kind::Six(key6(first)),
            _ => {}
        }
        let open = first ^ last;
        let is_prefix = open & open.wrapping_add(1) == 0 && first & open == 0;
        if !is_prefix {
            return Kind::Range;
        }
        let len = bits - open.count_ones();
        Kind::Prefix(Prefix::v6(first << (128 - bits), len as u8))
    }

    fn pieces_of(&self, (first, last): Element) -> Vec<Prefix> {
        let mut pieces = Vec::new();
        for_each_prefix(first, last, self.bits(), |prefix| pieces.push(prefix));
        pieces
    }

    const fn bits(&self) -> u32 {
        if self.version == 4 { 32 } else { 128 }
    }

    fn value(&self, prefix: Prefix) -> u32 {
        self.prefixes.get(self.root, prefix).map_or(0, |next| next.0)
    }

    /// None if no room is left.
    fn set_value(&self, prefix: Prefix, value: u32) -> Option<()> {
        let before = self.value(prefix);
        if value == 0 {
            self.prefixes.take(self.root, prefix).ok()?;
        } else {
            self.prefixes.put(self.root, prefix, NextHopId(value)).ok()?;
        }
        // After the change: a lookup is correct whether it still skips the trie or already reads it.
        match (before, value) {
            (0, 1..) => self.pieces.fetch_add(1, Release),
            (1.., 0) => self.pieces.fetch_sub(1, Release),
            _ => 0,
        };
        Some(())
    }

    fn lock(&self) -> MutexGuard<'_, Writer> {
        // A change that panicked may be half done; lookups stay safe, since every index is checked.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A number with the `bits` lowest bits set.
const fn below(bits: u32) -> u128 {
    if bits == 0 { 0 } else { u128::MAX >> (128 - bits) }
}
