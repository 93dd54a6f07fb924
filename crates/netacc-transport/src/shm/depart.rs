//! Leaving the rings while the connection lives: its stream goes on over a pair of kernel sockets.
//!
//! One side *departs*, because exec, another process or a call that no ring carries needs a kernel socket
//! under the number. It makes the pair, marks its producer's word with [`MOVED`], puts what it had not read
//! into the *far* socket and passes that one to the peer. The peer *follows*: what it had written and nobody
//! has read goes into its socket next, then everything it writes; it reads the ring to its end and then the
//! socket. So each direction changes its path at its own byte, and no byte is counted.
//!
//! [`MOVED`] is one word for both directions: the side stores it (SeqCst) and then looks at the other ring for
//! the last time; the peer publishes (SeqCst) and then looks at the word. One of them sees the other.
//!
//! In a family (see [`super::family`]) any process may depart. The socket goes to the peer over the base, with a copy of
//! the near one, which the peer sends back over its witness for the others of the family. A family takes what comes over
//! its base by looking, and leaves it there for the others (unix(7): a look at a message duplicates its descriptors).

use crate::iov::Iov;
use crate::shm::ShmEndpoint;
use crate::shm::control::{pass_descriptors, patiently};
use crate::shm::endpoint::{
    BASE_GONE, DEAD, FAMILY_MOVED, LIVE, MOVING, ON_KERNEL, PEER_FIN, RX_SHUT, SHARED, TX_SHUT, View, WITNESS_GONE,
};
use crate::shm::family::Direction;
use crate::shm::link::Side;
use core::sync::atomic::Ordering;
use netacc_ring::{Consumer, FIN, MOVED};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{private, raw};
use netacc_wire::Message;
use rustix::fd::{AsRawFd, OwnedFd};

/// How long a departing side waits for room in its socket, in milliseconds.
const PATIENCE: u32 = 5_000;

impl ShmEndpoint {
    /// Whether the peer or our family has left the rings and we have not followed yet.
    #[inline]
    pub fn is_moving(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & (MOVING | ON_KERNEL) == MOVING
    }

    /// Whether the connection has to go on elsewhere: its server died before it took it, or somebody left the
    /// rings and the socket on which it goes on is here. As of the last look at the readiness or attempt to read or write.
    pub fn displaced(&self) -> bool {
        let flags = self.flags.load(Ordering::Acquire);
        if flags & LIVE == 0 {
            return false;
        }
        self.view().is_some_and(|v| match flags & (MOVING | ON_KERNEL | DEAD) {
            MOVING => self.seek_kernel(&v) || self.is_hopeless(&v),
            f if f & (ON_KERNEL | DEAD) == ON_KERNEL => self.drained(&v),
            _ => self.is_orphan(&v),
        })
    }

    /// Whether we followed, and the ring has to be read to its end before the socket.
    pub fn has_followed(&self) -> bool {
        self.flags.load(Ordering::Acquire) & ON_KERNEL != 0
    }

    /// Puts what is left to read into `far`. The caller holds both direction locks.
    pub fn pour_rest(&self, far: &OwnedFd) -> Result<()> {
        let Some(v) = self.view() else { return Err(Errno::NOTCONN) };
        let Ok(_read) = self.enter(&v, Direction::Read) else { return Err(Errno::CONNRESET) };
        self.pour(&v, far)
    }

    fn drained(&self, v: &View) -> bool {
        self.flags.load(Ordering::Relaxed) & FAMILY_MOVED != 0 || !(self.has_data(v) || self.tail_fd() >= 0)
    }

    /// Our side leaves both rings: from now on the stream is that of `near`, an end of a fresh pair of
    /// connected sockets. The caller holds both direction locks and then calls [`ShmEndpoint::leave`].
    /// `EAGAIN` if the peer or another process of our family was faster.
    pub fn depart(&'static self, near: &OwnedFd, far: OwnedFd) -> Result<()> {
        let Some(v) = self.view() else { return Err(Errno::NOTCONN) };
        let done = self.depart_to(&v, near, &far);
        let faster = done == Ok(false);
        if done.is_err() {
            // Too late to stay: both ends learn that something is missing.
            reset_at_close(far.as_raw_fd());
        }
        private::drop_raw(far);
        if faster { Err(Errno::AGAIN) } else { Ok(()) }
    }

    /// False if somebody was faster.
    fn depart_to(&'static self, v: &View, near: &OwnedFd, far: &OwnedFd) -> Result<bool> {
        let (Ok(_write), Ok(_read)) = (self.enter(v, Direction::Write), self.enter(v, Direction::Read)) else {
            return Err(self.violated(v));
        };
        let own = line!(v, producer, v.me);
        let flags = self.observe(v);
        if flags & MOVING != 0 || v.slot.open.leaving.swap(1, Ordering::AcqRel) != 0 {
            return Ok(false);
        }
        own.fin.fetch_or(MOVED, Ordering::SeqCst);
        // Before the last look: an end that is marked now comes after bytes that are visible now.
        let ended = line!(v, producer, v.me.other()).fin.load(Ordering::SeqCst) & FIN != 0;
        self.pour(v, far)?;
        if ended || flags & PEER_FIN != 0 {
            let _ = raw::shutdown(far.as_raw_fd(), libc::SHUT_WR);
        }
        for (bit, how) in [(TX_SHUT, libc::SHUT_WR), (RX_SHUT, libc::SHUT_RD)] {
            if flags & bit != 0 {
                let _ = raw::shutdown(near.as_raw_fd(), how);
            }
        }
        if flags & DEAD != 0 {
            reset_at_close(far.as_raw_fd());
        } else if !self.peer_died(v) {
            self.deliver(v, near.as_raw_fd(), far.as_raw_fd())?;
        }
        self.tell_data(v);
        self.tell_room(v, true);
        Ok(true)
    }

    /// What we have not read goes to the reader of `near`, in order: the kernel's rest, then the ring.
    fn pour(&self, v: &View, far: &OwnedFd) -> Result<()> {
        let tail = self.tail_fd();
        if tail >= 0 {
            // The peer ends its half of that stream when it comes over, which it does at its next call.
            let mut buf = [0u8; 4096];
            loop {
                match raw::recv(tail, buf.as_mut_ptr(), buf.len(), libc::MSG_DONTWAIT) {
                    Ok(0) => break,
                    Ok(n) => send_all(far.as_raw_fd(), buf.as_ptr(), n)?,
                    Err(Errno::AGAIN) => wait_for(tail, libc::POLLIN)?,
                    Err(Errno::INTR) => {}
                    Err(e) => return Err(e),
                }
            }
        }
        let (own, peer) = (line!(v, consumer, v.me), line!(v, producer, v.me.other()));
        let Some(area) = v.rx_area() else { return Err(Errno::CONNRESET) };
        while let Some((p, n)) = self.rx.chunk(&area, own, peer, 0).map_err(|_| self.violated(v))? {
            send_all(far.as_raw_fd(), p.as_ptr(), n)?;
            self.rx.advance(n);
        }
        self.rx.publish(own);
        Ok(())
    }

    fn deliver(&'static self, v: &View, near: i32, far: i32) -> Result<()> {
        let (base, witness) = (self.base_fd(), self.witness_fd());
        // Where the peer is a family itself, to all of it.
        let over = if witness >= 0 { witness } else { base };
        if over >= 0 {
            let all = [far, near];
            let pass = if base >= 0 { &all[..] } else { &all[..1] };
            return patiently(|| pass_descriptors(over, pass));
        }
        let m = Message::Moved { slot: v.index as u32, epoch: self.epoch.load(Ordering::Relaxed) };
        v.link.send_patiently(m, far)
    }

    /// The peer passed our end of the pair for connection `epoch`, perhaps before we have taken that.
    pub(crate) fn learn_moved(&self, epoch: u32, fd: OwnedFd) {
        if !self.expects(epoch) {
            return private::drop_raw(fd);
        }
        self.kernel_epoch.store(epoch, Ordering::Relaxed);
        self.learn_kernel(fd);
    }

    pub(super) fn learn_kernel(&self, fd: OwnedFd) {
        // It comes to lie under the application's number: a stream socket, whatever the peer says it passed.
        if raw::getsockopt_int(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_TYPE) != Ok(libc::SOCK_STREAM) {
            return private::drop_raw(fd);
        }
        if let Ok(fd) = private::adopt(fd) {
            replace(&self.kernel, fd + 1);
        }
        self.poke_self();
    }

    /// The near end, to be sent back for the rest of the peer's family.
    pub(super) fn learn_spare(&self, fd: OwnedFd) {
        if let Ok(fd) = private::adopt(fd) {
            replace(&self.spare, fd + 1);
        }
    }

    /// The socket that the connection goes on over, or -1.
    pub fn kernel_fd(&self) -> i32 {
        self.kernel.load(Ordering::Acquire) - 1
    }

    /// Looks whether the socket has come; never waits.
    fn seek_kernel(&self, v: &View) -> bool {
        if self.kernel_fd() < 0 {
            v.link.service();
            self.hear_ends(v, self.base_fd());
        }
        self.kernel_fd() >= 0
    }

    /// Nobody is left who could pass the socket.
    fn is_hopeless(&self, v: &View) -> bool {
        let flags = self.flags.load(Ordering::Acquire);
        let unheard = self.witness_fd() < 0 && self.base_fd() < 0;
        (v.link.is_lost() || v.link.is_inherited()) && (unheard || flags & (WITNESS_GONE | BASE_GONE) != 0)
    }

    /// A departing side marks its word, puts what it had not read into the socket, passes that, and then wakes us. So
    /// there is hardly anything to wait for; but bytes that we wrote in between would stay here if the program does not
    /// call us again soon. A peer of another user could make every such write slow: it is not waited for that long.
    #[cold]
    pub fn await_kernel(&self) {
        let Some(v) = self.view() else { return };
        let steps = if v.link.trusts_peer() { 1_000 } else { 10 };
        for _ in 0..steps {
            if self.seek_kernel(&v) || self.is_hopeless(&v) {
                return;
            }
            let fds = [v.link.control_fd(), self.witness_fd(), self.base_fd()];
            let mut p = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
            let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            let _ = raw::ppoll(p.as_mut_ptr(), p.len(), &raw mut ts, core::ptr::null());
        }
    }

    pub(super) fn learn_both(&self, [kernel, spare]: [Option<OwnedFd>; 2]) {
        if let Some(k) = kernel {
            self.learn_kernel(k);
        }
        if let Some(s) = spare {
            self.learn_spare(s);
        }
    }

    /// Follows the peer, or a process of our family, off the rings. The caller holds both direction locks.
    /// `Some`: the endpoint's descriptor of the socket that is all of the connection now, to be put under the
    /// application's numbers before [`ShmEndpoint::leave`]; `None`: the ring has to be read to its end first.
    pub fn follow(&'static self) -> Result<Option<i32>> {
        let Some(v) = self.view() else { return Err(Errno::CONNRESET) };
        let flags = self.flags.load(Ordering::Acquire);
        if flags & ON_KERNEL == 0 {
            if !self.seek_kernel(&v) {
                // It is still to come, and wakes us then, or nobody is left to send it.
                return if self.is_hopeless(&v) { Err(Errno::CONNRESET) } else { Ok(None) };
            }
            let fd = self.kernel_fd();
            if flags & FAMILY_MOVED == 0 {
                self.forward_spare();
                let Ok(_family) = self.enter(&v, Direction::Write) else { return Err(Errno::CONNRESET) };
                self.give_rest(&v, fd)?;
                if flags & TX_SHUT != 0 {
                    let _ = raw::shutdown(fd, libc::SHUT_WR);
                }
            }
            self.flags.fetch_or(ON_KERNEL, Ordering::AcqRel);
        }
        if !self.drained(&v) {
            return Ok(None);
        }
        let fd = self.kernel_fd();
        if flags & RX_SHUT != 0 {
            let _ = raw::shutdown(fd, libc::SHUT_RD);
        }
        Ok(Some(fd))
    }

    fn forward_spare(&self) {
        let spare = self.spare.swap(0, Ordering::AcqRel) - 1;
        let witness = self.witness_fd();
        if spare >= 0 {
            if witness >= 0 {
                let _ = patiently(|| pass_descriptors(witness, &[spare]));
            }
            private::close(spare);
            if let Some(v) = self.view() {
                // Whoever of that family has the link sleeps on its channel.
                self.tell_data(&v);
                self.tell_room(&v, true);
            }
        }
    }

    /// What we wrote and the peer has not read, nor put into the socket itself. It has left the ring, so its
    /// word `tail` is final, and we read our own ring in its stead.
    fn give_rest(&self, v: &View, fd: i32) -> Result<()> {
        let (theirs, ours) = (line!(v, consumer, v.me.other()), line!(v, producer, v.me));
        let Some(area) = v.tx_area() else { return Err(Errno::CONNRESET) };
        let rest = Consumer::default();
        rest.resync(theirs, ours).map_err(|_| Errno::CONNRESET)?;
        while let Some((p, n)) = rest.chunk(&area, theirs, ours, 0).map_err(|_| Errno::CONNRESET)? {
            send_all(fd, p.as_ptr(), n)?;
            rest.advance(n);
        }
        // The peer is gone from there: its word now says how far our family has come with this.
        rest.publish(theirs);
        Ok(())
    }

    /// Gives the endpoint up after the connection went elsewhere. What the peer says afterwards it says there.
    pub fn leave(&'static self) {
        let Some(v) = self.view() else { return };
        // A process of a family may look at the words at any time later.
        let shared = self.flags.load(Ordering::Acquire) & SHARED != 0;
        if !shared {
            let side = line!(v, side, v.me);
            for w in [&side.watch, &side.rx_waiter, &side.tx_waiter, &side.want_room] {
                w.store(0, Ordering::Relaxed);
            }
        }
        self.release_witness(&v);
        self.drop_kernel();
        self.base.store(0, Ordering::Relaxed);
        self.end_tail(self.tail_fd());
        self.flags.store(0, Ordering::Release);
        if v.me == Side::Server && !shared {
            // Release: after this the client may use the slot again, once it has left it too.
            v.slot.open.server_done.store(self.epoch.load(Ordering::Relaxed), Ordering::Release);
        }
        if v.me == Side::Client && !v.link.is_inherited() {
            if shared {
                v.link.slots.left(v.index);
            } else {
                v.link.slots.closed(v.index);
            }
        }
        v.link.slot_left();
        v.link.put();
    }

    /// A write after we followed.
    #[cold]
    pub(super) fn write_kernel(&self, src: &mut Iov<'_>) -> Result<usize> {
        if self.flags.load(Ordering::Acquire) & ON_KERNEL == 0 {
            return Err(Errno::AGAIN);
        }
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

    /// As [`ShmEndpoint::write_kernel`], for sendfile and splice. What was taken from the source is sent, even if
    /// that takes a moment.
    #[cold]
    pub(super) fn fill_kernel(
        &self,
        want: usize,
        mut fill: impl FnMut(*mut u8, usize) -> Result<usize>,
    ) -> Result<usize> {
        if self.flags.load(Ordering::Acquire) & ON_KERNEL == 0 || !self.kernel_room() {
            return Err(Errno::AGAIN);
        }
        let mut buf = [0u8; 4096];
        let n = fill(buf.as_mut_ptr(), want.min(buf.len()))?.min(buf.len());
        send_all(self.kernel_fd(), buf.as_ptr(), n)?;
        Ok(n)
    }

    /// Whether the kernel socket takes bytes, once we have followed.
    #[cold]
    pub(super) fn kernel_room(&self) -> bool {
        let mut p = libc::pollfd { fd: self.kernel_fd(), events: libc::POLLOUT, revents: 0 };
        let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        p.fd >= 0 && raw::ppoll(&raw mut p, 1, &raw mut ts, core::ptr::null()) == Ok(1)
    }

    /// shutdown(2) and close(2) after a departure: what we wrote before still goes out.
    #[cold]
    pub(super) fn close_moved(&'static self, abort: bool) {
        let Some(v) = self.view() else { return };
        if self.flags.load(Ordering::Relaxed) & FAMILY_MOVED != 0 {
            // The other process of our family has the connection.
            return self.leave();
        }
        let unread = self.has_data(&v);
        self.await_kernel();
        let _ = self.follow();
        let fd = self.kernel_fd();
        if fd >= 0 && (unread || abort) {
            reset_at_close(fd);
        }
        self.leave();
    }

    pub(super) fn drop_kernel(&self) {
        replace(&self.kernel, 0);
        replace(&self.spare, 0);
    }
}

/// Stores a descriptor (+ 1) and closes the one that was there.
fn replace(cell: &core::sync::atomic::AtomicI32, new: i32) {
    let old = cell.swap(new, Ordering::AcqRel);
    if old != 0 {
        private::close(old - 1);
    }
}

/// Whoever closes the socket resets its connection.
pub fn reset_at_close(fd: i32) {
    let on = [1i32, 0];
    let _ = raw::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, on.as_ptr().cast(), 8);
}

fn wait_for(fd: i32, events: i16) -> Result<()> {
    let mut p = libc::pollfd { fd, events, revents: 0 };
    let mut ts = libc::timespec { tv_sec: i64::from(PATIENCE / 1000), tv_nsec: 0 };
    match raw::ppoll(&raw mut p, 1, &raw mut ts, core::ptr::null()) {
        Ok(0) => Err(Errno::CONNRESET),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(e),
    }
}

/// All of it. A fresh pair takes more than a full ring without its reader, so this does not wait in practice. A
/// socket whose reader is gone takes the bytes to nowhere, as the kernel would.
fn send_all(fd: i32, mut p: *const u8, mut n: usize) -> Result<()> {
    while n > 0 {
        match raw::send(fd, p, n, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
            Ok(k) => {
                p = p.wrapping_add(k);
                n = n.saturating_sub(k);
            }
            Err(Errno::AGAIN) => wait_for(fd, libc::POLLOUT)?,
            Err(Errno::INTR) => {}
            Err(Errno::PIPE | Errno::CONNRESET) => return Ok(()),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
