//! A one-word lock on a futex: no allocation, no registration, usable in a signal handler's caller,
//! and resettable in the child of a fork, where the thread that held it no longer exists.

use crate::thread_state::{self, Place};
use crate::{lock_rank, raw, time};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, Ordering, compiler_fence};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// The lock is held, and a thread may sleep on the word.
const CONTENDED: u32 = 2;

/// A mutual exclusion lock without data: the fields it protects are atomics used with `Relaxed`. `RANK` is its place in
/// the order in which a thread takes locks ([`crate::lock_rank`]). Zeroed memory is a free lock.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Lock<const RANK: u8> {
    word: Word,
}

impl<const RANK: u8> Lock<RANK> {
    /// A free lock.
    pub const fn new() -> Self {
        Lock { word: Word(AtomicU32::new(FREE)) }
    }

    /// Takes the lock, sleeping in the kernel if another thread keeps it. A debug build panics if the thread holds a
    /// lock that comes after this one in the order: two threads that took them in different orders would wait for each
    /// other.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> Guard<'_> {
        #[cfg(debug_assertions)]
        lock_rank::check(RANK, thread_state::highest_rank());
        self.lock_out_of_order()
    }

    /// Takes the lock as [`Lock::lock`] does, whatever locks the thread holds. The caller says why no thread that holds
    /// this lock can be waiting for one of those.
    #[inline]
    pub fn lock_out_of_order(&self) -> Guard<'_> {
        let held = Held::of_rank(RANK);
        self.word.lock();
        Guard { word: &self.word, held }
    }

    /// Takes the lock only if it is free. It may be taken in any order, since nobody waits.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_>> {
        let held = Held::of_rank(RANK);
        self.word.try_lock().then(|| Guard { word: &self.word, held })
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

    /// The guard of a lock that this thread holds and whose guard it has forgotten ([`core::mem::forget`]).
    pub fn regain(&self) -> Guard<'_> {
        Guard { word: &self.word, held: Held::forgotten(RANK) }
    }

    /// Frees a lock that this thread has kept by [`Guard::keep_uncounted`].
    pub(crate) fn release_uncounted(&self) {
        self.word.unlock();
    }

    /// Frees the lock, whichever thread held it. Only for the child of a fork, which has a single thread.
    pub fn reset(&self) {
        // The word is read first: hardly any lock is held, and every page that the child writes to is copied.
        if self.word.0.load(Ordering::Relaxed) != FREE {
            self.word.0.store(FREE, Ordering::Relaxed);
        }
    }
}

/// The futex word of a lock: [`FREE`], [`HELD`] or [`CONTENDED`].
#[repr(transparent)]
#[derive(Debug, Default)]
struct Word(AtomicU32);

impl Word {
    #[inline]
    fn lock(&self) {
        if !self.try_lock() {
            self.lock_slow();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        // Acquire pairs with the Release in `unlock`: we see what the last holder wrote.
        self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn lock_slow(&self) {
        for _ in 0..64 {
            core::hint::spin_loop();
            if self.0.load(Ordering::Relaxed) == FREE && self.try_lock() {
                return;
            }
        }
        // From here on we take it as CONTENDED: we cannot know whether others sleep, so the unlock
        // wakes one too many at worst.
        while self.0.swap(CONTENDED, Ordering::Acquire) != FREE {
            raw::futex_wait(&self.0, CONTENDED);
        }
    }

    #[inline]
    fn unlock(&self) {
        if self.0.swap(FREE, Ordering::Release) == CONTENDED {
            raw::futex_wake(&self.0, 1);
        }
    }
}

/// Frees the lock when dropped.
#[derive(Debug)]
pub struct Guard<'a> {
    word: &'a Word,
    /// Dropped after the lock is freed.
    held: Held,
}

/// One lock that the thread holds, or something that counts as one. It must not be sent to another thread.
#[derive(Debug)]
pub struct Held {
    place: Place,
    #[cfg(debug_assertions)]
    rank: u8,
    /// Not `Send`.
    of_thread: PhantomData<*const ()>,
}

impl Held {
    /// Guard during whose life [`interrupted`] is true for the thread.
    #[inline]
    pub fn one_more() -> Held {
        Held::of_rank(lock_rank::NONE)
    }

    #[inline]
    fn of_rank(rank: u8) -> Held {
        let place = thread_state::enter();
        #[cfg(debug_assertions)]
        place.iter().for_each(|count| count.add_rank(rank));
        // The compiler must not move the lock before this: a handler that comes in between sees one lock too many.
        compiler_fence(Ordering::SeqCst);
        Held::at(place, rank)
    }

    /// The count of a lock of this rank that was counted before and whose guard was forgotten.
    fn forgotten(rank: u8) -> Held {
        Held::at(thread_state::entered(), rank)
    }

    #[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "only debug builds know the ranks"))]
    #[inline]
    fn at(place: Place, rank: u8) -> Held {
        Held {
            place,
            #[cfg(debug_assertions)]
            rank,
            of_thread: PhantomData,
        }
    }

    fn rank(&self) -> u8 {
        #[cfg(debug_assertions)]
        return self.rank;
        #[cfg(not(debug_assertions))]
        lock_rank::NONE
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        #[cfg(debug_assertions)]
        self.place.iter().for_each(|count| count.drop_rank(self.rank()));
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
        let rank = self.held.rank();
        core::mem::forget(self);
        drop(Held::forgotten(rank));
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.word.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn excludes() {
        let l = Arc::new((Lock::<{ lock_rank::LEAF }>::new(), AtomicU64::new(0)));
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
        let l = Lock::<{ lock_rank::LEAF }>::new();
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
        // SAFETY: the child neither allocates nor locks anything but a lock of its own, and ends by _exit(2). It is a
        // process of its own, since the counts of all threads are forgotten, and other tests run meanwhile.
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
        let l = Lock::<{ lock_rank::LEAF }>::new();
        core::mem::forget(l.lock());
        let guard = l.regain();
        assert!(interrupted() && l.try_lock().is_none());
        drop(guard);
        assert!(!interrupted() && l.try_lock().is_some());
    }

    #[test]
    fn waits_no_longer_than_told() {
        let l = Arc::new(Lock::<{ lock_rank::LEAF }>::new());
        let g = l.lock_within(0).unwrap();
        assert!(l.lock_within(0).is_none() && l.lock_within(2_000_000).is_none());
        let other = l.clone();
        let waits = std::thread::spawn(move || other.lock_within(u64::MAX).is_some());
        drop(g);
        assert!(waits.join().unwrap());
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_lower_rank_is_not_waited_for() {
        let (rx, tx) = (Lock::<{ lock_rank::RX }>::new(), Lock::<{ lock_rank::TX }>::new());
        let in_order = (rx.lock(), tx.lock());
        drop(in_order);
        let held = tx.lock();
        assert!(rx.try_lock().is_some(), "nobody waits where a lock is only tried");
        assert!(std::panic::catch_unwind(|| rx.lock()).is_err());
        drop(held);
        drop(rx.lock());
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_forgotten_guard_keeps_its_rank() {
        let (rx, tx) = (Lock::<{ lock_rank::RX }>::new(), Lock::<{ lock_rank::TX }>::new());
        core::mem::forget(tx.lock());
        assert!(std::panic::catch_unwind(|| rx.lock()).is_err());
        drop(tx.regain());
        drop(rx.lock());
    }
}
