use std::collections::BTreeMap;

use crate::id::NextHopId;

/// Bits that the root of a FIB resolves at once.
const ROOT_BITS: u32 = 16;
/// Bits that each further block resolves.
const BLOCK_BITS: u32 = 8;
const ROOT_SLOTS: usize = 1 << ROOT_BITS;
const BLOCK_SLOTS: usize = 1 << BLOCK_BITS;

/// Set in an entry that leads to a block; the rest is the block's number.
const BLOCK: u32 = 1 << 31;
/// Where a final entry has its prefix length, 8 bits; below is the next hop.
const LEN_SHIFT: u32 = 23;

/// A prefix of either family, its bits at the upper end; host bits are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    bits: u128,
    len: u8,
}

impl Prefix {
    /// An IPv4 prefix; host bits are cleared, a length over 32 is taken as 32.
    #[must_use]
    pub const fn v4(address: u32, len: u8) -> Self {
        Self::new((address as u128) << 96, if len > 32 { 32 } else { len })
    }

    /// An IPv6 prefix; host bits are cleared, a length over 128 is taken as 128.
    #[must_use]
    pub const fn v6(address: u128, len: u8) -> Self {
        Self::new(address, if len > 128 { 128 } else { len })
    }

    const fn new(bits: u128, len: u8) -> Self {
        Self { bits: bits & mask(len), len }
    }

    /// Length, bits.
    #[must_use]
    pub const fn len(self) -> u8 {
        self.len
    }

    /// Says if this is the default route's prefix.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Says if an address (bits at the upper end) is covered.
    #[must_use]
    pub const fn contains(self, bits: u128) -> bool {
        bits & mask(self.len) == self.bits
    }

    /// The address, bits at the upper end.
    #[must_use]
    pub const fn bits(self) -> u128 {
        self.bits
    }
}

const fn mask(len: u8) -> u128 {
    if len == 0 { 0 } else { u128::MAX << (128 - len as u32) }
}

/// Where one VRF's FIB begins: an index into [`Fib::entries`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Root(pub u32);

/// Why a route could not be put in; the table is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FibError {
    /// No number is left for another root or block.
    Full,
    /// The next hop's number does not fit an entry.
    NextHopRange,
}

/// The FIBs of all VRFs for one family: a trie that resolves 16 bits, then 8 at a time.
///
/// A lookup reads one entry for each level; an entry is a next hop or leads to a block of 256
/// more. Shorter prefixes are pushed into the leaves (as in Gupta, Lin and McKeown, "Routing
/// lookups in hardware at memory access speeds", 1998), so there is nothing to go back to. The
/// routes themselves are kept beside it, to find what is under a route that goes.
#[derive(Clone, Debug, Default)]
pub struct Fib {
    entries: Vec<u32>,
    free: Vec<u32>,
    routes: BTreeMap<(u32, Prefix), NextHopId>,
}

/// Part of a prefix's way down: the block's first entry and the bits resolved above it.
#[derive(Clone, Copy)]
struct Level {
    base: usize,
    above: u32,
    bits: u32,
}

impl Level {
    const fn slot(self, bits: u128) -> usize {
        let index = (bits << self.above >> (128 - self.bits)) as usize;
        self.base + index
    }

    const fn below(self, entry: u32) -> Self {
        let base = ((entry & !BLOCK) as usize) << BLOCK_BITS;
        Self { base, above: self.above + self.bits, bits: BLOCK_BITS }
    }
}

impl Fib {
    /// No VRF yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Every entry, for lookups.
    #[inline(always)]
    #[must_use]
    pub fn entries(&self) -> &[u32] {
        &self.entries
    }

    /// The number of routes in all VRFs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.routes.len()
    }

    /// Says if there is no route.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    /// Adds an empty FIB.
    ///
    /// # Errors
    /// [`FibError::Full`] after some 32,000 of them.
    pub fn add_root(&mut self) -> Result<Root, FibError> {
        let base = self.grow(ROOT_SLOTS)?;
        Ok(Root(base))
    }

    /// Puts a route in, over one to the same prefix.
    ///
    /// # Errors
    /// See [`FibError`].
    pub fn insert(&mut self, root: Root, prefix: Prefix, next: NextHopId) -> Result<(), FibError> {
        if next.0 > NextHopId::MASK {
            return Err(FibError::NextHopRange);
        }
        self.write(top(root), prefix, |len| len <= prefix.len, leaf(prefix.len, next))?;
        self.routes.insert((root.0, prefix), next);
        Ok(())
    }

    /// Takes a route out; false where there was none.
    pub fn remove(&mut self, root: Root, prefix: Prefix) -> bool {
        if self.routes.remove(&(root.0, prefix)).is_none() {
            return false;
        }
        let under = (0..prefix.len).rev().find_map(|len| {
            let cover = Prefix::new(prefix.bits, len);
            self.routes.get(&(root.0, cover)).map(|next| leaf(len, *next))
        });
        let entry = under.unwrap_or(leaf(0, NextHopId::NO_ROUTE));
        // The way down exists, so nothing is allocated and nothing can fail.
        let written = self.write(top(root), prefix, |len| len == prefix.len, entry);
        debug_assert!(written.is_ok());
        self.prune(root, prefix);
        true
    }

    /// The route to exactly this prefix.
    #[must_use]
    pub fn get(&self, root: Root, prefix: Prefix) -> Option<NextHopId> {
        self.routes.get(&(root.0, prefix)).copied()
    }

    /// The next hop for an address, bits at the upper end.
    #[must_use]
    pub fn lookup(&self, root: Root, bits: u128) -> NextHopId {
        let mut level = top(root);
        loop {
            let entry = self.entries.get(level.slot(bits)).copied().unwrap_or(0);
            if entry & BLOCK == 0 {
                return NextHopId(entry & NextHopId::MASK);
            }
            level = level.below(entry);
        }
    }

    fn grow(&mut self, slots: usize) -> Result<u32, FibError> {
        let base = self.entries.len();
        // Block numbers count units of 256 entries and have 31 bits, roots have 32 for an entry.
        let base = u32::try_from(base).ok().filter(|base| *base < u32::MAX - slots as u32);
        let base = base.ok_or(FibError::Full)?;
        self.entries.resize(self.entries.len() + slots, leaf(0, NextHopId::NO_ROUTE));
        Ok(base)
    }

    /// A block full of `entry`; its number.
    fn block(&mut self, entry: u32) -> Result<u32, FibError> {
        let number = match self.free.pop() {
            Some(number) => number,
            None => self.grow(BLOCK_SLOTS)? >> BLOCK_BITS,
        };
        let base = (number as usize) << BLOCK_BITS;
        self.entries[base..base + BLOCK_SLOTS].fill(entry);
        Ok(number)
    }

    /// Writes `entry` over every final entry under `prefix` whose prefix length `replaces` allows.
    fn write(
        &mut self,
        level: Level,
        prefix: Prefix,
        replaces: impl Fn(u8) -> bool + Copy,
        entry: u32,
    ) -> Result<(), FibError> {
        let first = level.slot(prefix.bits);
        let end = level.above + level.bits;
        let len = u32::from(prefix.len);
        if len <= end {
            for slot in first..first + (1 << (end - len)) {
                self.overwrite(slot, replaces, entry);
            }
            return Ok(());
        }
        if self.entries[first] & BLOCK == 0 {
            self.entries[first] = BLOCK | self.block(self.entries[first])?;
        }
        self.write(level.below(self.entries[first]), prefix, replaces, entry)
    }

    fn overwrite(&mut self, slot: usize, replaces: impl Fn(u8) -> bool + Copy, entry: u32) {
        let old = self.entries[slot];
        if old & BLOCK == 0 {
            if replaces((old >> LEN_SHIFT) as u8) {
                self.entries[slot] = entry;
            }
            return;
        }
        let base = ((old & !BLOCK) as usize) << BLOCK_BITS;
        for below in base..base + BLOCK_SLOTS {
            self.overwrite(below, replaces, entry);
        }
    }

    /// Gives back the blocks on the way to `prefix` that say the same everywhere, lowest first.
    fn prune(&mut self, root: Root, prefix: Prefix) {
        let mut way = Vec::new();
        let mut level = top(root);
        while u32::from(prefix.len) > level.above + level.bits {
            let slot = level.slot(prefix.bits);
            let entry = self.entries[slot];
            if entry & BLOCK == 0 {
                break;
            }
            way.push(slot);
            level = level.below(entry);
        }
        for slot in way.into_iter().rev() {
            let number = self.entries[slot] & !BLOCK;
            let base = (number as usize) << BLOCK_BITS;
            let block = &self.entries[base..base + BLOCK_SLOTS];
            let first = block[0];
            if first & BLOCK != 0 || block.iter().any(|entry| *entry != first) {
                return;
            }
            self.entries[slot] = first;
            self.free.push(number);
        }
    }
}

const fn top(root: Root) -> Level {
    Level { base: root.0 as usize, above: 0, bits: ROOT_BITS }
}

const fn leaf(len: u8, next: NextHopId) -> u32 {
    (len as u32) << LEN_SHIFT | next.0
}

/// The block that an entry leads to, as an index of its first entry; none for a final entry.
#[inline(always)]
#[must_use]
pub(super) const fn block_base(entry: u32) -> Option<usize> {
    if entry & BLOCK == 0 { None } else { Some(((entry & !BLOCK) as usize) << BLOCK_BITS) }
}
