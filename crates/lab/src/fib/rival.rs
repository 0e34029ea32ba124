//! Other structures for the same routes, to compare ours with.

use tollway_dataplane::burst::{BURST, Lanes};
use tollway_dataplane::prefix::Prefix;

/// A burst of addresses, left-aligned.
pub(super) type Keys = [u128; BURST];

/// The value found for each address.
pub(super) type Lookups = [u32; BURST];

/// A structure for longest-prefix lookups.
pub(super) trait Rival: Sized {
    /// Builds a structure with these routes, whose prefixes all differ.
    fn build(routes: &[(Prefix, u32)]) -> Result<Self, String>;

    /// The value of the longest prefix that covers an address; 0 if there is none.
    fn lookup(&self, bits: u128) -> u32;

    /// The same for a burst.
    fn lookup_burst(&mut self, keys: &Keys, found: &mut Lookups);

    /// Bytes of memory.
    fn memory_bytes(&self) -> usize;
}

/// Plain tables: one for the first bits, then blocks for 8 bits each, with shorter prefixes pushed
/// into the leaves (Gupta, Lin and McKeown, "Routing lookups in hardware at memory access speeds",
/// 1998). With 24 bits first it is DIR-24-8.
///
/// Only lookups are measured, so it is built once and does not keep the routes.
pub(super) struct Flat<const FIRST: u32> {
    entries: Vec<u32>,
}

/// Set in an entry that leads to a block; the other bits are the block's number.
const BLOCK: u32 = 1 << 31;
const BLOCK_BITS: u32 = 8;

impl<const FIRST: u32> Flat<FIRST> {
    const fn slot(base: usize, bits: u128, above: u32, count: u32) -> usize {
        base + (bits << above >> (128 - count)) as usize
    }

    /// Where the entries of a block begin.
    const fn base(entry: u32) -> usize {
        (entry & !BLOCK) as usize * (1 << BLOCK_BITS)
    }

    /// Overwrites all entries under a prefix. No longer prefix may be present yet.
    fn put(&mut self, prefix: Prefix, value: u32) -> Result<(), String> {
        let (mut base, mut above, mut count) = (0, 0, FIRST);
        loop {
            let slot = Self::slot(base, prefix.bits(), above, count);
            let end = above + count;
            if u32::from(prefix.len()) <= end {
                let slots = 1 << (end - u32::from(prefix.len()));
                self.entries[slot..slot + slots].fill(value);
                return Ok(());
            }
            if self.entries[slot] & BLOCK == 0 {
                let number = u32::try_from(self.entries.len() >> BLOCK_BITS).ok();
                let number =
                    number.filter(|number| number & BLOCK == 0).ok_or("too many blocks")?;
                let leaf = self.entries[slot];
                self.entries.resize(self.entries.len() + (1 << BLOCK_BITS), leaf);
                self.entries[slot] = BLOCK | number;
            }
            (base, above, count) = (Self::base(self.entries[slot]), end, BLOCK_BITS);
        }
    }

    #[inline(always)]
    fn entry(&self, slot: usize) -> u32 {
        self.entries.get(slot).copied().unwrap_or(0)
    }

    #[inline(always)]
    fn descend(
        &self,
        keys: &Keys,
        found: &mut Lookups,
        above: u32,
        pending: impl IntoIterator<Item = usize>,
    ) -> Lanes {
        let mut deeper = Lanes::NONE;
        for lane in pending {
            let slot = Self::slot(Self::base(found[lane]), keys[lane], above, BLOCK_BITS);
            found[lane] = self.entry(slot);
            deeper.put(lane, found[lane] & BLOCK != 0);
        }
        deeper
    }
}

impl<const FIRST: u32> Rival for Flat<FIRST> {
    fn build(routes: &[(Prefix, u32)]) -> Result<Self, String> {
        let mut flat = Self { entries: vec![0; 1 << FIRST] };
        let mut routes = routes.to_vec();
        routes.sort_unstable_by_key(|(prefix, _)| prefix.len());
        for (prefix, value) in routes {
            flat.put(prefix, value)?;
        }
        Ok(flat)
    }

    #[inline(always)]
    fn lookup(&self, bits: u128) -> u32 {
        let mut entry = self.entry(Self::slot(0, bits, 0, FIRST));
        let mut above = FIRST;
        while entry & BLOCK != 0 {
            entry = self.entry(Self::slot(Self::base(entry), bits, above, BLOCK_BITS));
            above += BLOCK_BITS;
        }
        entry
    }

    #[inline(always)]
    fn lookup_burst(&mut self, keys: &Keys, found: &mut Lookups) {
        let mut pending = Lanes::NONE;
        for lane in 0..BURST {
            found[lane] = self.entry(Self::slot(0, keys[lane], 0, FIRST));
            pending.put(lane, found[lane] & BLOCK != 0);
        }
        let mut above = FIRST;
        while !pending.is_empty() {
            pending = match pending.dense() {
                Some(range) => self.descend(keys, found, above, range),
                None => self.descend(keys, found, above, pending),
            };
            above += BLOCK_BITS;
        }
    }

    fn memory_bytes(&self) -> usize {
        self.entries.len() * size_of::<u32>()
    }
}
