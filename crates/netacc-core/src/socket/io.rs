//! Sending and receiving: every read- and write-like call ends in [`receive`] or [`transmit`].

use crate::fdtable::{self, Ref};
use crate::outcome::Outcome;
use crate::socket::{NONBLOCK, Path, Socket};
use crate::wait;
use core::sync::atomic::Ordering;
use libc::{MSG_DONTWAIT, MSG_NOSIGNAL, MSG_OOB, MSG_PEEK, MSG_TRUNC, MSG_WAITALL};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::raw;
use netacc_sys::time::Deadline;
use netacc_transport::shm::ShmEndpoint;
use netacc_transport::{Endpoint, Interest, Iov};

/// An accelerated connection of this descriptor, with its endpoint.
#[inline]
pub fn channel(fd: i32) -> Option<(Ref<Socket>, &'static ShmEndpoint)> {
    let r = fdtable::socket(fd)?;
    if r.obj.path() != Path::Shm {
        return None;
    }
    Some((r, r.obj.endpoint()?))
}

fn deadline(timeout_ns: u64) -> Deadline {
    if timeout_ns == 0 {
        Deadline::Never
    } else {
        Deadline::after(timeout_ns as i64)
    }
}

/// recv(2) and its kin on an accelerated connection.
pub fn receive(
    r: Ref<Socket>,
    ep: &'static ShmEndpoint,
    dst: &mut Iov<'_>,
    flags: i32,
) -> Result<usize> {
    if flags & MSG_OOB != 0 {
        // No urgent data ever arrives: what tcp(7) answers then.
        return Err(Errno::INVAL);
    }
    let s = r.obj;
    let peek = flags & MSG_PEEK != 0;
    let nonblock = flags & MSG_DONTWAIT != 0 || s.has(NONBLOCK);
    let mut got = 0;
    let mut until = None;
    loop {
        let wanted = dst.left();
        let res = {
            let _g = s.rx.lock();
            if !r.valid() {
                return Err(Errno::BADF);
            }
            // While nobody held the lock the connection may have gone elsewhere.
            let Some(ep) = s.endpoint().filter(|_| s.path() == Path::Shm) else {
                return if got > 0 { Ok(got) } else { Err(Errno::MOVED) };
            };
            if flags & MSG_TRUNC != 0 && !peek && ep.unread() > 0 {
                // tcp(7): the bytes are discarded, not copied.
                let n = ep.discard(wanted);
                dst.skip(n);
                Ok(n)
            } else {
                ep.try_read(dst, peek)
            }
        };
        match res {
            Ok(0) => return Ok(got),
            Ok(n) => {
                got += n;
                if !peek && let Some(e) = s.stats() {
                    e.received(n as u64);
                }
                let all = flags & MSG_WAITALL != 0 && !peek;
                if !all || dst.left() == 0 {
                    return Ok(got);
                }
                if nonblock {
                    return Ok(got);
                }
            }
            Err(Errno::AGAIN) if ep.orphaned() => crate::socket::reroute::reroute(r),
            Err(Errno::AGAIN) if nonblock => {
                return if got > 0 { Ok(got) } else { Err(Errno::AGAIN) };
            }
            Err(Errno::AGAIN) => {
                let until =
                    *until.get_or_insert_with(|| deadline(s.rcvtimeo.load(Ordering::Relaxed)));
                match sleep(
                    r,
                    Interest {
                        read: true,
                        write: false,
                    },
                    until,
                ) {
                    Ok(()) => {}
                    Err(_) if got > 0 => return Ok(got),
                    Err(e) => return Err(e),
                }
            }
            Err(_) if got > 0 => return Ok(got),
            Err(e) => return Err(e),
        }
    }
}

#[cold]
fn sleep(r: Ref<Socket>, interest: Interest, until: Deadline) -> Result<()> {
    let Some(_pin) = r.pin() else {
        return Err(Errno::BADF);
    };
    wait::ready(r, interest, until)
}

/// send(2) and its kin on an accelerated connection.
pub fn transmit(
    r: Ref<Socket>,
    ep: &'static ShmEndpoint,
    src: &mut Iov<'_>,
    flags: i32,
) -> Result<usize> {
    if flags & MSG_OOB != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let s = r.obj;
    let nonblock = flags & MSG_DONTWAIT != 0 || s.has(NONBLOCK);
    let mut sent = 0;
    let mut until = None;
    loop {
        let res = {
            let _g = s.tx.lock();
            if !r.valid() {
                return Err(Errno::BADF);
            }
            // While nobody held the lock the connection may have gone elsewhere.
            let Some(ep) = s.endpoint().filter(|_| s.path() == Path::Shm) else {
                return if sent > 0 { Ok(sent) } else { Err(Errno::MOVED) };
            };
            let res = ep.try_write(src);
            // A writer that is told EAGAIN hears of room through its epoll: ask for that, and look
            // again, before the answer goes out.
            if res == Err(Errno::AGAIN) && nonblock && ep.want_room() {
                ep.try_write(src)
            } else {
                res
            }
        };
        match res {
            Ok(n) => {
                sent += n;
                if n > 0
                    && let Some(e) = s.stats()
                {
                    e.sent(n as u64);
                }
                if src.left() == 0 {
                    return Ok(sent);
                }
                if nonblock {
                    // A partial write is followed by waiting for room, without another call.
                    ep.want_room();
                    return Ok(sent);
                }
            }
            Err(Errno::AGAIN) if nonblock => {
                return if sent > 0 {
                    Ok(sent)
                } else {
                    Err(Errno::AGAIN)
                };
            }
            Err(Errno::AGAIN) => {
                let until =
                    *until.get_or_insert_with(|| deadline(s.sndtimeo.load(Ordering::Relaxed)));
                match sleep(
                    r,
                    Interest {
                        read: false,
                        write: true,
                    },
                    until,
                ) {
                    Ok(()) => {}
                    Err(_) if sent > 0 => return Ok(sent),
                    Err(e) => return Err(e),
                }
            }
            Err(_) if sent > 0 => return Ok(sent),
            Err(e) => return Err(pipe_signal(e, flags)),
        }
    }
}

/// EPIPE comes with SIGPIPE, to the thread that wrote, unless it asked not to (send(2)).
pub fn pipe_signal(e: Errno, flags: i32) -> Errno {
    if e == Errno::PIPE && flags & MSG_NOSIGNAL == 0 {
        raw::raise(libc::SIGPIPE);
    }
    e
}

fn one(buf: *const u8, len: usize) -> libc::iovec {
    libc::iovec {
        iov_base: buf.cast_mut().cast(),
        iov_len: len,
    }
}

/// recv(2), read(2).
#[inline]
pub fn recv(fd: i32, buf: *mut u8, len: usize, flags: i32) -> Outcome {
    let Some((r, ep)) = channel(fd) else {
        return Outcome::Pass;
    };
    receive(r, ep, &mut Iov::one(&one(buf, len)), flags).into()
}

/// read(2) differs from recv(2) in one point: with no room it returns 0 at once.
#[inline]
pub fn read(fd: i32, buf: *mut u8, len: usize) -> Outcome {
    let Some((r, ep)) = channel(fd) else {
        return Outcome::Pass;
    };
    if len == 0 {
        return Outcome::Done(0);
    }
    receive(r, ep, &mut Iov::one(&one(buf, len)), 0).into()
}

/// send(2).
#[inline]
pub fn send(fd: i32, buf: *const u8, len: usize, flags: i32) -> Outcome {
    let Some((r, ep)) = channel(fd) else {
        return Outcome::Pass;
    };
    transmit(r, ep, &mut Iov::one(&one(buf, len)), flags).into()
}

/// readv(2), writev(2).
///
/// # Safety
/// `vec` points to `count` valid iovecs.
#[allow(unsafe_code)]
pub unsafe fn vectored(fd: i32, vec: *const libc::iovec, count: i32, write: bool) -> Outcome {
    const IOV_MAX: i32 = 1024;
    let Some((r, ep)) = channel(fd) else {
        return Outcome::Pass;
    };
    if !(0..=IOV_MAX).contains(&count) {
        return Outcome::Failed(Errno::INVAL);
    }
    // SAFETY: the caller's promise.
    let Some(mut iov) = (unsafe { Iov::new(vec, count as usize) }) else {
        return Outcome::Failed(Errno::INVAL);
    };
    if iov.left() == 0 {
        return Outcome::Done(0);
    }
    if write {
        transmit(r, ep, &mut iov, 0).into()
    } else {
        receive(r, ep, &mut iov, 0).into()
    }
}
