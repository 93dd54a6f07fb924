//! A lock that owns the data it guards, so that only the thread that holds it can name them.
//!
//! # Safety
//! The data are reached by a guard alone, and one thread at a time has one.
#![allow(unsafe_code)]

use crate::lock::{Guard, Lock};
use core::cell::UnsafeCell;
use core::fmt::{Debug, Formatter, Result};
use core::ops::{Deref, DerefMut};

/// A [`Lock`] and the data that it guards.
///
/// A lock that a thread of the parent held is free in the child of a fork, where the data may be as that thread left them:
/// some of their words old, the others new. Plain words are best of which every such mixture is valid. Data that own memory are
/// forgotten in the child before anything looks at them.
#[repr(C)]
pub struct Locked<const RANK: u8, T> {
    lock: Lock<RANK>,
    data: UnsafeCell<T>,
}

// SAFETY: the lock gives the data to one thread at a time (the module's safety note), and they may go to another thread.
unsafe impl<const RANK: u8, T: Send> Sync for Locked<RANK, T> {}

impl<const RANK: u8, T: Send> Locked<RANK, T> {
    /// A free lock with these data.
    pub const fn new(data: T) -> Self {
        Locked { lock: Lock::new(), data: UnsafeCell::new(data) }
    }

    /// Takes the lock as [`Lock::lock`] does.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> LockedGuard<'_, T> {
        LockedGuard { data: &self.data, _lock: self.lock.lock() }
    }

    /// Takes the lock only if it is free, as [`Lock::try_lock`] does.
    #[inline]
    pub fn try_lock(&self) -> Option<LockedGuard<'_, T>> {
        self.lock.try_lock().map(|lock| LockedGuard { data: &self.data, _lock: lock })
    }
}

impl<const RANK: u8, T> Debug for Locked<RANK, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Locked").field("lock", &self.lock).finish_non_exhaustive()
    }
}

/// The data of a lock that the thread holds; frees the lock when dropped.
#[derive(Debug)]
pub struct LockedGuard<'a, T> {
    /// No reference to the data, which another thread may have before the fields of a guard that is dropped are gone.
    data: &'a UnsafeCell<T>,
    _lock: Guard<'a>,
}

impl<T> Deref for LockedGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the thread holds the lock, and changes the data only by this guard, which is borrowed.
        unsafe { &*self.data.get() }
    }
}

impl<T> DerefMut for LockedGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the thread holds the lock, and reaches the data only by this guard, which is borrowed for it alone.
        unsafe { &mut *self.data.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock_rank;

    #[test]
    fn no_change_is_lost() {
        let count = Locked::<{ lock_rank::LEAF }, u64>::new(0);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..20_000).for_each(|_| *count.lock() += 1));
            }
        });
        let held = count.lock();
        assert!(*held == 80_000 && count.try_lock().is_none());
        drop(held);
        assert_eq!(count.try_lock().map(|count| *count), Some(80_000));
    }
}
