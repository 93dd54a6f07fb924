//! Waking the threads of this process that wait for a connection, and the ready set through which an epoll instance
//! watches it.

use crate::endpoint::Endpoint;
use crate::shm::enough;
use crate::shm::sharers::kick_instance;
use crate::shm::side::Side;
use crate::shm::slot_side::{SlotSide, View};
use crate::shm::waiters::{READS, Waiters, take_ours};
use crate::shm::{Link, ShmEndpoint};
use crate::wait::{WaitSet, WakerSource};
use core::sync::atomic::{Ordering, fence};
use netacc_ring::GONE;
use netacc_sys::cpu;

/// No waker was rung.
const NONE: [u32; 3] = [0; 3];

impl View {
    /// Publishes the CPU of this thread; written only when it changes, since the line is shared.
    #[inline]
    pub(super) fn note_cpu(&self) {
        let c = cpu::current();
        let line = line!(self, side, self.me);
        if line.cpu.load(Ordering::Relaxed) != c {
            line.cpu.store(c, Ordering::Relaxed);
        }
    }

    /// Whether the peer has released the slot and accesses none of its words any more.
    pub(super) fn peer_released(&self) -> bool {
        // Acquire: the peer's last accesses come before what this thread does to the words.
        line!(self, producer, self.me.other()).fin.load(Ordering::Acquire) & GONE != 0
    }
}

impl Waiters {
    /// Arms `set` for the connect queue (slot 0), and so for the whole link. True: there is no need to sleep, since a
    /// connect waits or the link has ended.
    pub fn arm_queue(&self, side: &SlotSide, set: &mut WaitSet) -> bool {
        let Some(v) = side.view() else { return true };
        let waker = v.link.waker_for(set);
        if waker != 0 {
            self.register(v.link, &line!(v, side, v.me).rx_waiter, waker, READS, set);
        }
        v.seg.queued() > 0 || v.link.is_lost()
    }

    /// Undoes [`Waiters::arm_queue`].
    pub fn disarm_queue(&self, side: &SlotSide, set: &WaitSet) {
        if let Some(v) = side.view()
            && let Some(waker) = v.link.waker_of(set)
        {
            self.unregister(v.link, &line!(v, side, v.me).rx_waiter, waker, READS);
        }
    }
}

/// Does the work of [`ShmEndpoint::poke_self`] with `ring` in place of the function that rings a waker. Returns the numbers
/// of the wakers that were rung; 0: none.
pub(super) fn poke(ep: &ShmEndpoint, ring: fn(&Link, u32)) -> [u32; 3] {
    // The caller has stored what the sleepers are to see, perhaps with Release only; a sleeper registers and then
    // loads it. With the fence in [`ShmEndpoint::arm`] one of the two sees the other.
    fence(Ordering::SeqCst);
    if !ep.side.is_live() && ep.side.slot_index() != 0 {
        return NONE;
    }
    let Some(v) = ep.side.view() else { return NONE };
    if v.link.is_inherited() {
        // The words in shared memory name sleeping threads of the parent, which this process cannot ring, so their
        // registrations have to stay.
        ep.waiters.wake_co_waiters(v.link);
        kick_instance(ep);
        return NONE;
    }
    let own = line!(v, side, v.me);
    let watch = own.subscriber.load(Ordering::SeqCst);
    let marked = watch != 0 && v.seg.ready_set(v.me, watch).is_some_and(|c| c.set(v.index));
    let rung = [if marked { watch } else { 0 }, take_ours(&own.rx_waiter), take_ours(&own.tx_waiter)];
    for id in rung.into_iter().filter(|id| *id != 0) {
        ring(v.link, id);
    }
    ep.waiters.wake_extra(v.link);
    rung
}

impl ShmEndpoint {
    /// Wakes our own waiting threads and our own ready set, so that they check this connection again.
    pub fn poke_self(&self) {
        poke(self, Link::ring);
    }

    /// To be called when the peer liveness socket has been received: wakes threads that went to sleep without it, so
    /// that they sleep on it, too. `rung`: wakers that were rung since it can be seen.
    pub(super) fn wake_for_peer_liveness(&self, v: &View, rung: [u32; 3]) {
        fence(Ordering::SeqCst);
        self.waiters.wake_other_co_waiters(v.link, &rung);
        // An epoll instance sleeps on the waker of its ready set. A child of the peer that could not ring this waker
        // may have taken the ready set's request (see `Waiters::join`).
        let ready_set = self.ready_set.load(Ordering::SeqCst);
        if ready_set != 0 && !rung.contains(&ready_set) && !v.link.is_inherited() {
            v.link.wakers().ring(ready_set);
        }
    }

    /// In the child of a fork: forgets the threads that sleep for the connection, which are the parent's.
    pub fn forget_sleepers(&self) {
        // The epoll instances of the parent do not have this process's threads.
        self.registration.store(0, Ordering::Relaxed);
        self.waiters.forget();
        self.side.users.forget();
    }

    /// Sets which of our ready sets gets this connection's bits; 0: none.
    pub fn subscribe(&self, ready_set: u32) {
        self.ready_set.store(ready_set, Ordering::Relaxed);
        // In the child of a fork the shared word stays as it is, since the ready sets are the parent's.
        let Some(v) = self.side.view().filter(|v| !v.link.is_inherited()) else { return };
        let watch = &line!(v, side, v.me).subscriber;
        if ready_set != 0 {
            // SeqCst: the caller checks the connection afterwards; the peer publishes and then loads this word.
            watch.store(ready_set, Ordering::SeqCst);
        } else if !v.peer_released() {
            // Release suffices: a bit that the peer sets late leads to no registration. A peer that has released the
            // slot no longer loads the word, so the cache line is not fetched for it.
            watch.store(0, Ordering::Release);
        }
    }

    /// Requests a bit in the subscribed ready set when there is room; true if there is room already.
    pub fn want_room(&self) -> bool {
        let Some(v) = self.side.view() else { return true };
        // SeqCst: this thread exchanges the word and then checks for room; the peer publishes its tail and then loads
        // the word.
        line!(v, side, v.me).want_room.swap(1, Ordering::SeqCst);
        let there = self.readiness().writable();
        if !there {
            self.edges.want_room();
            enough::wake_reader(self, &v);
            if self.standstill.note(self, &v) {
                // Threads that sleep for the connection already wake for the next look, too.
                self.poke_self();
            }
        }
        there
    }
}
