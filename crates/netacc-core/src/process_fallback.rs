//! The state of a process that is accelerated no further: it moved to a namespace where our knowledge of the host does
//! not hold, installed a filter that may forbid our system calls, or makes system calls by its own instructions. Its
//! new sockets are kernel sockets, and its listeners are left to the kernel.

use core::sync::atomic::{AtomicU32, Ordering};
use netacc_stats::Reason;

/// The [`Reason`] why the process is accelerated no further; 0: it is accelerated.
static WHY: AtomicU32 = AtomicU32::new(0);

/// The reason why the process is accelerated no further, if so.
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

/// Ends acceleration of new sockets from here on. Connections and listeners are left unchanged: see
/// [`crate::fallback`].
pub(crate) fn set(why: Reason) {
    // Relaxed: at the start of a process the runtime, without which no socket is accelerated, is published afterwards.
    WHY.store(why as u32, Ordering::Relaxed);
}
