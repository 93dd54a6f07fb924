//! sendfile(2) and splice(2): bytes between a file or pipe and a ring, without an intermediate buffer.

use crate::conn::candidate;
use crate::conn::io::accelerated;
use crate::conn::transfer::{deadline, go_after, leave_to_kernel, pipe_signal};
use crate::fd::table;
use crate::object::reference::Ref;
use crate::object::socket::{NONBLOCK, Socket};
use crate::outcome::Outcome;
use crate::switch::{promote, redispatch};
use crate::wait::call_signals::CallSignals;
use crate::wait::{connection, sleep};
use core::cell::Cell;
use core::sync::atomic::Ordering;
use netacc_sys::errno::{Answer, Errno, Fail, Result};
use netacc_sys::time::Deadline;
use netacc_sys::{raw, user};
use netacc_transport::shm::ShmEndpoint;
use netacc_transport::{Endpoint, Interest, Iov, WaitSet};

/// Largest number of bytes that sendfile(2) transfers in one call.
const MAX: usize = 0x7fff_f000;
/// Bytes for which a pipe has room when it can be written to.
const PAGE: usize = 4096;

/// Moves up to `count` bytes of `source` into the ring, waiting for room if the socket blocks.
fn pump(
    r: Ref<Socket>,
    count: usize,
    nonblock: bool,
    mut source: impl FnMut(*mut u8, usize) -> Result<usize>,
) -> Answer<usize> {
    let s = r.obj;
    let mut done = 0;
    while done < count {
        let ended = Cell::new(false);
        // As in `io::transmit`, the endpoint's state is read under the lock.
        let mut switched = false;
        let moving;
        let res = {
            let _g = s.tx.lock();
            if !r.valid() {
                return Err(Fail::BADF);
            }
            let Some(ep) = s.endpoint().filter(|_| s.is_shm()) else {
                drop(_g);
                let blocks = (!nonblock).then(|| deadline(s.sndtimeo.load(Ordering::Relaxed)));
                return if done > 0 { Ok(done) } else { Err(leave_to_kernel(r, libc::POLLOUT, blocks)) };
            };
            // Distinguishes errors of the source from errors of the ring. A source that had nothing is not read again.
            let mut fill = |p: *mut u8, n: usize| {
                let got = source(p, n);
                ended.set(ended.get() || got != Ok(n));
                got
            };
            let want = || ep.burst(count - done, !nonblock);
            let res = ep.write_with(want(), &mut fill);
            let again = res == Err(Errno::AGAIN) && nonblock && !ended.get() && ep.want_room();
            let res = if again { ep.write_with(want(), fill) } else { res };
            match res {
                Ok(n) if nonblock && !ended.get() && done + n < count && ep.want_room() => ep.room_came(),
                Err(Errno::AGAIN) => switched = ep.must_switch(),
                _ => {}
            }
            moving = ep.side.is_moving();
            res
        };
        match res {
            Ok(n) => {
                if moving {
                    go_after(r);
                }
                done += n;
                if let Some(e) = s.stats() {
                    e.sent(n as u64);
                }
                if ended.get() {
                    break;
                }
                if nonblock && done < count {
                    break;
                }
            }
            Err(Errno::AGAIN) if switched => redispatch::complete_switch(r),
            Err(Errno::AGAIN) if !nonblock && !ended.get() => {
                let Some(_pin) = r.pin() else {
                    return Err(Fail::BADF);
                };
                let w = connection::ready(
                    r,
                    Interest { read: false, write: true },
                    deadline(s.sndtimeo.load(Ordering::Relaxed)),
                );
                if let Err(e) = w {
                    return if done > 0 { Ok(done) } else { Err(e) };
                }
            }
            Err(_) if done > 0 => break,
            Err(e) => return Err(pipe_signal(e, 0).into()),
        }
    }
    Ok(done)
}

/// Has the kernel send a file on a candidate that does not block, and counts the bytes, so that the candidacy goes on:
/// web servers send all of their answers so. `None`: another path has to serve the call.
fn by_kernel(out: i32, input: i32, offset: *mut i64, count: usize) -> Option<Outcome> {
    let r = table::socket(out)?;
    let s = r.obj;
    let local = || s.candidate().is_some_and(|upgrade| !upgrade.is_remote());
    if !s.has(NONBLOCK) || !local() || promote::advance(out, r) {
        return None;
    }
    let watched = if promote::is_watched(s) { promote::before_send(out, r, true) } else { None };
    let done = {
        let _g = s.tx.lock();
        if !r.valid() || !local() {
            return None;
        }
        let done = raw::sendfile(out, input, offset, count);
        if let Ok(n) = done {
            s.kernel_sent.fetch_add(n as u64, Ordering::Relaxed);
            if let Some(e) = s.stats() {
                e.sent(n as u64);
            }
        }
        done
    };
    if let Some(before) = watched {
        promote::after_send(out, r, before);
    }
    Some(match done {
        Ok(n) => Outcome::Done(n as isize),
        Err(e) => Outcome::Failed(e),
    })
}

/// sendfile(2).
///
/// # Safety
/// `offset` is null or points to the application's offset.
#[allow(unsafe_code)]
pub unsafe fn sendfile(out: i32, input: i32, offset: *mut i64, count: usize) -> Outcome {
    if let Some(done) = by_kernel(out, input, offset, count) {
        return done;
    }
    promote::given_up(out);
    let Some((r, ep)) = accelerated(out) else {
        return candidate::pass_by_number(out);
    };
    if !offset.is_null() && !user::writable(offset, size_of::<i64>()) {
        return Outcome::Failed(Errno::FAULT);
    }
    // SAFETY: null, or the application's offset in memory that can be written.
    let mut at = unsafe { offset.as_ref() }.copied();
    if at.is_some_and(|o| o < 0) {
        return Outcome::Failed(Errno::INVAL);
    }
    // The source must have a position: bytes that were read from a pipe or socket could be lost.
    match raw::position(input) {
        Err(Errno(libc::ESPIPE)) if at.is_none() => return Outcome::Failed(Errno::INVAL),
        Err(e) => return Outcome::Failed(e),
        Ok(_) => {}
    }
    // At the end of the file there is nothing to send, so neither an error of the connection is reported nor room
    // awaited.
    if ep.refuses() && at_end(input, at) {
        return Outcome::Done(0);
    }
    let nonblock = r.obj.has(NONBLOCK);
    let res = pump(r, count.min(MAX), nonblock, |p, n| {
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
    promote::given_up(out);
    promote::given_up(input);
    let (from, to) = (accelerated(input), accelerated(out));
    let known = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
    // The kernel checks these cases first too, whatever the descriptors are.
    if len == 0 || flags & !known != 0 {
        return Outcome::Pass;
    }
    if from.is_none() && to.is_none() {
        return match candidate::pass_by_number(input) {
            Outcome::Pass => candidate::pass_by_number(out),
            anew => anew,
        };
    }
    let nonblock = flags & libc::SPLICE_F_NONBLOCK != 0;
    let (pipe, access) = if to.is_some() { (input, libc::O_WRONLY) } else { (out, libc::O_RDONLY) };
    let Ok(status) = raw::fcntl(pipe, libc::F_GETFL, 0) else {
        return Outcome::Failed(Errno::BADF);
    };
    if status & libc::O_ACCMODE == access {
        return Outcome::Failed(Errno::BADF);
    }
    if raw::fcntl(pipe, libc::F_GETPIPE_SZ, 0).is_err() {
        return Outcome::Failed(Errno::INVAL);
    }
    let (of_pipe, of_socket) = if to.is_some() { (off_in, off_out) } else { (off_out, off_in) };
    if !of_pipe.is_null() {
        return Outcome::Failed(Errno(libc::ESPIPE));
    }
    if !of_socket.is_null() {
        return Outcome::Failed(Errno::INVAL);
    }
    let nonblock = nonblock || status & libc::O_NONBLOCK != 0;
    match (from, to) {
        (_, Some((r, _))) => from_pipe(r, pipe, len, nonblock).into(),
        (Some((r, _)), None) => to_pipe(r, pipe, len, nonblock).into(),
        (None, None) => Outcome::Pass,
    }
}

/// Moves bytes of a pipe into the ring. Like the kernel, it first waits for the pipe, without a lock, and then looks at
/// the connection. `nonblock` concerns the pipe alone.
fn from_pipe(r: Ref<Socket>, pipe: i32, len: usize, nonblock: bool) -> Answer<usize> {
    loop {
        if await_pipe(pipe, libc::POLLIN, nonblock)? & (libc::POLLIN | libc::POLLHUP) == libc::POLLHUP {
            return Ok(0);
        }
        let (mut taken, mut dry) = (false, false);
        let res = pump(r, len, r.obj.has(NONBLOCK), |p, n| match read_now(pipe, p, n) {
            Err(Errno::AGAIN) if taken => Ok(0),
            got => {
                taken |= got.is_ok();
                dry = got == Err(Errno::AGAIN);
                got
            }
        });
        // Another reader has emptied the pipe meanwhile.
        if !(dry && res == Err(Fail::AGAIN)) {
            return res;
        }
    }
}

/// Moves bytes of the ring into a pipe, with the same order of waiting as [`from_pipe`].
fn to_pipe(r: Ref<Socket>, pipe: i32, len: usize, nonblock: bool) -> Answer<usize> {
    let s = r.obj;
    loop {
        await_pipe(pipe, libc::POLLOUT, nonblock)?;
        let (mut full, mut switched) = (false, false);
        let res = {
            let _g = s.rx.lock();
            if !r.valid() {
                return Err(Fail::BADF);
            }
            let Some(ep) = s.endpoint().filter(|_| s.is_shm()) else {
                drop(_g);
                let blocks = (!nonblock).then(|| deadline(s.rcvtimeo.load(Ordering::Relaxed)));
                return Err(leave_to_kernel(r, libc::POLLIN, blocks));
            };
            let give = |p: *const u8, n: usize| {
                let given = write_now(pipe, p, n);
                full = given == Err(Errno::AGAIN);
                given
            };
            let res = if ep.old_subflow.fd() >= 0 { from_before(ep, len, give) } else { ep.read_with(len, give) };
            if res == Err(Errno::AGAIN) {
                switched = ep.must_switch();
            }
            res
        };
        match res {
            Err(Errno::AGAIN) if switched => redispatch::complete_switch(r),
            Err(Errno::AGAIN) if full => {}
            Err(Errno::AGAIN) if !s.has(NONBLOCK) => {
                let Some(_pin) = r.pin() else {
                    return Err(Fail::BADF);
                };
                connection::ready(
                    r,
                    Interest { read: true, write: false },
                    deadline(s.rcvtimeo.load(Ordering::Relaxed)),
                )?;
            }
            Ok(n) => {
                if let Some(e) = s.stats() {
                    e.received(n as u64);
                }
                return Ok(n);
            }
            Err(e) => return Err(e.into()),
        }
    }
}

/// Moves the bytes of the old subflow, which precede the ring's, a page at a time. Under the reader's lock.
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

/// Waits until a pipe has bytes or room, or its other end is closed, and returns the events of poll(2). `EAGAIN`: not
/// ready and `nonblock`.
fn await_pipe(pipe: i32, events: i16, nonblock: bool) -> Answer<i16> {
    let mut seen = raw::events_now(pipe, events);
    if seen == 0 && nonblock {
        return Err(Fail::AGAIN);
    }
    let mut signals = CallSignals::new(core::ptr::null());
    while seen == 0 {
        let mut set = WaitSet::new();
        if let Some(at) = sleep::before_sleep() {
            set.wake_at(at);
        }
        set.add(pipe, events);
        match set.sleep(Deadline::Never, signals.admit()) {
            Err(Fail::INTR) => signals.interrupted(Deadline::Never)?,
            slept => drop(slept?),
        }
        seen = raw::events_now(pipe, events);
    }
    Ok(seen)
}

/// Reads from a pipe without waiting.
fn read_now(pipe: i32, p: *mut u8, n: usize) -> Result<usize> {
    match raw::read_now(pipe, p, n) {
        Err(Errno::OPNOTSUPP) if raw::events_now(pipe, libc::POLLIN) == 0 => Err(Errno::AGAIN),
        Err(Errno::OPNOTSUPP) => raw::read(pipe, p, n, None),
        done => done,
    }
}

/// Writes as many bytes as a pipe has room for, without waiting.
fn write_now(pipe: i32, p: *const u8, n: usize) -> Result<usize> {
    match raw::write_now(pipe, p, n) {
        Err(Errno::OPNOTSUPP) if raw::events_now(pipe, libc::POLLOUT) == 0 => Err(Errno::AGAIN),
        // A writable pipe has room for at least a page.
        Err(Errno::OPNOTSUPP) => raw::write(pipe, p, n.min(PAGE)),
        done => done,
    }
}
