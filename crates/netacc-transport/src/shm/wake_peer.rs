//! Waking the peer: an epoll instance that watches the connection, a thread that sleeps on one of its wakers, or one of
//! its processes that sleeps on a liveness socket.

use crate::shm::ShmEndpoint;
use crate::shm::liveness::Liveness;
use crate::shm::segment::{HEIR_WAKER, LIVENESS_WAKER};
use crate::shm::side::Side;
use crate::shm::side_machines::RING_OWED;
use crate::shm::slot_side::{SlotSide, View};
use core::sync::atomic::{Ordering, fence};
use netacc_ring::{Ring, notify_data, notify_room};
use netacc_stats::{Counter, page};
use netacc_sys::{cpu, raw};

/// The byte that wakes a thread. It is a control character, with which no text of a foreign program begins.
pub(super) const WAKE: u8 = 0x01;

impl Liveness {
    /// Wakes the peer by our liveness socket. A peer that has yet to connect to a listening liveness socket checks the
    /// connection once it has done so.
    pub(super) fn poke(&self, side: &SlotSide) {
        self.accept(side);
        if !side.liveness_listens() {
            let _using = side.users.begin();
            poke(self.to_poll(side));
        }
    }

    /// Wakes one of the peer's sharers that has no link of its own and sleeps on the other end of our peer liveness
    /// socket.
    ///
    /// The peer sent the peer liveness socket before it forked that process, so it is in the control socket, or another
    /// thread is just receiving it. That thread then rings ([`Liveness::ring_if_owed`]), so this one need not wait.
    /// A peer that writes the word without having forked costs only one check of the control socket.
    pub(super) fn wake_sharers(&self, side: &SlotSide, v: &View) {
        // A process that has the link by a fork receives no peer liveness socket; then the sleeper has the other end of
        // our liveness socket.
        let may_come = !v.link.is_inherited() && line!(v, side, v.me.other()).forked.load(Ordering::Relaxed) != 0;
        if may_come && self.peer_fd() < 0 {
            side.state.set(RING_OWED);
            // SeqCst: this thread stores the mark and then loads the peer liveness socket; the thread that receives the
            // peer liveness socket stores it and then loads the mark. One of the two sees the other.
            fence(Ordering::SeqCst);
            v.link.service();
        }
        match self.peer_fd() {
            -1 => self.poke(side),
            fd => poke(fd),
        }
    }

    /// To be called when the peer liveness socket has been received: rings the peer's process that was to be rung when
    /// the socket was missing.
    pub(super) fn ring_if_owed(&self, side: &SlotSide) {
        // SeqCst: see [`Liveness::wake_sharers`].
        fence(Ordering::SeqCst);
        if side.state.glance().has(RING_OWED) && side.state.clear(RING_OWED) {
            poke(self.peer_fd());
        }
    }
}

impl ShmEndpoint {
    /// Tells the peer that there are bytes for it. Returns whether one of its threads slept.
    #[inline]
    pub(super) fn announce_data(&self, v: &View) -> bool {
        let peer = v.me.other();
        let ready_set = |n| {
            let c = v.seg.ready_set(peer, n)?;
            // The time of the first event since the bit was taken counts, as in the kernel's ready list.
            if !c.has(v.index) {
                line!(v, producer, v.me).when.store(cpu::ticks(), Ordering::Relaxed);
            }
            Some(c)
        };
        let r = notify_data(line!(v, side, peer), v.index, ready_set);
        let sleeps = r != Ring::default();
        if sleeps {
            self.ring(v, r);
        }
        sleeps
    }

    /// Tells the peer that there is room for its bytes: with `always` in any case, otherwise if it is enough for a
    /// writer to continue.
    #[inline]
    pub(super) fn announce_room(&self, v: &View, always: bool) {
        let peer = v.me.other();
        let enough = || always || self.rings.rx.room_to_announce(line!(v, consumer, v.me), line!(v, producer, peer));
        let r = notify_room(line!(v, side, peer), v.index, |n| v.seg.ready_set(peer, n), enough);
        if r != Ring::default() {
            self.ring(v, r);
        }
    }

    /// Rings the peer's wakers that a publication asked for.
    #[cold]
    fn ring(&self, v: &View, ring: Ring) {
        for id in [ring.ready_set, ring.thread] {
            if id == 0 {
                continue;
            }
            if id == HEIR_WAKER && v.link.peer.is_trusted() && self.heir_waker.ring(&self.side) {
                page().count(Counter::Doorbells);
            } else if matches!(id, LIVENESS_WAKER | HEIR_WAKER) {
                self.liveness.wake_sharers(&self.side, v);
            } else if !v.link.is_inherited() {
                v.link.ring_peer(id);
            } else if !v.link.ring_known(id) {
                self.liveness.poke(&self.side);
            }
        }
    }
}

/// Sends a byte that wakes every thread that polls the other end. If the socket is full, the other end is readable
/// already.
fn poke(fd: i32) {
    if fd >= 0 {
        let byte = [WAKE];
        let _ = raw::send(fd, byte.as_ptr(), 1, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    }
}
