//! Queries of a connection's state: the state in TCP's terms, and the counters of its events.

use crate::shm::edges::EdgeSeq;
use crate::shm::side::Side;
use crate::shm::side_machines::Ends;
use crate::shm::slot_side::SlotSide;
use crate::shm::{ShmEndpoint, enough, parts, windows};
use core::sync::atomic::{Ordering, fence};
use netacc_sys::errno::Errno;

impl SlotSide {
    /// Leaves an error for the next call, as the kernel does: one that was taken by a call which then had bytes to report,
    /// or that a later message of several has met.
    #[cold]
    pub fn put_back(&self, e: Errno) {
        // EPIPE is not put back, since it also stands for our own end.
        const LEFT: [Errno; 7] = [
            Errno::CONNRESET,
            Errno::TIMEDOUT,
            Errno::HOSTUNREACH,
            Errno::NETUNREACH,
            Errno::FAULT,
            Errno::INVAL,
            Errno(libc::EMSGSIZE),
        ];
        if LEFT.contains(&e) {
            let _ = self.error.compare_exchange(0, e.0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

impl ShmEndpoint {
    /// The current event counters. To be loaded before the readiness is checked, so that no event in between is missed.
    pub fn edge_seq(&self) -> EdgeSeq {
        let Some(v) = self.side.view() else { return EdgeSeq::default() };
        // This comes first: if a pending connect is established now, that counts as room.
        let _ = self.is_pending();
        let ends = self.edges.ends(self.observe(&v));
        self.edges.find_room(|| windows::has_room(self, &v));
        self.edges.seq(ends, self.visible(&v))
    }

    /// To be called for a writer that has found no room: requests room again if there is still none, since a peer may
    /// have announced it too early. True: there is room now.
    #[cold]
    pub fn wants_room_still(&self) -> bool {
        self.edges.wants_room() && self.want_room()
    }

    /// To be called when room has come after a write was cut short and before the writer could request it: that is an
    /// event for a thread that waits edge-triggered.
    #[cold]
    pub fn room_came(&self) {
        self.edges.count_room();
        self.poke_self();
    }

    /// Wakes the threads that wait, as every call of shutdown(2) does, whether it changed anything or not.
    pub fn stir(&self) {
        self.edges.count_shutdown();
        self.poke_self();
    }

    /// To be called when the reader has peeked at bytes and goes to sleep until there are more: wakes a waiting writer,
    /// which checks for room again.
    #[cold]
    pub fn peeked(&self) {
        if let Some(v) = self.side.view() {
            self.announce_room(&v, true);
        }
    }

    /// Whether a write would find an end or an error, or no room.
    pub fn refuses(&self) -> bool {
        self.side.view().is_none_or(|v| self.observe(&v).is_write_side_over() || !windows::has_room(self, &v))
    }

    /// The state as TCP_INFO names it (`enum` in `net/tcp_states.h`).
    pub fn tcp_state(&self) -> u8 {
        const ESTABLISHED: u8 = 1;
        const SYN_SENT: u8 = 2;
        const FIN_WAIT2: u8 = 5;
        const CLOSE: u8 = 7;
        const CLOSE_WAIT: u8 = 8;
        let Some(v) = self.side.view() else { return CLOSE };
        let state = self.observe(&v);
        match state.ends() {
            _ if state.is_dead() => CLOSE,
            _ if self.is_pending() => SYN_SENT,
            Ends::Closed => CLOSE,
            Ends::FinWait => FIN_WAIT2,
            Ends::CloseWait => CLOSE_WAIT,
            Ends::Established => ESTABLISHED,
        }
    }

    /// Sets SO_RCVLOWAT, and wakes waiting threads, which check again. If enough bytes or the end are there, this is an
    /// event even if nothing has changed, as in the kernel.
    pub fn set_lowat(&self, n: u32) {
        self.edges.set_lowat(n);
        let there = parts::unread(self);
        if there > 0 && enough::is_lowat_there(self) || self.observed().has_peer_ended() {
            self.edges.count_nudge();
        }
        self.poke_self();
    }

    /// Sets SO_SNDBUF and SO_RCVBUF (bytes, as getsockopt(2) reports them); 0: not set by the program, so that the
    /// ring's size is the limit.
    #[cold]
    pub fn set_buffers(&self, send: u32, receive: u32) {
        if let Some(v) = self.side.view() {
            self.rings.tx.set_limit(line!(v, producer, v.me), send);
            // tcp(7), tcp_adv_win_scale: half of the buffer is the kernel's own overhead.
            line!(v, consumer, v.me).window.store(u64::from(receive / 2), Ordering::Relaxed);
            // This may give a writer on either side room. A writer registers by a SeqCst exchange and then loads the
            // words above; this thread has stored them, and loads the registration after the fence.
            fence(Ordering::SeqCst);
            self.announce_room(&v, false);
            self.poke_self();
        }
    }
}
