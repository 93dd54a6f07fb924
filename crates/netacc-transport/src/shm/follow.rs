//! Following a peer or another sharer that has left the rings (see [`super::switch`]): the socket on which the
//! connection goes on is received, gets the unread bytes of our ring, and carries all later bytes.

use crate::iov::Iov;
use crate::shm::ShmEndpoint;
use crate::shm::control::patiently;
use crate::shm::passed::PassedSockets;
use crate::shm::passing::{pass_descriptors, take_out};
use crate::shm::registry;
use crate::shm::rings::Direction;
use crate::shm::sharers::{FORKED, GIVING, poll_all_ends};
use crate::shm::side::Side;
use crate::shm::side_machines::{LivenessSocket, PEER_GONE, RX_SHUT, Switch, SwitchEvent};
use crate::shm::slot_side::{SlotSide, View};
use crate::shm::sockets::{SWITCH_DRAIN, empty, end_at_close, reset_at_close, send_all};
use core::sync::atomic::Ordering;
use netacc_ring::Consumer;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{raw, reserved_fds};

/// Whether all bytes that the peer left in the ring and in the old subflow have been read.
fn drained(ep: &ShmEndpoint, v: &View) -> bool {
    ep.side.state.glance().is_left_by_sharer() || !(ep.has_data(v) || ep.old_subflow.fd() >= 0)
}

impl SlotSide {
    /// Whether this side has followed, and has to read the ring to its end before the socket.
    pub fn has_accepted(&self) -> bool {
        self.state.look().is_on_kernel()
    }
}

impl View {
    /// Puts the bytes of our ring into the socket that the peer has neither read nor put there itself. The peer has
    /// left the ring, so its position is final, and this side reads the ring in its place.
    fn give_rest(&self, fd: i32) -> Result<()> {
        let (theirs, ours) = (line!(self, consumer, self.me.other()), line!(self, producer, self.me));
        let Some(area) = self.tx_area() else { return Err(Errno::CONNRESET) };
        let rest = Consumer::default();
        rest.resync(theirs, ours).map_err(|_| Errno::CONNRESET)?;
        while let Some((p, n)) = rest.chunk(&area, theirs, ours, 0).map_err(|_| Errno::CONNRESET)? {
            send_all(fd, p.as_ptr(), n)?;
            rest.advance(n);
        }
        // The peer has left the ring, so its position word now records the progress of this transfer for our sharers.
        rest.publish(theirs);
        Ok(())
    }
}

impl PassedSockets {
    /// Puts the bytes that this side has sent over the old subflow and that the peer has not read into the socket. This
    /// side has ended that stream, so it has an end; but a peer that is not trusted could pass another socket, and is
    /// waited for only briefly.
    fn return_unread(&self, v: &View, fd: i32) -> Result<()> {
        let Some(left) = self.take_unread_return() else { return Ok(()) };
        let all = empty(left, fd, if v.link.peer.is_trusted() { SWITCH_DRAIN } else { 10 });
        reserved_fds::close(left);
        if all? { Ok(()) } else { Err(Errno::CONNRESET) }
    }

    /// Writes to the kernel socket after this side has followed.
    #[cold]
    pub(super) fn write(&self, src: &mut Iov<'_>) -> Result<usize> {
        let mut done = 0;
        while let Some((p, n)) = src.first() {
            match raw::send(self.kernel_fd(), p, n, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
                Ok(k) => {
                    src.skip(k);
                    done += k;
                }
                Err(Errno::INTR) => {}
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// Writes to the kernel socket for sendfile and splice. Bytes that were taken from the source are sent even if that
    /// blocks briefly.
    #[cold]
    pub(super) fn fill(&self, want: usize, mut fill: impl FnMut(*mut u8, usize) -> Result<usize>) -> Result<usize> {
        if !self.has_room() {
            return Err(Errno::AGAIN);
        }
        let mut buf = [0u8; 4096];
        let n = fill(buf.as_mut_ptr(), want.min(buf.len()))?.min(buf.len());
        send_all(self.kernel_fd(), buf.as_ptr(), n)?;
        Ok(n)
    }

    /// Whether the kernel socket has room, after this side has followed.
    #[cold]
    pub(super) fn has_room(&self) -> bool {
        let fd = self.kernel_fd();
        fd >= 0 && raw::events_now(fd, libc::POLLOUT) != 0
    }
}

/// A side that follows a process which has left the rings.
struct Follower<'a> {
    ep: &'a ShmEndpoint,
    v: &'a View,
}

impl Follower<'_> {
    /// Checks without waiting whether the socket has been received.
    fn seek_kernel(&self) -> bool {
        let Follower { ep, v } = *self;
        if ep.passed.kernel_fd() < 0 {
            v.link.service();
            poll_all_ends(ep, v);
        }
        if ep.passed.kernel_fd() < 0 && ep.side.state.glance().is_left_by_sharer() && self.wake_own_peer() {
            poll_all_ends(ep, v);
        }
        ep.passed.kernel_fd() >= 0
    }

    /// If this process also has the other end of the connection, makes that end send our copy of the socket: the thread
    /// that waits for it here may be the only one that uses that end. Returns whether that end has received the socket.
    #[cold]
    fn wake_own_peer(&self) -> bool {
        let Follower { ep, v } = *self;
        let generation = ep.side.generation.load(Ordering::Relaxed);
        let mut sent = false;
        registry::each_used(|link| {
            let peer = v.link.is_other_side_of(link).then(|| link.endpoint(v.index)).flatten();
            if let Some(peer) =
                peer.filter(|peer| peer.side.expects(generation) && peer.passed.may_go_on(&peer.side, generation))
            {
                sent |= peer.side.view().is_some_and(|v| Follower { ep: peer, v: &v }.receive(generation));
            }
        });
        sent
    }

    /// Receives the socket on which connection `generation` goes on, and sends the copy of it to the peer's sharers. A
    /// connect that was not accepted yet keeps the socket until then.
    fn receive(&self, generation: u32) -> bool {
        let Follower { ep, v } = *self;
        v.link.service();
        if !ep.side.is_live() {
            ep.passed.of_generation(&ep.side, generation);
        }
        poll_all_ends(ep, v);
        self.forward_sibling_copy();
        ep.passed.kernel_fd() >= 0
    }

    /// Whether the socket cannot arrive any more: no process is left that could pass it, or it was lost.
    fn is_hopeless(&self) -> bool {
        let Follower { ep, v } = *self;
        if ep.passed.has_missed() {
            return true;
        }
        if !(v.link.is_lost() || v.link.is_inherited()) {
            return false;
        }
        // This is checked after the link: another thread may have received a peer liveness socket before it marked the
        // link as lost.
        let unheard = ep.liveness.peer_fd() < 0 && ep.liveness.fd() < 0;
        let state = ep.side.state.look();
        // If a sharer has left, the socket arrives over the liveness socket. A peer that has left may have only its own
        // liveness socket, whose other end is our peer liveness socket: then the end of our liveness socket shows
        // nothing.
        let ended = state.is_left_by_sharer() && state.liveness_socket() == LivenessSocket::Ended;
        let gone = ended || state.has(PEER_GONE);
        // The socket may have been received before the end of the peer liveness socket was seen.
        (unheard || gone) && !self.seek_kernel()
    }

    fn forward_sibling_copy(&self) {
        let Follower { ep, v } = *self;
        if let Some(enclosing) = ep.passed.take_sibling_copy() {
            // Looked up afterwards: a thread that finds the copy finds the peer liveness socket that was received before it.
            let peer_liveness = ep.liveness.peer_fd();
            if peer_liveness >= 0 {
                take_out(enclosing, |copy| patiently(|| pass_descriptors(peer_liveness, &[copy], None)));
            }
            reserved_fds::close(enclosing);
            // The sharer that has the link sleeps on its ready set.
            ep.announce_data(v);
            ep.announce_room(v, true);
        }
    }

    /// Puts the unread bytes of our ring into the socket. Only one of the sharers does that. If it was killed while it
    /// did, no process knows how many bytes it has written, and the connection is reset, since a byte might be sent
    /// twice.
    fn give_once(&self, fd: i32) -> Result<()> {
        let Follower { ep, v } = *self;
        let state = &line!(v, side, v.me).forked;
        if !ep.side.is_shared() {
            ep.passed.return_unread(v, fd)?;
            return v.give_rest(fd);
        }
        // Relaxed: every process that loads or stores these values holds the word of [`ShmEndpoint::enter`], as this
        // one does.
        if state.load(Ordering::Relaxed) == GIVING {
            return Err(Errno::CONNRESET);
        }
        state.store(GIVING, Ordering::Relaxed);
        ep.passed.return_unread(v, fd)?;
        v.give_rest(fd)?;
        state.store(FORKED, Ordering::Relaxed);
        Ok(())
    }
}

impl ShmEndpoint {
    /// Whether the connection has to switch: its server died before it accepted the connect, or a process has left the
    /// rings and the socket on which the connection goes on was received. The answer reflects the last read, write or
    /// check of the readiness.
    pub fn must_switch(&self) -> bool {
        let state = self.side.state.look();
        if !state.is_live() {
            return false;
        }
        self.side.view().is_some_and(|v| match state.switch() {
            Switch::PeerLeft | Switch::SharerLeft if !state.is_dead() => {
                // The socket is checked for last: it may have been received while `is_hopeless` checked whether it can
                // still arrive.
                let follower = Follower { ep: self, v: &v };
                follower.seek_kernel() || follower.is_hopeless() || self.passed.kernel_fd() >= 0
            }
            Switch::OnKernel | Switch::OnSharersKernel if !state.is_dead() => drained(self, &v),
            _ => v.is_orphan() && !self.connect.is_kept(),
        })
    }

    /// Waits briefly for the socket of a peer that has left. That peer stores its mark, puts its unread bytes into the
    /// socket, passes it, and then wakes us, which takes little time; without the wait, bytes that we wrote in between
    /// would stay here until the program's next call. A peer of another user could delay every such write, so the wait
    /// for it is shorter.
    #[cold]
    pub fn await_kernel(&self) {
        let Some(v) = self.side.view() else { return };
        let follower = Follower { ep: self, v: &v };
        let steps = if v.link.peer.is_trusted() { 1_000 } else { 10 };
        for _ in 0..steps {
            if follower.seek_kernel() || follower.is_hopeless() {
                return;
            }
            let fds = [v.link.control.fd_to_poll(), self.liveness.peer_fd(), self.liveness.fd()];
            let mut p = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
            let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            let _ = raw::ppoll(p.as_mut_ptr(), p.len(), &raw mut ts, core::ptr::null());
        }
    }

    /// Follows the peer or another sharer that has left the rings. The caller holds both direction locks. `Some`: the
    /// endpoint's descriptor of the kernel socket, which carries the whole connection now and has to be put under the
    /// application's numbers before [`ShmEndpoint::let_go`]. `None`: the ring has to be read to its end first.
    pub fn accept_switch(&'static self) -> Result<Option<i32>> {
        let Some(v) = self.side.view() else { return Err(Errno::CONNRESET) };
        let follower = Follower { ep: self, v: &v };
        self.push();
        let state = self.side.state.look();
        if !state.is_on_kernel() {
            if !follower.seek_kernel() {
                // Either the socket will come and wake us, or no process is left to send it.
                return if follower.is_hopeless() { Err(Errno::CONNRESET) } else { Ok(None) };
            }
            let fd = self.passed.kernel_fd();
            if !state.is_left_by_sharer() {
                follower.forward_sibling_copy();
            }
            // A sharer that leaves has its turn until it has sent what was unread.
            let Ok(_sharers) = self.enter(&v, Direction::Write) else { return Err(Errno::CONNRESET) };
            if !state.is_left_by_sharer() {
                follower.give_once(fd)?;
            }
            // A sharer that has left may not have seen the end of stream that another one has written, which is the end for all.
            if self.observe(&v).has_shut() {
                let _ = raw::shutdown(fd, libc::SHUT_WR);
            }
            self.side.on::<Switch>(SwitchEvent::Accept);
        }
        if !drained(self, &v) {
            return Ok(None);
        }
        let fd = self.passed.kernel_fd();
        // All of the ring has been read: see `offer_to`.
        end_at_close(fd);
        if state.has(RX_SHUT) {
            let _ = raw::shutdown(fd, libc::SHUT_RD);
        }
        Ok(Some(fd))
    }

    /// To be called before this process closes the connection or ends, with both direction locks held. A peer that has
    /// left the rings passes a socket whose last close resets the connection, and so discards our bytes, until all
    /// bytes of the peer have been read (see `offer_to`). So this process receives that socket and, if no byte is left
    /// to read, lets it end the stream in the ordinary way.
    pub fn settle_switch(&'static self) {
        let Some(v) = self.side.view() else { return };
        let state = self.observe(&v);
        // A peer of another user passes no socket, and is not waited for.
        if v.may_follow(&self.passed) && state.is_left() && !state.is_dead() && !state.is_left_by_sharer() {
            self.await_kernel();
            let _ = self.accept_switch();
            if self.passed.kernel_fd() >= 0 && !self.has_data(&v) {
                // The whole ring has been read, perhaps by a sharer that does not continue the connection.
                end_at_close(self.passed.kernel_fd());
            }
        }
    }

    /// Closes a connection that a process has taken off the rings. Bytes that were written before are still sent.
    #[cold]
    pub(super) fn close_switched(&'static self, abort: bool) {
        let Some(v) = self.side.view() else { return };
        if self.side.state.glance().is_left_by_sharer() {
            // The other sharer has the connection.
            return self.let_go();
        }
        let unread = self.has_data(&v);
        self.await_kernel();
        let _ = self.accept_switch();
        let fd = self.passed.kernel_fd();
        if fd >= 0 && (unread || abort) {
            reset_at_close(fd);
        }
        self.let_go();
    }
}
