//! Reads and writes of a connection on kernel TCP that may be promoted or upgraded (a *candidate*). They are made here
//! and not passed to libc, so that the ring's first byte follows the last byte of the kernel's stream.

use crate::conn::pin::Waiting;
use crate::conn::transfer::leave_to_kernel;
use crate::conn::{neighbours, transfer};
use crate::fd::table;
use crate::limits::PROMOTION_TAIL;
use crate::object::reference::Ref;
use crate::object::socket::{ConnState, NONBLOCK, Path, Socket, Upgrade};
use crate::operator::requests;
use crate::outcome::Outcome;
use crate::switch::promote::{advance, cancel};
use crate::switch::{comeback, promote, upgrade, upgrade_client};
use crate::wait::held::Held;
use crate::wait::sleep;
use core::sync::atomic::Ordering;
use netacc_stats::Reason;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{delivery, sleeping, time};
use netacc_transport::Iov;

/// State of a client's side whose offer the server may accept.
const OFFERED: ConnState = ConnState::Candidate(Upgrade::Offered);

/// Sends the bytes of `src` by the kernel, at most `most` of them.
fn send_by_kernel(fd: i32, src: &mut Iov<'_>, flags: i32, most: usize) -> Result<usize> {
    match src.first() {
        Some((p, n)) if src.left() > most => sleeping::send(fd, p, n.min(most), flags),
        _ => by_kernel(fd, src, flags, true),
    }
}

/// Makes the kernel's call on all buffers at once: with a call for each buffer, a reset could come in between.
#[allow(unsafe_code)]
pub(super) fn by_kernel(fd: i32, v: &mut Iov<'_>, flags: i32, write: bool) -> Result<usize> {
    let Some((vec, count)) = v.whole() else {
        // Sends the rest of a buffer that was sent in part.
        return v.first().map_or(Ok(0), |(p, n)| sleeping::send(fd, p, n, flags));
    };
    // SAFETY: a zeroed message header is valid: it has no address, buffers or control messages.
    let mut m: libc::msghdr = unsafe { core::mem::zeroed() };
    m.msg_iov = vec.cast_mut();
    m.msg_iovlen = count as _;
    if write { sleeping::sendmsg(fd, &raw const m, flags) } else { sleeping::recvmsg(fd, &raw mut m, flags) }
}

/// The outcome of a kernel's call that has failed and that slept for `limit` (ns) at most; 0: for ever. One that is
/// interrupted is restarted as the kernel would.
pub(super) fn after_kernel(limit: u64, e: Errno) -> Outcome {
    match e {
        sleeping::ANEW => Outcome::Restart,
        Errno::INTR if limit == 0 && delivery::restarts() => Outcome::Restart,
        e => Outcome::Failed(e),
    }
}

/// Makes a read-like call on a socket that is not in a ring: reads a candidate's bytes from the kernel, or passes.
pub(super) fn receive(fd: i32, r: Ref<Socket>, dst: &mut Iov<'_>, flags: i32, call: &mut Waiting) -> Outcome {
    requests::check();
    let s = r.obj;
    let Some(upgrade) = s.candidate().filter(|upgrade| !expired(fd, r, *upgrade)) else {
        // Another thread may have promoted the connection since the caller looked it up.
        return if s.is_shm() { reread(r, dst, flags, call) } else { pass(s) };
    };
    // The kernel makes calls with other flags, and the connection stays with it for good.
    if flags & !(libc::MSG_DONTWAIT | libc::MSG_PEEK | libc::MSG_NOSIGNAL) != 0 || dst.left() == 0 || dst.bad() {
        return if cancel(fd, r) { reread(r, dst, flags, call) } else { pass(s) };
    }
    let nonblock = flags & libc::MSG_DONTWAIT != 0 || s.has(NONBLOCK);
    let sleeps_here = !nonblock && (upgrade.is_client() || !upgrade.is_remote());
    let to_kernel = |call: &mut Waiting| {
        let until = (!nonblock).then(|| call.until(&s.rcvtimeo));
        leave_to_kernel(r, libc::POLLIN, until).into()
    };
    // It changes under both direction locks alone.
    let times_left_now = || s.upgrade.left.load(Ordering::Relaxed);
    let (mut ours, mut times_left) = (None, None);
    loop {
        let res = {
            let _g = s.rx.lock();
            if !r.valid() {
                return Outcome::Failed(Errno::BADF);
            }
            if s.path() != Path::Tcp {
                drop(_g);
                return reread(r, dst, flags, call);
            }
            // Meanwhile the connection may have been in a ring, and have got another kernel socket.
            let other = times_left.replace(times_left_now()) != Some(times_left_now());
            if other && s.is(ConnState::Demoted) {
                drop(_g);
                return to_kernel(call);
            }
            if other {
                ours = None;
            }
            if !s.upgrade.held_by.may_use() {
                drop(_g);
                return if cancel(fd, r) { reread(r, dst, flags, call) } else { pass(s) };
            }
            let ready = if upgrade.is_remote() { upgrade::before_read(fd, s) } else { Ok(()) };
            // Our own number for the file keeps this call going if another thread closes the program's number meanwhile.
            let there = ours.as_ref().map(Held::fd).filter(|own| *own >= 0).unwrap_or(fd);
            // Every read of the kernel's stream is made under the lock: a switch passes on the bytes that it finds unread.
            let res = ready.and_then(|()| by_kernel(there, dst, flags | libc::MSG_DONTWAIT, false));
            match res {
                Ok(n) if flags & libc::MSG_PEEK == 0 => {
                    s.kernel_read.fetch_add(n as u64, Ordering::Relaxed);
                    if s.upgrade.watched.load(Ordering::Relaxed) != 0 {
                        promote::publish_read(fd, s);
                    }
                }
                // Made under the lock, so that it is this socket, whatever happens to the number from here on.
                Err(Errno::AGAIN) if sleeps_here => ours = Held::to_read(fd),
                _ => {}
            }
            res
        };
        match res {
            // The peer may have switched: then this 0 is not the end of the stream.
            Ok(0) if advance(fd, r) => return reread(r, dst, flags, call),
            // The peer may even have been demoted again already, to another kernel socket.
            Ok(0) if s.is(ConnState::Demoted) && times_left != Some(times_left_now()) => return to_kernel(call),
            Ok(n) => {
                if flags & libc::MSG_PEEK == 0 {
                    if let Some(e) = s.stats() {
                        e.received(n as u64);
                    }
                    upgrade::has_read(s);
                }
                return Outcome::Done(n as isize);
            }
            Err(Errno::AGAIN) if !nonblock => {}
            Err(e) => return Outcome::Failed(e),
        }
        if let Err(e) = call.hold(r) {
            return e.into();
        }
        if !sleeps_here {
            return match upgrade::wait(fd, r) {
                Ok(()) => receive(fd, r, dst, flags, call),
                Err(e) => e.into(),
            };
        }
        let until = call.until(&s.rcvtimeo);
        if let Err(e) = sleep::for_kernel(ours.as_ref().map(Held::fd), fd, libc::POLLIN, until, true) {
            return e.into();
        }
    }
}

/// Leaves a server's connection to the kernel once its client has made no offer during `CALLS` calls.
fn expired(fd: i32, r: Ref<Socket>, upgrade: Upgrade) -> bool {
    const CALLS: u32 = 256;
    if upgrade.is_remote() {
        return upgrade::expired(fd, r);
    }
    let n = r.obj.calls.load(Ordering::Relaxed).wrapping_add(1);
    r.obj.calls.store(n, Ordering::Relaxed);
    // A client in another network namespace may have other processes to ask first.
    let awaited = || time::coarse() < r.obj.upgrade.when.load(Ordering::Relaxed);
    // How long an operator leaves the other end off is not known.
    if n <= CALLS || upgrade.is_client() || awaited() || comeback::was_in_ring(r.obj) {
        return false;
    }
    neighbours::note_reason(r.obj, Reason::NoNeighbour);
    !cancel(fd, r)
}

/// Continues a read over shared memory. It uses the object, since the number may be closed.
fn reread(r: Ref<Socket>, dst: &mut Iov<'_>, flags: i32, call: &mut Waiting) -> Outcome {
    match r.obj.endpoint() {
        Some(ep) => transfer::receive(r, ep, dst, flags, call).into(),
        // The connection has left shared memory again meanwhile, or has been closed.
        None if r.obj.path() == Path::Tcp => pass(r.obj),
        None => Outcome::Failed(Errno::BADF),
    }
}

/// Leaves a call to the kernel, unless the connection has become one of ours again meanwhile.
fn pass(s: &Socket) -> Outcome {
    if is_ours(s) { Outcome::ANEW } else { Outcome::Pass }
}

/// Leaves a call to the kernel as [`pass`] does.
pub fn pass_by_number(fd: i32) -> Outcome {
    table::socket(fd).map_or(Outcome::Pass, |r| pass(r.obj))
}

/// Whether the socket layer makes a connection's calls, by one look at its state.
pub fn is_ours(s: &Socket) -> bool {
    matches!(s.state(), ConnState::Candidate(_) | ConnState::Shm)
}

/// Makes a write-like call on a socket that is not in a ring.
pub(super) fn transmit(fd: i32, r: Ref<Socket>, src: &mut Iov<'_>, flags: i32, call: &mut Waiting) -> Outcome {
    requests::check();
    let s = r.obj;
    let Some(upgrade) = s.candidate().filter(|upgrade| !expired(fd, r, *upgrade)) else {
        return if s.is_shm() { rewrite(r, src, flags, 0, call) } else { pass(s) };
    };
    if flags & !(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE) != 0 || src.left() == 0 || src.bad() {
        return if cancel(fd, r) { rewrite(r, src, flags, 0, call) } else { pass(s) };
    }
    let nonblock = flags & libc::MSG_DONTWAIT != 0 || s.has(NONBLOCK);
    if upgrade.is_remote() {
        upgrade_client::before_send(s, nonblock);
    }
    let mut watched = None;
    if promote::is_watched(s) {
        watched = promote::before_send(fd, r, nonblock);
        if s.upgrade.search.is_on() && !nonblock && promote::await_neighbour(fd, r) {
            return rewrite(r, src, flags, 0, call);
        }
    }
    // The kernel must not decide whether the application gets SIGPIPE.
    let flags_there = flags | libc::MSG_NOSIGNAL;
    let mut sent = 0usize;
    let (mut ours, mut times_left) = (None, None);
    while src.left() > 0 {
        if sent > 0 && s.is(OFFERED) && advance(fd, r) {
            return rewrite(r, src, flags, sent, call);
        }
        // The server may accept the offer at any moment, and few bytes may be in flight then.
        let most = if s.is(OFFERED) { PROMOTION_TAIL } else { usize::MAX };
        let whole = src.whole().is_some() && src.left() <= most;
        let asked = if whole { src.left() } else { src.first().map_or(0, |(_, n)| n.min(most)) };
        let mut _sending = None;
        let left;
        let mut res = {
            let _g = s.tx.lock();
            if !r.valid() {
                return Outcome::Failed(Errno::BADF);
            }
            if s.path() != Path::Tcp {
                drop(_g);
                return rewrite(r, src, flags, sent, call);
            }
            if !s.upgrade.held_by.may_use() {
                drop(_g);
                return match cancel(fd, r) {
                    true => rewrite(r, src, flags, sent, call),
                    false if sent > 0 => Outcome::Done(sent as isize),
                    false => pass(s),
                };
            }
            left = s.upgrade.left.load(Ordering::Relaxed);
            if times_left != Some(left) {
                ours = None;
            }
            times_left = Some(left);
            let res = send_by_kernel(fd, src, flags_there | libc::MSG_DONTWAIT, most);
            // The bytes are counted under the same lock: a connection is upgraded to RDMA at an exact byte.
            if let Ok(n) = res {
                s.kernel_sent.fetch_add(n as u64, Ordering::Relaxed);
            }
            // Made under the lock, so that it is this socket.
            if res == Err(Errno::AGAIN) && !nonblock && ours.is_none() && comeback::was_in_ring(s) {
                ours = Held::to_read(fd);
            }
            res
        };
        let counted = res.is_ok();
        if res == Err(Errno::AGAIN) && !nonblock {
            if let Err(e) = call.hold(r) {
                return e.into();
            }
            // A connection that rests keeps no thread in a call that an operator's next request does not wake. What has
            // sent something cannot be made anew.
            if comeback::was_in_ring(s) {
                let until = call.until(&s.sndtimeo);
                match sleep::for_kernel(ours.as_ref().map(Held::fd), fd, libc::POLLOUT, until, sent == 0) {
                    Ok(_) => continue,
                    Err(_) if sent > 0 => break,
                    Err(e) => return e.into(),
                }
            }
            // The send needs no lock: bytes that the kernel accepts precede the end of stream with which the switch
            // marks the byte, and after that end it accepts none.
            _sending = Some(upgrade_client::Sending::begin(s));
            // A fork may have come since the lock was released: it has counted the holders, or sees this thread.
            if s.upgrade.held_by.is_counted() {
                s.upgrade.held_by.spoil();
            }
            res = send_by_kernel(fd, src, flags_there, most);
            if res == Err(Errno::PIPE) && advance(fd, r) {
                return rewrite(r, src, flags, sent, call);
            }
            // Meanwhile the connection was in a ring, and has another kernel socket.
            if res == Err(Errno::PIPE) && s.upgrade.left.load(Ordering::Relaxed) != left {
                match s.is(ConnState::Demoted) {
                    false => continue,
                    true if sent > 0 => return Outcome::Done(sent as isize),
                    true => return Outcome::Pass,
                }
            }
        }
        match res {
            Ok(n) => {
                src.skip(n);
                sent += n;
                let _g = s.tx.lock();
                match s.endpoint().filter(|_| s.is_shm()) {
                    _ if counted => {}
                    Some(ep) => ep.old_subflow.count_sent(n),
                    // These bytes were the former kernel socket's.
                    None if s.upgrade.left.load(Ordering::Relaxed) != left => {}
                    None => drop(s.kernel_sent.fetch_add(n as u64, Ordering::Relaxed)),
                }
                if let Some(e) = s.stats() {
                    e.sent(n as u64);
                }
                // A blocking call sends everything unless an error occurs; the program's next call reports the error.
                if n < asked && (nonblock || !counted) {
                    break;
                }
            }
            Err(_) if sent > 0 => break,
            Err(e) => return after_kernel(s.sndtimeo.load(Ordering::Relaxed), transfer::pipe_signal(e, flags)),
        }
    }
    if upgrade.is_remote() {
        upgrade_client::after_send(fd, r);
    }
    if let Some(before) = watched {
        promote::after_send(fd, r, before);
    }
    Outcome::Done(sent as isize)
}

fn rewrite(r: Ref<Socket>, src: &mut Iov<'_>, flags: i32, sent: usize, call: &mut Waiting) -> Outcome {
    match r.obj.endpoint().map(|ep| transfer::transmit(r, ep, src, flags, call)) {
        Some(Ok(n)) => Outcome::Done((sent + n) as isize),
        _ if sent > 0 => Outcome::Done(sent as isize),
        Some(Err(e)) => e.into(),
        // The connection has left shared memory again meanwhile, or has been closed.
        None if r.obj.path() == Path::Tcp => pass(r.obj),
        None => Outcome::Failed(Errno::BADF),
    }
}
