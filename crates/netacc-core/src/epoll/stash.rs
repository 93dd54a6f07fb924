//! Foreign events taken from the kernel while only looking whether there are any.

use crate::epoll::Epoll;
use crate::epoll::call::Call;
use core::sync::atomic::Ordering;

/// Keeps an event, together with an earlier one of the same registration. `candidate`: of a connection that may be
/// promoted.
pub(super) fn stash(e: &Epoll, events: u32, data: u64, candidate: bool) {
    let _g = e.lock.lock();
    if candidate {
        e.stash_queueable.store(1, Ordering::Relaxed);
    }
    let len = e.stash_len.load(Ordering::Relaxed) as usize;
    for [had, of] in e.stash.as_chunks::<2>().0.iter().take(len) {
        if of.load(Ordering::Relaxed) == data {
            had.fetch_or(events.into(), Ordering::Relaxed);
            return;
        }
    }
    if let Some([had, of]) = e.stash.as_chunks::<2>().0.get(len) {
        had.store(events.into(), Ordering::Relaxed);
        of.store(data, Ordering::Relaxed);
        e.stash_len.store(len as u32 + 1, Ordering::Relaxed);
    }
}

/// Reports what is kept; returns how many events, and whether such a one may be in our queue by now: no call reports a
/// registration twice, so what the queue has is for the next one.
pub(super) fn unstash(e: &'static Epoll, call: &Call) -> (usize, bool) {
    // A look first: hardly any instance ever has something here. What comes this moment is for the next call.
    if e.stash_len.load(Ordering::Relaxed) == 0 {
        return (0, false);
    }
    // No event goes to two threads.
    let _g = e.lock.lock();
    let len = e.stash_len.load(Ordering::Relaxed) as usize;
    let n = len.min(call.max as usize);
    for (i, [had, of]) in e.stash.as_chunks::<2>().0.iter().take(len).enumerate() {
        let (events, data) = (had.load(Ordering::Relaxed), of.load(Ordering::Relaxed));
        if i < n {
            call.put(i, events as u32, data);
        } else if let Some([had, of]) = e.stash.as_chunks::<2>().0.get(i - n) {
            had.store(events, Ordering::Relaxed);
            of.store(data, Ordering::Relaxed);
        }
    }
    e.stash_len.store((len - n) as u32, Ordering::Relaxed);
    let queueable = e.stash_queueable.load(Ordering::Relaxed) != 0;
    if n == len {
        e.stash_queueable.store(0, Ordering::Relaxed);
    }
    (n, n > 0 && queueable)
}
