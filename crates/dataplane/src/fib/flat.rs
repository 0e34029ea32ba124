//! A copy of one FIB without gaps, for programs that read it from memory of their own.

use super::{Entry, Fib, Root};

/// A FIB: its top is the first of the values, and nodes and places count from 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flat {
    /// How far to shift a key down to get the place of its entry in the top.
    pub(crate) shift: u32,
    /// Nodes, as they lie in memory.
    pub(crate) nodes: Vec<[u32; 16]>,
    /// Entries.
    pub(crate) values: Vec<u32>,
}

impl Fib {
    /// Copies a FIB that nobody changes meanwhile.
    pub(crate) fn flatten(&self, root: Root) -> Flat {
        let top = self.top(root);
        let mut flat = Flat { shift: 64 - top.bits(), ..Flat::default() };
        let mut entries: Vec<Entry> =
            (0..1 << top.bits()).map(|at| self.entry(top.base() + at)).collect();
        let mut at = 0;
        // Each node adds its entries, which may point to further nodes.
        while let Some(entry) = entries.get(at).copied() {
            if let Some(number) = entry.node() {
                let node = self.node(number);
                let first = entries.len() as u32;
                entries[at] = entry.moved_to(flat.nodes.len() as u32);
                flat.nodes.push(node.words_at(first));
                let places = node.first_place()..node.first_place() + node.values();
                entries.extend(places.map(|place| self.entry(place)));
            }
            at += 1;
        }
        flat.values = entries.into_iter().map(|entry| entry.0).collect();
        flat
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::epoch::Epochs;
    use crate::fib::Capacity;
    use crate::id::NextHopId;
    use crate::prefix::Prefix;
    use crate::testkit::dice::Dice;

    /// The next hop of a key's entry in a copy, as `bpf/fib.h` finds it.
    fn look_up(flat: &Flat, bits: u128) -> NextHopId {
        let (upper, lower) = ((bits >> 64) as u64, bits as u64);
        let mut entry = Entry(flat.values[(upper >> flat.shift) as usize]);
        while let Some(number) = entry.node() {
            let words = flat.nodes[number];
            let long = |at: usize| u64::from(words[at]) | u64::from(words[at + 1]) << 32;
            let key = if words[14] & 64 << 8 == 0 { upper } else { lower };
            let apart = (key ^ long(12)) >> (words[14] & 63);
            let slot = apart as usize & 0xff;
            let ones = (long(2 * (slot >> 6)) << (!slot & 63)).count_ones();
            let place = if apart > 0xff { words[8] } else { words[8 + (slot >> 6)] + ones };
            entry = Entry(flat.values[place as usize]);
        }
        entry.next()
    }

    #[test]
    fn a_copy_finds_what_the_fib_finds() {
        let mut dice = Dice(5);
        for count in [0, 1, 30, 1000] {
            let capacity = Capacity { roots: 2, nodes: 1 << 14, values: 1 << 18 };
            let fib = Fib::new(Epochs::new(), capacity);
            let (_, root) = (fib.add_root().unwrap(), fib.add_root().unwrap());
            let mut prefixes = Vec::new();
            for number in 0..count {
                let bits = dice.wide();
                let prefix = Prefix::v6(bits, dice.below(129) as u8);
                fib.insert(root, prefix, NextHopId(number as u32)).unwrap();
                prefixes.push(prefix.bits());
            }
            let flat = fib.flatten(root);
            for _ in 0..2000 {
                let near = prefixes.get(dice.below(count.max(1))).copied().unwrap_or(0);
                let bits = near ^ dice.wide() >> dice.below(128);
                assert_eq!(look_up(&flat, bits), fib.lookup(root, bits), "{bits:x}");
            }
        }
    }
}
