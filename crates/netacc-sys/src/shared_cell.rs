//! A word that threads share without any ordering.

use crate::mem::Zeroed;
use core::fmt::{Debug, Formatter, Result};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A type whose values fit into one atomic.
pub trait Word: Copy + Debug {
    /// The atomic that has one.
    type Atomic: Sync;
}

/// A word that threads share, as [`Cell`](core::cell::Cell) is one of a single thread. Zeroed memory is a cell with zero.
///
/// Each access is relaxed: it orders nothing else that threads share. It is for a word that a lock guards and that threads
/// without the lock may look at, and for a word whose readers can do with an old value.
#[repr(transparent)]
pub struct SharedCell<T: Word>(T::Atomic);

// SAFETY: an atomic, of which zero is a value.
#[allow(unsafe_code)]
unsafe impl<T: Word> Zeroed for SharedCell<T> {}

macro_rules! words {
    ($($word:ty: $atomic:ty),*) => {$(
        impl Word for $word {
            type Atomic = $atomic;
        }

        impl SharedCell<$word> {
            /// A cell with this value.
            pub const fn new(value: $word) -> Self {
                SharedCell(<$atomic>::new(value))
            }

            /// The value.
            #[inline]
            pub fn get(&self) -> $word {
                self.0.load(Ordering::Relaxed)
            }

            /// Changes the value.
            #[inline]
            pub fn set(&self, value: $word) {
                self.0.store(value, Ordering::Relaxed);
            }

            /// Changes the value, and returns the one before. Under the lock that guards the word: it is two accesses.
            #[inline]
            pub fn replace(&self, value: $word) -> $word {
                let before = self.get();
                self.set(value);
                before
            }
        }

        impl Debug for SharedCell<$word> {
            fn fmt(&self, f: &mut Formatter<'_>) -> Result {
                self.get().fmt(f)
            }
        }

        impl Default for SharedCell<$word> {
            fn default() -> Self {
                SharedCell::<$word>::new(Default::default())
            }
        }
    )*};
}

words!(bool: AtomicBool, i32: AtomicI32, u32: AtomicU32, u64: AtomicU64, usize: AtomicUsize);

macro_rules! numbers {
    ($($word:ty),*) => {$(
        impl SharedCell<$word> {
            /// Adds to the value. Under the lock that guards the word: it is two accesses.
            #[inline]
            pub fn add(&self, by: $word) {
                self.set(self.get().wrapping_add(by));
            }

            /// Subtracts from the value. Under the lock that guards the word: it is two accesses.
            #[inline]
            pub fn subtract(&self, by: $word) {
                self.set(self.get().wrapping_sub(by));
            }
        }
    )*};
}

numbers!(u32, u64, usize);
