//! Detection of wide instructions, once at start, and prefetch.

/// The instruction sets that the path is built for (x86-64 psABI levels).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The instructions of every machine that the binary runs on.
    Baseline,
    /// x86-64-v3: AVX2, BMI2.
    V3,
    /// x86-64-v4: AVX-512 F, BW, CD, DQ, VL.
    V4,
}

impl Level {
    /// The widest level that this machine has.
    #[must_use]
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let v3 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("lzcnt")
                && is_x86_feature_detected!("movbe")
                && is_x86_feature_detected!("popcnt");
            let v4 = v3
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512cd")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            match (v3, v4) {
                (true, true) => Self::V4,
                (true, false) => Self::V3,
                _ => Self::Baseline,
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            Self::Baseline
        }
    }
}

/// Prefetches the cache line at `pointer`; nothing is read, so any pointer is valid.
#[inline(always)]
#[allow(unsafe_code)]
pub fn prefetch<T>(pointer: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch faults on no address and changes nothing except caches.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(pointer.cast()) }
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _ = pointer;
}

/// Prefetches the cache line at `pointer` into the second-level cache; nothing is read, so any pointer is valid.
///
/// The first level can wait for few lines at once (some 20 on Zen 4), and ignores [`prefetch`] for more.
#[inline(always)]
#[allow(unsafe_code)]
pub fn prefetch_second_level<T>(pointer: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use core::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a prefetch faults on no address and changes nothing except caches.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(pointer.cast()) }
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _ = pointer;
}
