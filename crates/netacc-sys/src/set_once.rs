//! A value that is set once and read from then on.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};

const EMPTY: u32 = 0;
const BEING_SET: u32 = 1;
const SET: u32 = 2;

/// A place for a value that the first one to set it decides. It never waits: while a thread sets the value, others find
/// none.
#[derive(Debug)]
pub struct SetOnce<T: Copy> {
    state: AtomicU32,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the value is written by the one thread that has changed the state from `EMPTY`, and read once the state is
// `SET`.
unsafe impl<T: Copy + Send + Sync> Sync for SetOnce<T> {}

impl<T: Copy> SetOnce<T> {
    /// No value yet.
    #[allow(clippy::new_without_default, reason = "made in statics")]
    pub const fn new() -> SetOnce<T> {
        SetOnce { state: AtomicU32::new(EMPTY), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// Sets the value, unless one was set before.
    pub fn set(&self, value: T) {
        if self.state.compare_exchange(EMPTY, BEING_SET, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            // SAFETY: no other thread gets here, and none reads before the state is `SET`.
            unsafe { (*self.value.get()).write(value) };
            // Release: a thread that sees the state sees the value.
            self.state.store(SET, Ordering::Release);
        }
    }

    /// The value, once it is set.
    #[inline]
    pub fn get(&self) -> Option<T> {
        // SAFETY: set, and not written any more.
        (self.state.load(Ordering::Acquire) == SET).then(|| unsafe { (*self.value.get()).assume_init() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_stays() {
        static PLACE: SetOnce<u32> = SetOnce::new();
        assert_eq!(PLACE.get(), None);
        PLACE.set(1);
        PLACE.set(2);
        assert_eq!(PLACE.get(), Some(1));
    }
}
