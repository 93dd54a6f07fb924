//! Numbers that a signal handler closed while its thread was in one of our calls: the next intercepted call closes
//! them.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use netacc_sys::reserved_fds::MAX_FDS;
use netacc_sys::{lock, raw, time};

pub(super) const HANDLER_LOCK_WAIT: u64 = time::ns(netacc_transport::timeouts::HANDLER_LOCK_WAIT);

netacc_sys::tables! {
    /// Bitmap of the numbers that are to be closed later.
    static LATER: [AtomicU64; MAX_FDS / 64] = [const { AtomicU64::new(0) }; MAX_FDS / 64];
}

/// Number of words of `LATER` that ever had a bit: only these are checked.
static LATER_WORDS: AtomicUsize = AtomicUsize::new(0);

/// Whether there may be such a number.
static ANY_LATER: AtomicU32 = AtomicU32::new(0);

/// Not 0 while a thread is closing them. This is not a lock, since that thread takes the locks of sockets, and must not
/// look like one that a handler has interrupted with locks held.
static CLOSING: AtomicU32 = AtomicU32::new(0);

/// The function that closes such a number. The thread that leaves a number stores it, since close(2) is in a higher
/// layer than the sleeps before which the numbers are closed.
static CLOSE: AtomicPtr<fn(i32)> = AtomicPtr::new(core::ptr::null_mut());

#[allow(unsafe_code)]
fn closer() -> fn(i32) {
    // SAFETY: null or a function in static memory.
    unsafe { CLOSE.load(Ordering::SeqCst).as_ref() }.copied().unwrap_or(|_| ())
}

/// Called in the child of a fork, in which no other thread is closing them: resets the mark.
pub fn after_fork() {
    CLOSING.store(0, Ordering::Relaxed);
}

/// Whether a handler left a number to be closed.
#[inline]
pub fn has_later() -> bool {
    ANY_LATER.load(Ordering::Relaxed) != 0
}

/// Leaves the number for the next call that may close it, by `close`. False: it was left before.
pub(crate) fn later(fd: i32, close: &'static fn(i32)) -> bool {
    let (at, bit) = (fd as usize / 64, 1 << (fd % 64));
    let Some(word) = LATER.get(at) else { return false };
    // Stored before the number: the thread that finds the number closes it by this function.
    CLOSE.store(core::ptr::from_ref(close).cast_mut(), Ordering::SeqCst);
    LATER_WORDS.fetch_max(at + 1, Ordering::SeqCst);
    let new = word.fetch_or(bit, Ordering::SeqCst) & bit == 0;
    // Last: a thread that sees this sees the bit.
    ANY_LATER.store(1, Ordering::SeqCst);
    new
}

/// Cancels the later close of a number that was removed from the table in another way.
pub(crate) fn not_later(fd: i32) {
    if has_later()
        && let Some(word) = LATER.get(fd as usize / 64)
    {
        word.fetch_and(!(1 << (fd % 64)), Ordering::SeqCst);
    }
}

/// Closes the numbers that a handler could not close. To be called at the start of calls.
#[inline]
pub fn close_later() {
    if has_later() && !lock::interrupted() {
        close_held();
    }
}

#[cold]
fn close_held() {
    if CLOSING.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_err() {
        // Another thread is closing them, or the one that this handler has interrupted.
        return;
    }
    let close = closer();
    let words = || LATER.iter().take(LATER_WORDS.load(Ordering::SeqCst));
    for (at, word) in words().enumerate() {
        let mut bits = word.swap(0, Ordering::SeqCst);
        while bits != 0 {
            close((at * 64) as i32 + bits.trailing_zeros() as i32);
            bits &= bits - 1;
        }
    }
    ANY_LATER.store(0, Ordering::SeqCst);
    // A handler may have left another number meanwhile.
    if words().any(|word| word.load(Ordering::SeqCst) != 0) {
        ANY_LATER.store(1, Ordering::SeqCst);
    }
    CLOSING.store(0, Ordering::SeqCst);
}

/// To be called before the program puts another file under a number of its choice: a number that a handler has left is
/// closed now, and not when it has the other file.
#[inline]
pub(crate) fn finish_later() {
    if has_later() || CLOSING.load(Ordering::SeqCst) != 0 {
        finish_held();
    }
}

#[cold]
fn finish_held() {
    close_later();
    let mut until = None;
    while CLOSING.load(Ordering::SeqCst) != 0 {
        // The thread that closes may be the one that this handler has interrupted.
        let now = time::now();
        if now > *until.get_or_insert(now.saturating_add(HANDLER_LOCK_WAIT)) {
            return;
        }
        raw::sched_yield();
    }
}
