//! A one-word lock on a futex: no allocation, no registration, usable in a signal handler's caller,
//! and resettable in the child of a fork, where the thread that held it no longer exists.

use crate::thread_state::{self, Place};
use crate::{raw, time};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, Ordering, compiler_fence};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// The lock is held, and a thread may sleep on the word.
const CONTENDED: u32 = 2;

/// A mutual exclusion lock without data: the fields it protects are atomics used with `Relaxed`.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Lock {
    word: AtomicU32,
}

impl Lock {
    /// A free lock.
    pub const fn new() -> Lock {
        Lock { word: AtomicU32::new(FREE) }
    }

    /// Takes the lock, sleeping in the kernel if another thread keeps it.
    #[inline]
    pub fn lock(&self) -> Guard<'_> {
        let held = Held::one_more();
        // Acquire pairs with the Release in `unlock`: we see what the last holder wrote.
        if self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_slow();
        }
        Guard { lock: self, held }
    }

    /// Takes the lock only if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_>> {
        let held = Held::one_more();
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(Guard { lock: self, held })
    }

    /// Takes the lock as [`Lock::lock`] does, but gives up after about `patience` ns: for a caller that cannot rule out
    /// that the holder waits for it.
    #[cold]
    pub fn lock_within(&self, patience: u64) -> Option<Guard<'_>> {
        let until = time::now().saturating_add(patience);
        let mut looks = 0;
        loop {
            if let Some(guard) = self.try_lock() {
                return Some(guard);
            }
            if time::now() > until {
                return None;
            }
            looks += 1;
            if looks < 1_000 {
                raw::sched_yield();
            } else {
                time::pause();
            }
        }
    }

    #[cold]
    fn lock_slow(&self) {
        for _ in 0..64 {
            core::hint::spin_loop();
            if self.word.load(Ordering::Relaxed) == FREE
                && self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
        }
        // From here on we take it as CONTENDED: we cannot know whether others sleep, so the unlock
        // wakes one too many at worst.
        while self.word.swap(CONTENDED, Ordering::Acquire) != FREE {
            raw::futex_wait(&self.word, CONTENDED);
        }
    }

    /// The guard of a lock that this thread holds and whose guard it has forgotten ([`core::mem::forget`]).
    pub fn regain(&self) -> Guard<'_> {
        Guard { lock: self, held: Held::forgotten() }
    }

    #[inline]
    fn unlock(&self) {
        if self.word.swap(FREE, Ordering::Release) == CONTENDED {
            raw::futex_wake(&self.word, 1);
        }
    }

    /// Frees a lock that this thread has kept by [`Guard::keep_uncounted`].
    pub(crate) fn release_uncounted(&self) {
        self.unlock();
    }

    /// Frees the lock, whichever thread held it. Only for the child of a fork, which has a single thread.
    pub fn reset(&self) {
        // The word is read first: hardly any lock is held, and every page that the child writes to is copied.
        if self.word.load(Ordering::Relaxed) != FREE {
            self.word.store(FREE, Ordering::Relaxed);
        }
    }
}

/// Frees the lock when dropped.
#[derive(Debug)]
pub struct Guard<'a> {
    lock: &'a Lock,
    /// Dropped after the lock is freed.
    #[expect(dead_code, reason = "counts as long as it lives")]
    held: Held,
}

/// One lock that the thread holds, or something that counts as one. It must not be sent to another thread.
#[derive(Debug)]
pub struct Held {
    place: Place,
    /// Not `Send`.
    of_thread: PhantomData<*const ()>,
}

impl Held {
    /// Guard during whose life [`interrupted`] is true for the thread.
    #[inline]
    pub fn one_more() -> Held {
        let place = thread_state::enter();
        // The compiler must not move the lock before this: a handler that comes in between sees one lock too many.
        compiler_fence(Ordering::SeqCst);
        Held { place, of_thread: PhantomData }
    }

    /// The count of a lock that was counted before and whose guard was forgotten.
    fn forgotten() -> Held {
        Held { place: thread_state::entered(), of_thread: PhantomData }
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        thread_state::leave(self.place);
    }
}

/// Whether the thread holds a lock of ours: true in a signal handler that interrupted it there, in which nothing may be
/// done that takes another lock.
#[inline]
pub fn interrupted() -> bool {
    thread_state::count() != 0
}

/// A multiple of 8 below 2^48 that stands for the calling thread as long as it lives.
#[inline]
pub fn thread_mark() -> u64 {
    thread_state::thread_pointer() as u64 & !7
}

/// For the child of a fork, which holds none.
pub fn forget_held() {
    thread_state::forget();
}

impl Guard<'_> {
    /// Keeps the lock until [`Lock::release_uncounted`], without counting it for the thread any longer.
    pub(crate) fn keep_uncounted(self) {
        core::mem::forget(self);
        drop(Held::forgotten());
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.lock.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn excludes() {
        let l = Arc::new((Lock::new(), AtomicU64::new(0)));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let l = l.clone();
                std::thread::spawn(move || {
                    for _ in 0..20_000 {
                        let _g = l.0.lock();
                        // A plain load and store: loses counts unless the lock excludes.
                        l.1.store(l.1.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for t in threads {
            t.join().unwrap();
        }
        assert_eq!(l.1.load(Ordering::Relaxed), 80_000);
    }

    /// Whether a lock that is held during a fork can be taken again after it was reset.
    fn is_free_after_reset() -> bool {
        let l = Lock::new();
        let Some(g) = l.try_lock() else { return false };
        let held = l.try_lock().is_none() && interrupted();
        core::mem::forget(g);
        l.reset();
        forget_held();
        held && !interrupted() && l.try_lock().is_some()
    }

    #[test]
    #[allow(unsafe_code)]
    fn try_lock_and_reset() {
        let mut status = 0;
        // SAFETY: the child neither allocates nor locks anything but a lock of its own, and ends by _exit(2). It is a process
        // of its own, since the counts of all threads are forgotten, and other tests run meanwhile.
        let pid = unsafe {
            let pid = libc::fork();
            if pid == 0 {
                libc::_exit(i32::from(!is_free_after_reset()));
            }
            libc::waitpid(pid, &raw mut status, 0)
        };
        assert!(pid > 0 && status == 0, "{status}");
    }

    #[test]
    fn a_forgotten_guard_is_regained() {
        let l = Lock::new();
        core::mem::forget(l.lock());
        let guard = l.regain();
        assert!(interrupted() && l.try_lock().is_none());
        drop(guard);
        assert!(!interrupted() && l.try_lock().is_some());
    }

    #[test]
    fn waits_no_longer_than_told() {
        let l = Arc::new(Lock::new());
        let g = l.lock_within(0).unwrap();
        assert!(l.lock_within(0).is_none() && l.lock_within(2_000_000).is_none());
        let other = l.clone();
        let waits = std::thread::spawn(move || other.lock_within(u64::MAX).is_some());
        drop(g);
        assert!(waits.join().unwrap());
    }
}
