//! The waiters of a connection, which are to be woken: threads of ours, and the ready set that watches it.

use crate::endpoint::{Endpoint, Interest};
use crate::shm::ShmEndpoint;
use crate::shm::endpoint::{EXTRA, View};
use crate::shm::segment::LIVENESS_WAKER;
use crate::shm::side::Side;
use crate::wait::WaitSet;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use netacc_ring::GONE;
use netacc_sys::cpu;

/// Shift in a word of `co_waiters` of the waker's number; the bits below say what the thread waits for.
const WORD_SHIFT: u32 = 2;
/// The thread waits for something to read.
pub(super) const READS: u32 = 1;
/// The thread waits for room.
pub(super) const WRITES: u32 = 2;

/// Takes the waker of a thread of ours from where it is registered. The mark of a process that we forked stays: it
/// would sleep on and never be rung, since the peer looks here.
fn take_ours(cell: &AtomicU32) -> u32 {
    let ours = |id: u32| (id != 0 && id != LIVENESS_WAKER).then_some(0);
    cell.fetch_update(Ordering::SeqCst, Ordering::SeqCst, ours).unwrap_or(0)
}

impl ShmEndpoint {
    /// Makes our own sleepers and our own ready set look at this connection again.
    pub fn poke_self(&self) {
        // What the sleepers are to see was stored before, perhaps with Release only; they register, then look at it.
        // One of us sees the other, with the fence in [`ShmEndpoint::arm`].
        fence(Ordering::SeqCst);
        if !self.is_live() && self.index.load(Ordering::Relaxed) != 0 {
            return;
        }
        let Some(v) = self.view() else { return };
        if v.link.is_inherited() {
            // The words in shared memory name sleepers of the parent's, which we cannot ring: they must not lose their
            // marks.
            return self.wake_co_waiters(&v);
        }
        let own = line!(v, side, v.me);
        let watch = own.subscriber.load(Ordering::SeqCst);
        let marked = watch != 0 && v.seg.ready_set(v.me, watch).is_some_and(|c| c.set(v.index));
        for id in [if marked { watch } else { 0 }, take_ours(&own.rx_waiter), take_ours(&own.tx_waiter)] {
            if id != 0 {
                v.link.ring_own(id);
            }
        }
        self.wake_extra(&v);
    }

    /// Lets the peer know which CPU we use; written only when it changed, since the line is shared.
    #[inline]
    pub(super) fn note_cpu(&self, v: &View) {
        let c = cpu::current();
        let line = line!(v, side, v.me);
        if line.cpu.load(Ordering::Relaxed) != c {
            line.cpu.store(c, Ordering::Relaxed);
        }
    }

    pub(super) fn wake_extra(&self, v: &View) {
        for e in &self.extra {
            if e.load(Ordering::SeqCst) != 0 {
                let id = e.swap(0, Ordering::SeqCst);
                if id != 0 {
                    v.link.ring_own(id);
                }
            }
        }
    }

    /// Registers `waker` in `cell`, or as a further waiter when another thread is there already.
    pub(super) fn register(&self, cell: &AtomicU32, waker: u32, what: u32, set: &mut WaitSet) {
        for _ in 0..EXTRA {
            match cell.compare_exchange(0, waker, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return,
                Err(b) if b == waker => {
                    // The mark belongs to a thread of ours or to another sharer, which then takes the
                    // byte.
                    let others = waker == LIVENESS_WAKER && !self.has_co_waiters(what, set.waker_in(self.link()));
                    set.bounded |= others;
                    set.mark_was_set |= others;
                    return;
                }
                // Another of our sharers has the place, and does not know of our further waiters.
                Err(b) if b == LIVENESS_WAKER || waker == LIVENESS_WAKER => break,
                Err(_) => {}
            }
            let Some(mine) =
                self.extra.iter().find(|e| e.compare_exchange(0, waker, Ordering::SeqCst, Ordering::SeqCst).is_ok())
            else {
                break;
            };
            // A thread that leaves `cell` rings the extras afterwards. If it left before we were in, nobody would: then
            // we take its place.
            if cell.load(Ordering::SeqCst) != 0 {
                return;
            }
            let _ = mine.compare_exchange(waker, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
        set.bounded = true;
    }

    /// Threads of one process may sleep on one liveness socket of either side, and one of them takes the byte that was
    /// for another. So each leaves its waker here before it registers, and a thread that takes a byte rings them all. A
    /// thread that is not here any more when it sleeps has been rung.
    ///
    /// A thread that sleeps without a peer liveness socket is here as well: a child of the peer that cannot ring its
    /// waker takes the mark of its registration, and leaves the byte at a peer liveness socket that another thread is
    /// just taking in.
    pub(super) fn join_co_waiters(&self, v: &View, interest: Interest, set: &mut WaitSet) {
        if self.kernel_fd() >= 0 {
            return;
        }
        let waker = set.waker(v.link);
        let word =
            waker << WORD_SHIFT | if interest.read { READS } else { 0 } | if interest.write { WRITES } else { 0 };
        let enter =
            |e: &AtomicU32| waker != 0 && e.compare_exchange(0, word, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        set.bounded |= !self.co_waiters.iter().any(enter);
        // The look for a peer liveness socket comes after this. A thread that stores one rings all that are here after
        // that: one of both sees the other.
        fence(Ordering::SeqCst);
    }

    pub(super) fn leave_co_waiters(&self, v: &View, set: &WaitSet) {
        let waker = set.waker_in(v.link);
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

    pub(super) fn wake_co_waiters(&self, v: &View) {
        for e in &self.co_waiters {
            if e.load(Ordering::SeqCst) != 0 {
                v.link.ring_own(e.swap(0, Ordering::SeqCst) >> WORD_SHIFT);
            }
        }
    }

    /// The peer's liveness socket is there: a thread that went to sleep without it looks again, and sleeps on it too.
    pub(super) fn wake_for_peer_liveness(&self, v: &View) {
        fence(Ordering::SeqCst);
        self.wake_co_waiters(v);
        // An epoll instance sleeps on the waker of its ready set, and the ready set's mark may have been taken in the same way.
        let ready_set = self.ready_set.load(Ordering::SeqCst);
        if ready_set != 0 && !v.link.is_inherited() {
            v.link.ring_own(ready_set);
        }
    }

    /// In the child of a fork: the threads that sleep for the connection are the parent's.
    pub fn forget_sleepers(&self) {
        for e in self.co_waiters.iter().chain(&self.extra) {
            e.store(0, Ordering::Relaxed);
        }
        self.forget_users();
        self.draining.reset();
    }

    /// Takes the mark in shared memory away, which stands for all threads of ours that sleep for `what` on the liveness socket,
    /// with the last of them.
    fn unregister_liveness(&self, v: &View, cell: &AtomicU32, what: u32) {
        if self.has_co_waiters(what, 0) {
            return;
        }
        let _ = cell.compare_exchange(LIVENESS_WAKER, 0, Ordering::SeqCst, Ordering::SeqCst);
        // A thread that registered in between found the mark and lost it.
        if self.has_co_waiters(what, 0) {
            self.wake_co_waiters(v);
        }
    }

    pub(super) fn unregister(&self, v: &View, cell: &AtomicU32, waker: u32, what: u32) {
        if waker == LIVENESS_WAKER {
            return self.unregister_liveness(v, cell, what);
        }
        let _ = cell.compare_exchange(waker, 0, Ordering::SeqCst, Ordering::SeqCst);
        let mut others = false;
        for e in &self.extra {
            let _ = e.compare_exchange(waker, 0, Ordering::SeqCst, Ordering::SeqCst);
            others |= e.load(Ordering::SeqCst) != 0;
        }
        if others {
            self.wake_extra(v);
        }
    }

    /// Sets the ready set of ours that hears of this connection (0: none).
    pub fn subscribe(&self, ready_set: u32) {
        self.ready_set.store(ready_set, Ordering::Relaxed);
        // In the child of a fork the word is the parent's, which has the ready sets.
        let Some(v) = self.view().filter(|v| !v.link.is_inherited()) else { return };
        let watch = &line!(v, side, v.me).subscriber;
        if ready_set != 0 {
            // SeqCst: the caller looks at the connection afterwards; the peer publishes, then looks here.
            watch.store(ready_set, Ordering::SeqCst);
        } else if !self.peer_released(&v) {
            // Release suffices: a hint that comes late names no registration. A peer that is gone does not look, and
            // the line need not be fetched.
            watch.store(0, Ordering::Release);
        }
    }

    /// Whether the peer has closed for good and looks at no word of the slot any more.
    pub(super) fn peer_released(&self, v: &View) -> bool {
        // Acquire: the peer's last looks come before what we do to the words now.
        line!(v, producer, v.me.other()).fin.load(Ordering::Acquire) & GONE != 0
    }

    /// Asks for a bit in the subscribed ready set when there is room; true when there is room already.
    pub fn want_room(&self) -> bool {
        let Some(v) = self.view() else { return true };
        // SeqCst exchange, then the look: the peer publishes its tail, then looks at `want_room`.
        line!(v, side, v.me).want_room.swap(1, Ordering::SeqCst);
        let there = self.readiness().writable();
        if !there {
            self.room_wanted.store(1, Ordering::Release);
        }
        there
    }

    /// Whether the connect queue's waiters (slot 0) must look: arms `set` for the whole link.
    pub fn arm_queue(&self, set: &mut WaitSet) -> bool {
        let Some(v) = self.view() else { return true };
        let waker = v.link.waker_for(set);
        if waker != 0 {
            self.register(&line!(v, side, v.me).rx_waiter, waker, READS, set);
        }
        v.seg.queued() > 0 || v.link.is_lost()
    }

    /// Undoes [`ShmEndpoint::arm_queue`].
    pub fn disarm_queue(&self, set: &WaitSet) {
        if let Some(v) = self.view()
            && let Some(waker) = v.link.waker_of(set)
        {
            self.unregister(&v, &line!(v, side, v.me).rx_waiter, waker, READS);
        }
    }
}
