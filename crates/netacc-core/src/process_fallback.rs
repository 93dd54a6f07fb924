//! A process that is accelerated no further: it went where what we know of the host is not true, confined itself so
//! that our system calls may be forbidden, or enters the kernel by instructions of its own. Its new sockets are the
//! kernel's, its listeners are left to it.

use core::sync::atomic::{AtomicU32, Ordering};
use netacc_stats::Reason;

/// Why nothing more is accelerated, as a [`Reason`]; 0: the process is accelerated as ever.
static WHY: AtomicU32 = AtomicU32::new(0);

/// Why nothing more is accelerated, if so.
#[inline]
pub fn reason() -> Option<Reason> {
    // Relaxed: the thread that changed the word knows it; for other threads the change may come at any time.
    match WHY.load(Ordering::Relaxed) {
        0 => None,
        n => Reason::from_u32(n),
    }
}

/// The process is accelerated again.
pub(crate) fn clear() {
    // Relaxed: as in `set`.
    WHY.store(0, Ordering::Relaxed);
}

/// Nothing more is accelerated from here on. Connections and listeners stay where they are: see [`crate::fallback`].
pub(crate) fn set(why: Reason) {
    // Relaxed: at the start of a process, the runtime, without which nothing is accelerated, is published afterwards.
    WHY.store(why as u32, Ordering::Relaxed);
}
