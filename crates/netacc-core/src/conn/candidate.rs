//! Bytes of a connection that is the kernel's and may be promoted or upgraded (a *candidate*): they pass through our hands, so
//! that what goes on in a ring follows them.

use crate::conn::transfer;
use crate::conn::transfer::deadline;
use crate::limits::PROMOTION_TAIL;
use crate::object::reference::Ref;
use crate::object::socket::{ConnState, NONBLOCK, Path, Socket, Upgrade};
use crate::operator::hearing;
use crate::outcome::Outcome;
use crate::switch::promote::{advance, cancel};
use crate::switch::{upgrade, upgrade_client};
use crate::wait::held::Held;
use crate::wait::sleep;
use core::sync::atomic::Ordering;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::raw;
use netacc_transport::Iov;

/// A client's side whose promotion the server may take.
const OFFERED: ConnState = ConnState::Candidate(Upgrade::Offered);

/// Sends all that there is by the kernel, or at most `most` bytes of it.
fn send_by_kernel(fd: i32, src: &mut Iov<'_>, flags: i32, most: usize) -> Result<usize> {
    match src.first() {
        Some((p, n)) if src.left() > most => raw::send(fd, p, n.min(most), flags),
        _ => by_kernel(fd, src, flags, true),
    }
}

/// Makes the kernel's call on all buffers at once: with a call for each buffer, a reset could come in between.
#[allow(unsafe_code)]
fn by_kernel(fd: i32, v: &mut Iov<'_>, flags: i32, write: bool) -> Result<usize> {
    let Some((vec, count)) = v.whole() else {
        // Sends the rest of a buffer that was taken in part.
        return v.first().map_or(Ok(0), |(p, n)| raw::send(fd, p, n, flags));
    };
    // SAFETY: a message header of zeroes is one without anything.
    let mut m: libc::msghdr = unsafe { core::mem::zeroed() };
    m.msg_iov = vec.cast_mut();
    m.msg_iovlen = count as _;
    if write { raw::sendmsg(fd, &raw const m, flags) } else { raw::recvmsg(fd, &raw mut m, flags) }
}

/// A read-like call on a socket without an endpoint: it reads a candidate's bytes, or passes.
pub fn receive(fd: i32, r: Ref<Socket>, dst: &mut Iov<'_>, flags: i32) -> Outcome {
    hearing::heed();
    let s = r.obj;
    let Some(upgrade) = s.candidate().filter(|upgrade| !expired(fd, r, *upgrade)) else {
        // Another thread may have promoted it since the caller looked.
        return if s.is_shm() { reread(r, dst, flags) } else { Outcome::Pass };
    };
    // Calls with a meaning of their own are made by the kernel; then the connection is the kernel's for good.
    if flags & !(libc::MSG_DONTWAIT | libc::MSG_PEEK | libc::MSG_NOSIGNAL) != 0 || dst.left() == 0 || dst.bad() {
        return if cancel(fd, r) { reread(r, dst, flags) } else { Outcome::Pass };
    }
    let nonblock = flags & libc::MSG_DONTWAIT != 0 || s.has(NONBLOCK);
    let mut res = {
        let _g = s.rx.lock();
        if !r.valid() {
            return Outcome::Failed(Errno::BADF);
        }
        if s.path() != Path::Tcp {
            drop(_g);
            return reread(r, dst, flags);
        }
        let ready = if upgrade.is_remote() { upgrade::before_read(fd, s) } else { Ok(()) };
        match ready {
            Ok(()) => by_kernel(fd, dst, flags | libc::MSG_DONTWAIT, false),
            Err(e) => Err(e),
        }
    };
    let mut _pin = None;
    if res == Err(Errno::AGAIN) && !nonblock {
        _pin = r.pin();
        if _pin.is_none() {
            return Outcome::Failed(Errno::BADF);
        }
        if upgrade.is_remote() && !upgrade.is_client() {
            return match upgrade::wait(fd, r) {
                Ok(()) => receive(fd, r, dst, flags),
                Err(e) => Outcome::Failed(e),
            };
        }
        // Without the lock: what comes from the kernel comes before the ring's, whatever happens meanwhile.
        let until = deadline(s.rcvtimeo.load(Ordering::Relaxed));
        let ours = Held::to_read(fd).filter(|_| flags & libc::MSG_WAITALL == 0);
        let waited = ours.as_ref().map_or(Ok(()), |ours| sleep::for_kernel(ours, until));
        // A thread that closes the program's number meanwhile does not end this call.
        let there = ours.as_ref().map(Held::fd).filter(|own| *own >= 0).unwrap_or(fd);
        res = waited.and_then(|()| by_kernel(there, dst, flags, false));
    }
    match res {
        // The peer may have gone over: then this 0 is not the end of the stream.
        Ok(0) if advance(fd, r) => reread(r, dst, flags),
        // The peer may also have come back already, to another kernel socket.
        Ok(0) if s.is(ConnState::Demoted) => Outcome::Pass,
        Ok(n) => {
            if flags & libc::MSG_PEEK == 0 {
                let _g = s.rx.lock();
                match s.endpoint().filter(|_| s.is_shm()) {
                    Some(ep) => ep.count_read(n),
                    None => drop(s.kernel_read.fetch_add(n as u64, Ordering::Relaxed)),
                }
                if let Some(e) = s.stats() {
                    e.received(n as u64);
                }
                drop(_g);
                upgrade::has_read(s);
            }
            Outcome::Done(n as isize)
        }
        Err(e) => Outcome::Failed(e),
    }
}

/// Leaves a server's connection to the kernel once nobody has offered to promote it in `CALLS` calls.
fn expired(fd: i32, r: Ref<Socket>, upgrade: Upgrade) -> bool {
    const CALLS: u32 = 256;
    if upgrade.is_remote() {
        return upgrade::expired(fd, r);
    }
    let n = r.obj.calls.load(Ordering::Relaxed) + 1;
    r.obj.calls.store(n, Ordering::Relaxed);
    n > CALLS && !upgrade.is_client() && !cancel(fd, r)
}

/// The call goes on over shared memory, by the object, since the number may be closed.
fn reread(r: Ref<Socket>, dst: &mut Iov<'_>, flags: i32) -> Outcome {
    match r.obj.endpoint() {
        Some(ep) => transfer::receive(r, ep, dst, flags).into(),
        // The connection has left shared memory again meanwhile, or was closed.
        None if r.obj.path() == Path::Tcp => Outcome::Pass,
        None => Outcome::Failed(Errno::BADF),
    }
}

/// A write-like call on a socket without an endpoint.
pub fn transmit(fd: i32, r: Ref<Socket>, src: &mut Iov<'_>, flags: i32) -> Outcome {
    hearing::heed();
    let s = r.obj;
    let Some(upgrade) = s.candidate().filter(|upgrade| !expired(fd, r, *upgrade)) else {
        return if s.is_shm() { rewrite(r, src, flags, 0) } else { Outcome::Pass };
    };
    if flags & !(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE) != 0 || src.left() == 0 || src.bad() {
        return if cancel(fd, r) { rewrite(r, src, flags, 0) } else { Outcome::Pass };
    }
    let nonblock = flags & libc::MSG_DONTWAIT != 0 || s.has(NONBLOCK);
    if upgrade.is_remote() {
        upgrade_client::before_send(s, nonblock);
    }
    // The kernel must not decide whether the application gets SIGPIPE.
    let flags_there = flags | libc::MSG_NOSIGNAL;
    let (mut sent, mut pin) = (0usize, None);
    while src.left() > 0 {
        if sent > 0 && s.is(OFFERED) && advance(fd, r) {
            return rewrite(r, src, flags, sent);
        }
        // The server may take the promotion at any moment, and then little is to be under way.
        let most = if s.is(OFFERED) { PROMOTION_TAIL } else { usize::MAX };
        let whole = src.whole().is_some() && src.left() <= most;
        let asked = if whole { src.left() } else { src.first().map_or(0, |(_, n)| n.min(most)) };
        let mut _sending = None;
        let mut res = {
            let _g = s.tx.lock();
            if !r.valid() {
                return Outcome::Failed(Errno::BADF);
            }
            if s.path() != Path::Tcp {
                drop(_g);
                return rewrite(r, src, flags, sent);
            }
            let res = send_by_kernel(fd, src, flags_there | libc::MSG_DONTWAIT, most);
            // This is counted under the same hold: a connection that goes over to another host does so at a byte that
            // has to be known.
            if let Ok(n) = res {
                s.kernel_sent.fetch_add(n as u64, Ordering::Relaxed);
            }
            res
        };
        let counted = res.is_ok();
        if res == Err(Errno::AGAIN) && !nonblock {
            if pin.is_none() {
                pin = r.pin();
            }
            if pin.is_none() {
                return Outcome::Failed(Errno::BADF);
            }
            // Without the lock: what the kernel takes comes before the end that it is told when we go over, and after
            // that end it takes nothing.
            _sending = Some(upgrade_client::Sending::begin(s));
            res = send_by_kernel(fd, src, flags_there, most);
            if res == Err(Errno::PIPE) && advance(fd, r) {
                return rewrite(r, src, flags, sent);
            }
            if res == Err(Errno::PIPE) && s.is(ConnState::Demoted) {
                return if sent > 0 { Outcome::Done(sent as isize) } else { Outcome::Pass };
            }
        }
        match res {
            Ok(n) => {
                src.skip(n);
                sent += n;
                let _g = s.tx.lock();
                match s.endpoint().filter(|_| s.is_shm()) {
                    _ if counted => {}
                    Some(ep) => ep.count_sent(n),
                    None => drop(s.kernel_sent.fetch_add(n as u64, Ordering::Relaxed)),
                }
                if let Some(e) = s.stats() {
                    e.sent(n as u64);
                }
                // A call that waits takes everything, unless an error comes; the program's next call reports that.
                if n < asked && (nonblock || !counted) {
                    break;
                }
            }
            Err(_) if sent > 0 => break,
            Err(e) => return Outcome::Failed(transfer::pipe_signal(e, flags)),
        }
    }
    if upgrade.is_remote() {
        upgrade_client::after_send(fd, r);
    }
    Outcome::Done(sent as isize)
}

fn rewrite(r: Ref<Socket>, src: &mut Iov<'_>, flags: i32, sent: usize) -> Outcome {
    match r.obj.endpoint().map(|ep| transfer::transmit(r, ep, src, flags)) {
        Some(Ok(n)) => Outcome::Done((sent + n) as isize),
        _ if sent > 0 => Outcome::Done(sent as isize),
        Some(Err(e)) => Result::<usize>::Err(e).into(),
        // The connection has left shared memory again meanwhile, or was closed.
        None if r.obj.path() == Path::Tcp => Outcome::Pass,
        None => Outcome::Failed(Errno::BADF),
    }
}
