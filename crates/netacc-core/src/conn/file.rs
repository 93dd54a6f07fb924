//! sendfile(2) and splice(2): bytes between a file or pipe and a ring, without an intermediate buffer.

use crate::conn::candidate;
use crate::conn::io::accelerated;
use crate::conn::pin::Waiting;
use crate::conn::transfer::{Miss, READ, Tried, WRITE, find, leave_to_kernel, pipe_signal};
use crate::fd::table;
use crate::object::reference::Ref;
use crate::object::socket::{APPEND, NONBLOCK, Socket};
use crate::outcome::Outcome;
use crate::switch::redispatch::go_after;
use crate::switch::{promote, redispatch};
use crate::wait::call_signals::CallSignals;
use crate::wait::{connection, sleep};
use core::cell::Cell;
use core::sync::atomic::Ordering;
use netacc_sys::errno::{Answer, Errno, Fail, Result};
use netacc_sys::time::Deadline;
use netacc_sys::{raw, user};
use netacc_transport::shm::ShmEndpoint;
use netacc_transport::{Endpoint, Iov, WaitSet};

/// Largest number of bytes that sendfile(2) transfers in one call.
const MAX: usize = 0x7fff_f000;
/// Bytes for which a pipe has room when it can be written to.
const PAGE: usize = 4096;

/// Moves bytes of `source` into the ring once, at most `count`. Also returns whether the peer is about to leave the ring,
/// and sets `ended` where the source had fewer bytes than there was room for: it is not read again.
fn fill(
    r: Ref<Socket>,
    count: usize,
    nonblock: bool,
    ended: &Cell<bool>,
    source: &mut impl FnMut(*mut u8, usize) -> Result<usize>,
) -> Tried<(usize, bool)> {
    let _g = r.obj.tx.lock();
    let ep = find(r)?;
    // Distinguishes errors of the source from errors of the ring.
    let mut read = |p: *mut u8, n: usize| {
        let got = source(p, n);
        ended.set(ended.get() || got != Ok(n));
        got
    };
    let want = || ep.burst(count, !nonblock);
    let mut res = ep.write_with(want(), &mut read);
    if res == Err(Errno::AGAIN) && nonblock && !ended.get() && ep.want_room() {
        res = ep.write_with(want(), read);
    }
    let n = res.map_err(|e| Miss::of(ep, e))?;
    if nonblock && !ended.get() && n < count && ep.want_room() {
        ep.room_came();
    }
    Ok((n, ep.side.is_moving()))
}

/// The outcome of a call that waits for `waits`: one that is to be made anew has what is left of its limit.
fn outcome(done: Answer<usize>, waits: i16, call: &Waiting) -> Outcome {
    if done == Err(Fail::Anew) { Outcome::Anew { waits, until: call.end() } } else { done.into() }
}

/// Moves up to `count` bytes of `source` into the ring, waiting for room if the socket blocks.
fn pump(
    r: Ref<Socket>,
    count: usize,
    nonblock: bool,
    call: &mut Waiting,
    mut source: impl FnMut(*mut u8, usize) -> Result<usize>,
) -> Answer<usize> {
    let s = r.obj;
    let mut done = 0;
    while done < count {
        let ended = Cell::new(false);
        match fill(r, count - done, nonblock, &ended, &mut source) {
            Ok((n, moving)) => {
                if moving {
                    go_after(r);
                }
                done += n;
                // The limit is that of one wait for room, as in the kernel.
                *call = Waiting::default();
                if let Some(e) = s.stats() {
                    e.sent(n as u64);
                }
                if ended.get() || nonblock {
                    break;
                }
            }
            Err(Miss::SwitchDue) => redispatch::complete_switch(r),
            Err(Miss::Empty) if !nonblock && !ended.get() => {
                call.hold(r)?;
                match connection::ready(r, WRITE, call.until(&s.sndtimeo)) {
                    Err(_) if done > 0 => break,
                    waited => waited?,
                }
            }
            Err(Miss::Closed) => return Err(Fail::BADF),
            Err(_) if done > 0 => break,
            Err(Miss::Empty) => return Err(Fail::AGAIN),
            Err(Miss::Elsewhere) => {
                return Err(leave_to_kernel(r, libc::POLLOUT, (!nonblock).then(|| call.until(&s.sndtimeo))));
            }
            Err(Miss::Failed(e)) => return Err(pipe_signal(e, 0).into()),
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
    let Some((r, ep)) = accelerated(out) else { return candidate::pass_by_number(out) };
    if !offset.is_null() && !user::writable(offset, size_of::<i64>()) {
        return Outcome::Failed(Errno::FAULT);
    }
    // SAFETY: null, or the application's offset in memory that can be written.
    let mut at = unsafe { offset.as_ref() }.copied();
    if at.is_some_and(|o| o < 0) || r.obj.has(APPEND) {
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
    let mut call = Waiting::default();
    let res = pump(r, count.min(MAX), nonblock, &mut call, |p, n| {
        let got = raw::read(input, p, n, at)?;
        at = at.map(|o| o + got as i64);
        Ok(got)
    });
    if let (Ok(_), Some(o)) = (res, at) {
        // SAFETY: not null, since `at` came from it.
        unsafe { *offset = o };
    }
    outcome(res, libc::POLLOUT, &call)
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
    let Ok(status) = raw::fcntl(pipe, libc::F_GETFL, 0) else { return Outcome::Failed(Errno::BADF) };
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
    if !of_socket.is_null() || to.is_some_and(|(r, _)| r.obj.has(APPEND)) {
        return Outcome::Failed(Errno::INVAL);
    }
    let nonblock = nonblock || status & libc::O_NONBLOCK != 0;
    let mut call = Waiting::default();
    match (from, to) {
        (_, Some((r, _))) => outcome(from_pipe(r, pipe, len, nonblock, &mut call), libc::POLLOUT, &call),
        (Some((r, _)), None) => outcome(to_pipe(r, pipe, len, nonblock, &mut call), libc::POLLIN, &call),
        (None, None) => Outcome::Pass,
    }
}

/// Moves bytes of a pipe into the ring. Like the kernel, it first waits for the pipe, without a lock, and then looks at
/// the connection. `nonblock` concerns the pipe alone.
fn from_pipe(r: Ref<Socket>, pipe: i32, len: usize, nonblock: bool, call: &mut Waiting) -> Answer<usize> {
    loop {
        if await_pipe(pipe, libc::POLLIN, nonblock)? & (libc::POLLIN | libc::POLLHUP) == libc::POLLHUP {
            return Ok(0);
        }
        let (mut taken, mut dry) = (false, false);
        let res = pump(r, len, r.obj.has(NONBLOCK), call, |p, n| match read_now(pipe, p, n) {
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

/// Moves bytes of the ring into a pipe once. Sets `full` if the pipe has no room.
fn drain(r: Ref<Socket>, pipe: i32, len: usize, full: &mut bool) -> Tried {
    let _g = r.obj.rx.lock();
    let ep = find(r)?;
    let give = |p: *const u8, n: usize| {
        let given = write_now(pipe, p, n);
        *full = given == Err(Errno::AGAIN);
        given
    };
    let res = if ep.old_subflow.fd() >= 0 { from_before(ep, len, give) } else { ep.read_with(len, give) };
    res.map_err(|e| Miss::of(ep, e))
}

/// Moves bytes of the ring into a pipe, with the same order of waiting as [`from_pipe`].
fn to_pipe(r: Ref<Socket>, pipe: i32, len: usize, nonblock: bool, call: &mut Waiting) -> Answer<usize> {
    let s = r.obj;
    loop {
        await_pipe(pipe, libc::POLLOUT, nonblock)?;
        let mut full = false;
        match drain(r, pipe, len, &mut full) {
            Ok(n) => {
                if let Some(e) = s.stats() {
                    e.received(n as u64);
                }
                return Ok(n);
            }
            Err(Miss::SwitchDue) => redispatch::complete_switch(r),
            Err(Miss::Empty) if full => {}
            Err(Miss::Empty) if !s.has(NONBLOCK) => {
                call.hold(r)?;
                connection::ready(r, READ, call.until(&s.rcvtimeo))?;
            }
            Err(Miss::Empty) => return Err(Fail::AGAIN),
            Err(Miss::Elsewhere) => {
                return Err(leave_to_kernel(r, libc::POLLIN, (!nonblock).then(|| call.until(&s.rcvtimeo))));
            }
            Err(Miss::Closed) => return Err(Fail::BADF),
            Err(Miss::Failed(e)) => return Err(e.into()),
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
