//! Transfer of bytes on an accelerated connection: every read- and write-like call on one ends in [`receive`] or
//! [`transmit`].

use crate::conn::pin::Waiting;
use crate::fd::table;
use crate::fork::ownership;
use crate::object::reference::Ref;
use crate::object::socket::{NONBLOCK, Socket};
use crate::operator::requests;
use crate::switch::{demote, promote, queued_connects, redispatch, standstill};
use crate::wait::{connection, idle_windows, sleep};
use libc::{MSG_DONTWAIT, MSG_MORE, MSG_NOSIGNAL, MSG_OOB, MSG_PEEK, MSG_TRUNC, MSG_WAITALL};
use netacc_stats::Reason;
use netacc_sys::errno::{Answer, Errno, Fail, Result};
use netacc_sys::time::Deadline;
use netacc_sys::{raw, sleeping};
use netacc_transport::rdma::engine::{progress, ring_bypass};
use netacc_transport::shm::ShmEndpoint;
use netacc_transport::shm::{enough, parts};
use netacc_transport::{Endpoint, Interest, Iov, Readiness};

pub(crate) fn deadline(timeout_ns: u64) -> Deadline {
    if timeout_ns == 0 { Deadline::Never } else { Deadline::after(timeout_ns as i64) }
}

/// recv(2) and similar calls on an accelerated connection. Its caller keeps `call`, which holds the connection of a call that
/// waits, until it needs the connection no more.
pub(super) fn receive(
    r: Ref<Socket>,
    mut ep: &'static ShmEndpoint,
    dst: &mut Iov<'_>,
    flags: i32,
    call: &mut Waiting,
) -> Answer<usize> {
    if flags & MSG_OOB != 0 {
        // Urgent data is never received in a ring, so the call fails as tcp(7) says for this case.
        return Err(Errno::INVAL.into());
    }
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Err(Fail::AGAIN);
    }
    requests::check();
    queued_connects::check();
    let s = r.obj;
    ownership::settle(s);
    // With MSG_TRUNC nothing is copied (tcp(7)). Otherwise a call with an invalid buffer waits like one without room,
    // until there is something to copy.
    let bad = dst.bad() && flags & MSG_TRUNC == 0;
    let mut no_room = Iov::empty();
    let dst = if bad { &mut no_room } else { dst };
    let peek = flags & MSG_PEEK != 0;
    let nonblock = flags & MSG_DONTWAIT != 0 || s.has(NONBLOCK);
    // Bytes from another host may be copied straight into the program's buffers.
    let plain = !bad && flags & (MSG_PEEK | MSG_TRUNC) == 0;
    let mut got = 0;
    let mut past = 0;
    let mut driven = false;
    if peek && flags & MSG_WAITALL != 0 && !nonblock {
        let until = call.until(&s.rcvtimeo);
        call.hold(r)?;
        match wait_for_all(r, dst.left(), until) {
            // Unread bytes are returned, whatever ended the wait.
            Err(_) if ep.unread() > 0 => {}
            Err(e) => return Err(e),
            Ok(()) => {}
        }
    }
    loop {
        let wanted = dst.left();
        // The endpoint's state is read under the lock: without the lock or a pin, another thread may close the
        // connection and unmap the segment.
        let mut switched = false;
        let res = if past > 0 {
            Ok(core::mem::take(&mut past))
        } else {
            let _g = s.rx.lock();
            if !r.valid() {
                return Err(Fail::BADF);
            }
            // While the lock was free, another thread may have switched the connection.
            let Some(here) = s.endpoint().filter(|_| s.is_shm()) else {
                drop(_g);
                let more = flags & MSG_WAITALL != 0 && !nonblock;
                let until = (!nonblock).then(|| call.until(&s.rcvtimeo));
                return match got {
                    0 => Err(leave_to_kernel(r, libc::POLLIN, until)),
                    _ if more => Ok(go_on(r, dst, got, (flags, false), call)),
                    _ => Ok(got),
                };
            };
            // The following calls use this endpoint; the previous one may belong to another connection by now.
            ep = here;
            let res = if flags & MSG_TRUNC != 0 && wanted > 0 && ep.unread() > 0 {
                // tcp(7): the bytes are discarded, not copied.
                let n = if peek { parts::unread(ep).min(wanted) } else { ep.discard(wanted) };
                dst.skip(n);
                // Another process may have read the bytes meanwhile, which is not an end of the stream.
                if n == 0 && ep.unread() == 0 { Err(Errno::AGAIN) } else { Ok(n) }
            } else {
                ep.try_read(dst, peek)
            };
            match res {
                Ok(0) if bad && ep.unread() > 0 => Err(Errno::FAULT),
                Err(Errno::AGAIN) => {
                    switched = ep.must_switch();
                    res
                }
                Err(e) if got > 0 && e != Errno::FAULT => {
                    ep.side.put_back(e);
                    res
                }
                _ => res,
            }
        };
        match res {
            Ok(0) => return Ok(got),
            Ok(n) => {
                got += n;
                if !peek && let Some(e) = s.stats() {
                    e.received(n as u64);
                }
                // A blocking call waits for SO_RCVLOWAT bytes; usually that is 1.
                let enough = got >= ep.edges.lowat() && flags & MSG_WAITALL == 0;
                if enough || peek || nonblock || dst.left() == 0 {
                    return Ok(got);
                }
            }
            Err(Errno::AGAIN) if switched => redispatch::complete_switch(r),
            Err(Errno::AGAIN) if nonblock && got == 0 && !driven && ep.side.is_remote() => {
                driven = true;
                past = progress_for_reader(r, ep, dst, plain);
            }
            Err(Errno::AGAIN) if nonblock => {
                return if got > 0 { Ok(got) } else { Err(Fail::AGAIN) };
            }
            Err(Errno::AGAIN) => {
                let until = call.until(&s.rcvtimeo);
                let read = Interest { read: true, write: false };
                // The call takes bytes as they come, and has them where its time ends before there are SO_RCVLOWAT.
                let at_least = usize::from(!peek && ep.edges.lowat() > 1);
                let waited = call.hold(r).and_then(|()| {
                    connection::until_done(r, read, at_least, until, |ep| {
                        past = progress_for_reader(r, ep, dst, plain);
                        past > 0
                    })
                });
                match waited {
                    // For a read without room the kernel waits once and returns 0, whatever ended the wait.
                    Ok(()) | Err(Fail::AGAIN | Fail::INTR | Fail::Anew | Fail::Restart) if wanted == 0 && !bad => {
                        return Ok(0);
                    }
                    Ok(()) => {}
                    Err(_) if got > 0 => return Ok(got),
                    Err(e) => return Err(e),
                }
            }
            // EFAULT of the buffers is not an error of the connection.
            Err(Errno::FAULT) if got > 0 => return Ok(got),
            Err(_) if got > 0 => return Ok(got),
            Err(e) => return Err(e.into()),
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

/// Continues a call that has transferred `done` bytes where the connection is by now, with the same meaning.
#[cold]
fn go_on(r: Ref<Socket>, iov: &mut Iov<'_>, mut done: usize, (flags, write): (i32, bool), call: &mut Waiting) -> usize {
    loop {
        let Some(fd) = table::reach(r) else { return done };
        // The call ends by the kernel's means alone, unless the connection is back in a ring already.
        if r.obj.is_candidate() {
            promote::cancel(fd, r);
        }
        if let Some(ep) = r.obj.endpoint().filter(|_| r.obj.is_shm()) {
            match if write { transmit(r, ep, iov, flags, call) } else { receive(r, ep, iov, flags, call) } {
                Ok(n) => return done + n,
                Err(Fail::ToKernel | Fail::Anew) => continue,
                Err(_) => return done,
            }
        }
        if !r.obj.is_kernels() {
            return done;
        }
        while let Some((p, n)) = iov.first() {
            match if write { sleeping::send(fd, p, n, flags) } else { sleeping::recv(fd, p, n, flags) } {
                Ok(0) | Err(_) => break,
                Ok(k) => {
                    iov.skip(k);
                    done += k;
                }
            }
        }
        return done;
    }
}

/// Makes a peek with MSG_WAITALL: waits until `wanted` bytes are there, or no more can come. A connection whose writer has no
/// memory for as many goes to the kernel, where the caller waits for the rest. The caller holds a pin.
#[cold]
fn wait_for_all(r: Ref<Socket>, wanted: usize, until: Deadline) -> Answer<()> {
    let wanted = wanted.min(enough::FULL);
    // Number of bytes that were there when the writer was last asked to look for room.
    let mut asked_with = 0;
    let over = |ep: &ShmEndpoint| ep.readiness().0 & (Readiness::RDHUP | Readiness::HUP | Readiness::ERR) != 0;
    loop {
        let Some(ep) = r.obj.endpoint().filter(|_| r.obj.is_shm()) else { return Ok(()) };
        if ep.must_switch() {
            redispatch::complete_switch(r);
            continue;
        }
        let there = parts::unread(ep);
        if there >= wanted || over(ep) || parts::end_after_ring(ep) {
            return Ok(());
        }
        if there == asked_with && enough::is_writer_waiting(ep) {
            match standstill::leave(r, ep) {
                true => continue,
                false => return Ok(()),
            }
        }
        asked_with = there;
        if ep.unread() > 0 {
            let _g = r.obj.rx.lock();
            if !r.valid() {
                return Err(Fail::BADF);
            }
            // This read of one byte lets a writer that found no room in the small window open the large one.
            let mut byte = 0u8;
            let _ = ep.try_read(&mut Iov::one(&one((&raw mut byte).cast_const(), 1)), true);
            ep.peeked();
        }
        connection::until(r, Interest { read: true, write: false }, wanted, until)?;
    }
}

/// send(2) and similar calls on an accelerated connection, with `call` as [`receive`] has it.
pub(super) fn transmit(
    r: Ref<Socket>,
    mut ep: &'static ShmEndpoint,
    src: &mut Iov<'_>,
    flags: i32,
    call: &mut Waiting,
) -> Answer<usize> {
    if flags & MSG_OOB != 0 {
        if ep.side.is_remote() {
            // No kernel socket here leads to the other host, so an urgent byte could not be delivered.
            return Err(Errno::OPNOTSUPP.into());
        }
        // Only the kernel can send urgent data, so the connection is demoted.
        let fd = table::reach(r).ok_or(Errno::BADF)?;
        demote::demote(fd, r, Reason::Unsupported)?;
        return Err(Fail::ToKernel);
    }
    let s = r.obj;
    if src.bad()
        && let Some(e) = refusal(ep, flags)
    {
        return Err(e.into());
    }
    requests::check();
    queued_connects::check();
    ownership::settle(s);
    let nonblock = flags & MSG_DONTWAIT != 0 || s.has(NONBLOCK);
    let mut sent = 0;
    loop {
        if ep.side.is_remote() && src.left() > 0 {
            let n = ring_bypass::send(r.token(), ep, src);
            sent += n;
            if n > 0
                && let Some(e) = s.stats()
            {
                e.sent(n as u64);
            }
            if n > 0 && src.left() == 0 {
                return Ok(sent);
            }
        }
        let mut switched = false;
        let res = {
            let _g = s.tx.lock();
            if !r.valid() {
                return Err(Fail::BADF);
            }
            // While the lock was free, another thread may have switched the connection.
            let Some(here) = s.endpoint().filter(|_| s.is_shm()) else {
                drop(_g);
                let until = (!nonblock).then(|| call.until(&s.sndtimeo));
                return match sent {
                    0 => Err(leave_to_kernel(r, libc::POLLOUT, until)),
                    _ => Ok(go_on(r, src, sent, (flags | MSG_NOSIGNAL, true), call)),
                };
            };
            // The following calls use this endpoint; the previous one may belong to another connection by now.
            ep = here;
            let more = flags & MSG_MORE != 0;
            if more {
                ep.side.set_more(true);
            }
            let res = write_burst(ep, src, !nonblock);
            // A writer that gets EAGAIN is notified of room by epoll: so the request for room is registered, and the
            // ring checked again, before EAGAIN is returned.
            let res =
                if res == Err(Errno::AGAIN) && nonblock && ep.want_room() { write_burst(ep, src, false) } else { res };
            if more {
                ep.side.set_more(false);
            }
            match res {
                // After a partial write a program waits for room without another call, so room is requested here too.
                Ok(_) if nonblock && src.left() > 0 && ep.want_room() => ep.room_came(),
                Err(Errno::AGAIN) => switched = ep.must_switch(),
                Err(e) if sent > 0 && e != Errno::FAULT => ep.side.put_back(e),
                _ => {}
            }
            res
        };
        match res {
            Ok(n) => {
                if ep.side.is_moving() {
                    go_after(r);
                }
                sent += n;
                if n > 0
                    && let Some(e) = s.stats()
                {
                    e.sent(n as u64);
                }
                progress::progress_for(ep);
                if src.left() == 0 {
                    return Ok(sent);
                }
                // A writer that is faster than its reader has time, and may need the memory of others.
                idle_windows::look();
                if nonblock {
                    return Ok(sent);
                }
            }
            Err(Errno::AGAIN) if switched => redispatch::complete_switch(r),
            Err(Errno::AGAIN) if nonblock => {
                standstill::check();
                return if sent > 0 { Ok(sent) } else { Err(Fail::AGAIN) };
            }
            Err(Errno::AGAIN) => {
                let until = call.until(&s.sndtimeo);
                let write = Interest { read: false, write: true };
                match call.hold(r).and_then(|()| connection::ready(r, write, until)) {
                    Ok(()) => {}
                    Err(_) if sent > 0 => return Ok(sent),
                    Err(e) => return Err(e),
                }
            }
            Err(_) if sent > 0 => return Ok(sent),
            Err(e) => return Err(pipe_signal(e, flags).into()),
        }
    }
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

/// Follows a peer that left the ring while bytes were written: they are sent after it now, and not at the program's
/// next call. Takes both direction locks.
#[cold]
pub(crate) fn go_after(r: Ref<Socket>) {
    // If another thread has closed the connection meanwhile, the close sends the bytes.
    let Some(pin) = r.pin() else { return };
    if let Some(ep) = r.obj.endpoint() {
        ep.await_kernel();
    }
    redispatch::complete_switch(r);
    drop(pin);
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
