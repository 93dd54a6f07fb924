//! Connections that several processes of one side hold after a fork, and how the other side sees their end.
//!
//! Before a process forks it makes a *liveness socket* for each connection: a pair of UNIX stream sockets. One end lies
//! under the application's own descriptors, so that the kernel counts parent, child and grandchildren as its holders,
//! and the other is passed to the peer as its *peer liveness socket*. The kernel ends the peer liveness socket when the
//! last holder is gone, whichever process that is. Until then bytes go on over the ring, which the sharers share: one
//! process at a time for each direction (`ShmEndpoint::enter`), which continues where the last one has published.
//!
//! The parent's link remains the parent's. A child rings the wakers of the peer that it has inherited, and is itself
//! woken by a byte on its liveness socket.

use crate::limits::{OWNER_PAUSES, OWNER_YIELDS};
use crate::shm::delays::{Next, Wait};
use crate::shm::drain::LivenessEvent;
use crate::shm::rings::Direction;
use crate::shm::side::Side;
use crate::shm::side_machines::{LivenessSocket, LivenessSocketEvent, PEER_GONE, SHARED, Switch, SwitchEvent};
use crate::shm::slot_side::{SlotSide, View};
use crate::shm::wait_budget::WaitBudget;
use crate::shm::waiters::{register_heir, register_liveness};
use crate::shm::{ShmEndpoint, inherited, parts, procfs, redial, windows};
use crate::wait::WaitSet;
use crate::{host, num};
use core::sync::atomic::{AtomicU32, Ordering, fence};
use netacc_ring::{SWITCHED, Violation};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{raw, reserved_fds, time};
use netacc_wire::Message;
use rustix::fd::{AsRawFd, OwnedFd};

/// Value of the word `forked` of a side: the connection has a liveness socket. Each relay adds to the word (see
/// [`super::strangers`]).
pub(super) const FORKED: u32 = 1;
/// Value of that word while a process puts the unread bytes of the sharers into the socket on which the connection goes
/// on.
pub(super) const GIVING: u32 = 2;

/// Guard of an operation on a shared side: no other sharer is in one for the same direction.
pub(super) struct Entered<'a> {
    owner: &'a AtomicU32,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // Release: the next process sees what this one has published.
        self.owner.store(0, Ordering::Release);
    }
}

impl SlotSide {
    /// Whether other sharers of this side may use the connection.
    pub fn is_shared(&self) -> bool {
        self.state.glance().is_shared()
    }
}

impl View {
    /// Whether this process has the connection by a fork, and is the only one left that has it on this side. It is woken
    /// by bytes on the liveness socket, which nobody else reads. As long as the peer has not connected to a socket that
    /// listens, nothing wakes the process, not even the peer's end, so that this does not hold. Acquire: a thread that finds
    /// it so sees the cursors.
    #[inline]
    pub(super) fn is_sole_heir(&self, side: &SlotSide) -> bool {
        let state = side.state.look();
        self.link.is_inherited() && !state.is_shared() && state.liveness_socket() == LivenessSocket::Joined
    }
}

/// Processes what the sockets of `set` report, after a sleep on them or without one.
pub(super) fn poll_liveness_after(ep: &ShmEndpoint, v: &View, set: &WaitSet) {
    if v.link.is_inherited() && set.events_of(ep.heir_waker.fd()).is_some_and(|events| events != 0) {
        // It may have rung for another thread, as a byte may have come for it.
        ep.heir_waker.silence();
        ep.waiters.wake_co_waiters(v.link);
        kick_instance(ep);
    }
    let own = if v.link.is_inherited() { [ep.liveness.to_poll(&ep.side), ep.liveness.accepted_fd()] } else { [-1, -1] };
    // A socket that came while the thread slept is looked at. In a long set a search takes longer than a system call.
    const LONG: usize = 256;
    let unknown = libc::POLLIN | libc::POLLHUP;
    let seen = [ep.liveness.peer_fd(), own[0], own[1]]
        .into_iter()
        .filter(|fd| *fd >= 0)
        .map(|fd| if set.len() > LONG { unknown } else { set.events_of(fd).unwrap_or(unknown) })
        .fold(0, |all, events| all | events);
    if (seen != 0 || ep.liveness.owes_dial(&ep.side)) && ep.poll_liveness(v, seen & !libc::POLLIN != 0) {
        kick_instance(ep);
    }
}

/// Processes all that the peer liveness socket and the liveness socket report.
pub(super) fn poll_all_ends(ep: &ShmEndpoint, v: &View) {
    if ep.poll_liveness_ends(v, true, true) {
        kick_instance(ep);
    }
}

/// Wakes the threads that sleep in the epoll instance which watches a connection that was inherited by a fork: no
/// ready set reports to it, and another thread may have taken the byte that was meant for it.
pub(super) fn kick_instance(ep: &ShmEndpoint) {
    // SeqCst: the instance is noted before its threads count themselves as sleepers and check the connection.
    if ep.registration.load(Ordering::SeqCst) != 0
        && let Some(host) = host::host()
    {
        host.kick(ep);
    }
}

impl ShmEndpoint {
    /// To be called before an operation: on a shared side it waits for the other sharers and continues where they have
    /// left off. The peer can write the word as well; a peer that misuses it loses its connection.
    #[inline]
    pub(super) fn enter(&self, v: &View, dir: Direction) -> core::result::Result<Option<Entered<'static>>, Violation> {
        if !self.side.is_shared() { Ok(None) } else { self.enter_shared(v, dir).map(Some) }
    }

    #[cold]
    fn enter_shared(&self, v: &View, dir: Direction) -> core::result::Result<Entered<'static>, Violation> {
        if matches!(dir, Direction::Write) {
            self.side.let_relays_end(v);
        }
        let owner = line!(v, side, v.me).owner.get(dir as usize).ok_or(Violation)?;
        let me = raw::getpid();
        let mut looks = 0;
        let mut wait = Wait::default();
        loop {
            // Acquire: pairs with the Release of the process that was in the operation before.
            match owner.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    let held = Entered { owner };
                    self.rings.resync(v, dir)?;
                    return Ok(held);
                }
                // A process that died in the middle had not published: continuing from the published words undoes what
                // it did. Our own process id can only be left by such a process, since threads of one process exclude
                // each other before they come here.
                Err(p) if p == me || !raw::process_exists(p) || (looks == OWNER_YIELDS && procfs::is_zombie(p)) => {
                    let _ = owner.compare_exchange(p, 0, Ordering::Acquire, Ordering::Relaxed);
                }
                Err(p) if !v.link.peer.is_trusted() => {
                    if self.delays.wait_for(p, &mut wait, || self.liveness.has_sharer(p))? == Next::Clear {
                        let _ = owner.compare_exchange(p, 0, Ordering::Acquire, Ordering::Relaxed);
                    }
                    continue;
                }
                Err(_) if looks < OWNER_YIELDS => raw::sched_yield(),
                // The process may be stopped (SIGSTOP, a debugger, a frozen control group): it will continue, or die.
                Err(p) if looks > OWNER_YIELDS || self.liveness.has_sharer(p) => time::pause(),
                Err(_) => return Err(Violation),
            }
            looks = if looks == OWNER_YIELDS + OWNER_PAUSES { OWNER_YIELDS } else { looks + 1 };
        }
    }

    /// To be called after [`ShmEndpoint::enter`]: whether another sharer has left the rings before.
    pub(super) fn sharers_switched(&self, v: &View) -> bool {
        // Relaxed: the process that left held both words of [`ShmEndpoint::enter`], and this one has since acquired one
        // of them.
        let left = self.side.is_shared() && line!(v, producer, v.me).fin.load(Ordering::Relaxed) & SWITCHED != 0;
        if left && !v.may_follow(&self.passed) {
            self.reset_for(v, "marked the connection as switched");
        } else if left {
            self.side.on::<Switch>(SwitchEvent::SharerLeaves);
        }
        left
    }

    /// Whether there is anything to read.
    #[inline]
    pub(super) fn has_data(&self, v: &View) -> bool {
        if self.old_subflow.is_there()
            && let Some(ready) = self.old_subflow.is_ready(&self.side)
        {
            return ready;
        }
        self.rings.has_data(&self.side, v)
    }

    /// To be called before a fork: makes the liveness socket, unless there is one, and marks the connection as shared.
    /// Returns the descriptor to put under the application's numbers.
    pub fn share(&'static self, budget: &WaitBudget) -> Result<Option<OwnedFd>> {
        let Some(v) = self.side.view() else { return Err(Errno::NOTCONN) };
        // Only this process knows of bytes that are held back, so they are published.
        self.push();
        let sole = v.is_sole_heir(&self.side);
        self.side.state.set(SHARED);
        if sole {
            // Threads that sleep as those of a sole heir wake, and sleep in steps: another process may take their bytes.
            self.poke_self();
        }
        if self.liveness.is_there() {
            return Ok(None);
        }
        let (ours, theirs, token) = self.liveness.make(&self.side, &v).inspect_err(|_| self.side.reset_in_child())?;
        let m = Message::Liveness {
            slot: num::small(v.index),
            generation: self.side.generation.load(Ordering::Relaxed),
            token,
        };
        let sent = v.link.send_patiently(m, theirs.as_ref().map(AsRawFd::as_raw_fd), budget);
        if let Some(theirs) = theirs {
            reserved_fds::drop_raw(theirs);
        }
        match sent {
            Ok(()) => {
                // SeqCst: a peer that forks too, or leaves the rings, stores its mark and then loads this one; this
                // thread loads the peer's marks in [`ShmEndpoint::before_fork`]. One of the two sees the other. The
                // mark is stored after the message was sent, so that a peer that sees it need not wait, however long
                // this thread loses its processor.
                line!(v, side, v.me).forked.store(FORKED, Ordering::SeqCst);
                // A peer that has forked has sent its message before. The child needs it, and cannot read the control
                // socket.
                v.link.service();
                Ok(Some(ours))
            }
            Err(e) => {
                reserved_fds::drop_raw(ours);
                self.side.on::<LivenessSocket>(LivenessSocketEvent::Withdraw);
                if !matches!(e, Errno::PIPE | Errno::CONNRESET) {
                    self.side.reset_in_child();
                    return Err(e);
                }
                // The process at the other end of the link is gone already. If it has left the connection to other
                // processes, the peer liveness socket was sent, which another thread may be about to receive. Otherwise
                // the peer is gone, which a child could not find out by itself.
                v.await_word(budget, || self.liveness.peer_fd() >= 0);
                if self.liveness.peer_fd() < 0 {
                    self.side.state.set(PEER_GONE);
                }
                Ok(None)
            }
        }
    }

    /// Stores the application's descriptor that is our liveness socket.
    pub fn set_liveness(&self, fd: i32) {
        self.liveness.set(fd);
        // A peer that has left the rings may have passed its socket over this one already, and its wake-up may have
        // come before any thread knew this number.
        self.poke_self();
    }

    /// The descriptors that belong to this connection alone; -1 where there is none.
    pub fn descriptors(&self) -> [i32; 9] {
        let (liveness, accepted, old_subflow) =
            (self.liveness.fd(), self.liveness.accepted_fd(), self.old_subflow.open_fd());
        let [kernel, sibling_copy, unread_return] = self.passed.descriptors();
        let [own, peers] = [self.heir_waker.fd(), self.heir_waker.peers_fd()];
        [self.liveness.peer_fd(), liveness, accepted, old_subflow, kernel, sibling_copy, unread_return, own, peers]
    }

    /// To be called when the other sharers are gone: updates the private cursors, by which this process works alone
    /// again. The caller holds both direction locks.
    pub fn unshare(&self) {
        let Some(v) = self.side.view() else { return };
        // One of them may have ended our stream.
        self.observe(&v);
        // If one of them has left the rings, this process still has to follow.
        if self.side.is_shared()
            && !self.sharers_switched(&v)
            && self.rings.resync(&v, Direction::Read).is_ok()
            && self.rings.resync(&v, Direction::Write).is_ok()
        {
            self.side.state.clear(SHARED);
            windows::settle(self);
        }
    }

    /// Gives the connection up in this process without ending it: another of our sharers goes on with it, and the
    /// kernel shows the peer when the last one is gone.
    pub fn leave_shared(&'static self) {
        let Some(v) = self.side.view() else { return };
        self.settle_switch();
        // The socket is not kept as in `release_peer_liveness`: this process must not keep it open when the process
        // that goes on with the connection has died, which the peer has to see.
        self.liveness.close_peer(&self.side);
        self.passed.drop_all();
        self.old_subflow.close();
        self.heir_waker.close_own(&v);
        let _last = self.liveness.take();
        self.leave();
        if v.me == Side::Client && !v.link.is_inherited() {
            v.link.slots.parked(v.index);
        }
        v.link.stats.slot_closed(v.link.is_inherited());
        inherited::connection_ended(v.link, v.index);
        v.link.put();
    }

    /// Whether every process that had the other end of the connection is gone.
    #[inline]
    pub(super) fn peer_died(&self, v: &View) -> bool {
        // This is loaded first: a thread that reads the control socket marks the link as lost after it has received all
        // messages, including one with a peer liveness socket.
        let lost = v.link.is_lost();
        // A peer liveness socket that nobody held any more when it was to be connected to leaves this mark alone.
        if self.side.state.look().has(PEER_GONE) {
            return true;
        }
        // A process without a link of its own sees the peer's end by its liveness socket.
        let told = self.liveness.has_peer();
        if told || v.link.is_inherited() {
            return !told && self.liveness.is_abandoned(&self.side, v);
        }
        lost && !v.is_orphan() && !redial::is_still_owed_by(self)
    }

    /// Adds the kernel sockets that can wake a sleeper of this connection, which waits for bytes if `read` is set.
    pub(super) fn add_kernel_ends(&self, v: &View, read: bool, set: &mut WaitSet) {
        let old_subflow = self.old_subflow.fd();
        if old_subflow >= 0 && read {
            match self.old_subflow.is_ready(&self.side) {
                Some(false) => drop(set.add(old_subflow, libc::POLLIN)),
                // The old subflow is readable, and that is not what the sleeper waits for: the kernel would wake it at
                // once, again and again. Only with SO_RCVLOWAT may more bytes matter to it.
                Some(true) => set.bounded |= self.edges.lowat() > 1,
                None => {}
            }
        }
        if self.passed.kernel_fd() >= 0 {
            // Bytes that come after the ring's wake nobody, and only with SO_RCVLOWAT may they matter.
            set.bounded |= read && self.edges.lowat() > 1 && parts::has_several(self);
            return;
        }
        let w = self.liveness.peer_fd();
        // A socket that has ended would end every sleep.
        if w >= 0 && !self.side.state.glance().has(PEER_GONE) && !self.liveness.owes_dial(&self.side) {
            set.add(w, libc::POLLIN | libc::POLLRDHUP);
        }
        if v.link.is_inherited() {
            match self.liveness.to_poll(&self.side) {
                // A liveness socket that has ended would end every sleep.
                _ if self.side.state.glance().liveness_socket() == LivenessSocket::Ended => {}
                fd if fd >= 0 => {
                    set.add(fd, libc::POLLIN | libc::POLLRDHUP);
                    set.shared = true;
                    if self.heir_waker.fd() >= 0 {
                        set.add(self.heir_waker.fd(), libc::POLLIN);
                    }
                    let waiting = self.liveness.accepted_fd();
                    if waiting >= 0 && waiting != fd {
                        set.add(waiting, libc::POLLIN);
                    }
                }
                _ => set.bounded = true,
            }
        }
    }

    /// Processes what the kernel sockets report: wake-up bytes and the end.
    ///
    /// If there is a peer liveness socket, it shows the peer's end: the peer has sharers too, and the other end of our
    /// liveness socket went to the process that has the link, which may have left the connection to its child. Without
    /// a peer liveness socket the liveness socket shows the peer's end.
    ///
    /// Other bytes come from a program without this library that has inherited the liveness socket. They cannot be put
    /// into the ring's stream, so the connection is reset, instead of losing them unnoticed.
    ///
    /// `over`: the kernel has reported more than bytes. Returns whether bytes were taken that may have been meant for
    /// another thread.
    fn poll_liveness(&self, v: &View, over: bool) -> bool {
        let inherited = v.link.is_inherited();
        if inherited && self.liveness.accept(&self.side) {
            self.waiters.wake_co_waiters(v.link);
        }
        self.poll_liveness_ends(v, inherited, over)
    }

    /// Processes what the peer liveness socket reports and, with `with_liveness`, what the liveness socket reports. `over`:
    /// they may report more than bytes. Returns whether bytes were taken that may have been meant for another thread.
    fn poll_liveness_ends(&self, v: &View, with_liveness: bool, over: bool) -> bool {
        if self.passed.kernel_fd() >= 0 {
            // Nothing more is reported there.
            return false;
        }
        let mut taken = false;
        let peer_liveness = self.liveness.peer_fd();
        let there = with_liveness && self.side.state.glance().liveness_socket() != LivenessSocket::Ended;
        let using = there.then(|| self.side.users.begin());
        // A liveness socket that listens reports nothing.
        let liveness =
            if using.is_some() && !self.side.liveness_listens() { self.liveness.to_poll(&self.side) } else { -1 };
        // `tells`: the end of this socket means that the peer's last process is gone.
        // A peer liveness socket whose end tells nothing yet has nothing else to report.
        let first = if peer_liveness >= 0 && redial::is_still_owed_by(self) { -1 } else { peer_liveness };
        for (fd, tells) in [(first, true), (liveness, peer_liveness < 0)] {
            // All sharers read the same socket, so messages that each of them needs stay in it.
            let shared = self.side.is_shared();
            match if fd >= 0 { self.drain(fd, shared, over) } else { LivenessEvent::Nothing } {
                LivenessEvent::Nothing => {}
                LivenessEvent::Woken => {
                    taken |= fd == liveness;
                    self.waiters.wake_co_waiters(v.link);
                }
                LivenessEvent::End if fd == peer_liveness && !self.liveness.has_peer_ended(&self.side) => {
                    self.waiters.wake_co_waiters(v.link)
                }
                LivenessEvent::End => {
                    if tells {
                        self.side.state.set(PEER_GONE);
                    } else {
                        self.side.on::<LivenessSocket>(LivenessSocketEvent::End);
                    }
                    self.waiters.wake_co_waiters(v.link);
                }
                LivenessEvent::Strange => {
                    let _ = self.violated(v);
                    self.fail(Errno::CONNRESET);
                }
            }
        }
        taken
    }

    /// Processes what the liveness socket and the peer liveness socket report, for an epoll instance that has got an
    /// event of one of them.
    ///
    /// `events`: what epoll(7) has reported of it. Returns whether bytes were taken that may have been meant for another
    /// instance.
    pub fn on_liveness_event(&self, events: u32) -> bool {
        if !self.side.is_live() {
            return false;
        }
        let Some(v) = self.side.view() else { return false };
        let over = events & !(libc::EPOLLIN as u32 | libc::EPOLLOUT as u32) != 0;
        if !over && v.is_sole_heir(&self.side) && !v.peer_switched(&self.passed) && self.liveness.may_leave_byte() {
            self.waiters.wake_co_waiters(v.link);
            return false;
        }
        self.poll_liveness(&v, over)
    }

    /// Requests a wake-up by a byte on the liveness socket, for an epoll instance. True: the byte can't be lost, since no
    /// other process reads it, so the instance need not sleep in short steps. The caller has counted itself as a sleeper, and
    /// checks the connection afterwards.
    pub fn arm_liveness(&self, write: bool) -> bool {
        let Some(v) = self.side.view() else { return false };
        // SeqCst: the caller has counted itself and then loads the state; a thread that forks stores the state and then
        // looks for sleepers to wake ([`ShmEndpoint::share`]). One of the two sees the other.
        fence(Ordering::SeqCst);
        let sole = v.is_sole_heir(&self.side);
        let own = line!(v, side, v.me);
        let mark = self.heir_waker.mark();
        for cell in [Some(&own.rx_waiter), write.then_some(&own.tx_waiter)].into_iter().flatten() {
            if sole { register_heir(cell, mark) } else { register_liveness(cell) }
        }
        // The readiness is checked after this fence; the peer publishes and then loads the registration.
        fence(Ordering::SeqCst);
        sole
    }
}
