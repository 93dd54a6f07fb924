//! Whether there are unconnected sockets that other processes have as well, and that may be registered in an epoll instance. Any
//! of the processes may make one a listener. The kernel tells the instance of clients without NetACC alone, so a wait looks what
//! has become of them ([`crate::listen::adopt::settle`]).

use crate::timeouts;
use core::sync::atomic::{AtomicU64, Ordering};
use netacc_sys::time;

/// There may be one that was not looked at yet.
const AT_ONCE: u64 = 1;

/// When they are looked at next ([`time::coarse`]); 0: there are none.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// To be called after a socket has become one of these, and after one of these was registered.
pub(crate) fn note() {
    // Relaxed: the thread that does either looks when it waits, and a child that it forks finds the word as it is. Another thread that
    // waits already looks when it waits again.
    NEXT.store(AT_ONCE, Ordering::Relaxed);
}

/// Whether there may be one.
#[inline]
pub(crate) fn is_any() -> bool {
    // Relaxed: see `note`.
    NEXT.load(Ordering::Relaxed) != 0
}

/// Begins a look, if one is due and no other thread has begun it: from here on there are none until one is noted.
pub(crate) fn begin_look() -> bool {
    // Relaxed: see `note`.
    let next = NEXT.load(Ordering::Relaxed);
    next <= time::coarse() && NEXT.compare_exchange(next, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

/// Ends a look that has found some: they are looked at again after a pause. What was noted meanwhile is looked at at once.
pub(crate) fn look_again() {
    const PAUSE: u64 = time::ns(timeouts::UNSETTLED_LOOK);
    // Relaxed: see `note`.
    let _ = NEXT.compare_exchange(0, time::coarse().saturating_add(PAUSE), Ordering::Relaxed, Ordering::Relaxed);
}
