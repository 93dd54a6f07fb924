//! Transfer of bytes on an accelerated connection: every read- and write-like call on one ends in [`make`].

use crate::conn::pin::Waiting;
use crate::fd::table;
use crate::fork::ownership;
use crate::object::reference::Ref;
use crate::object::socket::{ConnState, NONBLOCK, Socket};
use crate::operator::requests;
use crate::switch::redispatch::go_after;
use crate::switch::{demote, promote, queued_connects, redispatch, standstill};
use crate::wait::end_look::look_for_end;
use crate::wait::{connection, idle_windows, sleep};
use libc::{MSG_DONTWAIT, MSG_MORE, MSG_NOSIGNAL, MSG_OOB, MSG_PEEK, MSG_TRUNC, MSG_WAITALL};
use netacc_stats::Reason;
use netacc_sys::errno::{Answer, Errno, Fail, Result};
use netacc_sys::time::Deadline;
use netacc_sys::{raw, sleeping};
use netacc_transport::rdma::engine::{progress, ring_bypass};
use netacc_transport::shm::{ShmEndpoint, enough, parts};
use netacc_transport::{Endpoint, Interest, Iov, Readiness};

pub(super) const READ: Interest = Interest { read: true, write: false };
pub(super) const WRITE: Interest = Interest { read: false, write: true };

/// Why an attempt under the lock of a direction moved no bytes.
pub(super) enum Miss {
    /// There are no bytes, or there is no room.
    Empty,
    /// As `Empty`, until the connection has changed its path.
    SwitchDue,
    /// Another thread has taken the connection out of the ring.
    Elsewhere,
    /// The connection was closed, and its object may be that of another one.
    Closed,
    /// The connection failed, or the program's memory cannot be accessed.
    Failed(Errno),
}

impl Miss {
    /// What the error of an attempt means. Under the lock.
    #[inline]
    pub(super) fn of(ep: &ShmEndpoint, e: Errno) -> Miss {
        match e {
            Errno::AGAIN if ep.must_switch() => Miss::SwitchDue,
            Errno::AGAIN => Miss::Empty,
            e => Miss::Failed(e),
        }
    }
}

/// The number of bytes that an attempt moved, or why it moved none.
pub(super) type Tried<T = usize> = core::result::Result<T, Miss>;

/// Looks a connection up again, under the lock of a direction: without the lock or a pin, another thread may switch or
/// close it, and unmap the segment.
#[inline]
pub(super) fn find(r: Ref<Socket>) -> Tried<&'static ShmEndpoint> {
    if r.valid() { r.obj.ring().ok_or(Miss::Elsewhere) } else { Err(Miss::Closed) }
}

/// A call in progress: what receiving and sending have in common.
struct Transfer<'c, 'v> {
    r: Ref<Socket>,
    /// The endpoint that the last attempt found: the connection may have another one each time that its lock was free.
    ep: &'static ShmEndpoint,
    iov: &'c mut Iov<'v>,
    flags: i32,
    nonblock: bool,
    call: &'c mut Waiting,
    /// Number of bytes transferred so far.
    done: usize,
}

impl<'c, 'v> Transfer<'c, 'v> {
    #[inline]
    fn new(
        r: Ref<Socket>,
        ep: &'static ShmEndpoint,
        iov: &'c mut Iov<'v>,
        flags: i32,
        call: &'c mut Waiting,
    ) -> Transfer<'c, 'v> {
        requests::check();
        queued_connects::check();
        ownership::settle(r.obj);
        let nonblock = flags & MSG_DONTWAIT != 0 || r.obj.has(NONBLOCK);
        Transfer { r, ep, iov, flags, nonblock, call, done: 0 }
    }

    /// The same call, for a step that is not inlined: the fields of this one stay in registers.
    #[inline]
    fn lend(&mut self) -> Transfer<'_, 'v> {
        Transfer { iov: self.iov, call: self.call, ..*self }
    }

    /// What the error of an attempt at `ep` means, under the same lock. An error of the connection that comes after bytes of
    /// the same call is for the program's next call; EFAULT is none of the connection.
    #[inline]
    fn miss(&self, ep: &ShmEndpoint, e: Errno) -> Miss {
        if self.done > 0 && e != Errno::AGAIN && e != Errno::FAULT {
            ep.side.put_back(e);
        }
        Miss::of(ep, e)
    }

    /// Reads once.
    #[inline]
    fn read(&mut self, bad: bool) -> Tried {
        let _g = self.r.obj.rx.lock();
        let ep = find(self.r)?;
        self.ep = ep;
        let (peek, wanted) = (self.flags & MSG_PEEK != 0, self.iov.left());
        let res = if self.flags & MSG_TRUNC != 0 && wanted > 0 && ep.unread() > 0 {
            // tcp(7): the bytes are discarded, not copied.
            let n = if peek { parts::unread(ep).min(wanted) } else { ep.discard(wanted) };
            self.iov.skip(n);
            // Another process may have read the bytes meanwhile, which is not an end of the stream.
            if n == 0 && ep.unread() == 0 { Err(Errno::AGAIN) } else { Ok(n) }
        } else {
            ep.try_read(self.iov, peek)
        };
        match res {
            Ok(0) if bad && ep.unread() > 0 => Err(Miss::Failed(Errno::FAULT)),
            Ok(n) => Ok(n),
            Err(e) => Err(self.miss(ep, e)),
        }
    }

    /// Writes once.
    #[inline]
    fn write(&mut self) -> Tried {
        let _g = self.r.obj.tx.lock();
        let ep = find(self.r)?;
        self.ep = ep;
        let more = self.flags & MSG_MORE != 0;
        if more {
            ep.side.set_more(true);
        }
        let mut res = write_burst(ep, self.iov, !self.nonblock);
        // A writer that gets EAGAIN is notified of room by epoll: so the request for room is registered, and the ring
        // checked again, before EAGAIN is returned.
        if res == Err(Errno::AGAIN) && self.nonblock && ep.want_room() {
            res = write_burst(ep, self.iov, false);
        }
        if more {
            ep.side.set_more(false);
        }
        let n = res.map_err(|e| self.miss(ep, e))?;
        // After a partial write a program waits for room without another call, so room is requested here too.
        if self.nonblock && self.iov.left() > 0 && ep.want_room() {
            ep.room_came();
        }
        Ok(n)
    }

    /// Counts `n` bytes that were received. Returns whether the call has enough: a blocking one waits for SO_RCVLOWAT bytes,
    /// which usually is 1.
    #[inline]
    fn received(&mut self, n: usize) -> bool {
        self.done += n;
        let peek = self.flags & MSG_PEEK != 0;
        if !peek && let Some(e) = self.r.obj.stats() {
            idle_windows::look_after_message(n, e.received(n as u64));
        }
        let enough = self.done >= self.ep.edges.lowat() && self.flags & MSG_WAITALL == 0;
        enough || peek || self.nonblock || self.iov.left() == 0
    }

    /// Counts `n` bytes that were sent.
    #[inline]
    fn sent(&mut self, n: usize) {
        self.done += n;
        if n > 0
            && let Some(e) = self.r.obj.stats()
        {
            e.sent(n as u64);
        }
    }

    /// Ends a call that cannot go on: with the bytes that it has transferred, or else with `fail`.
    #[inline]
    fn end(&self, fail: impl Into<Fail>) -> Answer<usize> {
        if self.done > 0 { Ok(self.done) } else { Err(fail.into()) }
    }

    /// Makes a peek with MSG_WAITALL: waits until all bytes are there, or no more can come. Those that are there when the wait
    /// ends are returned, whatever ended it. A connection whose writer has no memory for as many goes to the kernel, where
    /// the caller waits for the rest.
    #[cold]
    fn wait_for_all(self) -> Answer<()> {
        let r = self.r;
        let until = self.call.until(&r.obj.rcvtimeo);
        self.call.hold(r)?;
        let wanted = self.iov.left().min(enough::FULL);
        // Number of bytes that were there when the writer was last asked to look for room.
        let mut asked_with = 0;
        let over = |ep: &ShmEndpoint| ep.readiness().0 & (Readiness::RDHUP | Readiness::HUP | Readiness::ERR) != 0;
        while let Some(ep) = r.obj.ring() {
            if ep.must_switch() {
                redispatch::complete_switch(r);
                continue;
            }
            let there = parts::unread(ep);
            if there >= wanted || over(ep) || parts::end_after_ring(ep) {
                break;
            }
            if there == asked_with && enough::is_writer_waiting(ep) {
                if standstill::leave(r, ep) {
                    continue;
                }
                break;
            }
            asked_with = there;
            if ep.unread() > 0 {
                let _g = r.obj.rx.lock();
                if !r.valid() {
                    break;
                }
                // This read of one byte lets a writer that found no room in the small window open the large one.
                let mut byte = 0u8;
                let _ = ep.try_read(&mut Iov::one(&one((&raw mut byte).cast_const(), 1)), true);
                ep.peeked();
            }
            match connection::until(r, READ, wanted, until) {
                Err(_) if self.ep.unread() > 0 => break,
                waited => waited?,
            }
        }
        Ok(())
    }

    /// Waits for bytes, or for the first of SO_RCVLOWAT: the call takes bytes as they come, and has them where its time ends
    /// before there are so many. Returns how many the engine has put straight into the program's buffers.
    fn wait_for_bytes(self, plain: bool) -> Answer<usize> {
        let until = self.call.until(&self.r.obj.rcvtimeo);
        let at_least = usize::from(self.flags & MSG_PEEK == 0 && self.ep.edges.lowat() > 1);
        self.call.hold(self.r)?;
        let mut past = 0;
        connection::until_done(self.r, READ, at_least, until, |ep| {
            // The wait asks again after it has got some.
            past += progress_for_reader(self.r, ep, self.iov, plain);
            past > 0
        })?;
        Ok(past)
    }

    /// Continues a call whose connection another thread has switched, with the same meaning.
    #[cold]
    fn elsewhere(mut self, write: bool) -> Answer<usize> {
        let s = self.r.obj;
        let (events, limit) = if write { (libc::POLLOUT, &s.sndtimeo) } else { (libc::POLLIN, &s.rcvtimeo) };
        let until = (!self.nonblock).then(|| self.call.until(limit));
        if self.done == 0 && !write && !self.nonblock && s.is(ConnState::Aborted) {
            // Another thread has dissolved the connection. The error of that is left to SO_ERROR.
            return Err(Errno::PIPE.into());
        }
        if self.done == 0 {
            return Err(leave_to_kernel(self.r, events, until));
        }
        if write || self.flags & MSG_WAITALL != 0 && !self.nonblock {
            self.go_on(write);
        }
        Ok(self.done)
    }

    /// Transfers the rest of a call where the connection is by now, as far as that goes.
    fn go_on(&mut self, write: bool) {
        let r = self.r;
        let flags = if write { self.flags | MSG_NOSIGNAL } else { self.flags };
        while let Some(fd) = table::reach(r) {
            // The call ends by the kernel's means alone, unless the connection is back in a ring already.
            if r.obj.is_candidate() {
                promote::cancel(fd, r);
            }
            if let Some(ep) = r.obj.ring() {
                match make(r, ep, self.iov, (flags, write), self.call) {
                    Err(Fail::ToKernel | Fail::Anew) => continue,
                    res => self.done += res.unwrap_or(0),
                }
            } else if r.obj.is_kernels() {
                while let Some((p, n)) = self.iov.first() {
                    match if write { sleeping::send(fd, p, n, flags) } else { sleeping::recv(fd, p, n, flags) } {
                        Ok(0) | Err(_) => break,
                        Ok(k) => {
                            self.iov.skip(k);
                            self.done += k;
                        }
                    }
                }
            }
            return;
        }
    }
}

/// Makes a call on an accelerated connection. Its caller keeps `call`, which holds the connection of a call that waits, until
/// it needs the connection no more.
#[inline]
pub(super) fn make(
    r: Ref<Socket>,
    ep: &'static ShmEndpoint,
    iov: &mut Iov<'_>,
    (flags, write): (i32, bool),
    call: &mut Waiting,
) -> Answer<usize> {
    if write { transmit(r, ep, iov, flags, call) } else { receive(r, ep, iov, flags, call) }
}

/// recv(2) and similar calls.
fn receive(
    r: Ref<Socket>,
    ep: &'static ShmEndpoint,
    dst: &mut Iov<'_>,
    flags: i32,
    call: &mut Waiting,
) -> Answer<usize> {
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Err(Fail::AGAIN);
    }
    if flags & MSG_OOB != 0 {
        // Urgent data is never received in a ring, so the call fails as tcp(7) says for this case.
        return Err(Errno::INVAL.into());
    }
    // With MSG_TRUNC nothing is copied (tcp(7)). Otherwise a call with an invalid buffer waits like one without room,
    // until there is something to copy.
    let bad = dst.bad() && flags & MSG_TRUNC == 0;
    let mut no_room = Iov::empty();
    let mut t = Transfer::new(r, ep, if bad { &mut no_room } else { dst }, flags, call);
    if flags & MSG_PEEK != 0 && flags & MSG_WAITALL != 0 && !t.nonblock {
        t.lend().wait_for_all()?;
    }
    // Bytes from another host may be copied straight into the program's buffers, `past` the ring.
    let plain = !bad && flags & (MSG_PEEK | MSG_TRUNC) == 0;
    let (mut past, mut driven, mut looked) = (0, false, false);
    loop {
        match if past > 0 { Ok(core::mem::take(&mut past)) } else { t.read(bad) } {
            Ok(0) => return Ok(t.done),
            Ok(n) if t.received(n) => return Ok(t.done),
            Ok(_) => {}
            Err(Miss::SwitchDue) => redispatch::complete_switch(r),
            Err(Miss::Empty) if t.nonblock && t.done == 0 && !driven && t.ep.side.is_remote() => {
                driven = true;
                past = progress_for_reader(r, t.ep, t.iov, plain);
            }
            Err(Miss::Empty) if t.nonblock && t.done == 0 && look_for_end(r, &mut looked) => {}
            Err(Miss::Empty) if t.nonblock => return t.end(Fail::AGAIN),
            Err(Miss::Empty) => {
                let roomless = t.iov.left() == 0 && !bad;
                match t.lend().wait_for_bytes(plain) {
                    // For a read without room the kernel waits once and returns 0, whatever ended the wait.
                    Ok(_) | Err(Fail::AGAIN | Fail::INTR | Fail::Anew | Fail::Restart) if roomless => return Ok(0),
                    Ok(n) => past = n,
                    Err(e) => return t.end(e),
                }
            }
            Err(Miss::Elsewhere) => return t.elsewhere(false),
            Err(Miss::Closed) => return Err(Fail::BADF),
            Err(Miss::Failed(e)) => return t.end(e),
        }
    }
}

/// Makes progress of the engine for a reader that has found nothing. Returns how many bytes were received straight into
/// `dst`.
fn progress_for_reader(r: Ref<Socket>, ep: &'static ShmEndpoint, dst: &mut Iov<'_>, plain: bool) -> usize {
    if plain && dst.left() > 0 {
        return ring_bypass::receive(r.token(), ep, dst);
    }
    progress::progress_for(ep);
    0
}

/// Leaves a call that has transferred nothing to the kernel socket that the connection became during the call. A call
/// that blocks does so until the deadline `until`.
#[cold]
pub(super) fn leave_to_kernel(r: Ref<Socket>, events: i16, until: Option<Deadline>) -> Fail {
    // The socket layer makes the calls of a connection that may come back.
    if r.valid() && !r.obj.is_kernels() {
        return Fail::Anew;
    }
    match until.map_or(Ok(()), |until| sleep::before_kernels_call(r, events, until)) {
        Ok(()) => Fail::ToKernel,
        Err(fail) => fail,
    }
}

/// What comes before the first byte of a send: what the kernel refuses on a connection, or does itself.
#[inline]
fn before_send(r: Ref<Socket>, ep: &'static ShmEndpoint, bad: bool, flags: i32) -> Answer<()> {
    if flags & MSG_OOB != 0 {
        return Err(send_urgent(r, ep));
    }
    match if bad { refusal(ep, flags) } else { None } {
        Some(e) => Err(e.into()),
        None => Ok(()),
    }
}

/// send(2) and similar calls.
fn transmit(
    r: Ref<Socket>,
    ep: &'static ShmEndpoint,
    src: &mut Iov<'_>,
    flags: i32,
    call: &mut Waiting,
) -> Answer<usize> {
    before_send(r, ep, src.bad(), flags)?;
    let mut looked = false;
    let mut t = Transfer::new(r, ep, src, flags, call);
    loop {
        if t.ep.side.is_remote() && t.iov.left() > 0 {
            let n = ring_bypass::send(r.token(), t.ep, t.iov);
            t.sent(n);
            if n > 0 && t.iov.left() == 0 {
                return Ok(t.done);
            }
        }
        match t.write() {
            Ok(n) => {
                if t.ep.side.is_moving() {
                    go_after(r);
                }
                t.sent(n);
                progress::progress_for(t.ep);
                if t.iov.left() == 0 {
                    return Ok(t.done);
                }
                // A writer that is faster than its reader has time, and may need the memory of others.
                idle_windows::look();
                if t.nonblock {
                    return Ok(t.done);
                }
            }
            Err(Miss::SwitchDue) => redispatch::complete_switch(r),
            Err(Miss::Empty) if t.nonblock && t.done == 0 && look_for_end(r, &mut looked) => {}
            Err(Miss::Empty) if t.nonblock => {
                standstill::check();
                return t.end(Fail::AGAIN);
            }
            Err(Miss::Empty) => {
                let until = t.call.until(&r.obj.sndtimeo);
                if let Err(e) = t.call.hold(r).and_then(|()| connection::ready(r, WRITE, until)) {
                    return t.end(e);
                }
            }
            Err(Miss::Elsewhere) => return t.elsewhere(true),
            Err(Miss::Closed) => return Err(Fail::BADF),
            Err(Miss::Failed(_)) if t.done > 0 => return Ok(t.done),
            Err(Miss::Failed(e)) => return Err(pipe_signal(e, flags).into()),
        }
    }
}

/// Leaves an urgent byte to the kernel, which alone can send one: the connection is demoted.
#[cold]
fn send_urgent(r: Ref<Socket>, ep: &ShmEndpoint) -> Fail {
    if ep.side.is_remote() {
        // No kernel socket here leads to the other host, so an urgent byte could not be delivered.
        return Errno::OPNOTSUPP.into();
    }
    let Some(fd) = table::reach(r) else { return Fail::BADF };
    demote::demote(fd, r, Reason::Unsupported).map_or_else(Fail::from, |_| Fail::ToKernel)
}

/// Writes as many bytes as the call can write now.
#[inline]
fn write_burst(ep: &ShmEndpoint, src: &mut Iov<'_>, waits: bool) -> Result<usize> {
    let cut = src.limit(ep.burst(src.left(), waits));
    let res = ep.try_write(src);
    if cut > 0 {
        src.extend(cut);
        // The remaining bytes wait for room, which the peer makes by reading these.
        ep.push();
    }
    if res == Ok(0) && cut > 0 { Err(Errno::AGAIN) } else { res }
}

/// The error of a write from unreadable memory: an error of the connection comes first. `None` while the connection is
/// pending or leaves the ring: the call goes on as any other one, and finds at the copy that the memory cannot be read.
#[cold]
fn refusal(ep: &'static ShmEndpoint, flags: i32) -> Option<Errno> {
    match ep.try_write(&mut Iov::empty()) {
        Err(Errno::AGAIN) => None,
        Err(e) => Some(pipe_signal(e, flags)),
        Ok(_) => Some(Errno::FAULT),
    }
}

/// Raises SIGPIPE with EPIPE in the thread that wrote, unless the call asked not to (send(2)).
pub fn pipe_signal(e: Errno, flags: i32) -> Errno {
    if e == Errno::PIPE && flags & MSG_NOSIGNAL == 0 {
        raw::raise(libc::SIGPIPE);
    }
    e
}

pub(crate) fn one(buf: *const u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: buf.cast_mut().cast(), iov_len: len }
}
