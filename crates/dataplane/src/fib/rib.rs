//! The routes themselves, kept beside the trie: a removal needs the routes under and above it.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use super::Root;
use crate::id::NextHopId;
use crate::prefix::Prefix;

/// Every route of a family: exact match by FIB and prefix.
///
/// It is compact, since it holds a full Internet table: 12 bytes per entry for prefixes of up to 32
/// bits.
#[derive(Debug, Default)]
pub(super) struct Rib {
    short: HashMap<[u32; 2], u32, Mixed>,
    long: HashMap<[u32; 5], u32, Mixed>,
    /// The number of routes of each FIB.
    counts: Vec<u32>,
    /// The number of routes of each prefix length, over all FIBs.
    lengths: Vec<u32>,
}

/// The key of a route.
enum Key {
    Short([u32; 2]),
    Long([u32; 5]),
}

impl Key {
    /// Root and length share a word, so both have an upper bound ([`Rib::MAX_ROOT`]).
    fn new(root: Root, prefix: Prefix) -> Self {
        let bits = prefix.bits();
        let tag = root.0 << 8 | u32::from(prefix.len());
        let word = |index: u32| (bits >> (96 - 32 * index)) as u32;
        if prefix.len() <= 32 {
            Self::Short([tag, word(0)])
        } else {
            Self::Long([tag, word(0), word(1), word(2), word(3)])
        }
    }
}

impl Rib {
    /// The maximum number of FIBs.
    pub(super) const MAX_ROOT: u32 = (1 << 24) - 1;

    pub(super) fn len(&self) -> usize {
        self.short.len() + self.long.len()
    }

    /// The number of routes of one FIB.
    pub(super) fn count(&self, root: Root) -> u32 {
        self.counts.get(root.0 as usize).copied().unwrap_or(0)
    }

    pub(super) fn get(&self, root: Root, prefix: Prefix) -> Option<NextHopId> {
        let next = match Key::new(root, prefix) {
            Key::Short(key) => self.short.get(&key),
            Key::Long(key) => self.long.get(&key),
        };
        next.copied().map(NextHopId)
    }

    /// Inserts a route; returns its previous next hop.
    pub(super) fn insert(
        &mut self,
        root: Root,
        prefix: Prefix,
        next: NextHopId,
    ) -> Option<NextHopId> {
        let old = match Key::new(root, prefix) {
            Key::Short(key) => self.short.insert(key, next.0),
            Key::Long(key) => self.long.insert(key, next.0),
        };
        if old.is_none() {
            *at(&mut self.counts, root.0 as usize) += 1;
            *at(&mut self.lengths, usize::from(prefix.len())) += 1;
        }
        old.map(NextHopId)
    }

    pub(super) fn remove(&mut self, root: Root, prefix: Prefix) {
        let old = match Key::new(root, prefix) {
            Key::Short(key) => self.short.remove(&key),
            Key::Long(key) => self.long.remove(&key),
        };
        if old.is_some() {
            *at(&mut self.counts, root.0 as usize) -= 1;
            *at(&mut self.lengths, usize::from(prefix.len())) -= 1;
        }
    }

    /// Removes all routes of one FIB.
    pub(super) fn clear(&mut self, root: Root) {
        if self.count(root) == 0 {
            return;
        }
        let lengths = &mut self.lengths;
        let mut stays = |tag: u32| {
            let is_gone = tag >> 8 == root.0;
            if is_gone {
                *at(lengths, (tag & 0xff) as usize) -= 1;
            }
            !is_gone
        };
        self.short.retain(|[tag, _], _| stays(*tag));
        self.long.retain(|[tag, ..], _| stays(*tag));
        *at(&mut self.counts, root.0 as usize) = 0;
    }

    /// The route with the longest prefix that is shorter than `prefix` and covers it.
    pub(super) fn cover(&self, root: Root, prefix: Prefix) -> Option<(u8, NextHopId)> {
        (0..prefix.len()).rev().find_map(|len| {
            if self.lengths.get(usize::from(len)).is_none_or(|count| *count == 0) {
                return None;
            }
            let next = self.get(root, Prefix::new(prefix.bits(), len))?;
            Some((len, next))
        })
    }

    /// The route with the longest prefix that covers `prefix`, including `prefix` itself.
    pub(super) fn longest(&self, root: Root, prefix: Prefix) -> Option<(Prefix, NextHopId)> {
        let own = self.get(root, prefix).map(|next| (prefix.len(), next));
        let (len, next) = own.or_else(|| self.cover(root, prefix))?;
        Some((Prefix::new(prefix.bits(), len), next))
    }

    /// The routes of a FIB that lie within a prefix, including the prefix itself, in no order.
    pub(super) fn within(&self, root: Root, prefix: Prefix) -> Vec<(Prefix, NextHopId)> {
        let short = self.short.iter().map(|(&[tag, word], next)| (tag, [word, 0, 0, 0], *next));
        let long = self.long.iter().map(|(&[tag, a, b, c, d], next)| (tag, [a, b, c, d], *next));
        let all = short.chain(long).filter(|(tag, ..)| tag >> 8 == root.0);
        let routes = all.map(|(tag, words, next)| {
            let bits = words.into_iter().fold(0, |bits, word| bits << 32 | u128::from(word));
            (Prefix::new(bits, tag as u8), NextHopId(next))
        });
        let is_within = |of: Prefix| of.len() >= prefix.len() && prefix.contains(of.bits());
        routes.filter(|(of, _)| is_within(*of)).collect()
    }

    /// Bytes of the tables, as the standard library's map allocates them: one byte beside each entry.
    pub(super) fn memory_bytes(&self) -> usize {
        let buckets = |capacity: usize| (capacity * 8 / 7).next_power_of_two();
        let short = size_of::<([u32; 2], u32)>() + 1;
        let long = size_of::<([u32; 5], u32)>() + 1;
        let map = |capacity: usize, entry: usize| {
            if capacity == 0 { 0 } else { buckets(capacity) * entry }
        };
        map(self.short.capacity(), short)
            + map(self.long.capacity(), long)
            + self.counts.capacity() * size_of::<u32>()
    }
}

fn at(counts: &mut Vec<u32>, index: usize) -> &mut u32 {
    if counts.len() <= index {
        counts.resize(index + 1, 0);
    }
    &mut counts[index]
}

/// A fast hash of a few words, different in each table. Prefixes come from the network, and an
/// attacker there must not know which of them collide.
#[derive(Clone, Debug)]
struct Mixed {
    seed: u64,
}

impl Default for Mixed {
    fn default() -> Self {
        Self { seed: RandomState::new().hash_one(0_u8) }
    }
}

impl BuildHasher for Mixed {
    type Hasher = Mixer;

    fn build_hasher(&self) -> Mixer {
        Mixer(self.seed)
    }
}

/// One round of multiply and fold for each 8 bytes.
#[derive(Debug)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let mixed = u128::from(self.0 ^ u64::from_le_bytes(word)) * 0x9e37_79b9_7f4a_7c15_u128;
            self.0 = mixed as u64 ^ (mixed >> 64) as u64;
        }
    }

    // The length of an array key is always the same.
    fn write_usize(&mut self, _length: usize) {}
}
