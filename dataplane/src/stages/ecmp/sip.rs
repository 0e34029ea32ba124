//! SipHash-2-4 over whole words, with the kernel's key.
//!
//! Kernel equivalent: `siphash` (`lib/siphash.c`) under `fib_multipath_hash_construct_key`
//! (`include/net/ip_fib.h`); Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012.

/// A hash that has taken in some words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sip([u64; Self::STATE]);

impl Sip {
    /// Words of its state.
    pub(super) const STATE: usize = 4;

    pub(super) const fn of(state: [u64; Self::STATE]) -> Self {
        Self(state)
    }

    pub(super) const fn state(self) -> [u64; Self::STATE] {
        self.0
    }

    /// The hash before the first word, under a `fib_multipath_hash_seed`.
    pub(super) const fn keyed(seed: u32) -> Self {
        let key = (seed as u64) << 32 | seed as u64;
        let start = [
            0x736f_6d65_7073_6575,
            0x646f_7261_6e64_6f6d,
            0x6c79_6765_6e65_7261,
            0x7465_6462_7974_6573,
        ];
        let [a, b, c, d]: [u64; 4] = start;
        Self([a ^ key, b ^ key, c ^ key, d ^ key])
    }

    /// Takes in a word.
    #[inline(always)]
    pub(super) const fn word(self, word: u64) -> Self {
        let Self([a, b, c, d]) = self;
        let Self([a, b, c, d]) = Self([a, b, c, d ^ word]).round().round();
        Self([a ^ word, b, c, d])
    }

    /// Takes in several words.
    #[inline(always)]
    pub(super) fn words(self, words: impl IntoIterator<Item = u64>) -> Self {
        words.into_iter().fold(self, Self::word)
    }

    /// The hash of all words, which were so many bytes.
    #[inline(always)]
    pub(super) const fn finish(self, bytes: u64) -> u64 {
        let Self([a, b, c, d]) = self.word(bytes << 56);
        let Self([a, b, c, d]) = Self([a, b, c ^ 0xff, d]).round().round().round().round();
        a ^ b ^ c ^ d
    }

    #[inline(always)]
    const fn round(self) -> Self {
        let Self([mut a, mut b, mut c, mut d]) = self;
        a = a.wrapping_add(b);
        b = b.rotate_left(13) ^ a;
        a = a.rotate_left(32);
        c = c.wrapping_add(d);
        d = d.rotate_left(16) ^ c;
        a = a.wrapping_add(d);
        d = d.rotate_left(21) ^ a;
        c = c.wrapping_add(b);
        b = b.rotate_left(17) ^ c;
        c = c.rotate_left(32);
        Self([a, b, c, d])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's example has a key of two words that differ; these are the standard library's answers.
    #[test]
    #[allow(deprecated, reason = "nothing else there is SipHash-2-4")]
    fn it_is_the_standard_librarys() {
        use std::hash::{Hasher, SipHasher};
        for (seed, count) in [(1, 0), (0xdead_beef, 1), (7, 6), (u32::MAX, 9)] {
            let words = (0..count).map(|n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 3);
            let key = u64::from(seed) << 32 | u64::from(seed);
            let mut judge = SipHasher::new_with_keys(key, key);
            words.clone().for_each(|word| judge.write(&word.to_le_bytes()));
            assert_eq!(Sip::keyed(seed).words(words).finish(count * 8), judge.finish());
        }
    }
}
