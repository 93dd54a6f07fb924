//! The implementation of [`Endpoint`] for a connection in shared memory.

use crate::endpoint::{Endpoint, Interest, Readiness, Shut};
use crate::iov::Iov;
use crate::shm::queued_connect::QueuedConnect;
use crate::shm::segment::WIPED;
use crate::shm::sharers::poll_liveness_after;
use crate::shm::side::Side;
use crate::shm::side_machines::{PEER_GONE, RX_SHUT};
use crate::shm::slot_side::View;
use crate::shm::waiters::{READS, WRITES, register_heir};
use crate::shm::windows::{self, give_back_windows};
use crate::shm::{ShmEndpoint, enough, inherited, parts, standstill};
use crate::wait::{WaitOn, WaitSet};
use core::sync::atomic::Ordering;
use netacc_ring::{CLOSED, FIN, Violation, to_usize};
use netacc_sys::cpu;
use netacc_sys::errno::{Errno, Result};

/// Number of unread bytes that count as sent. In TCP, bytes in the peer's receive buffer are no longer "unsent". A ring
/// has no such boundary, so this is the size of an ordinary receive buffer.
const DELIVERED: u64 = 64 * 1024;
impl Endpoint for ShmEndpoint {
    fn try_write(&self, src: &mut Iov<'_>) -> Result<usize> {
        let Some(v) = self.side.view() else { return Err(Errno::PIPE) };
        v.note_cpu();
        self.check_writable(&v)?;
        if self.side.state.glance().is_write_diverted() {
            if self.is_pending() {
                return Err(Errno::AGAIN);
            }
            if self.side.state.glance().is_left() {
                return if self.side.state.look().is_on_kernel() { self.passed.write(src) } else { Err(Errno::AGAIN) };
            }
        }
        if self.peer_closed(&v) {
            let n = src.left();
            if n > 0 {
                src.skip(n);
                self.answered_by_reset(&v);
            }
            return Ok(n);
        }
        if src.left() == 0 {
            return Ok(0);
        }
        match self.write(&v, src) {
            Ok(0) if src.faulted() => Err(Errno::FAULT),
            Ok(0) => Err(Errno::AGAIN),
            Ok(n) => Ok(n),
            Err(Violation) => Err(self.violated(&v)),
        }
    }

    fn try_read(&self, dst: &mut Iov<'_>, peek: bool) -> Result<usize> {
        let Some(v) = self.side.view() else { return Ok(0) };
        v.note_cpu();
        let n = read_here(self, &v, dst, peek)?;
        // A look sees the bytes that come after the ring, too.
        Ok(if peek && n > 0 && dst.left() > 0 && !dst.faulted() { n + parts::peek_after(self, dst) } else { n })
    }

    fn readiness(&self) -> Readiness {
        let Some(v) = self.side.view() else {
            return Readiness(Readiness::HUP | Readiness::IN | Readiness::OUT);
        };
        let mut state = self.observe(&v);
        if state.is_pending() {
            if self.still_pending(&v) {
                return Readiness(0);
            }
            state = self.side.state.look();
        }
        let mut r = 0;
        if state.is_dead() && self.side.error.load(Ordering::Acquire) != 0 {
            r |= Readiness::ERR;
        }
        let no_rx = state.is_read_side_over();
        let no_tx = state.is_write_side_over();
        if no_rx && no_tx {
            r |= Readiness::HUP;
        }
        if no_rx {
            r |= Readiness::IN | Readiness::RDHUP;
        }
        if (self.has_data(&v) || self.overdue(&v) > 0) && enough::is_there(self, &v) {
            r |= Readiness::IN;
        }
        let room = if !state.is_left() {
            self.peer_closed(&v) || windows::has_room(self, &v)
        } else {
            state.is_on_kernel() && self.passed.has_room()
        };
        if no_tx || room {
            r |= Readiness::OUT;
        }
        Readiness(r)
    }

    fn arm(&'static self, interest: Interest, set: &mut WaitSet) -> bool {
        // Another thread may switch the connection at any time, and its link may have no other user.
        if !set.hold(self.side.link(), WaitOn::Connection) {
            return true;
        }
        let Some(v) = self.side.view() else { return true };
        let waker = v.link.waker_for(set);
        let own = line!(v, side, v.me);
        let mut sole = false;
        if self.passed.kernel_fd() < 0 {
            let what = if interest.read { READS } else { 0 } | if interest.write { WRITES } else { 0 };
            self.waiters.join(v.link, what, set);
            // Loaded after the thread has joined, with a SeqCst fence in between; a thread that forks stores the state and
            // then wakes those that have joined ([`ShmEndpoint::share`]). One of the two sees the other.
            sole = v.is_sole_heir(&self.side);
        }
        if sole {
            let mark = self.heir_waker.mark();
            if interest.read {
                register_heir(&own.rx_waiter, mark);
            }
            if interest.write {
                register_heir(&own.tx_waiter, mark);
            }
        } else if waker != 0 {
            if interest.read {
                self.waiters.register(v.link, &own.rx_waiter, waker, READS, set);
            }
            if interest.write {
                self.waiters.register(v.link, &own.tx_waiter, waker, WRITES, set);
            }
        }
        self.add_kernel_ends(&v, interest.read, set);
        if interest.write && self.passed.kernel_fd() >= 0 {
            set.add(self.passed.kernel_fd(), libc::POLLOUT);
        }
        // The registration is a SeqCst exchange, after which the connection is checked; the peer publishes and then
        // loads the registration. So one of the two sees the other.
        core::sync::atomic::fence(Ordering::SeqCst);
        let r = self.readiness();
        if interest.read {
            self.bound_by_hold(&v, set);
        }
        if self.is_pending() {
            set.wake_at(QueuedConnect::next_look());
        }
        if interest.write && !r.writable() {
            enough::wake_reader(self, &v);
            self.standstill.note(self, &v);
            if self.standstill.is_noted() {
                set.wake_at(standstill::next_look());
            }
        }
        // A process may have left the rings, or a thread may have switched the connection, before the registration.
        (interest.read && r.readable())
            || (interest.write && r.writable())
            || self.must_switch()
            || !self.side.is_live()
    }

    fn disarm(&self, interest: Interest, set: &WaitSet) {
        let Some(v) = self.side.view().filter(|v| set.holds(v.link)) else { return };
        self.waiters.leave(v.link, set);
        // An epoll instance may have requested the byte, too, and sleep on.
        let stays = v.is_sole_heir(&self.side) && self.registration.load(Ordering::SeqCst) != 0;
        if let Some(waker) = v.link.waker_of(set).filter(|_| !set.mark_was_set && !stays) {
            let own = line!(v, side, v.me);
            if interest.read {
                self.waiters.unregister(v.link, &own.rx_waiter, waker, READS);
            }
            if interest.write {
                self.waiters.unregister(v.link, &own.tx_waiter, waker, WRITES);
            }
        }
        poll_liveness_after(self, &v, set);
    }

    fn shutdown(&self, how: Shut) {
        let Some(v) = self.side.view() else { return };
        let (read, write) = (how != Shut::Write, how != Shut::Read);
        if write {
            self.push();
            self.side.let_relays_end(&v);
        }
        let old = self.side.state.shut(v.place(), read, write);
        if (read || old.has(RX_SHUT)) && (write || old.has_shut()) {
            // A peer that writes from now on gets a reset, as from a closed socket.
            line!(v, producer, v.me).fin.fetch_or(FIN | CLOSED, Ordering::SeqCst);
            self.announce_room(&v, true);
        }
        if write && !old.has_shut() {
            line!(v, producer, v.me).fin.fetch_or(FIN, Ordering::SeqCst);
            self.announce_data(&v);
            if old.is_on_kernel() {
                let _ = netacc_sys::raw::shutdown(self.passed.kernel_fd(), libc::SHUT_WR);
            }
        }
        self.stir();
    }

    fn close(&'static self, abort: bool) {
        let Some(v) = self.side.view() else { return };
        if self.is_pending() {
            // As in the kernel, the server does not accept a connect that was still pending.
            self.side.withdraw();
        }
        let state = self.observe(&v);
        if state.is_left() && !state.is_dead() {
            return self.close_switched(abort);
        }
        give_back_windows(self, &v);
        let mut wiped = 0;
        if v.peer_released() {
            // No peer has to be woken. The server's words are in its own cache, so the server resets them here for the
            // client's next connection. If a side has or had several sharers, this is left to the client.
            let alone = self.liveness.has_none();
            if v.me == Side::Server && alone {
                v.slot.wipe(Side::Server);
                wiped = WIPED;
            }
        } else if let Some(reset) = self.end(&v, abort) {
            return self.close_switched(reset);
        }
        self.liveness.release_peer(&self.side, &v);
        self.passed.drop_all();
        self.old_subflow.close();
        self.heir_waker.close_own(&v);
        let _last = self.liveness.take();
        windows::end(self);
        let gone = self.side.state.end(v.place()).has(PEER_GONE);
        let generation = self.side.generation.load(Ordering::Relaxed);
        let done = &v.slot.open.server_done;
        // Release: after this the client may use the slot for another connection. If the server's processes end without
        // this mark, the kernel shows that to the client.
        if v.me == Side::Server || gone {
            done.store(generation | wiped, Ordering::Release);
        }
        if v.me == Side::Client {
            v.link.slots.closed(v.index);
        }
        v.link.stats.slot_closed(v.link.is_inherited());
        inherited::connection_ended(v.link, v.index);
        v.link.put();
    }

    fn unread(&self) -> usize {
        let Some(v) = self.side.view() else { return 0 };
        to_usize(self.waiting_in_all(&v))
    }

    fn unsent(&self) -> usize {
        let Some(v) = self.side.view() else { return 0 };
        to_usize(self.rings.peer_left_unread(&self.side, &v).unwrap_or(0).saturating_sub(DELIVERED))
    }

    fn take_error(&self) -> i32 {
        if let Some(v) = self.side.view() {
            self.observe(&v);
        }
        self.side.error.swap(0, Ordering::AcqRel)
    }

    fn peer_cpu(&self) -> u32 {
        let Some(v) = self.side.view() else { return cpu::NO_CPU };
        if self.side.is_remote() {
            return cpu::ELSEWHERE;
        }
        line!(v, side, v.me.other()).cpu.load(Ordering::Relaxed)
    }
}

/// Reads the old subflow and the ring.
#[inline]
fn read_here(ep: &ShmEndpoint, v: &View, dst: &mut Iov<'_>, peek: bool) -> Result<usize> {
    if ep.old_subflow.is_there() {
        match ep.old_subflow.read_before(&ep.side, dst, peek) {
            Err(done) => return done,
            Ok(0) => {}
            // The next call reports an error or the end of the ring.
            Ok(n) => return Ok(n + ep.read(v, dst, peek).unwrap_or(0)),
        }
    }
    loop {
        if dst.left() == 0 && ep.has_data(v) {
            return Ok(0);
        }
        match ep.read(v, dst, peek) {
            Ok(0) if dst.faulted() => return Err(Errno::FAULT),
            Ok(0) => {
                if let Some(r) = ep.nothing_read(v) {
                    return r;
                }
            }
            Ok(n) => return Ok(n),
            Err(Violation) => return ep.violated_for_reader(v),
        }
    }
}
