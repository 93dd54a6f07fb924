//! Work that any thread may find due and one thread at a time does, such as reading a control socket in order.

use crate::sync::{AtomicU32, Ordering, fence};

/// Does `work` under a lock, or leaves it to the thread that has the lock. That thread looks once more after it has given
/// the lock back, since what was due later may have been reported to this one alone. `more` is the word by which they tell
/// each other. Returns what `work` returns when it is to be the last; `None`: nothing is due any more, or another thread
/// works.
#[inline]
pub fn in_turn<G, T>(
    more: &AtomicU32,
    mut try_lock: impl FnMut() -> Option<G>,
    mut work: impl FnMut() -> Option<T>,
) -> Option<T> {
    // SeqCst, with the fences: this thread stores `more` and then tries the lock; the other one releases the lock and then
    // loads `more`. One of the two sees the other.
    more.store(1, Ordering::SeqCst);
    while more.load(Ordering::SeqCst) != 0 {
        fence(Ordering::SeqCst);
        let guard = try_lock()?;
        // Before the work: what becomes due meanwhile is noted anew.
        more.store(0, Ordering::SeqCst);
        let last = work();
        drop(guard);
        if last.is_some() {
            return last;
        }
        fence(Ordering::SeqCst);
    }
    None
}
