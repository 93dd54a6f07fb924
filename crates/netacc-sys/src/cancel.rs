//! pthread_cancel(3) for threads that sleep in a call of ours.
//!
//! In libc such a call is a cancellation point: the thread ends there. Our call sleeps by a raw system call and holds
//! things that the thread has to release first. So a thread that cancels another one notes that here and wakes it, the
//! call comes back with [`Fail::Cancelled`], and the exported function, which holds nothing, calls
//! pthread_testcancel(3).
//!
//! In musl pthread_cancel(3) sends a signal itself. Where the thread is in none of musl's own calls, the handler only
//! sends the signal to the thread again and blocks it, so that it waits there: a second one would wake nobody. So under
//! musl a thread blocks the signal before it sleeps, and the call in which it sleeps admits it; if the signal waits
//! afterwards, the thread is cancelled.

#![allow(unsafe_code)]

use crate::errno::{Answer, Fail, Result};
use crate::signals::{self, Blocked};
use crate::{libc_kind, raw, symbol, thread_state, time, weak};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering, fence};

/// Largest number of threads that are known to be cancelled and have not ended yet.
const CANCELLED: usize = 256;
/// Largest number of threads that are known to sleep; of more than that some cannot be woken.
const SLEEPERS: usize = 1024;
/// Number of places that a thread looks at to find a free one.
const PROBES: usize = 64;
/// The signal that glibc uses for cancellation (nptl, SIGCANCEL).
const SIGCANCEL: i32 = 32;
/// The signal that musl uses for cancellation.
const SIGCANCEL_OF_MUSL: i32 = 33;
/// Number of times, a millisecond apart, that a thread that is about to sleep is woken. One that is woken leaves its place, and
/// takes none any more if it has disabled cancellation. So all of them are needed only if the thread gets no CPU.
const WAKES: u32 = 2000;

/// Number of threads that were cancelled so far: in most programs none ever is.
static COUNT: AtomicUsize = AtomicUsize::new(0);
crate::tables! {
    static NOTED: [AtomicUsize; CANCELLED] = [const { AtomicUsize::new(0) }; CANCELLED];
}

/// One thread that sleeps. It has a cache line of its own, since it is written at each sleep.
#[repr(align(64))]
struct Sleeper {
    /// What pthread_self(3) says.
    thread: AtomicUsize,
}

crate::tables! {
    static SLEEPING: [Sleeper; SLEEPERS] = [const { Sleeper { thread: AtomicUsize::new(0) } }; SLEEPERS];
}

fn this_thread() -> usize {
    weak::pthread_self()
}

/// The places in which a thread may be noted as sleeping.
fn places(thread: usize) -> impl Iterator<Item = &'static Sleeper> {
    (0..PROBES).filter_map(move |n| SLEEPING.get(((thread >> 12) + n) % SLEEPERS))
}

/// Called in the child of a fork, in which no other thread sleeps.
pub fn forget() {
    // The places lie on many pages, and the child pays for each that it looks at.
    let (own, all) = if thread_state::is_only_thread() {
        (Some(places(this_thread())), None)
    } else {
        (None, Some(SLEEPING.iter()))
    };
    own.into_iter()
        .flatten()
        .chain(all.into_iter().flatten())
        .filter(|s| s.thread.load(Ordering::Relaxed) != 0)
        .for_each(|s| s.thread.store(0, Ordering::Relaxed));
}

/// Sleeps by `sleep`, from which cancelling wakes the thread: the result is then [`Fail::Cancelled`]. `sleep` gets the
/// set of signals that are to be blocked meanwhile (ppoll(2)): `sigmask`, or one with the same effect where that is
/// null.
pub fn asleep<T>(sigmask: *const c_void, sleep: impl FnOnce(*const c_void) -> Result<T>) -> Answer<T> {
    if libc_kind::is_musl() {
        return asleep_in_musl(sigmask, sleep);
    }
    let me = this_thread();
    // A thread that has disabled cancellation is not to be woken, once it is known that threads are cancelled here at
    // all.
    let may = COUNT.load(Ordering::Relaxed) == 0 || is_enabled();
    let mine =
        // The memories of threads lie whole pages apart.
        places(me).filter(|_| may).find(|s| {
            // Relaxed: the word stands for itself.
            s.thread.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        });
    // Pairs with the fence in `note`: either the canceller sees us here, or we see that we are noted.
    fence(Ordering::SeqCst);
    let done = if is_cancelled(me) { Err(Fail::Cancelled) } else { sleep(sigmask).map_err(Fail::Errno) };
    if let Some(s) = mine {
        s.thread.store(0, Ordering::Relaxed);
    }
    match done {
        Err(Fail::INTR) if is_cancelled(me) => Err(Fail::Cancelled),
        done => done,
    }
}

/// Sleeps as [`asleep`] does, in a process of musl.
fn asleep_in_musl<T>(sigmask: *const c_void, sleep: impl FnOnce(*const c_void) -> Result<T>) -> Answer<T> {
    let blocked = Blocked::also(SIGCANCEL_OF_MUSL);
    // The handler has blocked the signal if the thread was cancelled before.
    if blocked.was_blocked(SIGCANCEL_OF_MUSL) && waits_to_cancel() {
        return Err(Fail::Cancelled);
    }
    let before = blocked.mask_before();
    let done = sleep(if sigmask.is_null() { (&raw const before).cast() } else { sigmask });
    drop(blocked);
    match done.map_err(Fail::Errno) {
        Err(Fail::INTR) if waits_to_cancel() => Err(Fail::Cancelled),
        done => done,
    }
}

/// Whether musl's signal waits for this thread, which may be cancelled.
fn waits_to_cancel() -> bool {
    signals::is_pending(SIGCANCEL_OF_MUSL) && is_enabled()
}

/// Whether this thread is to end at the next cancellation point.
fn is_cancelled(me: usize) -> bool {
    let noted = || NOTED.iter().any(|n| n.load(Ordering::Relaxed) == me);
    COUNT.load(Ordering::Relaxed) != 0 && noted() && is_enabled()
}

/// Whether this thread may be cancelled.
fn is_enabled() -> bool {
    const ENABLED: c_int = 0;
    const DISABLED: c_int = 1;
    static FUNCTION: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    // Relaxed: every thread finds the same address, and the code there needs no ordering.
    let mut function = FUNCTION.load(Ordering::Relaxed);
    if function.is_null() {
        function = symbol::any(c"pthread_setcancelstate");
        FUNCTION.store(function, Ordering::Relaxed);
    }
    if function.is_null() {
        return false;
    }
    let mut state = DISABLED;
    // SAFETY: libc's function of this signature, for this thread; the first call says what the second one restores.
    unsafe {
        let set_state: unsafe extern "C" fn(c_int, *mut c_int) -> c_int = core::mem::transmute(function);
        set_state(DISABLED, &raw mut state);
        set_state(state, core::ptr::null_mut());
    }
    // musl has a third state, in which calls fail and the thread goes on.
    state == ENABLED
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

/// The threads that are known to be cancelled, for another copy of the library. One that has ended meanwhile does no harm.
pub fn noted() -> impl Iterator<Item = usize> {
    let any = COUNT.load(Ordering::Relaxed) != 0;
    NOTED.iter().filter(move |_| any).map(|n| n.load(Ordering::Relaxed)).filter(|thread| *thread != 0)
}

/// Forgets the note about this thread: it is about to end, or the note meant an earlier thread with the same
/// `pthread_t`.
pub fn forget_note() {
    let me = this_thread();
    NOTED.iter().filter(|n| n.load(Ordering::Relaxed) == me).for_each(|n| n.store(0, Ordering::Relaxed));
}

/// The kernel's number of `thread`, a `pthread_t` of a thread that has not been joined; 0 if it has ended or is not
/// known.
pub fn number_of(thread: usize) -> u32 {
    let function = symbol::any(c"pthread_getcpuclockid");
    if function.is_null() {
        return 0;
    }
    let mut clock: c_int = 0;
    // SAFETY: libc's function of this signature, with room for its answer.
    let error = unsafe {
        let clock_of: unsafe extern "C" fn(usize, *mut c_int) -> c_int = core::mem::transmute(function);
        clock_of(thread, &raw mut clock)
    };
    // The clock of a thread's CPU time is its number with all bits inverted, above three bits of flags
    // (clock_getres(2)).
    if error == 0 && clock < 0 { !(clock >> 3) as u32 } else { 0 }
}

/// Wakes `thread`, which is cancelled, if it sleeps; `tid` is its number for the kernel, as [`number_of`] said before
/// it was cancelled.
pub fn wake(thread: usize, tid: u32) {
    if tid == 0 || !is_handled(SIGCANCEL) {
        return;
    }
    for turn in 0..WAKES {
        if !SLEEPING.iter().any(|s| s.thread.load(Ordering::Relaxed) == thread) {
            return;
        }
        // Another thread may have the `pthread_t` by now; the number is that of the one which is meant.
        if !raw::tgkill(raw::getpid(), tid, SIGCANCEL) {
            // It has ended in its sleep, by asynchronous cancellation, and left its place.
            for place in places(thread) {
                let _ = place.thread.compare_exchange(thread, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
            return;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threads_number_is_the_kernels() {
        assert_eq!(number_of(weak::pthread_self()), raw::gettid());
    }
}
