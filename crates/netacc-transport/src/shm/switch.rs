//! Leaving the rings while the connection lives: its stream goes on over a pair of kernel sockets.
//!
//! One side *switches*, because exec, another process or a call that a ring cannot serve needs a kernel socket under
//! the number. It makes a pair of sockets, marks its `fin` word with [`SWITCHED`], puts the bytes that it has not read
//! into the *peer's* socket, and passes that socket to the peer. The peer *follows*: it puts its own unread bytes into
//! the socket, then everything that it writes; it reads the ring to its end and then the socket. So each direction
//! changes its path at a byte of its own, and no position has to be exchanged.
//!
//! Only sides that trust each other do so, since a side that passes a socket may keep a copy of it.
//! [`super::strangers`] describes what other sides do.
//!
//! [`SWITCHED`] is one mark for both directions: the side stores it (SeqCst) and then reads the other ring for the last
//! time; the peer publishes (SeqCst) and then loads the mark. One of the two sees the other.
//!
//! Among sharers (see [`super::sharers`]) any process may switch. The socket goes to the peer over the liveness socket,
//! with a copy of the local one, which the peer sends back over its peer liveness socket for the other sharers. Sharers
//! peek at messages on their liveness socket, which duplicates the descriptors (unix(7)), and leave them there for the
//! others. The copy of the local socket must not stay there, so it is [`enclosed`].

use crate::num;
use crate::shm::control::patiently;
use crate::shm::passing::{enclosed, pass_descriptors};
use crate::shm::rings::Direction;
use crate::shm::segment::Leave;
use crate::shm::side::Side;
use crate::shm::side_machines::{RX_SHUT, UNTOLD};
use crate::shm::slot_side::{SlotSide, View};
use crate::shm::sockets::{SWITCH_DRAIN, empty, end_at_close, reset_at_close, reset_pair, send_all};
use crate::shm::wait_budget::WaitBudget;
use crate::shm::{ShmEndpoint, inherited};
use core::sync::atomic::Ordering;
use netacc_ring::{FIN, RESET, SWITCHED};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{raw, reserved_fds};
use netacc_wire::Message;
use rustix::fd::{AsRawFd, OwnedFd};

/// Whether the peer has read all bytes that this side has sent, over the ring and over the old subflow.
fn peer_has_read_all(ep: &ShmEndpoint, v: &View) -> bool {
    ep.rings.peer_left_unread(&ep.side, v) == Some(0) && ep.old_subflow.unread_before(v) == 0
}

/// Where the bytes of a connection are that this side has not read, as one counts that is about to leave the ring: they
/// come before everything that the peer sends over the socket on which the connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// A fresh socket takes all of them, although nobody reads it until the switch is over.
    Fits,
    /// Some are in the old subflow, and the peer may send more there until its next call.
    UnderWay,
    /// They may be more than a fresh socket takes.
    TooMuch,
}

impl Left {
    /// What this side has not read, for a switch whose bytes go into `peer_end`, an end of a fresh pair of connected
    /// sockets. The caller holds the lock of reads.
    pub fn unread(ep: &ShmEndpoint, peer_end: &OwnedFd) -> Left {
        let Some(v) = ep.side.view() else { return Left::Fits };
        let (before, ended) = ep.old_subflow.left(&ep.side);
        let unread = before as u64 + ep.rings.waiting_in(&ep.side, &v);
        // A socket takes about as many bytes as its buffer has. Half of that leaves room for what a socket needs for
        // its own purposes, and for what the peer writes until it sees that this side has left.
        let room = raw::getsockopt_int(peer_end.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF).unwrap_or(0) / 2;
        if unread > room.try_into().unwrap_or(0) {
            Left::TooMuch
        } else if before > 0 && !ended {
            Left::UnderWay
        } else {
            Left::Fits
        }
    }
}

/// A copy of our end for our other sharers, which the peer sends back to them. It is [`enclosed`], since a copy that
/// stayed at the peer would keep our end open when we close it. All messages pass the same enclosing socket: once the
/// copy has been taken out of it, a message that is never read holds none.
#[derive(Default)]
struct SiblingCopy(Option<OwnedFd>);

impl SiblingCopy {
    fn of(&mut self, local_end: &OwnedFd) -> Result<i32> {
        if self.0.is_none() {
            self.0 = Some(enclosed(local_end.as_raw_fd())?);
        }
        self.0.as_ref().map(AsRawFd::as_raw_fd).ok_or(Errno::BADF)
    }
}

impl Drop for SiblingCopy {
    fn drop(&mut self) {
        if let Some(enclosing) = self.0.take() {
            reserved_fds::drop_raw(enclosing);
        }
    }
}

/// A switch that this side offers: `local_end` is to carry its stream, and `peer_end` goes to the peer.
struct SwitchOffer<'a> {
    ep: &'a ShmEndpoint,
    v: &'a View,
    local_end: &'a OwnedFd,
    peer_end: &'a OwnedFd,
    how_long: Leave,
    sibling_copy: SiblingCopy,
}

impl SwitchOffer<'_> {
    /// Does the work of `offer_switch`. False: another process has left first, or the server died before it took the
    /// connect.
    fn make(&mut self) -> Result<bool> {
        let SwitchOffer { ep, v, local_end, peer_end, .. } = *self;
        let (Ok(_write), Ok(_read)) = (ep.enter(v, Direction::Write), ep.enter(v, Direction::Read)) else {
            return Err(ep.violated(v));
        };
        ep.push();
        let own = line!(v, producer, v.me);
        let state = ep.observe(v);
        if state.has(UNTOLD) && state.is_dead() {
            // Only this process has lost the connection, and the other sharers go on with it.
            reset_pair(local_end.as_raw_fd(), peer_end.as_raw_fd());
            return Ok(true);
        }
        // The process that left first may have died before it passed the socket: then this connection is reset, and no
        // other process follows.
        let first = !state.is_left() && v.slot.open.leaving.swap(self.how_long as u32, Ordering::AcqRel) == 0;
        if !first && !state.is_dead() {
            return Ok(false);
        }
        own.fin.fetch_or(SWITCHED, Ordering::SeqCst);
        // This is loaded before the ring is read for the last time: an end that is marked now comes after bytes that
        // are visible now.
        let fin = line!(v, producer, v.me.other()).fin.load(Ordering::SeqCst);
        let ended = fin & FIN != 0;
        // A peer that has ended its stream in the ring, or is gone, does not switch to the ring any more.
        let comes = !ended && !state.has_peer_ended() && !state.is_dead() && !ep.peer_died(v);
        let drained = self.drain_to_peer(!comes).inspect_err(|e| self.cut(*e));
        if ended || state.has_peer_ended() {
            let _ = raw::shutdown(peer_end.as_raw_fd(), libc::SHUT_WR);
        }
        if !peer_has_read_all(ep, v) {
            // If the peer dies before it has read its ring to the end, our end has to get a reset, as in the kernel.
            // The peer takes this back when it has read all of it.
            reset_at_close(peer_end.as_raw_fd());
        }
        if drained.is_err() || state.is_dead() {
            reset_pair(local_end.as_raw_fd(), peer_end.as_raw_fd());
        } else if !ep.peer_died(v) && !self.pass_socket(drained.unwrap_or_default(), fin)? {
            return Ok(false);
        }
        if peer_has_read_all(ep, v) {
            // The peer has read all of it by now. If it has closed the connection, no other process takes the reset
            // back, which would discard the bytes that the peer has sent.
            end_at_close(peer_end.as_raw_fd());
        }
        // The shutdown comes last, since `reset_pair` may have to send over this socket.
        for (is_shut, how) in [(state.has_shut(), libc::SHUT_WR), (state.has(RX_SHUT), libc::SHUT_RD)] {
            if is_shut {
                let _ = raw::shutdown(local_end.as_raw_fd(), how);
            }
        }
        ep.announce_data(v);
        ep.announce_room(v, true);
        Ok(true)
    }

    /// Resets the connection, since some unread bytes could not be obtained: the peer gets the reset, and the reader of
    /// `local_end` finds it after the bytes before it, as with a kernel socket that is passed on after its reset.
    fn cut(&self, e: Errno) {
        let SwitchOffer { ep, v, .. } = *self;
        line!(v, producer, v.me).fin.fetch_or(RESET, Ordering::SeqCst);
        ep.side.die(e);
    }

    /// Puts the bytes that this side has not read into `peer_end`, for the reader of `local_end`: first those of the
    /// old subflow, then those of the ring.
    ///
    /// The peer ends its half of the old subflow when it switches to the ring, at its next call. With `wait` this is
    /// waited for. `Some`: the old subflow has not ended, and was not waited for. It then goes to the peer, which puts
    /// the bytes of both into its socket.
    fn drain_to_peer(&self, wait: bool) -> Result<Option<i32>> {
        let SwitchOffer { ep, v, peer_end, .. } = *self;
        let old_subflow = ep.old_subflow.fd();
        if old_subflow >= 0 && !empty(old_subflow, peer_end.as_raw_fd(), if wait { SWITCH_DRAIN } else { 0 })? {
            return if wait { Err(Errno::CONNRESET) } else { Ok(Some(old_subflow)) };
        }
        let (own, peer) = (line!(v, consumer, v.me), line!(v, producer, v.me.other()));
        let Some(area) = v.rx_area() else { return Err(Errno::CONNRESET) };
        v.end_hold();
        while let Some((p, n)) = ep.rings.rx.chunk(&area, own, peer, 0).map_err(|_| ep.violated(v))? {
            send_all(peer_end.as_raw_fd(), p.as_ptr(), n)?;
            ep.rings.rx.advance(n);
        }
        ep.rings.rx.publish(own);
        Ok(None)
    }

    /// Passes the peer's socket to the peer, or finds that no process is left to receive it. False: the server died
    /// before it took the connect, which is made again elsewhere.
    fn pass_socket(&mut self, old_subflow: Option<i32>, fin: u32) -> Result<bool> {
        let SwitchOffer { ep, v, .. } = *self;
        // Whether the socket was passed over the control socket.
        let mut told = false;
        let refused = loop {
            let arrived = ep.liveness.await_peer(v, &WaitBudget::of_one());
            if told && !arrived && !v.link.is_lost() {
                // Sharers of the peer that cannot read the control socket would never receive the socket.
                return Err(Errno::TIMEDOUT);
            }
            let peer_liveness = ep.liveness.peer_fd();
            match self.deliver(peer_liveness, old_subflow) {
                // The peer may have forked after its word was checked, however long this thread lost its processor in
                // between, and the process that reads the control socket may have left the connection to its child. So
                // the socket is also passed over the peer liveness socket. A peer that forks later reads its control
                // socket to the end first. If the peer liveness socket was not received, as when no descriptor is left
                // for it, it is not waited for again.
                Ok(()) if arrived && peer_liveness < 0 && !v.link.is_inherited() && v.has_peer_forked() => told = true,
                // No further process is left to receive the socket.
                Err(Errno::PIPE | Errno::CONNRESET) if told => return Ok(true),
                // The peer had ended its stream before the ring was read for the last time, so all bytes that it has
                // sent are in the socket.
                Err(Errno::PIPE | Errno::CONNRESET) if fin & (FIN | RESET) != 0 => return Ok(true),
                // The peer is gone, which the liveness socket of either side shows.
                Err(Errno::PIPE | Errno::CONNRESET) if peer_liveness >= 0 || v.link.is_inherited() => {
                    self.drain_after_peer();
                    return Ok(true);
                }
                Err(e @ (Errno::PIPE | Errno::CONNRESET)) => {
                    // The process at the other end of the link is gone. Its last message may be the peer liveness
                    // socket, by which other sharers have the connection.
                    v.await_word(&WaitBudget::of_one(), || ep.liveness.peer_fd() >= 0);
                    if ep.liveness.peer_fd() < 0 {
                        break e;
                    }
                }
                done => return done.map(|()| true),
            }
        };
        if v.is_orphan() {
            return Ok(false);
        }
        if !ep.peer_died(v) {
            return Err(refused);
        }
        self.drain_after_peer();
        Ok(true)
    }

    /// Reads the ring once more after the peer is gone: it may have written since the ring was read, and died or closed
    /// before it had the socket.
    fn drain_after_peer(&self) {
        if let Err(e) = self.drain_to_peer(true) {
            self.cut(e);
        }
        if self.ep.observe(self.v).is_dead() {
            reset_pair(self.local_end.as_raw_fd(), self.peer_end.as_raw_fd());
        }
    }

    /// Sends the peer's socket over one path: the peer liveness socket, the liveness socket, or the link.
    fn deliver(&mut self, peer_liveness: i32, old_subflow: Option<i32>) -> Result<()> {
        let SwitchOffer { ep, v, local_end, peer_end, .. } = *self;
        let peer_end = peer_end.as_raw_fd();
        let liveness = ep.liveness.fd();
        // If the peer has sharers itself, the peer liveness socket reaches all of them.
        let over = if peer_liveness >= 0 { peer_liveness } else { liveness };
        if over >= 0 && liveness >= 0 {
            let both = [peer_end, self.sibling_copy.of(local_end)?];
            return patiently(|| pass_descriptors(over, &both, old_subflow));
        }
        if over >= 0 {
            return patiently(|| pass_descriptors(over, &[peer_end], old_subflow));
        }
        let (slot, generation) = (num::small(v.index), ep.side.generation.load(Ordering::Relaxed));
        if let Some(old_subflow) = old_subflow {
            // The old subflow is sent first, since a peer that has the socket uses it at once.
            v.link.send_patiently(
                Message::OldSubflow { slot, generation },
                Some(old_subflow),
                &WaitBudget::of_one(),
            )?;
        }
        v.link.send_patiently(Message::SwitchToKernel { slot, generation }, Some(peer_end), &WaitBudget::of_one())
    }
}

impl SlotSide {
    /// Whether the peer or one of our sharers has left the rings and we have not followed yet. A connection that was
    /// reset does not follow.
    #[inline]
    pub fn is_moving(&self) -> bool {
        self.state.glance().has_to_follow()
    }

    /// Whether the process that has left the rings may come back. Only the word of a peer that is trusted counts.
    pub fn may_come_back(&self) -> bool {
        self.view().is_some_and(|v| v.slot.open.leaving.load(Ordering::Relaxed) == Leave::ForNow as u32)
    }

    /// Whether neither stream has ended, and this process alone has the connection.
    pub fn is_whole(&self) -> bool {
        let state = self.state.look();
        let over = state.is_dead() || state.is_read_side_over() || state.is_write_side_over();
        let has_others = state.is_shared() || self.link().is_inherited();
        !over && !has_others
    }

    /// Whether a process has left the rings, as of the last check: this side has not followed yet, or has to read the
    /// ring to its end.
    #[inline]
    pub fn is_leaving(&self) -> bool {
        let state = self.state.glance();
        state.is_left() && !state.is_dead()
    }
}

impl ShmEndpoint {
    /// Puts the bytes that are left to read into `peer_end`, for the reader of `local_end`. False: some bytes could not
    /// be obtained, and the connection is reset. The caller holds both direction locks.
    pub fn drain_rest(&self, local_end: &OwnedFd, peer_end: &OwnedFd) -> Result<bool> {
        let Some(v) = self.side.view() else { return Err(Errno::NOTCONN) };
        let Ok(_read) = self.enter(&v, Direction::Read) else { return Err(Errno::CONNRESET) };
        // A process that has left before this one had switched to the ring, so its half of the kernel's stream has
        // ended.
        let sibling_copy = SiblingCopy::default();
        let offer = SwitchOffer { ep: self, v: &v, local_end, peer_end, how_long: Leave::ForGood, sibling_copy };
        let drained = offer.drain_to_peer(true);
        if let Err(e) = drained {
            offer.cut(e);
            reset_pair(local_end.as_raw_fd(), peer_end.as_raw_fd());
        } else {
            end_at_close(self.passed.kernel_fd());
        }
        Ok(drained.is_ok())
    }

    /// Takes our side off both rings: from now on the stream is that of `local_end`, an end of a fresh pair of
    /// connected sockets. The caller holds both direction locks and then calls [`ShmEndpoint::let_go`]. `EAGAIN`: the
    /// peer or another of our sharers has left first, or the server died before it took the connect.
    pub fn offer_switch(&'static self, local_end: &OwnedFd, peer_end: &OwnedFd, how_long: Leave) -> Result<()> {
        let Some(v) = self.side.view() else { return Err(Errno::NOTCONN) };
        let mut sibling_copy = SiblingCopy::default();
        if self.liveness.fd() >= 0
            && let Err(e) = sibling_copy.of(local_end)
        {
            // No descriptor is left for the copy, but the connection can still stay where it is.
            return Err(e);
        }
        let done = SwitchOffer { ep: self, v: &v, local_end, peer_end, how_long, sibling_copy }.make();
        if done.is_err() {
            // It is too late to stay, so both ends get a reset, which shows that bytes are missing.
            reset_at_close(peer_end.as_raw_fd());
            // The bytes that were put into the socket are no longer in the ring.
            self.fail(Errno::CONNRESET);
        }
        match done {
            Ok(false) => Err(Errno::AGAIN),
            Ok(true) => Ok(()),
            Err(e) => Err(if e == Errno::AGAIN { Errno::TIMEDOUT } else { e }),
        }
    }

    /// Gives the endpoint up after the connection has switched to another path.
    pub fn let_go(&'static self) {
        let Some(v) = self.side.view() else { return };
        // Sharers may still access the words.
        let shared = self.side.state.look().is_shared();
        if !shared {
            let side = line!(v, side, v.me);
            for w in [&side.subscriber, &side.rx_waiter, &side.tx_waiter, &side.want_room] {
                w.store(0, Ordering::Relaxed);
            }
        }
        self.liveness.release_peer(&self.side, &v);
        self.passed.drop_all();
        self.heir_waker.close_own(&v);
        let _last = self.liveness.take();
        self.old_subflow.close();
        self.leave();
        if v.me == Side::Server && !shared {
            // Release: after this the client may use the slot again, once it has given it up, too.
            v.slot.open.server_done.store(self.side.generation.load(Ordering::Relaxed), Ordering::Release);
        }
        if v.me == Side::Client && !v.link.is_inherited() {
            if shared {
                v.link.slots.parked(v.index);
            } else {
                v.link.slots.closed(v.index);
            }
        }
        v.link.stats.slot_closed(v.link.is_inherited());
        inherited::connection_ended(v.link, v.index);
        v.link.put();
    }
}
