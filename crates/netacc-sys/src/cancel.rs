//! pthread_cancel(3) for threads that sleep in a call of ours.
//!
//! In libc such a call is a cancellation point: the thread ends there. Our call sleeps by a raw system call and holds
//! things that the thread has to release first. So a thread that cancels another one notes that here and wakes it, the
//! call comes back with [`Errno::CANCELLED`], and the exported function, which holds nothing, calls
//! pthread_testcancel(3).

#![allow(unsafe_code)]

use crate::errno::{Errno, Result};
use crate::{raw, time};
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

/// Largest number of threads that are known to be cancelled and have not ended yet.
const CANCELLED: usize = 256;
/// Largest number of threads that are known to sleep; of more than that some cannot be woken.
const SLEEPERS: usize = 1024;
/// Number of places that a thread looks at to find a free one.
const PROBES: usize = 64;
/// The signal that glibc uses for cancellation (nptl, SIGCANCEL).
const SIGCANCEL: i32 = 32;
/// Number of times, a millisecond apart, that a thread that is about to sleep is woken.
const WAKES: u32 = 50;

/// Number of threads that were cancelled so far: in most programs none ever is.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static NOTED: [AtomicUsize; CANCELLED] = [const { AtomicUsize::new(0) }; CANCELLED];

/// One thread that sleeps. It has a cache line of its own, since it is written at each sleep.
#[repr(align(64))]
struct Sleeper {
    /// What pthread_self(3) says.
    thread: AtomicUsize,
    tid: AtomicU32,
}

static SLEEPING: [Sleeper; SLEEPERS] =
    [const { Sleeper { thread: AtomicUsize::new(0), tid: AtomicU32::new(0) } }; SLEEPERS];

std::thread_local! {
    /// The thread's number for the kernel; 0: not asked yet. The cell has no destructor.
    static TID: Cell<u32> = const { Cell::new(0) };
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: i32, old: *mut i32) -> i32;
}

fn this_thread() -> usize {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::pthread_self() as usize }
}

/// Called in the child of a fork, whose thread has another number.
pub fn forget() {
    TID.with(|tid| tid.set(0));
    SLEEPING
        .iter()
        .filter(|s| s.thread.load(Ordering::Relaxed) != 0)
        .for_each(|s| s.thread.store(0, Ordering::Relaxed));
}

/// Sleeps by `sleep`, from which cancelling wakes the thread: the result is then [`Errno::CANCELLED`].
pub fn asleep<T>(sleep: impl FnOnce() -> Result<T>) -> Result<T> {
    let me = this_thread();
    let tid = TID.with(|tid| {
        if tid.get() == 0 {
            tid.set(raw::gettid());
        }
        tid.get()
    });
    // A thread that has disabled cancellation is not to be woken, once it is known that threads are cancelled here at
    // all.
    let may = COUNT.load(Ordering::Relaxed) == 0 || is_enabled();
    let mine =
        (0..if may { PROBES } else { 0 }).filter_map(|n| SLEEPING.get((tid as usize + n) % SLEEPERS)).find(|s| {
            // Release, with the Acquire in `wake`: it sees the number that belongs to the thread, or an older one of a
            // thread that is awake.
            s.thread.compare_exchange(0, me, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
    if let Some(s) = mine {
        s.tid.store(tid, Ordering::Release);
    }
    // Pairs with the fence in `note`: either the canceller sees us here, or we see that we are noted.
    fence(Ordering::SeqCst);
    let done = if is_cancelled(me) { Err(Errno::CANCELLED) } else { sleep() };
    if let Some(s) = mine {
        s.tid.store(0, Ordering::Relaxed);
        s.thread.store(0, Ordering::Release);
    }
    match done {
        Err(Errno::INTR) if is_cancelled(me) => Err(Errno::CANCELLED),
        done => done,
    }
}

/// Whether this thread is to end at the next cancellation point.
fn is_cancelled(me: usize) -> bool {
    let noted = || NOTED.iter().any(|n| n.load(Ordering::Relaxed) == me);
    COUNT.load(Ordering::Relaxed) != 0 && noted() && is_enabled()
}

/// Whether this thread may be cancelled.
fn is_enabled() -> bool {
    const DISABLED: i32 = 1;
    let mut state = DISABLED;
    // SAFETY: for this thread; the first call says what the second one restores.
    unsafe {
        pthread_setcancelstate(DISABLED, &raw mut state);
        pthread_setcancelstate(state, core::ptr::null_mut());
    }
    state != DISABLED
}

/// Notes that `thread`, a `pthread_t`, is about to be cancelled.
pub fn note(thread: usize) {
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    // The oldest note makes room: most likely its thread has ended elsewhere long ago.
    if let Some(place) = NOTED.get(n % CANCELLED) {
        place.store(thread, Ordering::Relaxed);
    }
    fence(Ordering::SeqCst);
}

/// Forgets the note about this thread: it is about to end, or the note meant an earlier thread with the same
/// `pthread_t`.
pub fn forget_note() {
    let me = this_thread();
    NOTED.iter().filter(|n| n.load(Ordering::Relaxed) == me).for_each(|n| n.store(0, Ordering::Relaxed));
}

/// Wakes `thread`, which is cancelled, if it sleeps.
pub fn wake(thread: usize) {
    if !is_handled(SIGCANCEL) {
        return;
    }
    let asleep = |s: &&Sleeper| s.thread.load(Ordering::Acquire) == thread && s.tid.load(Ordering::Acquire) != 0;
    let mut meant = 0;
    for turn in 0..WAKES {
        let Some(tid) = SLEEPING.iter().find(asleep).map(|s| s.tid.load(Ordering::Acquire)) else { return };
        // Another thread may have the `pthread_t` by now.
        if tid == 0 || (meant != 0 && tid != meant) {
            return;
        }
        meant = tid;
        raw::tgkill(raw::getpid(), tid, SIGCANCEL);
        // The thread may have been just about to sleep, and miss the signal.
        if turn < 10 { raw::sched_yield() } else { time::pause() }
    }
}

/// Whether a handler is installed: without one the signal would end the process.
fn is_handled(signal: i32) -> bool {
    let mut action = [0usize; 8];
    // SAFETY: room for the kernel's `struct sigaction` with a set of 8 bytes.
    let done =
        unsafe { raw::syscall6(libc::SYS_rt_sigaction, [signal as usize, 0, action.as_mut_ptr() as usize, 8, 0, 0]) };
    let [handler, ..] = action;
    done == 0 && handler > 1
}
