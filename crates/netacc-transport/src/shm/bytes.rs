//! Reading and writing the rings of a connection, and the results of calls that move no bytes.

use crate::iov::Iov;
use crate::shm::rings::Direction;
use crate::shm::side::Side;
use crate::shm::side_machines::{CORKED, CUT, HOLDS, MORE, Switch, SwitchEvent};
use crate::shm::side_state::SideState;
use crate::shm::slot_side::View;
use crate::shm::{ShmEndpoint, windows};
use core::sync::atomic::Ordering;
use netacc_ring::{CLOSED, FIN, GONE, HOLDING, LARGE, RESET, Violation, to_usize};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::user::Access;

/// Smallest size (bytes) of a non-blocking write that has to leave [`SMALL_WRITE_ROOM`] bytes of a window free.
const BULK: usize = 1024;

/// Room (bytes) that is reserved for small writes.
const SMALL_WRITE_ROOM: usize = 4096;

/// Publishes `n` bytes that were copied in, or holds them back, for a call that is complete (`whole`) or has found no
/// more room. `state` is that of before the publication.
#[inline]
fn publish_written(ep: &ShmEndpoint, v: &View, state: SideState, n: usize, whole: bool) {
    if !state.has(CORKED | MORE | HOLDS) {
        ep.rings.tx.publish(line!(v, producer, v.me));
        ep.announce_data(v);
    } else {
        ep.hold(v, n, whole);
    }
    // SeqCst, after the SeqCst publication: a reader that has left the ring saw these bytes, or this thread sees that it
    // left.
    if v.peer_switched(&ep.passed) {
        ep.side.on::<Switch>(SwitchEvent::PeerLeaves);
    }
}

impl ShmEndpoint {
    /// Number of the `want` bytes that a call may write now. With `waits` the call blocks until there is room. Programs
    /// rely on room for a small write (a line's end, a frame's header) after a large non-blocking one that was accepted
    /// completely: TCP accepts SO_SNDBUF bytes and then the rest of a segment. After a write that was cut short no byte
    /// fits until there is room again.
    #[inline]
    pub fn burst(&self, want: usize, waits: bool) -> usize {
        let cut = self.side.state.glance().has(CUT);
        if !cut && (waits || want < BULK) { want } else { self.bulk(want, waits) }
    }

    fn bulk(&self, want: usize, waits: bool) -> usize {
        let Some(v) = self.side.view() else { return want };
        let state = self.side.state.glance();
        if want == 0 || state.is_shared() || state.is_left() {
            return want;
        }
        let room = if waits && windows::has_room(self, &v) { want } else { self.bulk_room(&v, want) };
        if room < want && !state.has(CUT) {
            self.side.state.set(CUT);
        }
        if room >= want && state.has(CUT) {
            self.side.state.clear(CUT);
        }
        room.min(want)
    }

    fn bulk_room(&self, v: &View, want: usize) -> usize {
        if !self.rings.tx.is_large() {
            return LARGE - SMALL_WRITE_ROOM;
        }
        // If a quarter of the window is free, as it usually is, the exact number of unread bytes is not needed.
        if self.peer_closed(v) || (want <= LARGE / 4 - SMALL_WRITE_ROOM && windows::has_room(self, v)) {
            return want;
        }
        let unread = to_usize(self.rings.peer_left_unread(&self.side, v).unwrap_or(0));
        LARGE.saturating_sub(unread).saturating_sub(SMALL_WRITE_ROOM)
    }

    pub(super) fn write(&self, v: &View, src: &mut Iov<'_>) -> core::result::Result<usize, Violation> {
        let peer = line!(v, consumer, v.me.other());
        let Some(area) = v.tx_area() else { return Err(Violation) };
        let _sharers = self.enter(v, Direction::Write)?;
        if self.sharers_switched(v) {
            return Ok(0);
        }
        windows::prepare(self, v, src.left())?;
        let mut n = 0;
        while src.left() > 0 {
            let Some((ptr, len)) = self.rings.tx.chunk(&area, peer, src.left())? else {
                break;
            };
            if !src.reaches(len, Access::Read) {
                break;
            }
            src.copy_to(ptr.as_ptr(), len);
            self.rings.tx.advance(len);
            n += len;
        }
        let state = self.side.state.glance();
        if self.rings.tx.extent() > 0 && !self.rings.tx.is_large() {
            // The connection uses the small window again.
            windows::close(self, v);
        }
        if n > 0 {
            publish_written(self, v, state, n, src.left() == 0);
        }
        if n == 0 && state.has(HOLDS) {
            // The ring is full, and has bytes that are held back: published, they can be read, which makes room.
            self.release(v);
        }
        Ok(n)
    }

    pub(super) fn read(&self, v: &View, dst: &mut Iov<'_>, peek: bool) -> core::result::Result<usize, Violation> {
        let (own, peer) = (line!(v, consumer, v.me), line!(v, producer, v.me.other()));
        let Some(area) = v.rx_area() else { return Err(Violation) };
        let _sharers = self.enter(v, Direction::Read)?;
        if self.sharers_switched(v) {
            return Ok(0);
        }
        let mut n = 0;
        while dst.left() > 0 {
            let Some((ptr, len)) = self.rings.rx.chunk(&area, own, peer, if peek { n } else { 0 })? else {
                break;
            };
            let len = len.min(dst.left());
            if !dst.reaches(len, Access::Write) {
                break;
            }
            dst.copy_from(ptr.as_ptr(), len);
            n += len;
            if !peek {
                self.rings.rx.advance(len);
            }
        }
        if n > 0 && !peek {
            self.rings.rx.publish(own);
            self.announce_room(v, false);
        }
        Ok(n)
    }

    /// Discards up to `n` readable bytes without copying (MSG_TRUNC on a stream, tcp(7)).
    pub fn discard(&self, n: usize) -> usize {
        let Some(v) = self.side.view() else { return 0 };
        if self.old_subflow.is_there() {
            let before = self.old_subflow.discard(&self.side, n);
            if before > 0 {
                return before + if before < n { self.discard_ring(&v, n - before) } else { 0 };
            }
        }
        self.discard_ring(&v, n)
    }

    pub(super) fn discard_ring(&self, v: &View, n: usize) -> usize {
        if self.old_subflow.is_there() && self.old_subflow.is_ready(&self.side).is_some() {
            return 0;
        }
        let (own, peer) = (line!(v, consumer, v.me), line!(v, producer, v.me.other()));
        let Some(area) = v.rx_area() else { return 0 };
        let Ok(_sharers) = self.enter(v, Direction::Read) else { return 0 };
        if self.sharers_switched(v) {
            return 0;
        }
        if v.is_held() {
            self.take_overdue(v);
        }
        let mut done = 0;
        while done < n {
            let Ok(Some((_, len))) = self.rings.rx.chunk(&area, own, peer, 0) else {
                break;
            };
            let len = len.min(n - done);
            self.rings.rx.advance(len);
            done += len;
        }
        if done > 0 {
            self.rings.rx.publish(own);
            self.announce_room(v, false);
        }
        done
    }

    /// Fills the ring from `fill(ptr, len) -> bytes`, for sendfile(2) and splice(2). At most `want` bytes are written;
    /// `fill` may return fewer, and 0 ends the call. `EAGAIN`: there is no room.
    pub fn write_with(&self, want: usize, mut fill: impl FnMut(*mut u8, usize) -> Result<usize>) -> Result<usize> {
        let Some(v) = self.side.view() else { return Err(Errno::PIPE) };
        self.check_writable(&v)?;
        if self.is_pending() {
            return Err(Errno::AGAIN);
        }
        if self.side.state.look().is_left() {
            return if self.side.state.look().is_on_kernel() {
                self.passed.fill(want, fill)
            } else {
                Err(Errno::AGAIN)
            };
        }
        let peer = line!(v, consumer, v.me.other());
        let Some(area) = v.tx_area() else { return Err(Errno::PIPE) };
        let Ok(_sharers) = self.enter(&v, Direction::Write) else { return Err(self.violated(&v)) };
        if self.sharers_switched(&v) {
            return Err(Errno::AGAIN);
        }
        if windows::prepare(self, &v, want).is_err() {
            return Err(self.violated(&v));
        }
        let mut n = 0;
        let mut failed = None;
        while n < want {
            match self.rings.tx.chunk(&area, peer, want - n) {
                Ok(Some((ptr, len))) => match fill(ptr.as_ptr(), len) {
                    Ok(k) if k > 0 => {
                        self.rings.tx.advance(k.min(len));
                        n += k.min(len);
                    }
                    ended => {
                        failed = Some(ended);
                        break;
                    }
                },
                Ok(None) => break,
                Err(Violation) => return Err(self.violated(&v)),
            }
        }
        if n == 0 {
            return failed.unwrap_or(Err(Errno::AGAIN));
        }
        if self.peer_closed(&v) && !v.peer_switched(&self.passed) {
            // The bytes were not published: a peer that shut both directions down must not read them.
            self.answered_by_reset(&v);
        } else {
            publish_written(self, &v, self.side.state.glance(), n, n == want);
        }
        Ok(n)
    }

    /// Empties the ring into `drain(ptr, len) -> bytes`, for splice(2). `EAGAIN`: there is nothing to read.
    pub fn read_with(&self, want: usize, mut drain: impl FnMut(*const u8, usize) -> Result<usize>) -> Result<usize> {
        let Some(v) = self.side.view().filter(|_| want > 0) else { return Ok(0) };
        loop {
            let there = self.drain_ring(&v, want, &mut drain);
            if let Some(done) = there.or_else(|| self.nothing_read(&v)) {
                return done;
            }
        }
    }

    /// The number of bytes that `drain` took from the ring, or its error. `None`: the ring was empty.
    fn drain_ring(
        &self,
        v: &View,
        want: usize,
        mut drain: impl FnMut(*const u8, usize) -> Result<usize>,
    ) -> Option<Result<usize>> {
        let (own, peer) = (line!(v, consumer, v.me), line!(v, producer, v.me.other()));
        let Some(area) = v.rx_area() else { return Some(Ok(0)) };
        let Ok(_sharers) = self.enter(v, Direction::Read) else { return Some(self.violated_for_reader(v)) };
        if self.sharers_switched(v) {
            return Some(Err(Errno::AGAIN));
        }
        let mut n = 0;
        let mut failed = None;
        while n < want {
            let (ptr, len) = match self.rings.rx.chunk(&area, own, peer, 0) {
                Ok(Some((ptr, len))) => (ptr, len.min(want - n)),
                Ok(None) => break,
                Err(Violation) => return Some(self.violated_for_reader(v)),
            };
            match drain(ptr.as_ptr(), len) {
                Ok(k) if k > 0 => {
                    self.rings.rx.advance(k.min(len));
                    n += k.min(len);
                    if k < len {
                        break;
                    }
                }
                // No bytes must not be reported like an empty ring.
                ended => {
                    failed = Some(ended);
                    break;
                }
            }
        }
        if n > 0 {
            self.rings.rx.publish(own);
            self.announce_room(v, false);
            return Some(Ok(n));
        }
        failed
    }

    /// The result of a call that has read no bytes: an error, the end, or `EAGAIN`. `None`: there are bytes by now, and
    /// the caller has to read again.
    pub(super) fn nothing_read(&self, v: &View) -> Option<Result<usize>> {
        if v.is_held() && self.take_overdue(v) {
            return None;
        }
        let state = self.observe(v);
        if state.may_bring_more() {
            return Some(Err(Errno::AGAIN));
        }
        // The sharer that left the ring has taken its bytes and its end along.
        if state.is_left_by_sharer() && !state.is_dead() {
            return Some(Err(Errno::AGAIN));
        }
        // The end was stored after the last bytes: now that it is seen, the ring is checked for them again.
        if !state.is_left_by_sharer() && state.is_read_side_over() && self.has_data(v) {
            return None;
        }
        if state.is_dead() && !state.has_peer_ended() {
            let e = self.side.error.swap(0, Ordering::AcqRel);
            if e != 0 {
                return Some(Err(Errno(e)));
            }
        }
        Some(if state.is_read_side_over() { Ok(0) } else { Err(Errno::AGAIN) })
    }

    /// Returns the error that a write has to report before it writes anything: a stored error, or `EPIPE` after the end
    /// of our stream.
    pub(super) fn check_writable(&self, v: &View) -> Result<()> {
        if self.observe(v).is_write_side_over() {
            let e = self.side.error.swap(0, Ordering::AcqRel);
            return Err(if e != 0 { Errno(e) } else { Errno::PIPE });
        }
        Ok(())
    }

    /// Handles bytes that were written to a closed peer. As on the wire, this write succeeds, the answer is a reset,
    /// and the next write fails.
    #[cold]
    pub(super) fn answered_by_reset(&self, v: &View) {
        let fin = self.side.state.look().has_peer_ended();
        self.side.die(if fin { Errno::PIPE } else { Errno::CONNRESET });
        // A peer that has only shut both directions down is reset as well.
        line!(v, producer, v.me).fin.fetch_or(RESET, Ordering::SeqCst);
        self.announce_data(v);
        // This also wakes threads that wait edge-triggered, or only for errors.
        self.poke_self();
    }

    /// Ends our stream for good and wakes the peer. `Some`: the peer has left the rings, and the value tells whether
    /// the stream on its kernel socket has to be reset.
    pub(super) fn end(&'static self, v: &View, abort: bool) -> Option<bool> {
        if abort {
            // A reset discards bytes that were held back.
            line!(v, producer, v.me).fin.fetch_and(!HOLDING, Ordering::SeqCst);
        } else {
            self.push();
        }
        // A connection that was reset sends no end, which would hide the reset from a peer that has not seen it yet.
        let reset = self.has_data(v) || abort || self.side.is_dead();
        let fin = &line!(v, producer, v.me).fin;
        fin.fetch_or(if reset { RESET } else { FIN }, Ordering::SeqCst);
        // A peer that leaves the rings stores its mark and then loads our end: one of the two sees the other.
        if v.peer_switched(&self.passed) {
            self.side.on::<Switch>(SwitchEvent::PeerLeaves);
            return Some(reset);
        }
        fin.fetch_or(CLOSED, Ordering::SeqCst);
        // No thread of ours has to be woken any more.
        let side = line!(v, side, v.me);
        for w in [&side.subscriber, &side.rx_waiter, &side.tx_waiter, &side.want_room] {
            w.store(0, Ordering::Relaxed);
        }
        self.announce_data(v);
        self.announce_room(v, true);
        // Release: these were our last accesses. A peer that sees it may wipe its words.
        fin.fetch_or(GONE, Ordering::Release);
        None
    }

    /// Whether no process at the other end will ever read again.
    pub(super) fn peer_closed(&self, v: &View) -> bool {
        line!(v, producer, v.me.other()).fin.load(Ordering::Acquire) & CLOSED != 0 || self.peer_died(v)
    }
}
