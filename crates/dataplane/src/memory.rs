//! Memory for shared tables: reserved as a whole, so that it never moves under a reader. The system
//! provides each page when it is first written. Tables that BPF programs read too lie in memory that is lent
//! ([`Lender`]).

mod lent;
#[cfg(all(test, not(loom)))]
mod tests;

pub use lent::{
    Capacities, Capacity, Lender, MOST_FDB_BUCKETS, MOST_GROUPS, MOST_NEXT_HOPS, Memory, Part,
    Words,
};
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
    use std::ptr::NonNull;

    use bytemuck::Zeroable;

    use super::{Memory, Part, Words};
    use crate::sync::AtomicU64;

    /// Allocates `count` zeroed items.
    pub(crate) fn zeroed<T: Zeroable>(count: usize) -> Box<[T]> {
        bytemuck::allocation::zeroed_slice_box(count)
    }

    /// Items that begin at a multiple of their size, such as a cache line, in memory that others may read too.
    ///
    /// They are cut out of plain words. For an aligned allocation, the allocator would zero every page
    /// by hand, and all of it would occupy memory.
    pub(crate) struct Aligned<T> {
        first: NonNull<T>,
        count: usize,
        /// What the items lie in.
        _words: Box<dyn Words>,
    }

    // SAFETY: the items lie in words that are `Send`; they are only ever used as `T`.
    #[allow(unsafe_code)]
    unsafe impl<T: Send> Send for Aligned<T> {}
    // SAFETY: as above; it only gives shared references to the items.
    #[allow(unsafe_code)]
    unsafe impl<T: Sync> Sync for Aligned<T> {}

    impl<T: Zeroable> Aligned<T> {
        /// Takes the memory of a part for `count` zeroed items.
        #[allow(unsafe_code)]
        pub(crate) fn new(memory: &Memory, part: Part, count: usize) -> Self {
            const { assert!(align_of::<T>() <= size_of::<T>()) };
            const WORD: usize = size_of::<AtomicU64>();
            let needed = (count * size_of::<T>()).div_ceil(WORD);
            let lent = memory.lend(part).filter(|lent| lent.words().len() >= needed);
            // One more item, because the start is moved.
            let words =
                lent.unwrap_or_else(|| Box::new(Own::new(needed + size_of::<T>().div_ceil(WORD))));
            let begin = NonNull::from(words.words()).cast::<AtomicU64>();
            // The distance is a multiple of the words' alignment; 0 where a page begins.
            let start = begin.as_ptr().align_offset(align_of::<T>());
            assert!(start <= words.words().len() - needed, "memory can be aligned");
            // SAFETY: there are more words than `start`, which was checked above.
            let first = unsafe { begin.add(start) }.cast::<T>();
            Self { first, count, _words: words }
        }

        /// The items.
        #[inline(always)]
        #[allow(unsafe_code)]
        pub(crate) const fn get(&self) -> &[T] {
            // SAFETY: `first` is aligned; `count` items from there lie in the words, which live as long
            // as self and are only ever used as `T`; they began as zeros, which `T` allows (`Zeroable`).
            unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
        }
    }

    /// Words of the process. A box would not allow the pointer to items in it beside itself.
    struct Own(NonNull<[AtomicU64]>);

    // SAFETY: the words are atomics, which belong to no thread.
    #[allow(unsafe_code)]
    unsafe impl Send for Own {}
    // SAFETY: as above.
    #[allow(unsafe_code)]
    unsafe impl Sync for Own {}

    impl Own {
        fn new(words: usize) -> Self {
            Self(NonNull::from(Box::leak(zeroed::<AtomicU64>(words))))
        }
    }

    impl Words for Own {
        #[allow(unsafe_code)]
        fn words(&self) -> &[AtomicU64] {
            // SAFETY: they live until self is dropped, and are atomics, so any thread may change them.
            unsafe { self.0.as_ref() }
        }
    }

    impl Drop for Own {
        #[allow(unsafe_code)]
        fn drop(&mut self) {
            // SAFETY: the pointer comes from a box that `Own::new` has leaked, and nothing else frees it.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }
}

/// Loom's atomics are not plain words.
#[cfg(loom)]
mod loom_kind {
    use super::{Memory, Part};

    pub(crate) fn zeroed<T: Default>(count: usize) -> Box<[T]> {
        std::iter::repeat_with(T::default).take(count).collect()
    }

    pub(crate) struct Aligned<T>(Box<[T]>);

    impl<T: Default> Aligned<T> {
        pub(crate) fn new(_: &Memory, _: Part, count: usize) -> Self {
            Self(zeroed(count))
        }

        pub(crate) fn get(&self) -> &[T] {
            &self.0
        }
    }
}
