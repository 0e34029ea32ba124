//! A node: 256 slots in one cache line.

use std::sync::atomic::Ordering::Relaxed;

use crate::sync::{AtomicU32, AtomicU64};

/// Slots of a node.
pub(super) const SLOTS: usize = 256;

/// The number of bits that a node resolves.
pub(super) const NODE_BITS: u32 = 8;

/// The number of bits of a key: half an IPv6 address, or an IPv4 address padded with zeros.
pub(super) const KEY_BITS: u32 = 64;

/// Which of 256 slots differ from the one before, and where the values are.
///
/// A node may begin many bits below the slot that points to it; a lookup compares the bits between.
///
/// A writer fills it while no reader can reach it; then it is only read. So its words need no memory
/// order of their own: the order of the entry that points to it is enough.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
#[repr(C, align(64))]
pub(crate) struct Node {
    changes: [AtomicU64; 4],
    /// For each word of the bitmap, the place of the value before its first change. The first of them
    /// is the place of the value for keys that are not under the node.
    places: [AtomicU32; 4],
    /// The bits of a key above the node, the other bits zero.
    expected: AtomicU64,
    /// Three bytes: how far to shift a key down to get the node's bits, the bit of an address at which
    /// the node begins, and the length of the prefix that its values of depth 0 come from.
    shape: AtomicU32,
}

/// The position of a node in the address space.
#[derive(Clone, Copy, Debug)]
pub(super) struct Location {
    /// The bit that it begins at, a multiple of 8.
    pub(super) level: u32,
    /// An address under it, left-aligned.
    pub(super) bits: u128,
}

impl Location {
    /// The half of the address that the node is in.
    pub(super) fn key(self) -> u64 {
        if self.level < KEY_BITS { (self.bits >> KEY_BITS) as u64 } else { self.bits as u64 }
    }
}

impl Node {
    /// The place of the value for a key, which is the half of the address that the node is in.
    #[inline(always)]
    pub(crate) fn place(&self, key: u64) -> u32 {
        // `expected` has no bits from the node on, so the slot's bits are unchanged.
        let apart = key ^ self.expected.load(Relaxed);
        let bits = apart >> (self.shape.load(Relaxed) % KEY_BITS);
        let place = self.place_of(bits as u8);
        if bits <= u64::from(u8::MAX) { place } else { self.places[0].load(Relaxed) }
    }

    /// The place of a slot's value.
    #[inline(always)]
    pub(crate) fn place_of(&self, slot: u8) -> u32 {
        let word = usize::from(slot >> 6);
        // The changes up to the slot, shifted to the upper end.
        let changes = self.changes[word].load(Relaxed) << (!slot & 63);
        self.places[word].load(Relaxed).wrapping_add(changes.count_ones())
    }

    /// Says whether the node is in the lower half of the address.
    #[inline(always)]
    pub(crate) fn is_low(&self) -> bool {
        self.shape.load(Relaxed) & KEY_BITS << 8 != 0
    }

    /// The number of its values, which lie one behind the other.
    pub(super) fn values(&self) -> u32 {
        1 + self.changes.iter().map(|word| word.load(Relaxed).count_ones()).sum::<u32>()
    }

    /// The place of the first of its values.
    pub(super) fn first_place(&self) -> u32 {
        self.places[0].load(Relaxed)
    }

    /// Its words in memory, with the first of its values at another place.
    pub(super) fn words_at(&self, first: u32) -> [u32; 16] {
        let mut words = [0; 16];
        let halves = |word: u64| [word as u32, (word >> 32) as u32];
        for (to, changes) in words[..8].chunks_exact_mut(2).zip(&self.changes) {
            to.copy_from_slice(&halves(changes.load(Relaxed)));
        }
        for (to, place) in words[8..12].iter_mut().zip(&self.places) {
            *to = place.load(Relaxed).wrapping_sub(self.first_place()).wrapping_add(first);
        }
        words[12..14].copy_from_slice(&halves(self.expected.load(Relaxed)));
        words[14] = self.shape.load(Relaxed);
        words
    }

    /// The bit that the node begins at.
    pub(super) fn level(&self) -> u32 {
        self.shape.load(Relaxed) >> 8 & 0xff
    }

    /// The length of the prefix that values of depth 0 come from. The value for keys that are not
    /// under the node comes from the same prefix.
    pub(super) fn inherited(&self) -> u8 {
        (self.shape.load(Relaxed) >> 16) as u8
    }

    pub(super) fn set_inherited(&self, len: u8) {
        let kept = self.shape.load(Relaxed) & 0xffff;
        self.shape.store(kept | u32::from(len) << 16, Relaxed);
    }

    pub(super) fn base(&self) -> u32 {
        self.places[0].load(Relaxed)
    }

    pub(super) fn changes(&self) -> Changes {
        Changes(std::array::from_fn(|word| self.changes[word].load(Relaxed)))
    }

    /// An address under the node, as far as its half of an address determines it; the rest is zero.
    pub(super) fn bits(&self) -> u128 {
        let key = u128::from(self.expected.load(Relaxed));
        if self.is_low() { key } else { key << KEY_BITS }
    }

    /// The first bit in which an address differs from those under the node; the node's level if it is
    /// under the node.
    pub(super) fn apart_from(&self, bits: u128) -> u32 {
        let level = self.level();
        let key = Location { level, bits }.key();
        let apart = (key ^ self.expected.load(Relaxed)) & !(u64::MAX >> (level % KEY_BITS));
        if apart == 0 { level } else { level / KEY_BITS * KEY_BITS + apart.leading_zeros() }
    }

    /// The slot of this node in a node at `level` above it.
    pub(super) fn slot_above(&self, level: u32) -> usize {
        let shift = KEY_BITS - NODE_BITS - level % KEY_BITS;
        (self.expected.load(Relaxed) >> shift & 0xff) as usize
    }

    pub(super) fn fill(&self, at: Location, changes: Changes, base: u32, inherited: u8) {
        let mut place = base;
        for (word, bits) in changes.0.into_iter().enumerate() {
            self.changes[word].store(bits, Relaxed);
            self.places[word].store(place, Relaxed);
            place += bits.count_ones();
        }
        let level = at.level % KEY_BITS;
        self.expected.store(at.key() & !(u64::MAX >> level), Relaxed);
        let shift = KEY_BITS - NODE_BITS - level;
        self.shape.store(shift | at.level << 8 | u32::from(inherited) << 16, Relaxed);
    }
}

/// The bitmap of a node: slots that differ from the one before; slot 0 always counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Changes(pub(super) [u64; 4]);

impl Changes {
    /// Only slot 0.
    pub(super) const NONE: Self = Self([1, 0, 0, 0]);

    /// The number of runs.
    pub(super) fn count(self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Says whether a slot begins a run.
    pub(super) const fn at(self, slot: usize) -> bool {
        self.0[slot / 64] >> (slot % 64) & 1 != 0
    }

    /// The index of the run that a slot is in, from 0.
    pub(super) fn run(self, slot: usize) -> usize {
        let (word, upto) = (slot / 64, u64::MAX >> (63 - slot % 64));
        let before: u32 = self.0[..word].iter().map(|word| word.count_ones()).sum();
        (before + (self.0[word] & upto).count_ones()) as usize - 1
    }

    /// Sets whether a slot begins a run.
    pub(super) const fn put(&mut self, slot: usize, begins: bool) {
        let bit = 1 << (slot % 64);
        let others = self.0[slot / 64] & !bit;
        self.0[slot / 64] = if begins { others | bit } else { others };
    }
}
