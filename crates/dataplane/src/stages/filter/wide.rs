//! Operations on eight words, or ranges of sixteen values, at once, with the available instructions.

use super::bits::{BLOCK, Block};
use crate::burst::BURST;

/// The number of ranges that are compared at once.
pub(super) const SIDE: usize = 16;

/// Ranges of a field's values.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Side {
    first: [u32; SIDE],
    /// The greatest value less the least.
    span: [u32; SIDE],
}

impl Side {
    /// The ranges with these ends, at most [`SIDE`]; the others have one value each.
    pub(super) fn of(ends: impl Iterator<Item = (u32, u32)>) -> Self {
        let mut side = Self { first: [0; SIDE], span: [0; SIDE] };
        for (place, (first, last)) in ends.take(SIDE).enumerate() {
            side.first[place] = first;
            side.span[place] = last - first;
        }
        side
    }

    /// A bit for each range that has the value.
    #[inline(always)]
    pub(super) fn hits(&self, value: u32) -> u32 {
        let mut hits = 0;
        for place in 0..SIDE {
            let has = value.wrapping_sub(self.first[place]) <= self.span[place];
            hits |= u32::from(has) << place;
        }
        hits
    }
}

/// A block in registers.
pub(super) trait Wide: Copy {
    /// Reads it.
    fn load(block: &Block) -> Self;
    /// The intersection of both.
    fn and(self, other: Self) -> Self;
    /// A bit for each word that is not zero.
    fn nonzero(self) -> u32;
    /// Writes it.
    fn store(self, block: &mut Block);
    /// A bit for each place at which all sides have a packet's value, field by field.
    fn hits(sides: &[Side], values: &[[u32; BURST]], lane: usize) -> u32;
    /// A bit for each packet whose set has this rule.
    fn with_bit(sets: &[u64; BURST], rule: usize) -> u64;
    /// A bit for each packet that has this number.
    fn equal(numbers: &[u32; BURST], number: u32) -> u64;
}

/// Plain words, which the compiler vectorises.
#[derive(Clone, Copy)]
pub(super) struct Words(Block);

impl Wide for Words {
    #[inline(always)]
    fn load(block: &Block) -> Self {
        Self(*block)
    }

    #[inline(always)]
    fn and(mut self, other: Self) -> Self {
        for word in 0..BLOCK {
            self.0[word] &= other.0[word];
        }
        self
    }

    #[inline(always)]
    fn nonzero(self) -> u32 {
        let mut bits = 0;
        for (index, word) in self.0.iter().enumerate() {
            bits |= u32::from(*word != 0) << index;
        }
        bits
    }

    #[inline(always)]
    fn store(self, block: &mut Block) {
        *block = self.0;
    }

    #[inline(always)]
    fn hits(sides: &[Side], values: &[[u32; BURST]], lane: usize) -> u32 {
        let mut hits = u32::MAX;
        for (side, values) in sides.iter().zip(values) {
            hits &= side.hits(values[lane & (BURST - 1)]);
        }
        hits
    }

    #[inline(always)]
    fn with_bit(sets: &[u64; BURST], rule: usize) -> u64 {
        let mut lanes = 0;
        for (lane, set) in sets.iter().enumerate() {
            lanes |= (set >> rule & 1) << lane;
        }
        lanes
    }

    #[inline(always)]
    fn equal(numbers: &[u32; BURST], number: u32) -> u64 {
        let mut lanes = 0;
        for (lane, other) in numbers.iter().enumerate() {
            lanes |= u64::from(*other == number) << lane;
        }
        lanes
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use avx512::Avx512;

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use core::arch::x86_64::{
        __m512i, _mm512_and_si512, _mm512_cmpeq_epi32_mask, _mm512_loadu_si512,
        _mm512_mask_cmple_epu32_mask, _mm512_set1_epi32, _mm512_storeu_si512, _mm512_sub_epi32,
        _mm512_test_epi64_mask,
    };

    use super::{BLOCK, BURST, Block, SIDE, Side, Wide};

    /// One register of AVX-512. Only the loops built for these instructions use it, and they only run
    /// on machines that support them.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx512(__m512i);

    #[allow(unsafe_code)]
    impl Wide for Avx512 {
        #[inline(always)]
        fn load(block: &Block) -> Self {
            // SAFETY: the machine has AVX-512F, see above; 64 bytes can be read there.
            Self(unsafe { _mm512_loadu_si512(block.as_ptr().cast()) })
        }

        #[inline(always)]
        fn and(self, other: Self) -> Self {
            // SAFETY: the machine has AVX-512F, see above.
            Self(unsafe { _mm512_and_si512(self.0, other.0) })
        }

        #[inline(always)]
        fn nonzero(self) -> u32 {
            // SAFETY: the machine has AVX-512F, see above.
            u32::from(unsafe { _mm512_test_epi64_mask(self.0, self.0) })
        }

        #[inline(always)]
        fn store(self, block: &mut Block) {
            // SAFETY: the machine has AVX-512F, see above; 64 bytes can be written there.
            unsafe { _mm512_storeu_si512(block.as_mut_ptr().cast(), self.0) }
        }

        #[inline(always)]
        fn hits(sides: &[Side], values: &[[u32; BURST]], lane: usize) -> u32 {
            let mut hits = u16::MAX;
            for (side, values) in sides.iter().zip(values) {
                let value = set(values[lane & (BURST - 1)]);
                hits = within(hits, value, load(&side.first), load(&side.span));
            }
            hits.into()
        }

        #[inline(always)]
        fn with_bit(sets: &[u64; BURST], rule: usize) -> u64 {
            let mut bit = [0; BLOCK];
            bit.fill(1 << rule);
            let bit = Self::load(&bit);
            let (blocks, _) = sets.as_chunks();
            let lanes =
                |(place, block)| u64::from(Self::load(block).and(bit).nonzero()) << (place * BLOCK);
            blocks.iter().enumerate().map(lanes).fold(0, |all, lanes| all | lanes)
        }

        #[inline(always)]
        fn equal(numbers: &[u32; BURST], number: u32) -> u64 {
            let (sides, _) = numbers.as_chunks();
            let lanes = |(place, side)| u64::from(same(load(side), set(number))) << (place * SIDE);
            sides.iter().enumerate().map(lanes).fold(0, |all, lanes| all | lanes)
        }
    }

    /// The value, at every place.
    #[inline(always)]
    #[allow(unsafe_code)]
    fn set(value: u32) -> __m512i {
        // SAFETY: the machine has AVX-512F, see above.
        unsafe { _mm512_set1_epi32(value.cast_signed()) }
    }

    #[inline(always)]
    #[allow(unsafe_code)]
    fn load(words: &[u32; SIDE]) -> __m512i {
        // SAFETY: the machine has AVX-512F, see above; 64 bytes can be read there.
        unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
    }

    /// A bit for each place at which both have the same value.
    #[inline(always)]
    #[allow(unsafe_code)]
    fn same(left: __m512i, right: __m512i) -> u16 {
        // SAFETY: the machine has AVX-512F, see above.
        unsafe { _mm512_cmpeq_epi32_mask(left, right) }
    }

    /// Those of the hits at which a range has the value.
    #[inline(always)]
    #[allow(unsafe_code)]
    fn within(hits: u16, value: __m512i, first: __m512i, span: __m512i) -> u16 {
        // SAFETY: the machine has AVX-512F, see above.
        let above = unsafe { _mm512_sub_epi32(value, first) };
        // SAFETY: the machine has AVX-512F, see above.
        unsafe { _mm512_mask_cmple_epu32_mask(hits, above, span) }
    }
}
