//! Operations on eight words at once, with the available instructions.

use super::bits::{BLOCK, Block};

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
}

#[cfg(target_arch = "x86_64")]
pub(super) use avx512::Avx512;

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use core::arch::x86_64::{
        __m512i, _mm512_and_si512, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_test_epi64_mask,
    };

    use super::{Block, Wide};

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
    }
}
