//! sendfile(2) and splice(2): bytes between a file or pipe and a ring, without a detour.

use crate::fdtable::Ref;
use crate::outcome::Outcome;
use crate::socket::io::{channel, pipe_signal};
use crate::socket::{NONBLOCK, Path, Socket, reroute};
use crate::wait;
use core::sync::atomic::Ordering;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::raw;
use netacc_sys::time::Deadline;
use netacc_transport::shm::ShmEndpoint;
use netacc_transport::{Endpoint, Interest, Iov};

/// sendfile(2) takes at most this much in one call.
const MAX: usize = 0x7fff_f000;
/// A pipe that can be written to has room for so much.
const PAGE: usize = 4096;

fn until(ns: u64) -> Deadline {
    if ns == 0 { Deadline::Never } else { Deadline::after(ns as i64) }
}

/// Moves up to `count` bytes of `source` into the ring, waiting for room if the socket blocks.
fn pump(
    r: Ref<Socket>,
    ep: &'static ShmEndpoint,
    count: usize,
    nonblock: bool,
    mut source: impl FnMut(*mut u8, usize) -> Result<usize>,
) -> Result<usize> {
    let s = r.obj;
    let mut done = 0;
    while done < count {
        let mut ended = false;
        let res = {
            let _g = s.tx.lock();
            if !r.valid() {
                return Err(Errno::BADF);
            }
            let Some(ep) = s.endpoint().filter(|_| s.path() == Path::Shm) else {
                return if done > 0 { Ok(done) } else { Err(Errno::MOVED) };
            };
            let mut fill = |p: *mut u8, n: usize| {
                let got = source(p, n)?;
                ended |= got < n;
                Ok(got)
            };
            let res = ep.write_with(count - done, &mut fill);
            if res == Err(Errno::AGAIN) && nonblock && ep.want_room() { ep.write_with(count - done, fill) } else { res }
        };
        match res {
            Ok(n) => {
                if ep.is_moving() {
                    ep.await_kernel();
                    reroute::settle(r);
                }
                done += n;
                if let Some(e) = s.stats() {
                    e.sent(n as u64);
                }
                if ended {
                    break;
                }
                if nonblock && done < count {
                    if ep.want_room() {
                        ep.room_came();
                    }
                    break;
                }
            }
            Err(Errno::AGAIN) if ep.displaced() => reroute::settle(r),
            Err(Errno::AGAIN) if !nonblock && !ended => {
                let Some(_pin) = r.pin() else {
                    return Err(Errno::BADF);
                };
                let w =
                    wait::ready(r, Interest { read: false, write: true }, until(s.sndtimeo.load(Ordering::Relaxed)));
                if let Err(e) = w {
                    return if done > 0 { Ok(done) } else { Err(e) };
                }
            }
            Err(_) if done > 0 => break,
            Err(e) => return Err(pipe_signal(e, 0)),
        }
    }
    Ok(done)
}

/// sendfile(2).
///
/// # Safety
/// `offset` is null or the application's offset.
#[allow(unsafe_code)]
pub unsafe fn sendfile(out: i32, input: i32, offset: *mut i64, count: usize) -> Outcome {
    super::promote::given_up(out);
    let Some((r, ep)) = channel(out) else {
        return Outcome::Pass;
    };
    // SAFETY: the caller's promise.
    let mut at = unsafe { offset.as_ref() }.copied();
    if at.is_some_and(|o| o < 0) {
        return Outcome::Failed(Errno::INVAL);
    }
    // The source must have a position: no pipe and no socket, whose bytes could be lost.
    match raw::position(input) {
        Err(Errno(libc::ESPIPE)) if at.is_none() => return Outcome::Failed(Errno::INVAL),
        Err(e) => return Outcome::Failed(e),
        Ok(_) => {}
    }
    // At the end of the file there is nothing to send, and so no error of the connection and no wait for room.
    if ep.refuses() && at_end(input, at) {
        return Outcome::Done(0);
    }
    let nonblock = r.obj.has(NONBLOCK);
    let res = pump(r, ep, count.min(MAX), nonblock, |p, n| {
        let got = raw::read(input, p, n, at)?;
        at = at.map(|o| o + got as i64);
        Ok(got)
    });
    if let (Ok(_), Some(o)) = (res, at) {
        // SAFETY: not null, since `at` came from it.
        unsafe { *offset = o };
    }
    res.into()
}

#[cold]
fn at_end(file: i32, at: Option<i64>) -> bool {
    let from = at.or_else(|| raw::position(file).ok().map(|n| n as i64));
    let mut byte = 0u8;
    raw::read(file, &raw mut byte, 1, from) == Ok(0)
}

/// splice(2) between a pipe and an accelerated connection.
pub fn splice(input: i32, off_in: *mut i64, out: i32, off_out: *mut i64, len: usize, flags: u32) -> Outcome {
    let nonblock = flags & libc::SPLICE_F_NONBLOCK != 0;
    super::promote::given_up(out);
    super::promote::given_up(input);
    if let Some((r, ep)) = channel(out) {
        if !off_out.is_null() || !off_in.is_null() {
            return Outcome::Failed(Errno(libc::ESPIPE));
        }
        if channel(input).is_some() {
            return Outcome::Failed(Errno::INVAL);
        }
        return from_pipe(r, ep, input, len, nonblock).into();
    }
    match channel(input) {
        Some(_) if !off_out.is_null() || !off_in.is_null() => Outcome::Failed(Errno(libc::ESPIPE)),
        Some((r, ep)) => to_pipe(r, ep, out, len, nonblock).into(),
        None => Outcome::Pass,
    }
}

fn from_pipe(r: Ref<Socket>, ep: &'static ShmEndpoint, pipe: i32, len: usize, nonblock: bool) -> Result<usize> {
    if len == 0 {
        return Ok(0);
    }
    let mut first = true;
    pump(r, ep, len, nonblock || r.obj.has(NONBLOCK), |p, n| {
        // What the pipe holds is taken; only for the first byte may a blocking splice wait.
        if (!first || nonblock) && !pollable(pipe, libc::POLLIN) {
            return if first { Err(Errno::AGAIN) } else { Ok(0) };
        }
        first = false;
        raw::read(pipe, p, n, None)
    })
}

fn to_pipe(r: Ref<Socket>, ep: &'static ShmEndpoint, pipe: i32, len: usize, nonblock: bool) -> Result<usize> {
    let s = r.obj;
    loop {
        let res = {
            let _g = s.rx.lock();
            if !r.valid() {
                return Err(Errno::BADF);
            }
            let Some(ep) = s.endpoint().filter(|_| s.path() == Path::Shm) else { return Err(Errno::MOVED) };
            // A page at most, and only when the pipe has room for a page: the write cannot block.
            let mut give = |p: *const u8, n: usize| {
                if pollable(pipe, libc::POLLOUT) { raw::write(pipe, p, n.min(PAGE)) } else { Err(Errno::AGAIN) }
            };
            if ep.tail_fd() >= 0 { from_before(ep, len, give) } else { ep.read_with(len, &mut give) }
        };
        match res {
            Err(Errno::AGAIN) if ep.displaced() => reroute::settle(r),
            Err(Errno::AGAIN) if !nonblock && !s.has(NONBLOCK) && ep.unread() == 0 => {
                let Some(_pin) = r.pin() else {
                    return Err(Errno::BADF);
                };
                wait::ready(r, Interest { read: true, write: false }, until(s.rcvtimeo.load(Ordering::Relaxed)))?;
            }
            Err(Errno::AGAIN) if !nonblock && ep.unread() > 0 => {
                let mut p = libc::pollfd { fd: pipe, events: libc::POLLOUT, revents: 0 };
                raw::ppoll(&raw mut p, 1, core::ptr::null_mut(), core::ptr::null())?;
            }
            Ok(n) => {
                if let Some(e) = s.stats() {
                    e.received(n as u64);
                }
                return Ok(n);
            }
            Err(e) => return Err(e),
        }
    }
}

/// Of what the kernel still holds before the ring a page at a time. Under the reader's lock.
fn from_before(ep: &ShmEndpoint, len: usize, mut give: impl FnMut(*const u8, usize) -> Result<usize>) -> Result<usize> {
    let mut bytes = [0u8; PAGE];
    let v = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: len.min(PAGE) };
    let there = ep.try_read(&mut Iov::one(&v), true)?;
    if there == 0 {
        return Ok(0);
    }
    let given = give(bytes.as_ptr(), there)?;
    Ok(ep.discard(given))
}

fn pollable(fd: i32, events: i16) -> bool {
    let mut p = libc::pollfd { fd, events, revents: 0 };
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    raw::ppoll(&raw mut p, 1, &raw mut ts, core::ptr::null()) == Ok(1)
}
