//! Connections that several processes of one side hold after a fork, and how the other side knows of them.
//!
//! Before a process forks it makes a *liveness socket* for each connection: a pair of UNIX stream sockets, one end
//! under the application's own descriptors (so parent, child and grandchildren hold it as the kernel counts), the other
//! passed to the peer as its *peer liveness socket*. The kernel ends the peer liveness socket when the last holder is
//! gone, whichever process that is. Until then bytes go on over the ring, which the sharers shares: one process at a
//! time per direction (`ShmEndpoint::enter`), each taking up where the last one published.
//!
//! The parent's link stays the parent's. A child rings the peer's wakers that it inherited, and is itself
//! woken by a byte on its liveness socket.

use crate::limits::{OWNER_PAUSES, OWNER_YIELDS};
use crate::shm::ShmEndpoint;
use crate::shm::delays::{Next, Wait};
use crate::shm::drain::LivenessEvent;
use crate::shm::endpoint::View;
use crate::shm::liveness;
use crate::shm::procfs;
use crate::shm::segment::LIVENESS_WAKER;
use crate::shm::side::Side;
use crate::shm::side_machines::{LivenessSocket, LivenessSocketEvent, PEER_GONE, SHARED, Switch, SwitchEvent};
use crate::shm::wait_budget::WaitBudget;
use crate::wait::WaitSet;
use core::sync::atomic::{AtomicU32, Ordering};
use netacc_ring::{Consumer, Producer, SWITCHED, Violation};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{raw, reserved_fds, time};
use netacc_wire::Message;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// Value of a side's word `forked`, if it is not 0: the connection has a liveness socket.
pub(super) const FORKED: u32 = 1;
/// Value of that word while a process is about to put what the sharers wrote into the socket on which the connection
/// goes on.
pub(super) const GIVING: u32 = 2;

/// A direction of a shared side.
#[derive(Clone, Copy, Debug)]
pub(super) enum Direction {
    Read = 0,
    Write = 1,
}

/// A liveness socket (or -1) that is closed after everything else that a connection has: a client whose peer liveness
/// socket ends uses the slot again.
#[derive(Debug)]
pub(super) struct OwnLiveness(i32);

impl Drop for OwnLiveness {
    fn drop(&mut self) {
        if self.0 >= 0 {
            reserved_fds::close(self.0);
        }
    }
}

/// Held during an operation on a shared side.
pub(super) struct Entered<'a> {
    owner: &'a AtomicU32,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // Release: the next process sees what we published.
        self.owner.store(0, Ordering::Release);
    }
}

impl ShmEndpoint {
    /// Whether our other sharers may use the connection.
    pub fn is_shared(&self) -> bool {
        self.state.glance().is_shared()
    }

    /// To be called before an operation: on a shared side waits for the other sharers and takes up
    /// where they left. The peer can write the word; a peer that misuses it ends its connection.
    #[inline]
    pub(super) fn enter(&self, v: &View, dir: Direction) -> core::result::Result<Option<Entered<'static>>, Violation> {
        if !self.is_shared() { Ok(None) } else { self.enter_shared(v, dir).map(Some) }
    }

    #[cold]
    fn enter_shared(&self, v: &View, dir: Direction) -> core::result::Result<Entered<'static>, Violation> {
        if matches!(dir, Direction::Write) {
            self.let_relays_end(v);
        }
        let owner = line!(v, side, v.me).owner.get(dir as usize).ok_or(Violation)?;
        let me = raw::getpid();
        let mut looks = 0;
        let mut wait = Wait::default();
        loop {
            match owner.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    let held = Entered { owner };
                    self.resync(v, dir)?;
                    return Ok(held);
                }
                // A process that died in the middle had not published: what it did is undone by taking
                // up from the published words. Our own number can only be such a remnant, since threads
                // of one process exclude each other before they come here.
                Err(p) if p == me || !raw::process_exists(p) || (looks == OWNER_YIELDS && procfs::is_zombie(p)) => {
                    let _ = owner.compare_exchange(p, 0, Ordering::Acquire, Ordering::Relaxed);
                }
                Err(p) if !v.link.trusts_peer() => {
                    if self.delays.wait_for(p, &mut wait, || self.has_sharer(p))? == Next::Clear {
                        let _ = owner.compare_exchange(p, 0, Ordering::Acquire, Ordering::Relaxed);
                    }
                    continue;
                }
                Err(_) if looks < OWNER_YIELDS => raw::sched_yield(),
                // It may be stopped (SIGSTOP, a debugger, a frozen group): it goes on some day, or dies.
                Err(p) if looks > OWNER_YIELDS || self.has_sharer(p) => time::pause(),
                Err(_) => return Err(Violation),
            }
            looks = if looks == OWNER_YIELDS + OWNER_PAUSES { OWNER_YIELDS } else { looks + 1 };
        }
    }

    /// Whether a process that the word names belongs to our sharers: the peer could have written any number.
    pub(super) fn has_sharer(&self, pid: u32) -> bool {
        let liveness = self.liveness_fd();
        if liveness < 0 {
            return false;
        }
        #[allow(unsafe_code)]
        // SAFETY: the liveness socket stays open while a direction's lock is held, as it is here.
        let liveness = unsafe { rustix::fd::BorrowedFd::borrow_raw(liveness) };
        procfs::has_open(pid, liveness)
    }

    /// After [`ShmEndpoint::enter`]: whether another sharer has left the rings meanwhile.
    pub(super) fn sharers_switched(&self, v: &View) -> bool {
        // Relaxed: the process that left held both words of [`ShmEndpoint::enter`], one of which we hold now.
        let left = self.is_shared() && line!(v, producer, v.me).fin.load(Ordering::Relaxed) & SWITCHED != 0;
        if left && !v.link.trusts_peer() {
            self.reset_for(v, "marked the connection as moved");
        } else if left {
            self.on::<Switch>(SwitchEvent::SharerLeaves);
        }
        left
    }

    fn resync(&self, v: &View, dir: Direction) -> core::result::Result<(), Violation> {
        let peer = v.me.other();
        match dir {
            Direction::Read => self.rx.resync(line!(v, consumer, v.me), line!(v, producer, peer)),
            Direction::Write => self.tx.resync(line!(v, producer, v.me), line!(v, consumer, peer)),
        }
    }

    /// Whether there is anything to read.
    #[inline]
    pub(super) fn has_data(&self, v: &View) -> bool {
        if self.old_subflow.load(Ordering::Relaxed) != 0
            && let Some(ready) = self.old_subflow_ready()
        {
            return ready;
        }
        let peer = line!(v, producer, v.me.other());
        if self.is_shared() {
            Consumer::available_by(line!(v, consumer, v.me), peer) > 0
        } else {
            self.rx.readable(peer)
        }
    }

    /// Whether a write would find room.
    #[inline]
    pub(super) fn has_room(&self, v: &View) -> bool {
        let peer = line!(v, consumer, v.me.other());
        if self.is_shared() {
            return self.tx.writable_by(line!(v, producer, v.me), peer);
        }
        self.tx.writable(peer).unwrap_or(true)
    }

    /// Number of bytes that are there to read.
    pub(super) fn waiting_in(&self, v: &View) -> u64 {
        let peer = line!(v, producer, v.me.other());
        if self.is_shared() {
            return Consumer::available_by(line!(v, consumer, v.me), peer);
        }
        self.rx.available(peer).unwrap_or(0)
    }

    /// Number of our bytes that the peer has not read; `None` if its words are impossible.
    pub(super) fn peer_left_unread(&self, v: &View) -> Option<u64> {
        let peer = line!(v, consumer, v.me.other());
        if self.is_shared() {
            return Some(Producer::unread_by(line!(v, producer, v.me), peer));
        }
        self.tx.unread(peer).ok()
    }

    /// To be called before a fork: makes the liveness socket, unless there is one, and marks the connection as shared.
    /// Returns the descriptor to put under the application's numbers.
    pub fn share(&'static self, budget: &WaitBudget) -> Result<Option<OwnedFd>> {
        let Some(v) = self.view() else {
            return Err(Errno::NOTCONN);
        };
        // What is held back only this process knows of.
        self.push();
        self.state.set(SHARED);
        if self.liveness.load(Ordering::Relaxed) != 0 {
            return Ok(None);
        }
        let (ours, theirs, token) = self.liveness_pair(&v).inspect_err(|_| self.reset_in_child())?;
        let m = Message::Liveness { slot: v.index as u32, generation: self.generation.load(Ordering::Relaxed), token };
        let sent = v.link.send_patiently(m, theirs.as_ref().map(AsRawFd::as_raw_fd), budget);
        if let Some(theirs) = theirs {
            reserved_fds::drop_raw(theirs);
        }
        match sent {
            Ok(()) => {
                // SeqCst: a peer that forks too, or leaves the rings, marks that and then looks here; we look at its marks in
                // [`ShmEndpoint::before_fork`]. One of us sees the other. And after the message: a peer that sees the mark
                // has nothing to wait for, however long this thread loses its processor.
                line!(v, side, v.me).forked.store(FORKED, Ordering::SeqCst);
                // A peer that has forked told us so before: the child has to know, and cannot read the control socket.
                v.link.service();
                Ok(Some(ours))
            }
            Err(e) => {
                reserved_fds::drop_raw(ours);
                self.on::<LivenessSocket>(LivenessSocketEvent::Withdraw);
                if !matches!(e, Errno::PIPE | Errno::CONNRESET) {
                    self.reset_in_child();
                    return Err(e);
                }
                // The process with the link is gone already. If it left the connection to no other process, a child
                // hears that from nobody else; what it did leave is at the peer liveness socket, which another thread
                // may be about to take in.
                self.await_word(&v, budget, || self.peer_liveness_fd() >= 0);
                if self.peer_liveness_fd() < 0 {
                    self.state.set(PEER_GONE);
                }
                Ok(None)
            }
        }
    }

    /// Makes the liveness socket: the end for our side, the peer's end if that can be passed, and otherwise the token
    /// by which the peer finds it.
    fn liveness_pair(&self, v: &View) -> Result<(OwnedFd, Option<OwnedFd>, u64)> {
        if v.link.trust_is_mutual() {
            let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
            return Ok((ours, Some(theirs), 0));
        }
        let (ours, token) = liveness::open()?;
        self.token.store(token, Ordering::Relaxed);
        self.on::<LivenessSocket>(LivenessSocketEvent::Listen);
        Ok((ours, None, token))
    }

    /// Stores the application's descriptor that is our liveness socket.
    pub fn set_liveness(&self, fd: i32) {
        self.liveness.store(fd + 1, Ordering::Release);
        // A peer that left the rings may have passed its socket there already, and woken us when no thread knew where
        // to look.
        self.poke_self();
    }

    /// Forgets the liveness socket as far as this process is concerned. A liveness socket that belongs to us is closed
    /// with what is returned.
    pub(super) fn take_liveness(&self) -> OwnLiveness {
        let there = self.liveness.load(Ordering::Relaxed) != 0;
        let fd = if there { self.liveness.swap(0, Ordering::AcqRel) - 1 } else { -1 };
        self.drop_accepted();
        OwnLiveness(if fd >= 0 && reserved_fds::is(fd) { fd } else { -1 })
    }

    /// The descriptor that is our liveness socket, or -1. It is the application's, unless the application has closed it.
    pub fn liveness_fd(&self) -> i32 {
        self.liveness.load(Ordering::Acquire) - 1
    }

    /// Descriptors that belong to this connection alone.
    pub fn descriptors(&self) -> [i32; 7] {
        let cells =
            [&self.liveness, &self.accepted, &self.old_subflow, &self.kernel, &self.sibling_copy, &self.unread_return]
                .map(|c| c.load(Ordering::Acquire).max(0) - 1);
        let [liveness, accepted, old_subflow, kernel, sibling_copy, unread_return] = cells;
        [self.peer_liveness_fd(), liveness, accepted, old_subflow, kernel, sibling_copy, unread_return]
    }

    /// To be called when the other sharers are gone: the private cursors are right again. The caller
    /// holds both direction locks.
    pub fn unshare(&self) {
        let Some(v) = self.view() else { return };
        // If one of them left the rings, we still have to follow.
        if self.is_shared()
            && !self.sharers_switched(&v)
            && self.resync(&v, Direction::Read).is_ok()
            && self.resync(&v, Direction::Write).is_ok()
        {
            self.state.clear(SHARED);
        }
    }

    /// Gives the connection up in our process without ending it: another of our sharers goes on with it, and the
    /// kernel tells the peer when the last one is gone.
    pub fn leave_shared(&'static self) {
        let Some(v) = self.view() else { return };
        self.settle_switch();
        // Not kept as in `release_peer_liveness`: when the process that goes on with the connection dies, that must be
        // noticed.
        self.close_peer_liveness();
        self.drop_kernel();
        self.end_old_subflow(self.old_subflow_fd());
        let _last = self.take_liveness();
        self.leave();
        if v.me == Side::Client && !v.link.is_inherited() {
            v.link.slots.parked(v.index);
        }
        v.link.count_slot_closed();
        v.link.put();
    }

    /// Whether every process that could answer at the other end is gone.
    #[inline]
    pub(super) fn peer_died(&self, v: &View) -> bool {
        // First: another thread may read the control socket, and it marks the link after it has taken in all that came
        // over that socket, including a peer liveness socket.
        let lost = v.link.is_lost();
        // A process without a link of its own hears of the peer's end by its liveness socket.
        let told = self.peer_liveness.load(Ordering::Acquire) != 0;
        if told || v.link.is_inherited() {
            return self.state.look().has(PEER_GONE) || (!told && self.is_abandoned(v));
        }
        lost && !self.is_orphan(v)
    }

    /// Adds the kernel sockets that can wake a sleeper of this connection.
    pub(super) fn add_kernel_ends(&self, v: &View, read: bool, set: &mut WaitSet) {
        let old_subflow = self.old_subflow_fd();
        if old_subflow >= 0 && read {
            match self.old_subflow_ready() {
                Some(false) => drop(set.add(old_subflow, libc::POLLIN)),
                // There is something, and it is not what the sleeper waits for: the kernel would wake the sleeper at
                // once, for ever. Only SO_RCVLOWAT makes more of it interesting.
                Some(true) => set.bounded |= self.lowat() > 1,
                None => {}
            }
        }
        if self.kernel_fd() >= 0 {
            return;
        }
        let w = self.peer_liveness_fd();
        if w >= 0 && !self.state.glance().has(PEER_GONE) {
            set.add(w, libc::POLLIN | libc::POLLRDHUP);
        }
        if v.link.is_inherited() {
            match self.liveness_to_poll() {
                // A liveness socket that has ended would end every sleep.
                _ if self.state.glance().liveness_socket() == LivenessSocket::Ended => {}
                fd if fd >= 0 => {
                    set.add(fd, libc::POLLIN | libc::POLLRDHUP);
                    set.shared = true;
                    let waiting = self.accepted_fd();
                    if waiting >= 0 && waiting != fd {
                        set.add(waiting, libc::POLLIN);
                    }
                }
                _ => set.bounded = true,
            }
        }
    }

    /// Takes in what the kernel sockets report: wake-up bytes and the end.
    ///
    /// The peer liveness socket tells the peer's end if there is one: then the peer has sharers too, and the other end of
    /// our liveness socket went to the process that had the link. That process may have given the connection up to its child,
    /// which is the peer from then on. Without a peer liveness socket the liveness socket tells the peer's end.
    ///
    /// Other bytes come from a program without this library that inherited the liveness socket; they are not part of the
    /// ring's stream and cannot be put into it, so the connection is reset rather than a byte lost in silence.
    pub(super) fn poll_liveness(&self, v: &View) {
        let inherited = v.link.is_inherited();
        if inherited && self.accept_peer() {
            self.waiters.wake_co_waiters(v.link);
        }
        self.poll_liveness_ends(v, inherited);
    }

    /// Takes in what the peer liveness socket reports and, if `with_liveness`, the liveness socket.
    pub(super) fn poll_liveness_ends(&self, v: &View, with_liveness: bool) {
        if self.kernel_fd() >= 0 {
            // Nothing more is reported there.
            return;
        }
        let peer_liveness = self.peer_liveness_fd();
        let there = with_liveness && self.state.glance().liveness_socket() != LivenessSocket::Ended;
        let using = there.then(|| self.using());
        // A liveness socket that listens reports nothing.
        let liveness = if using.is_some() && !self.liveness_listens() { self.liveness_to_poll() } else { -1 };
        // Whether the end of the one or the other says that the peer's last process is gone.
        for (fd, tells) in [(peer_liveness, true), (liveness, peer_liveness < 0)] {
            // The sharers read one socket: what all of its processes need stays in it.
            let shared = fd == liveness || self.is_shared();
            match if fd >= 0 { self.drain(fd, shared) } else { LivenessEvent::Nothing } {
                LivenessEvent::Nothing => {}
                LivenessEvent::Woken => self.waiters.wake_co_waiters(v.link),
                LivenessEvent::End if fd == peer_liveness && !self.has_peer_ended() => {
                    self.waiters.wake_co_waiters(v.link)
                }
                LivenessEvent::End => {
                    if tells {
                        self.state.set(PEER_GONE);
                    } else {
                        self.on::<LivenessSocket>(LivenessSocketEvent::End);
                    }
                    self.waiters.wake_co_waiters(v.link);
                }
                LivenessEvent::Strange => {
                    let _ = self.violated(v);
                    self.fail(Errno::CONNRESET);
                }
            }
        }
    }

    /// Hears what has come over the liveness socket and the peer liveness socket, for an epoll instance that was told
    /// of one of them.
    pub fn on_liveness_event(&self) {
        if self.is_live()
            && let Some(v) = self.view()
        {
            self.poll_liveness(&v);
        }
    }

    /// Asks to be woken by a byte on the liveness socket; true when there is no need to sleep.
    pub fn arm_liveness(&self, write: bool) -> bool {
        let Some(v) = self.view() else { return true };
        let own = line!(v, side, v.me);
        let _ = own.rx_waiter.compare_exchange(0, LIVENESS_WAKER, Ordering::SeqCst, Ordering::SeqCst);
        if write {
            let _ = own.tx_waiter.compare_exchange(0, LIVENESS_WAKER, Ordering::SeqCst, Ordering::SeqCst);
        }
        core::sync::atomic::fence(Ordering::SeqCst);
        let r = crate::Endpoint::readiness(self);
        r.readable() || (write && r.writable())
    }
}
