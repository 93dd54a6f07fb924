//! Queries of a connection's state: the state in TCP's terms, and the counters of its events.

use crate::endpoint::Endpoint;
use crate::shm::ShmEndpoint;
use crate::shm::edges::EdgeSeq;
use crate::shm::endpoint::View;
use crate::shm::side::Side;
use crate::shm::side_machines::Ends;
use core::sync::atomic::{Ordering, fence};
use netacc_sys::errno::Errno;

/// Bytes that count as sent although nobody has read them. What the peer has in its socket's buffers in TCP is not
/// "unsent" any more; a ring has no such border, so we draw it where a receive buffer of ordinary size ends.
const DELIVERED: u64 = 64 * 1024;
/// Least number of bytes that a ring takes before the peer has to read.
const FULL: u64 = 64 * 1024;

impl ShmEndpoint {
    /// The present marks. To be taken before a look at the readiness, so that nothing is missed in between.
    pub fn edge_seq(&self) -> EdgeSeq {
        let Some(v) = self.view() else {
            return EdgeSeq::default();
        };
        // First: that it is established counts as room.
        let _ = self.is_pending();
        let ends = self.edges.ends(self.observe(&v));
        self.edges.find_room(|| self.has_room(&v));
        self.edges.seq(ends, self.visible(&v))
    }

    /// To be called for a writer that found no room and has none yet: asks for room again, since a peer may have told
    /// it too early. True when there is room now.
    #[cold]
    pub fn wants_room_still(&self) -> bool {
        self.edges.wants_room() && self.want_room()
    }

    /// To be called when a writer was told that it wrote a part, and room came before it could ask for it: that is news
    /// for a thread that waits by edges.
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

    /// To be called when the reader has looked at bytes without taking them, and goes to sleep until there are more:
    /// has a writer that waits look for room again.
    #[cold]
    pub fn peeked(&self) {
        if let Some(v) = self.view() {
            self.announce_room(&v, true);
        }
    }

    /// Whether a write would find an end or an error, or no room.
    pub fn refuses(&self) -> bool {
        self.view().is_none_or(|v| self.observe(&v).is_write_side_over() || !self.has_room(&v))
    }

    /// The state as TCP_INFO names it (`enum` in `net/tcp_states.h`).
    pub fn tcp_state(&self) -> u8 {
        const ESTABLISHED: u8 = 1;
        const SYN_SENT: u8 = 2;
        const FIN_WAIT2: u8 = 5;
        const CLOSE: u8 = 7;
        const CLOSE_WAIT: u8 = 8;
        let Some(v) = self.view() else { return CLOSE };
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

    /// Whether both directions have ended: what tcp(7) calls not connected.
    pub fn has_ended(&self) -> bool {
        let Some(v) = self.view() else { return true };
        let state = self.observe(&v);
        state.is_dead() || state.ends() == Ends::Closed
    }

    /// Whether the connection was reset.
    pub fn is_reset(&self) -> bool {
        self.view().is_some_and(|v| self.observe(&v).is_dead())
    }

    /// Whether the peer's end of stream has come.
    pub fn peer_ended(&self) -> bool {
        self.view().is_none_or(|v| self.observe(&v).has_peer_ended())
    }

    /// The value of SO_RCVLOWAT.
    #[inline]
    pub fn lowat(&self) -> usize {
        self.edges.lowat() as usize
    }

    /// Sets SO_RCVLOWAT; a thread that waits looks again. If enough bytes are there, or the end, the kernel wakes as if
    /// they had come just now, even if nothing has changed.
    pub fn set_lowat(&self, n: u32) {
        self.edges.set_lowat(n);
        let there = self.unread();
        if there > 0 && there >= self.lowat() || self.peer_ended() {
            self.edges.count_nudge();
        }
        self.poke_self();
    }

    /// Number of bytes that make it readable: SO_RCVLOWAT, or fewer where no more may come before they are read.
    pub(super) fn enough(&self, v: &View) -> u64 {
        let window = match line!(v, consumer, v.me).window.load(Ordering::Relaxed) {
            0 => FULL,
            window => window.min(FULL),
        };
        u64::from(self.edges.lowat()).min(window)
    }

    /// Sets SO_SNDBUF and SO_RCVBUF as getsockopt(2) reports them; 0: as the kernel sees fit, which then is what the
    /// ring holds.
    #[cold]
    pub fn set_buffers(&self, send: u32, receive: u32) {
        if let Some(v) = self.view() {
            self.tx.set_limit(line!(v, producer, v.me), send);
            // tcp(7), tcp_adv_win_scale: half of the buffer is the kernel's own overhead.
            line!(v, consumer, v.me).window.store(u64::from(receive / 2), Ordering::Relaxed);
            // A writer on either side may find room by this. It registers by a SeqCst exchange and then looks at the
            // words above; here the words are stored, and after the fence the registration is looked at.
            fence(Ordering::SeqCst);
            self.announce_room(&v, false);
            self.poke_self();
        }
    }

    /// Number of bytes that a TCP socket would still have to send (SIOCOUTQ).
    pub(super) fn outstanding(&self, unread: u64) -> usize {
        unread.saturating_sub(DELIVERED) as usize
    }

    /// Whether the peer's program has read all that we have written.
    pub fn is_all_read(&self) -> bool {
        self.view().is_none_or(|v| self.peer_left_unread(&v).unwrap_or(0) == 0)
    }

    /// An error was taken by a call that then had bytes to report: puts it back for the next call, as in the kernel.
    #[cold]
    pub fn put_back(&self, e: Errno) {
        // Neither EPIPE, which also stands for "our own end", nor errors that the program has caused.
        if matches!(e, Errno::CONNRESET | Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH) {
            let _ = self.error.compare_exchange(0, e.0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}
