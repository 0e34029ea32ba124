//! Memory for shared tables: reserved as a whole, so that it never moves under a reader. The system
//! provides each page when it is first written.

#[cfg(loom)]
pub(crate) use loom_kind::{Aligned, zeroed};
#[cfg(not(loom))]
pub(crate) use plain::{Aligned, zeroed};

/// A value in cache lines of its own (two, because they are fetched in pairs). It separates what one
/// processor writes often from what others read in each turn.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Apart<T>(pub T);

impl<T> std::ops::Deref for Apart<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

#[cfg(not(loom))]
mod plain {
    use std::marker::PhantomData;

    use bytemuck::Zeroable;

    use crate::sync::AtomicU64;

    /// Allocates `count` zeroed items.
    pub(crate) fn zeroed<T: Zeroable>(count: usize) -> Box<[T]> {
        bytemuck::allocation::zeroed_slice_box(count)
    }

    /// Items that begin at a multiple of their size, such as a cache line.
    ///
    /// They are cut out of plain words. For an aligned allocation, the allocator would zero every page
    /// by hand, and all of it would occupy memory.
    pub(crate) struct Aligned<T> {
        words: Box<[AtomicU64]>,
        /// The index of the first item's first word.
        start: usize,
        count: usize,
        items: PhantomData<T>,
    }

    impl<T: Zeroable> Aligned<T> {
        /// Allocates `count` zeroed items.
        pub(crate) fn new(count: usize) -> Self {
            const { assert!(align_of::<T>() <= size_of::<T>()) };
            const { assert!(size_of::<T>().is_multiple_of(size_of::<AtomicU64>())) };
            // One more item, because the start is moved.
            let words = zeroed::<AtomicU64>((count + 1) * size_of::<T>() / size_of::<AtomicU64>());
            // The distance is a multiple of the words' alignment and less than one item.
            let start = words.as_ptr().align_offset(align_of::<T>());
            assert!(start <= size_of::<T>() / size_of::<AtomicU64>(), "memory can be aligned");
            Self { words, start, count, items: PhantomData }
        }

        /// The items.
        #[inline(always)]
        #[allow(unsafe_code)]
        pub(crate) fn get(&self) -> &[T] {
            // SAFETY: there are more words than `start`, which `new` has checked.
            let first = unsafe { self.words.as_ptr().add(self.start) };
            // SAFETY: `start` aligns it; `count` items from there lie in the words, which live as long
            // as self and are only ever used as `T`; they began as zeros, which `T` allows (`Zeroable`).
            unsafe { std::slice::from_raw_parts(first.cast::<T>(), self.count) }
        }
    }
}

/// Loom's atomics are not plain words.
#[cfg(loom)]
mod loom_kind {
    pub(crate) fn zeroed<T: Default>(count: usize) -> Box<[T]> {
        std::iter::repeat_with(T::default).take(count).collect()
    }

    pub(crate) struct Aligned<T>(Box<[T]>);

    impl<T: Default> Aligned<T> {
        pub(crate) fn new(count: usize) -> Self {
            Self(zeroed(count))
        }

        pub(crate) fn get(&self) -> &[T] {
            &self.0
        }
    }
}
