//! Waking threads over a link: ready sets and the wakers of both sides.

use crate::num;
use crate::shm::Link;
use crate::shm::named_waker::{self, Emptied};
use crate::shm::segment::{LIVENESS_WAKER, READY_SETS, ServedBy};
use crate::wait::{WaitOn, WaitSet, WakerSource};
use crate::wakers;
use core::sync::atomic::Ordering;
use netacc_ring::ReadySet;
use netacc_stats::{Counter, page};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::reserved_fds;
use netacc_wire::Message;

impl WakerSource for Link {
    fn borrow_waker(&self) -> Result<u32> {
        let _g = self.lock.lock();
        if let Some(id) = self.idle_wakers.take() {
            return Ok(id);
        }
        let id = self.idle_wakers.next().ok_or(Errno::MFILE)?;
        make(self, id)?;
        self.idle_wakers.made(id);
        Ok(id)
    }

    fn return_waker(&self, id: u32) {
        let _g = self.lock.lock();
        if self.waker_fd(id) >= 0 {
            self.idle_wakers.put(id);
        }
    }

    fn waker_fd(&self, id: u32) -> i32 {
        self.wakers().fd(id)
    }

    fn ring(&self, id: u32) {
        self.wakers().ring(id);
    }

    fn silence(&'static self, id: u32) {
        if self.wakers().silence(id) == Emptied::HoldsDescriptors {
            // No correct peer does that. The descriptors stay in the socket until the link ends.
            self.wakers().retire(id);
            self.reset_all();
            self.expel();
        }
    }

    fn control_to_poll(&self) -> i32 {
        // The control socket of a link that has ended would end every sleep, although connections that have sharers go
        // on.
        if self.is_lost() { -1 } else { self.control.fd_to_poll() }
    }

    fn service(&'static self) {
        Link::service(self);
    }

    fn hold(&'static self, on: WaitOn) -> bool {
        let held = self.hold_if_used();
        if held && on == WaitOn::Listener {
            // Release: see [`Link::is_idle`].
            self.asleep.fetch_add(1, Ordering::Release);
        }
        held
    }

    fn let_go(&'static self, on: WaitOn) {
        if on == WaitOn::Listener {
            self.asleep.fetch_sub(1, Ordering::Relaxed);
        }
        self.put();
    }
}

/// Largest number of wakers that are made before threads sleep on them.
const MADE_AHEAD: u32 = 8;

impl Link {
    /// The waker by which the peer wakes the wait of `set`, borrowed at the first call; 0 if none can be borrowed. On a
    /// link that this process has by a fork it is [`LIVENESS_WAKER`], and the waker that `set` borrows is one that only
    /// threads of this process ring.
    pub(super) fn waker_for(&'static self, set: &mut WaitSet) -> u32 {
        if self.is_inherited() { LIVENESS_WAKER } else { set.waker(self) }
    }

    /// The waker that [`Link::waker_for`] got for `set`, if it got one.
    pub(super) fn waker_of(&self, set: &WaitSet) -> Option<u32> {
        if self.is_inherited() { Some(LIVENESS_WAKER) } else { Some(set.waker_in(self)).filter(|id| *id != 0) }
    }

    /// Our ready set `n`.
    #[inline]
    pub fn my_ready_set(&self, n: u32) -> Option<&'static ReadySet> {
        self.segment()?.ready_set(self.side(), n)
    }

    /// Takes a ready set with its waker. `EMFILE`: all are in use; `EPIPE`: this is the child of a fork.
    pub fn open_ready_set(&self) -> Result<u32> {
        // In the child of a fork the ready sets are the parent's.
        if self.is_inherited() {
            return Err(Errno::PIPE);
        }
        let _g = self.lock.lock();
        let used = self.ready_sets.load(Ordering::Relaxed);
        let n = (!used).trailing_zeros();
        if n as usize >= READY_SETS {
            return Err(Errno::MFILE);
        }
        if self.waker_fd(n) < 0 {
            make(self, n)?;
        }
        // Release: see [`Link::is_idle`].
        self.ready_sets.store(used | 1 << n, Ordering::Release);
        if let Some(c) = self.my_ready_set(n) {
            let _ = c.take();
        }
        Ok(n)
    }

    /// Gives a ready set back; its waker is kept for the next user.
    pub fn close_ready_set(&self, n: u32) {
        let _g = self.lock.lock();
        // In the child of a fork the ready set is the parent's, which may sleep on it.
        if let Some(c) = self.my_ready_set(n)
            && !self.is_inherited()
        {
            c.disarm();
        }
        self.ready_sets.fetch_and(!(1 << n), Ordering::Relaxed);
    }

    /// Rings the peer's waker, if this process has its eventfd or can reach it by its name; false if it does not.
    pub(crate) fn ring_known(&self, id: u32) -> bool {
        let rung = ring_at_once(self, id);
        if rung {
            page().count(Counter::Doorbells);
        }
        rung
    }

    /// Wakes the peer's threads that sleep on waker `id`: by its eventfd or its name, by a message, or by
    /// [`Header::kick_all`].
    ///
    /// [`Header::kick_all`]: super::segment::Header::kick_all
    #[cold]
    pub(crate) fn ring_peer(&'static self, id: u32) {
        page().count(Counter::Doorbells);
        if ring_at_once(self, id) {
            return;
        }
        // The waker's message is still in the control socket, or the waker cannot be rung from here.
        self.service();
        if !ring_at_once(self, id)
            && self.control.send(Message::Wake { id }, None).is_err()
            && let Some(cell) = self.segment().and_then(|s| s.header().kick_all.get(self.side().other().index()))
        {
            // The socket is full. The peer finds this word when it has read all messages, and then rings all of its
            // wakers.
            cell.store(1, Ordering::SeqCst);
            // The peer may have read them all before it could see the word: then there is room again.
            let _ = self.control.send(Message::Wake { id }, None);
        }
    }
}

/// Client: to be called before a connect is queued. Makes wakers before threads need them, and tells the peer of them,
/// where the peer may fork a process for each connection: that one can ring the wakers of which its parent had heard,
/// and reaches all others by a byte on the liveness socket alone, which costs both sides more. A process with a single
/// thread has its waker heard of when it first waits for an answer.
pub fn make_ahead(link: &Link) {
    let end = const { num::constant(READY_SETS) } + MADE_AHEAD;
    let wanted = || link.idle_wakers.next().is_some_and(|id| id < end);
    if !link.segment().is_some_and(|s| s.served_by() == ServedBy::Forked) || !link.trust_is_mutual() || !wanted() {
        return;
    }
    let threads = rustix::fs::stat(c"/proc/self/task").map_or(0, |tasks| tasks.st_nlink.saturating_sub(2));
    let end = end.min(const { num::constant(READY_SETS) }.saturating_add(u32::try_from(threads).unwrap_or(0)));
    let _g = link.lock.lock();
    while threads > 1
        && let Some(id) = link.idle_wakers.next().filter(|id| *id < end)
        && let Ok(fd) = wakers::create_above()
    {
        if hand_over(link, id, fd).is_err() {
            return;
        }
        link.idle_wakers.made(id);
        link.idle_wakers.put(id);
    }
}

/// Makes our waker `id` and tells the peer of it. Under the link's lock.
fn make(link: &Link, id: u32) -> Result<()> {
    // A peer in this process takes an eventfd without a message.
    let is_apart = link.mate.is_none();
    if !link.is_inherited() && is_apart && !link.trust_is_mutual() && make_named(link, id).is_ok() {
        return Ok(());
    }
    hand_over(link, id, wakers::create()?)
}

/// Makes the eventfd `fd` our waker `id` and passes it to the peer. Under the link's lock.
fn hand_over(link: &Link, id: u32, fd: i32) -> Result<()> {
    // In the child of a fork the waker is only for threads of the child. A peer that must not have it, and to which no
    // socket could be named, wakes us by messages.
    let sent = if link.is_inherited() {
        Ok(())
    } else {
        match link.hand_waker(id, fd) {
            Ok(true) => Ok(()),
            Ok(false) if !link.trust_is_mutual() => Ok(()),
            Ok(false) => link.control.send(Message::Waker { id, token: 0 }, Some(fd)),
            Err(e) => Err(e),
        }
    };
    let made = sent.and_then(|()| if link.wakers().set(id, fd, 0) { Ok(()) } else { Err(Errno::MFILE) });
    made.inspect_err(|_| reserved_fds::close(fd))
}

/// Makes our waker `id` for a peer that is to get no descriptor of ours. A peer that does not get the message, since its
/// socket is full, wakes us by messages.
fn make_named(link: &Link, id: u32) -> Result<()> {
    let (fd, token) = named_waker::create()?;
    if !link.wakers().set(id, fd, token) {
        reserved_fds::close(fd);
        return Err(Errno::MFILE);
    }
    let _ = link.control.send(Message::Waker { id, token }, None);
    Ok(())
}

/// Rings the peer's waker by its eventfd or its name; false if this process has neither, or the name does not lead to it.
fn ring_at_once(link: &Link, id: u32) -> bool {
    // A write to an eventfd of another user's process may block.
    if let Some(fd) = link.wakers().of_peer(id).filter(|_| link.peer.is_trusted()) {
        wakers::ring(fd);
        return true;
    }
    let token = link.wakers().peer_token(id);
    let rung = if token == 0 { Err(Errno::NOENT) } else { link.sender.ring(token) };
    if rung == Err(Errno::CONNREFUSED) {
        // The peer is in another network namespace, or it ends.
        link.wakers().learn_token(id, 0);
    }
    rung.is_ok()
}
