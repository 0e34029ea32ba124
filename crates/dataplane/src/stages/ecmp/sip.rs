//! SipHash-2-4 over whole words, with the kernel's key.
//!
//! Kernel equivalent: `siphash` (`lib/siphash.c`) under `fib_multipath_hash_construct_key`
//! (`include/net/ip_fib.h`); Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012.

/// One word of each of several hashes.
///
/// Each operation is a loop over all hashes: the compiler turns a loop over 8 into one AVX-512
/// instruction. Without AVX-512, the processor works on several of them at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Words<const HASHES: usize>([u64; HASHES]);

impl<const HASHES: usize> Words<HASHES> {
    #[inline(always)]
    fn with(mut self, other: Self, operation: impl Fn(u64, u64) -> u64) -> Self {
        for (word, other) in self.0.iter_mut().zip(other.0) {
            *word = operation(*word, other);
        }
        self
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.with(other, u64::wrapping_add)
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        self.with(other, |word, other| word ^ other)
    }

    #[inline(always)]
    fn rotate_left(mut self, bits: u32) -> Self {
        for word in &mut self.0 {
            *word = word.rotate_left(bits);
        }
        self
    }
}

/// The state of several hashes, usually one, after some words each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sip<const HASHES: usize = 1>([Words<HASHES>; STATE]);

/// The number of words of a hash's state.
pub(super) const STATE: usize = 4;

impl Sip {
    /// The initial state with a `fib_multipath_hash_seed`.
    pub(super) fn keyed(seed: u32) -> Self {
        let key = u64::from(seed) << 32 | u64::from(seed);
        let start = [
            0x736f_6d65_7073_6575,
            0x646f_7261_6e64_6f6d,
            0x6c79_6765_6e65_7261,
            0x7465_6462_7974_6573,
        ];
        Self(start.map(|word: u64| Words([word ^ key])))
    }

    /// The words of its state.
    #[inline(always)]
    pub(super) fn state(self) -> [u64; STATE] {
        let Self([Words([a]), Words([b]), Words([c]), Words([d])]) = self;
        [a, b, c, d]
    }
}

impl<const HASHES: usize> Sip<HASHES> {
    /// Hashes with these state words.
    #[inline(always)]
    pub(super) fn of([a, b, c, d]: [[u64; HASHES]; STATE]) -> Self {
        Self([Words(a), Words(b), Words(c), Words(d)])
    }

    /// Absorbs one word of each.
    #[inline(always)]
    pub(super) fn word(self, word: [u64; HASHES]) -> Self {
        let (Self([a, b, c, d]), word) = (self, Words(word));
        let Self([a, b, c, d]) = Self([a, b, c, d.xor(word)]).round().round();
        Self([a.xor(word), b, c, d])
    }

    /// Absorbs several words of each.
    #[inline(always)]
    pub(super) fn words(mut self, words: impl IntoIterator<Item = [u64; HASHES]>) -> Self {
        for word in words {
            self = self.word(word);
        }
        self
    }

    /// The final hashes, after `bytes` bytes of each.
    #[inline(always)]
    pub(super) fn finish(self, bytes: u64) -> [u64; HASHES] {
        let Self([a, b, c, d]) = self.word([bytes << 56; HASHES]);
        let Self([a, b, c, d]) =
            Self([a, b, c.xor(Words([0xff; HASHES])), d]).round().round().round().round();
        a.xor(b).xor(c).xor(d).0
    }

    #[inline(always)]
    fn round(self) -> Self {
        let Self([mut a, mut b, mut c, mut d]) = self;
        a = a.add(b);
        b = b.rotate_left(13).xor(a);
        a = a.rotate_left(32);
        c = c.add(d);
        d = d.rotate_left(16).xor(c);
        a = a.add(d);
        d = d.rotate_left(21).xor(a);
        c = c.add(b);
        b = b.rotate_left(17).xor(c);
        c = c.rotate_left(32);
        Self([a, b, c, d])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's example has a key of two different words; these are the standard library's results.
    #[test]
    #[allow(deprecated, reason = "nothing else there is SipHash-2-4")]
    fn hashes_equal_the_standard_librarys() {
        use std::hash::{Hasher, SipHasher};
        for (seed, count) in [(1, 0), (0xdead_beef, 1), (7, 6), (u32::MAX, 9)] {
            let words = (0..count).map(|n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 3);
            let key = u64::from(seed) << 32 | u64::from(seed);
            let mut reference = SipHasher::new_with_keys(key, key);
            words.clone().for_each(|word| reference.write(&word.to_le_bytes()));
            let words = words.map(|word| [word]);
            assert_eq!(Sip::keyed(seed).words(words).finish(count * 8), [reference.finish()]);
        }
    }
}
