//! Further threads of this process that wait for a connection, beside those that the words in shared memory name.
//!
//! A word in shared memory has room for one thread for each direction. The further ones are in [`Waiters`], which only
//! threads of this process read and write: the peer wakes the thread that it finds, and that one wakes the others.
//!
//! Every change is a compare-and-exchange or a swap with sequential consistency, and every waiter checks the connection
//! after it has registered. So either the thread that has published sees the waiter, or the waiter sees the
//! publication.

use crate::shm::segment::{HEIR_WAKER, LIVENESS_WAKER};
use crate::wait::{WaitSet, WakerSource};
use core::sync::atomic::{AtomicU32, Ordering, fence};

/// Largest number of further threads that wait for one connection, in both directions together.
const EXTRA: usize = 4;
/// Largest number of threads that can sleep on the liveness socket of either side of a connection and wake each other:
/// as many as can be registered.
const CO_WAITERS: usize = EXTRA + 2;

/// Shift in a word of `co_waiters` of the waker's number; the bits below say what the thread waits for.
const WORD_SHIFT: u32 = 2;
/// The thread waits for something to read.
pub(super) const READS: u32 = 1;
/// The thread waits for room.
pub(super) const WRITES: u32 = 2;

/// Whether a number in the words of shared memory is the mark of a process without a link of its own.
fn is_mark(id: u32) -> bool {
    matches!(id, LIVENESS_WAKER | HEIR_WAKER)
}

/// Removes the waker of a thread of ours from its registration. The mark of a forked process stays: without it the peer
/// would not wake that process.
pub(super) fn take_ours(cell: &AtomicU32) -> u32 {
    let ours = |id: u32| (id != 0 && !is_mark(id)).then_some(0);
    cell.fetch_update(Ordering::SeqCst, Ordering::SeqCst, ours).unwrap_or(0)
}

/// Requests a wake-up by a byte on the liveness socket.
pub(super) fn register_liveness(cell: &AtomicU32) {
    let _ = cell.compare_exchange(0, LIVENESS_WAKER, Ordering::SeqCst, Ordering::SeqCst);
}

/// Requests a wake-up of a sole heir, whose mark that is. It replaces whatever another process has left in the word: nobody
/// waits for that any more.
pub(super) fn register_heir(cell: &AtomicU32, mark: u32) {
    if cell.load(Ordering::SeqCst) != mark {
        cell.swap(mark, Ordering::SeqCst);
    }
}

/// The threads that wait for one connection.
#[derive(Debug)]
pub struct Waiters {
    /// Wakers of further threads that sleep; 0: free.
    extra: [AtomicU32; EXTRA],
    /// Threads that sleep on the liveness socket of either side: see [`Waiters::join`].
    co_waiters: [AtomicU32; CO_WAITERS],
}

impl Waiters {
    /// Wakes the further threads.
    pub(super) fn wake_extra<L: WakerSource>(&self, link: &L) {
        for e in &self.extra {
            if e.load(Ordering::SeqCst) != 0 {
                let id = e.swap(0, Ordering::SeqCst);
                if id != 0 {
                    link.ring(id);
                }
            }
        }
    }

    /// Registers `waker` in `cell`, or as a further waiter when another thread is there already.
    pub(super) fn register<L: WakerSource>(
        &self,
        link: &'static L,
        cell: &AtomicU32,
        waker: u32,
        what: u32,
        set: &mut WaitSet,
    ) {
        for _ in 0..EXTRA {
            match cell.compare_exchange(0, waker, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return,
                Err(b) if b == waker || (waker == LIVENESS_WAKER && is_mark(b)) => {
                    // All sharers sleep on what either mark rings. The mark was stored for a thread of ours or by another sharer. That sharer may take the byte that
                    // is meant for this thread, so the sleep has to be bounded.
                    let others = waker == LIVENESS_WAKER && !self.has_co_waiters(what, set.waker_in(link));
                    set.bounded |= others;
                    set.mark_was_set |= others;
                    return;
                }
                // The word has the mark of another sharer, which does not know our further waiters.
                Err(b) if is_mark(b) || waker == LIVENESS_WAKER => break,
                Err(_) => {}
            }
            let Some(mine) =
                self.extra.iter().find(|e| e.compare_exchange(0, waker, Ordering::SeqCst, Ordering::SeqCst).is_ok())
            else {
                break;
            };
            // A thread that leaves `cell` wakes the further ones afterwards. If it left before this one was registered
            // here, it would not wake this one, which then registers in `cell`.
            if cell.load(Ordering::SeqCst) != 0 {
                return;
            }
            let _ = mine.compare_exchange(waker, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
        set.bounded = true;
    }

    /// Notes that a thread is about to sleep on a liveness socket of either side. Several threads of one process may
    /// sleep there, and one of them may read the byte that was meant for another. So each stores its waker here before
    /// it registers, and a thread that reads a byte rings them all. A thread whose entry is gone when it sleeps has
    /// been rung.
    ///
    /// A thread that sleeps without a peer liveness socket has an entry as well: a child of the peer that cannot ring
    /// its waker takes its registration, and sends the byte over a peer liveness socket that another thread of this
    /// process is just receiving.
    pub(super) fn join<L: WakerSource>(&self, link: &'static L, what: u32, set: &mut WaitSet) {
        let waker = set.waker(link);
        let word = waker << WORD_SHIFT | what;
        let enter =
            |e: &AtomicU32| waker != 0 && e.compare_exchange(0, word, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        set.bounded |= !self.co_waiters.iter().any(enter);
        // The caller checks for a peer liveness socket after this, and a thread that stores one rings all entries after
        // that: one of the two sees the other.
        fence(Ordering::SeqCst);
    }

    /// Undoes [`Waiters::join`].
    pub(super) fn leave<L: WakerSource>(&self, link: &'static L, set: &WaitSet) {
        let waker = set.waker_in(link);
        for e in self.co_waiters.iter().filter(|_| waker != 0) {
            let word = e.load(Ordering::SeqCst);
            if word >> WORD_SHIFT == waker {
                let _ = e.compare_exchange(word, 0, Ordering::SeqCst, Ordering::SeqCst);
            }
        }
    }

    /// Whether a thread of ours other than that with waker `but` sleeps on the liveness socket of either side for one
    /// of `what`.
    fn has_co_waiters(&self, what: u32, but: u32) -> bool {
        self.co_waiters.iter().map(|e| e.load(Ordering::SeqCst)).any(|w| w & what != 0 && w >> WORD_SHIFT != but)
    }

    /// Wakes the threads that sleep on the liveness socket of either side.
    pub(super) fn wake_co_waiters<L: WakerSource>(&self, link: &L) {
        self.wake_other_co_waiters(link, &[]);
    }

    /// Wakes the same threads but those whose wakers have been `rung` just now. These keep their entries: one of them may
    /// have woken already, and may be about to sleep again.
    pub(super) fn wake_other_co_waiters<L: WakerSource>(&self, link: &L, rung: &[u32]) {
        for e in &self.co_waiters {
            let waker = e.load(Ordering::SeqCst) >> WORD_SHIFT;
            if waker != 0 && !rung.contains(&waker) {
                link.ring(e.swap(0, Ordering::SeqCst) >> WORD_SHIFT);
            }
        }
    }

    /// In the child of a fork: the threads that sleep for the connection are the parent's.
    pub(super) fn forget(&self) {
        for e in self.co_waiters.iter().chain(&self.extra) {
            e.store(0, Ordering::Relaxed);
        }
    }

    /// Removes the mark in shared memory when the last thread leaves: it stands for all threads of ours that sleep for
    /// `what` on the liveness socket.
    fn unregister_liveness<L: WakerSource>(&self, link: &L, cell: &AtomicU32, what: u32) {
        if self.has_co_waiters(what, 0) {
            return;
        }
        let mark = |id| is_mark(id).then_some(0);
        let _ = cell.fetch_update(Ordering::SeqCst, Ordering::SeqCst, mark);
        // A thread that registered in between relied on the mark that is removed now.
        if self.has_co_waiters(what, 0) {
            self.wake_co_waiters(link);
        }
    }

    /// Undoes [`Waiters::register`].
    pub(super) fn unregister<L: WakerSource>(&self, link: &L, cell: &AtomicU32, waker: u32, what: u32) {
        if waker == LIVENESS_WAKER {
            return self.unregister_liveness(link, cell, what);
        }
        let _ = cell.compare_exchange(waker, 0, Ordering::SeqCst, Ordering::SeqCst);
        let mut others = false;
        for e in &self.extra {
            let _ = e.compare_exchange(waker, 0, Ordering::SeqCst, Ordering::SeqCst);
            others |= e.load(Ordering::SeqCst) != 0;
        }
        if others {
            self.wake_extra(link);
        }
    }
}
