//! Which threads are inside the library, so that it can be replaced while the process runs (`netacc_ctl upgrade`).
//!
//! Each intercepted call that does more than pass on is a [`Visit`]. A thread counts its own visits, in its line of
//! [`crate::thread_state`], without locked instructions: what would order them with the thread that closes the library
//! is done by that thread alone, for all others (membarrier(2)).
//!
//! The word that says what threads may do is a [`State`].

use crate::errno::Result;
use crate::thread_state::{self, Count, Place};
use crate::{delivery, raw, time};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, compiler_fence};

/// What threads may do that come in. The order counts: from [`State::Closed`] on none comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
#[repr(u32)]
enum State {
    /// Calls go on as always.
    Open = 0,
    /// The threads inside come out, and the first one that does closes the library. Sleeps end.
    Leaving = 1,
    /// A thread that comes in waits until the library is open again, and then makes its call anew: the library may be
    /// another one by then. A thread that is inside already, in a signal handler that has interrupted a call of ours, is
    /// not kept: the one that has closed the library waits for it.
    Closed = 2,
    /// Another copy of the library has taken this one's place. A call that still comes here, since its thread had looked up
    /// the way before, is made anew.
    Replaced = 3,
}

/// Allowed transitions, with what causes each.
const TRANSITIONS: &[(State, State, &str)] = &[
    (State::Open, State::Leaving, "everything is on the kernel"),
    (State::Leaving, State::Closed, "a thread is out"),
    (State::Leaving, State::Open, "the child of a fork, which nobody has asked"),
    (State::Closed, State::Open, "a thread stays inside, or something else stands in the way"),
    (State::Closed, State::Replaced, "the other copy has begun"),
];

/// A [`State`], as a number on which threads can sleep.
static STATE: AtomicU32 = AtomicU32::new(State::Open as u32);

/// Changes the state. False: it is another one than `from`.
fn change(from: State, to: State) -> bool {
    debug_assert!(TRANSITIONS.iter().any(|(a, b, _)| (*a, *b) == (from, to)), "{from:?} does not become {to:?}");
    // SeqCst: a thread counts its visit and then loads the state, and the one that closes the library does the opposite. On
    // success it is a release as well: a thread that sees the new state sees what was done before.
    STATE.compare_exchange(from as u32, to as u32, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

/// Thread pointer of the thread that has closed the library; 0: none.
static CLOSER: AtomicUsize = AtomicUsize::new(0);

/// Number of visits of threads that have no line.
static WITHOUT_LINE: AtomicU32 = AtomicU32::new(0);

/// What a thread does that leaves while the state is [`State::Leaving`].
static ON_LEAVING: AtomicPtr<fn()> = AtomicPtr::new(core::ptr::null_mut());

/// A thread is inside the library, until this is dropped.
#[derive(Debug)]
pub struct Visit {
    place: Place,
}

/// What a thread may do that calls the library.
#[derive(Debug)]
pub enum Admission {
    /// It is inside.
    Inside(Visit),
    /// It has waited while the library was closed. The call is to be made anew.
    Anew,
    /// It is the thread that has closed the library, which calls the kernel alone.
    Closer,
}

impl Visit {
    /// Begins a call of the library.
    #[inline(always)]
    pub fn begin() -> Admission {
        let visit = Visit { place: thread_state::own_line() };
        match visit.place {
            // Only the thread itself writes the number, and a handler that comes in between leaves it as it was.
            Some(count) => count.set_visits(count.visits().wrapping_add(1)),
            None => {
                WITHOUT_LINE.fetch_add(1, Ordering::SeqCst);
            }
        }
        // The number is stored before the state is loaded. `close` orders the two for the processor.
        compiler_fence(Ordering::SeqCst);
        if STATE.load(Ordering::Relaxed) >= State::Closed as u32 { visit.kept_out() } else { Admission::Inside(visit) }
    }

    #[cold]
    #[inline(never)]
    fn kept_out(self) -> Admission {
        if self.number() > 1 {
            return Admission::Inside(self);
        }
        let closer = CLOSER.load(Ordering::Relaxed) == thread_state::thread_pointer();
        self.end();
        core::mem::forget(self);
        delivery::deliver_here();
        if closer {
            return Admission::Closer;
        }
        while STATE.load(Ordering::Acquire) == State::Closed as u32 {
            raw::futex_wait(&STATE, State::Closed as u32);
        }
        Admission::Anew
    }

    fn number(&self) -> u32 {
        self.place.map_or(1, Count::visits)
    }

    #[inline(always)]
    fn end(&self) {
        // What the visit has done is done before it is counted as ended.
        compiler_fence(Ordering::SeqCst);
        match self.place {
            Some(count) => count.set_visits(count.visits().wrapping_sub(1)),
            // In the child of a fork the number has begun anew.
            None => {
                let _ = WITHOUT_LINE.fetch_update(Ordering::SeqCst, Ordering::Relaxed, |n| n.checked_sub(1));
            }
        }
    }
}

impl Drop for Visit {
    #[inline(always)]
    fn drop(&mut self) {
        self.end();
        if let Some(count) = self.place.filter(|count| count.is_due()) {
            delivery::deliver(count);
        }
        if STATE.load(Ordering::Relaxed) == State::Leaving as u32 {
            left(self.place);
        }
    }
}

#[cold]
#[inline(never)]
fn left(place: Place) {
    #[allow(unsafe_code)]
    // SAFETY: null or a function in static memory. Acquire pairs with `on_leaving`.
    let Some(work) = (unsafe { ON_LEAVING.load(Ordering::Acquire).as_ref() }) else { return };
    // The thread may be in a handler that has interrupted a call. Then the library stays as it is; but somebody has to say
    // so, for after a jump out of such a handler no call of the thread would be made before that.
    if place.is_none_or(Count::may_be_out) {
        work();
    }
}

/// The visits of a thread that [`end_all`] has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    visits: u32,
    open_at: u32,
}

/// Ends all visits of the calling thread, which is about to end inside a call. Returns what there was, for [`resume`].
pub fn end_all() -> Ended {
    thread_state::entered().map_or(Ended { visits: 0, open_at: 0 }, |count| {
        let ended = Ended { visits: count.visits(), open_at: count.open_at() };
        // A handler that comes in between is kept.
        count.set_open_at(0);
        compiler_fence(Ordering::SeqCst);
        count.set_visits(0);
        ended
    })
}

/// Undoes [`end_all`] for a thread that goes on all the same.
pub fn resume(ended: Ended) {
    if let Some(count) = thread_state::entered() {
        count.set_visits(ended.visits);
        compiler_fence(Ordering::SeqCst);
        count.set_open_at(ended.open_at);
    }
}

/// Makes a call of libc's in which the thread may sleep, and in which handlers run: it holds nothing of ours but its visit.
pub fn with_handlers<T>(call: impl FnOnce() -> T) -> T {
    let Some(count) = thread_state::entered() else { return call() };
    // A handler that leaves the call by a jump leaves this as it is: the visit does not end, and keeps no handler out.
    let before = count.open_at();
    let visits = count.visits();
    count.set_open_at(visits);
    compiler_fence(Ordering::SeqCst);
    if count.is_due() {
        delivery::deliver(count);
    }
    let result = call();
    // A visit that a jump out of a handler has left open is over.
    count.set_visits(visits);
    compiler_fence(Ordering::SeqCst);
    count.set_open_at(before);
    compiler_fence(Ordering::SeqCst);
    result
}

/// Makes a call during which the thread is not inside, whatever it was before: one that may not return. If the library is
/// closed afterwards, the thread waits; then it may have been replaced ([`is_replaced`]).
pub fn outside<T>(call: impl FnOnce() -> T) -> T {
    let inside = end_all();
    delivery::deliver_here();
    let result = call();
    loop {
        resume(inside);
        compiler_fence(Ordering::SeqCst);
        if inside.visits == 0 || STATE.load(Ordering::Acquire) != State::Closed as u32 {
            return result;
        }
        end_all();
        raw::futex_wait(&STATE, State::Closed as u32);
    }
}

/// To be called by a thread inside that is about to make its call once more: the handlers of the signals that were kept
/// for it run first, outside. False: it is to come out before that, since the library is about to be replaced or was.
pub fn stays_for_another() -> bool {
    if is_leaving() {
        return false;
    }
    if delivery::is_due() {
        outside(|| ());
        return !is_replaced() && !is_leaving();
    }
    true
}

/// Whether another copy of the library has taken this one's place.
pub fn is_replaced() -> bool {
    STATE.load(Ordering::Acquire) == State::Replaced as u32
}

/// Sets what the first thread does that leaves after [`leave`].
pub fn on_leaving(work: &'static fn()) {
    ON_LEAVING.store(core::ptr::from_ref(work).cast_mut(), Ordering::Release);
}

/// Has all threads come out, unless they do so already.
pub fn leave() {
    let _ = change(State::Open, State::Leaving);
}

/// Whether the calling thread is to come out rather than to sleep.
#[inline]
pub fn is_leaving() -> bool {
    // Relaxed: a thread that is about to sleep is woken afterwards, and looks again.
    STATE.load(Ordering::Relaxed) != State::Open as u32
}

// Commands of membarrier(2) (linux/membarrier.h): MEMBARRIER_CMD_PRIVATE_EXPEDITED and its registration.
const BARRIER: usize = 1 << 3;
const REGISTER: usize = 1 << 4;

/// Prepares [`close`].
///
/// # Errors
/// The errno of membarrier(2): this kernel, or a filter of system calls, does not permit it.
pub fn prepare() -> Result<()> {
    raw::membarrier(REGISTER)?;
    raw::membarrier(BARRIER)
}

/// Closes the library for all threads but this one, which is not inside. False: another thread has closed or opened it
/// before.
///
/// # Errors
/// The errno of membarrier(2), if that works no longer. The library is open then.
pub fn close() -> Result<bool> {
    if !change(State::Leaving, State::Closed) {
        return Ok(false);
    }
    CLOSER.store(thread_state::thread_pointer(), Ordering::Relaxed);
    // Every other thread has executed a full barrier when this returns: it has counted its visit where the loop in
    // `wait_until_all_out` sees it, or it sees that the library is closed.
    match raw::membarrier(BARRIER) {
        Ok(()) => Ok(true),
        Err(errno) => {
            open();
            Err(errno)
        }
    }
}

/// Waits until no other thread is inside, and calls `wake` meanwhile, which ends their sleeps. False: that takes longer than
/// `limit` nanoseconds, or the calling thread itself is in a handler that has interrupted a call of ours, or was.
pub fn wait_until_all_out(limit: u64, mut wake: impl FnMut()) -> bool {
    let own = thread_state::entered();
    let others_out = || {
        let is_out = |line: &Count| line.visits() == 0 || own.is_some_and(|own| core::ptr::eq(own, line));
        thread_state::lines().all(is_out) && WITHOUT_LINE.load(Ordering::SeqCst) == 0
    };
    let until = time::now().saturating_add(limit);
    while !others_out() {
        if time::now() > until {
            return false;
        }
        wake();
        raw::sleep_ns(200_000);
    }
    // What the threads have written while they were inside comes before what this one does.
    core::sync::atomic::fence(Ordering::SeqCst);
    own.is_none_or(|own| own.visits() == 0)
}

/// Opens the library.
pub fn open() {
    end_closure(State::Open);
}

/// Says that another copy of the library has taken this one's place. The exported functions lead there by now.
pub fn replaced() {
    end_closure(State::Replaced);
}

fn end_closure(to: State) {
    CLOSER.store(0, Ordering::Relaxed);
    // Only the thread that has closed the library changes the state.
    let _ = change(State::Closed, to);
    raw::futex_wake(&STATE, i32::MAX.cast_unsigned());
}

/// Called in the child of a fork, whose other threads do not exist.
pub(crate) fn after_fork() {
    WITHOUT_LINE.store(0, Ordering::Relaxed);
    delivery::forget();
    let _ = change(State::Leaving, State::Open);
    if STATE.load(Ordering::Relaxed) == State::Closed as u32 {
        open();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, Barrier};

    fn inside() -> Visit {
        loop {
            match Visit::begin() {
                Admission::Inside(visit) => return visit,
                Admission::Anew => {}
                Admission::Closer => panic!("this thread has not closed it"),
            }
        }
    }

    /// One test, since the state is the process's.
    #[test]
    fn a_closed_library_is_empty_and_lets_nobody_in() {
        static LEFT: AtomicU32 = AtomicU32::new(0);
        static WORK: fn() = || {
            LEFT.fetch_add(1, Ordering::SeqCst);
        };
        on_leaving(&WORK);
        prepare().unwrap();
        drop(inside());
        assert_eq!((is_leaving(), LEFT.load(Ordering::SeqCst)), (false, 0));

        // A thread that is inside keeps the library from being empty, and its inner calls are not kept out.
        let outer = inside();
        leave();
        assert!(is_leaving());
        std::thread::spawn(|| {
            assert!(close().unwrap() && !close().unwrap());
            assert!(matches!(Visit::begin(), Admission::Closer));
            assert!(!wait_until_all_out(1_000_000, || {}));
            open();
        })
        .join()
        .unwrap();
        assert_eq!(LEFT.load(Ordering::SeqCst), 0);
        // The thread that leaves last does the work; an inner call that ends is none of that.
        leave();
        drop(inside());
        assert_eq!(LEFT.load(Ordering::SeqCst), 0);
        drop(outer);
        assert_eq!(LEFT.load(Ordering::SeqCst), 1);
        assert!(close().unwrap());
        open();
        assert!(!is_leaving());

        // Threads come and go; whenever it is closed and empty, none is inside.
        let (end, at_work, busy) = (AtomicBool::new(false), Arc::new(Barrier::new(5)), AtomicU32::new(0));
        std::thread::scope(|s| {
            for _ in 0..4 {
                let at_work = Arc::clone(&at_work);
                let (end, busy) = (&end, &busy);
                s.spawn(move || {
                    at_work.wait();
                    while !end.load(Ordering::Relaxed) {
                        let _visit = inside();
                        busy.fetch_add(1, Ordering::SeqCst);
                        let _nested = inside();
                        busy.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
            at_work.wait();
            for _ in 0..200 {
                leave();
                assert!(close().unwrap());
                assert!(wait_until_all_out(5_000_000_000, || {}));
                assert_eq!(busy.load(Ordering::SeqCst), 0);
                open();
            }
            end.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_thread_that_ends_inside_takes_its_visits_along() {
        std::thread::spawn(|| {
            let (outer, inner) = (inside(), inside());
            let n = end_all();
            assert_eq!((n.visits, thread_state::entered().unwrap().visits()), (2, 0));
            resume(n);
            drop((outer, inner));
            assert_eq!(thread_state::entered().unwrap().visits(), 0);
        })
        .join()
        .unwrap();
    }
}
