//! A one-word lock on a futex: no allocation, no registration, usable in a signal handler's caller.
//!
//! A lock that is held has the number of the holder's process, and the child of a fork has a number of its own. So a
//! lock that a thread of the parent held, which does not exist in the child, is as good as free there, and nobody has
//! to reset it.

use crate::thread_state::{self, Place};
use crate::{lock_rank, raw, time, visits};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, Ordering, compiler_fence};

const FREE: u32 = 0;
/// Bit of the word of a lock that is held: a thread may sleep on the word.
const CONTENDED: u32 = 1;
/// What the number of a process grows by in the child of a fork, so that it leaves the bit [`CONTENDED`] free.
const NEXT_PROCESS: u32 = 2;
/// In the place of a process's number: the holder goes on in the child of a fork.
const KEPT: u32 = !CONTENDED;

/// The number of this process, which none of its ancestors has. Written by [`begin_process`] alone, while there is one
/// thread.
static PROCESS: AtomicU32 = AtomicU32::new(NEXT_PROCESS);

#[inline]
fn process() -> u32 {
    // Relaxed: no other thread writes it.
    PROCESS.load(Ordering::Relaxed)
}

/// A mutual exclusion lock without data: the fields it protects are atomics used with `Relaxed`. [`crate::Locked`] has data
/// of its own. `RANK` is its place in the order in which a thread takes locks ([`crate::lock_rank`]). Zeroed memory is a
/// free lock.
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

    /// To be called in the child of a fork that a signal handler makes, before [`begin_process`]: the thread holds the
    /// lock, or waits for it, below the handler, and goes on in the child.
    pub(crate) fn keep_in_child(&self) {
        // Relaxed: there is one thread.
        if self.word.0.load(Ordering::Relaxed) != FREE {
            self.word.0.store(KEPT, Ordering::Relaxed);
        }
    }
}

/// Whether a word with this value can be taken: nobody holds the lock, or a thread of an ancestor does. `me` is the
/// number of this process.
#[inline]
fn is_free(word: u32, me: u32) -> bool {
    let holder = word & !CONTENDED;
    word == FREE || (holder != me && holder != KEPT)
}

/// The futex word of a lock: [`FREE`], or the number of the holder's process, with [`CONTENDED`] if a thread may sleep.
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
        match self.0.compare_exchange(FREE, process(), Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => true,
            Err(word) => self.take_over(word),
        }
    }

    /// Takes the lock if a thread of an ancestor holds it, with the value that was found. All threads of this process
    /// see what that thread had written until the fork.
    #[cold]
    fn take_over(&self, word: u32) -> bool {
        let me = process();
        is_free(word, me) && self.0.compare_exchange(word, me, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn lock_slow(&self) {
        for _ in 0..64 {
            core::hint::spin_loop();
            if is_free(self.0.load(Ordering::Relaxed), process()) && self.try_lock() {
                return;
            }
        }
        // From here on we take it as contended: we cannot know whether others sleep, so the unlock
        // wakes one too many at worst.
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            let me = process();
            let free = is_free(seen, me);
            let wanted = if free { me | CONTENDED } else { seen | CONTENDED };
            match self.0.compare_exchange(seen, wanted, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) if free => return,
                Ok(_) => {
                    raw::futex_wait(&self.0, wanted);
                    seen = self.0.load(Ordering::Relaxed);
                }
                Err(now) => seen = now,
            }
        }
    }

    #[inline]
    fn unlock(&self) {
        if self.0.swap(FREE, Ordering::Release) & CONTENDED != 0 {
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

/// To be called in the child of a fork, before its first lock: locks of the parent's threads are free, and this thread
/// holds none.
pub fn begin_process() {
    let me = process().wrapping_add(NEXT_PROCESS);
    // Neither of the two values that mean something else, after two thousand million generations.
    PROCESS.store(if me == FREE || me == KEPT { NEXT_PROCESS } else { me }, Ordering::Relaxed);
    thread_state::forget();
    visits::after_fork();
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

    /// Whether the locks that a process holds at a fork are as they should be in the child, where this is called.
    /// `waited_for` was marked as contended.
    fn are_free_in_child(locks: [&Lock<{ lock_rank::LEAF }>; 3], kept: &Lock<{ lock_rank::LEAF }>) -> bool {
        let [tried, locked, waited_for] = locks;
        let held = tried.try_lock().is_none() && interrupted();
        kept.keep_in_child();
        begin_process();
        let forgotten = !interrupted();
        let Some(guard) = tried.try_lock() else { return false };
        // Taken once, it excludes as ever.
        let excludes = tried.try_lock().is_none() && interrupted();
        drop(guard);
        let _all = (tried.lock(), locked.lock_out_of_order(), waited_for.lock_out_of_order());
        let all_held = locks.iter().all(|l| l.try_lock().is_none());
        held && forgotten && excludes && all_held && kept.try_lock().is_none()
    }

    #[test]
    #[allow(unsafe_code)]
    fn a_lock_of_the_parents_is_free_in_the_child() {
        let locks: [Lock<{ lock_rank::LEAF }>; 4] = Default::default();
        let [tried, locked, waited_for, kept] = &locks;
        let held = locks.each_ref().map(|l| l.lock_out_of_order());
        waited_for.word.0.fetch_or(CONTENDED, Ordering::Relaxed);
        let mut status = 0;
        // SAFETY: the child neither allocates nor locks anything but the locks of this test, and ends by _exit(2). It
        // is a process of its own, since the counts of all threads are forgotten, and other tests run meanwhile.
        let pid = unsafe {
            let pid = libc::fork();
            if pid == 0 {
                // In a debug build a lock of the same rank is not waited for.
                let free = are_free_in_child([tried, locked, waited_for], kept);
                libc::_exit(i32::from(!free));
            }
            libc::waitpid(pid, &raw mut status, 0)
        };
        assert!(pid > 0 && status == 0, "{status}");
        drop(held);
        assert!(locks.iter().all(|l| l.try_lock().is_some()), "the parent's are free again");
    }

    #[test]
    fn who_holds_a_lock_decides_whether_it_is_free() {
        for contended in [0, CONTENDED] {
            assert!(is_free(4 | contended, 6) && is_free(8 | contended, 6), "another process of the line");
            assert!(!is_free(6 | contended, 6) && !is_free(KEPT | contended, 6));
        }
        assert!(is_free(FREE, 6));
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
