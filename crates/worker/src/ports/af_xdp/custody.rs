//! Which chunks the kernel has, to get them back when its sockets close.

/// A set of chunks, with one bit for each chunk.
#[derive(Clone, Debug)]
pub(super) struct Custody {
    bits: Vec<u64>,
    /// The size of a chunk in bytes, as a power of two.
    shift: u32,
}

impl Custody {
    /// Creates the set for an area, of which the kernel has no chunks.
    pub(super) fn new(bytes: usize, chunk_bytes: u32) -> Self {
        let shift = chunk_bytes.trailing_zeros();
        Self { bits: vec![0; (bytes >> shift).div_ceil(64)], shift }
    }

    /// Records that the kernel gets the chunk that holds this address.
    #[inline(always)]
    pub(super) fn give(&mut self, addr: u32) {
        let chunk = addr >> self.shift;
        if let Some(word) = self.bits.get_mut(chunk as usize / 64) {
            *word |= 1 << (chunk % 64);
        }
    }

    /// Records that the kernel returns the chunk; returns false if it did not have it.
    #[inline(always)]
    pub(super) fn take(&mut self, addr: u32) -> bool {
        let chunk = addr >> self.shift;
        let Some(word) = self.bits.get_mut(chunk as usize / 64) else { return false };
        let had = *word >> (chunk % 64) & 1 != 0;
        *word &= !(1 << (chunk % 64));
        had
    }

    /// The number of chunks that the kernel has.
    pub(super) fn count(&self) -> usize {
        self.bits.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Records that the kernel has no chunks any more; returns the addresses of those that it had.
    pub(super) fn take_all(&mut self) -> Vec<u32> {
        let mut chunks = Vec::new();
        for (index, word) in self.bits.iter_mut().enumerate() {
            let mut rest = std::mem::take(word);
            while rest != 0 {
                let chunk = index as u32 * 64 + rest.trailing_zeros();
                chunks.push(chunk << self.shift);
                rest &= rest - 1;
            }
        }
        chunks
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set_of_chunks(steps in proptest::collection::vec((any::<bool>(), 0_u32..130 * 2048), 0..300)) {
            let mut custody = Custody::new(130 * 2048, 2048);
            let mut oracle = BTreeSet::new();
            for (give, addr) in steps {
                let chunk = addr / 2048 * 2048;
                if give {
                    custody.give(addr);
                    oracle.insert(chunk);
                } else {
                    prop_assert_eq!(custody.take(addr), oracle.remove(&chunk));
                }
            }
            prop_assert_eq!(custody.count(), oracle.len());
            prop_assert_eq!(custody.take_all(), oracle.into_iter().collect::<Vec<_>>());
            prop_assert!(custody.take_all().is_empty());
        }
    }

    #[test]
    fn addresses_outside_change_nothing() {
        let mut custody = Custody::new(4096, 2048);
        custody.give(u32::MAX);
        assert!(!custody.take(u32::MAX));
        assert!(custody.take_all().is_empty());
    }
}
