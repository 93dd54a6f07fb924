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
use netacc_sys::errno::{Answer, Errno, Fail, Result};
use netacc_sys::{delivery, sleeping, time};
use netacc_transport::Iov;

/// State of a client's side whose offer the server may accept.
const OFFERED: ConnState = ConnState::Candidate(Upgrade::Offered);

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

/// Why the kernel's call is not made, or does not end a call on a candidate.
enum Away {
    /// The socket was closed.
    Closed,
    /// The connection has left this kernel socket, for a ring at first.
    Moved,
    /// The connection was in a ring meanwhile, and is the kernel's for good now, with another kernel socket.
    Demoted,
    /// The connection can be no candidate any more: other processes have it too, or the kernel has to make this call.
    Unfit,
    /// The thread has slept, or the connection has got another kernel socket: the call is made once more.
    Again,
    /// The sleep has ended the call.
    Failed(Fail),
}

/// What one attempt came to: the result of the kernel's call, or why there is none that counts.
type Tried = core::result::Result<Result<usize>, Away>;

/// A read- or write-like call in progress on a socket that is not in a ring.
struct KernelCall<'c, 'v> {
    fd: i32,
    r: Ref<Socket>,
    iov: &'c mut Iov<'v>,
    flags: i32,
    write: bool,
    nonblock: bool,
    waiting: &'c mut Waiting,
    /// Number of bytes transferred so far.
    done: usize,
    /// Our own number for the kernel socket on which the call sleeps: it keeps the call going if another thread closes the
    /// program's number. It is made under the lock, so that it is this socket's, whatever happens to the program's number.
    ours: Option<Held>,
    /// How often the connection had left a ring when the call last looked: it has another kernel socket each time.
    times_left: Option<u32>,
}

impl<'c, 'v> KernelCall<'c, 'v> {
    /// Begins a call, unless the connection is no candidate or may not be one any more.
    fn begin(
        (fd, r): (i32, Ref<Socket>),
        iov: &'c mut Iov<'v>,
        (flags, write): (i32, bool),
        waiting: &'c mut Waiting,
    ) -> core::result::Result<(KernelCall<'c, 'v>, Upgrade), Outcome> {
        requests::check();
        let nonblock = flags & libc::MSG_DONTWAIT != 0 || r.obj.has(NONBLOCK);
        let call = KernelCall { fd, r, iov, flags, write, nonblock, waiting, done: 0, ours: None, times_left: None };
        let Some(upgrade) = r.obj.candidate().filter(|upgrade| !expired(fd, r, *upgrade)) else {
            // Another thread may have promoted the connection since the caller looked it up.
            return Err(if r.obj.is_shm() { call.in_ring() } else { pass(r.obj) });
        };
        // The kernel makes calls with other flags, and the connection stays with it for good.
        let ours = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | if write { libc::MSG_MORE } else { libc::MSG_PEEK };
        if flags & !ours != 0 || call.iov.left() == 0 || call.iov.bad() {
            return Err(call.leave(Away::Unfit));
        }
        Ok((call, upgrade))
    }

    /// Looks under the lock of the call's direction whether the connection is still a candidate.
    fn look(&mut self) -> core::result::Result<(), Away> {
        let s = self.r.obj;
        if !self.r.valid() {
            return Err(Away::Closed);
        }
        if s.path() != Path::Tcp {
            return Err(Away::Moved);
        }
        if !self.is_same_socket() {
            if !self.write && s.is(ConnState::Demoted) {
                return Err(Away::Demoted);
            }
            self.ours = None;
            self.times_left = Some(times_left(s));
        }
        if s.upgrade.held_by.may_use() { Ok(()) } else { Err(Away::Unfit) }
    }

    /// Whether the connection has the same kernel socket as when the call last looked.
    fn is_same_socket(&self) -> bool {
        self.times_left == Some(times_left(self.r.obj))
    }

    /// Reads once. Every read of the kernel's stream is made under the lock: a switch passes on the bytes that it finds
    /// unread.
    fn read(&mut self, is_remote: bool, sleeps_here: bool) -> Tried {
        let s = self.r.obj;
        let _g = s.rx.lock();
        self.look()?;
        let ready = if is_remote { upgrade::before_read(self.fd, s) } else { Ok(()) };
        let there = self.ours.as_ref().map(Held::fd).filter(|own| *own >= 0).unwrap_or(self.fd);
        let res = ready.and_then(|()| by_kernel(there, self.iov, self.flags | libc::MSG_DONTWAIT, false));
        match res {
            Ok(n) if self.flags & libc::MSG_PEEK == 0 => {
                s.kernel_read.fetch_add(n as u64, Ordering::Relaxed);
                if s.upgrade.watched.load(Ordering::Relaxed) != 0 {
                    promote::publish_read(self.fd, s);
                }
            }
            Err(Errno::AGAIN) if sleeps_here => self.ours = Held::to_read(self.fd),
            _ => {}
        }
        Ok(res)
    }

    /// Sends once without sleeping, at most `most` bytes. They are counted under the lock: a connection is upgraded to RDMA
    /// at an exact byte.
    fn send(&mut self, most: usize) -> Tried {
        let s = self.r.obj;
        let _g = s.tx.lock();
        self.look()?;
        let res = self.send_by_kernel(libc::MSG_DONTWAIT, most);
        match res {
            Ok(n) => drop(s.kernel_sent.fetch_add(n as u64, Ordering::Relaxed)),
            Err(Errno::AGAIN) if !self.nonblock && self.ours.is_none() && comeback::was_in_ring(s) => {
                self.ours = Held::to_read(self.fd);
            }
            Err(_) => {}
        }
        Ok(res)
    }

    /// Sends in a call that sleeps, as [`KernelCall::send`] does, or sleeps until the kernel has room.
    fn send_asleep(&mut self, most: usize) -> Tried {
        let s = self.r.obj;
        self.waiting.hold(self.r).map_err(|_| Away::Closed)?;
        // A connection that rests keeps no thread in a call that an operator's next request does not wake.
        if comeback::was_in_ring(s) {
            self.sleep(libc::POLLOUT).map_err(Away::Failed)?;
            return Err(Away::Again);
        }
        // The send needs no lock: bytes that the kernel accepts precede the end of stream with which the switch marks the
        // byte, and after that end it accepts none.
        let _sending = upgrade_client::Sending::begin(s);
        // A fork may have come since the lock was released: it has counted the holders, or sees this thread.
        if s.upgrade.held_by.is_counted() {
            s.upgrade.held_by.spoil();
        }
        let res = self.send_by_kernel(0, most);
        match res {
            Ok(n) => {
                let _g = s.tx.lock();
                match s.ring() {
                    Some(ep) => ep.old_subflow.count_sent(n),
                    None if self.is_same_socket() => drop(s.kernel_sent.fetch_add(n as u64, Ordering::Relaxed)),
                    // These bytes were the former kernel socket's.
                    None => {}
                }
            }
            Err(Errno::PIPE) if advance(self.fd, self.r) => return Err(Away::Moved),
            Err(Errno::PIPE) if !self.is_same_socket() => {
                return Err(if s.is(ConnState::Demoted) { Away::Demoted } else { Away::Again });
            }
            Err(_) => {}
        }
        Ok(res)
    }

    /// Sends at most `most` bytes by the kernel, which must not decide whether the application gets SIGPIPE.
    fn send_by_kernel(&mut self, flags: i32, most: usize) -> Result<usize> {
        let flags = self.flags | libc::MSG_NOSIGNAL | flags;
        match self.iov.first() {
            Some((p, n)) if self.iov.left() > most => sleeping::send(self.fd, p, n.min(most), flags),
            _ => by_kernel(self.fd, self.iov, flags, true),
        }
    }

    /// Sleeps until the kernel socket is ready for `events`. A call that has sent something cannot be made anew.
    fn sleep(&mut self, events: i16) -> Answer<()> {
        let s = self.r.obj;
        let until = self.waiting.until(if self.write { &s.sndtimeo } else { &s.rcvtimeo });
        sleep::for_kernel(self.ours.as_ref().map(Held::fd), self.fd, events, until, self.done == 0).map(drop)
    }

    /// Ends a call that is not made by the kernel's means here.
    fn leave(self, away: Away) -> Outcome {
        match away {
            Away::Unfit if cancel(self.fd, self.r) => self.in_ring(),
            Away::Unfit | Away::Demoted if self.done > 0 => Outcome::Done(self.done as isize),
            Away::Unfit => pass(self.r.obj),
            Away::Demoted if self.write => Outcome::Pass,
            Away::Demoted => {
                let until = (!self.nonblock).then(|| self.waiting.until(&self.r.obj.rcvtimeo));
                leave_to_kernel(self.r, libc::POLLIN, until).into()
            }
            Away::Moved | Away::Again => self.in_ring(),
            Away::Closed => Outcome::Failed(Errno::BADF),
            Away::Failed(fail) => fail.into(),
        }
    }

    /// Continues a call over shared memory. It uses the object, since the number may be closed.
    fn in_ring(self) -> Outcome {
        let s = self.r.obj;
        let request = (self.flags, self.write);
        match s.endpoint().map(|ep| transfer::make(self.r, ep, self.iov, request, self.waiting)) {
            Some(Ok(n)) => Outcome::Done((self.done + n) as isize),
            _ if self.done > 0 => Outcome::Done(self.done as isize),
            Some(Err(e)) => e.into(),
            // The connection has left shared memory again meanwhile, or has been closed.
            None if s.path() == Path::Tcp => pass(s),
            None => Outcome::Failed(Errno::BADF),
        }
    }
}

/// How often the connection has left a ring. It changes under both direction locks alone.
fn times_left(s: &Socket) -> u32 {
    s.upgrade.left.load(Ordering::Relaxed)
}

/// Makes a call on a socket that is not in a ring: moves a candidate's bytes by the kernel, or passes.
pub(super) fn make(
    fd: i32,
    r: Ref<Socket>,
    iov: &mut Iov<'_>,
    (flags, write): (i32, bool),
    call: &mut Waiting,
) -> Outcome {
    match KernelCall::begin((fd, r), iov, (flags, write), call) {
        Ok((call, upgrade)) if write => transmit(call, upgrade),
        Ok((call, upgrade)) => receive(call, upgrade),
        Err(outcome) => outcome,
    }
}

fn receive(mut c: KernelCall<'_, '_>, upgrade: Upgrade) -> Outcome {
    let (fd, r) = (c.fd, c.r);
    let s = r.obj;
    let sleeps_here = !c.nonblock && (upgrade.is_client() || !upgrade.is_remote());
    loop {
        match c.read(upgrade.is_remote(), sleeps_here) {
            // The peer may have switched: then this 0 is not the end of the stream.
            Ok(Ok(0)) if advance(fd, r) => return c.in_ring(),
            // The peer may even have been demoted again already, to another kernel socket.
            Ok(Ok(0)) if s.is(ConnState::Demoted) && !c.is_same_socket() => return c.leave(Away::Demoted),
            Ok(Ok(n)) => {
                if c.flags & libc::MSG_PEEK == 0 {
                    if let Some(e) = s.stats() {
                        e.received(n as u64);
                    }
                    upgrade::has_read(s);
                }
                return Outcome::Done(n as isize);
            }
            Ok(Err(Errno::AGAIN)) if !c.nonblock => {}
            Ok(Err(e)) => return Outcome::Failed(e),
            Err(away) => return c.leave(away),
        }
        let slept = match sleeps_here {
            true => c.waiting.hold(r).and_then(|()| c.sleep(libc::POLLIN)),
            false => c.waiting.hold(r).and_then(|()| upgrade::wait(fd, r)),
        };
        match slept {
            Ok(()) if sleeps_here => {}
            Ok(()) => return make(fd, r, c.iov, (c.flags, false), c.waiting),
            Err(e) => return e.into(),
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

fn transmit(mut c: KernelCall<'_, '_>, upgrade: Upgrade) -> Outcome {
    let (fd, r) = (c.fd, c.r);
    let s = r.obj;
    if upgrade.is_remote() {
        upgrade_client::before_send(s, c.nonblock);
    }
    let mut watched = None;
    if promote::is_watched(s) {
        watched = promote::before_send(fd, r, c.nonblock);
        if s.upgrade.search.is_on() && !c.nonblock && promote::await_neighbour(fd, r) {
            return c.in_ring();
        }
    }
    while c.iov.left() > 0 {
        if c.done > 0 && s.is(OFFERED) && advance(fd, r) {
            return c.in_ring();
        }
        // The server may accept the offer at any moment, and few bytes may be in flight then.
        let most = if s.is(OFFERED) { PROMOTION_TAIL } else { usize::MAX };
        let whole = c.iov.whole().is_some() && c.iov.left() <= most;
        let asked = if whole { c.iov.left() } else { c.iov.first().map_or(0, |(_, n)| n.min(most)) };
        let mut tried = c.send(most);
        let asleep = !c.nonblock && matches!(tried, Ok(Err(Errno::AGAIN)));
        if asleep {
            tried = c.send_asleep(most);
        }
        match tried {
            Ok(Ok(n)) => {
                c.iov.skip(n);
                c.done += n;
                if let Some(e) = s.stats() {
                    e.sent(n as u64);
                }
                // A blocking call sends everything unless an error occurs; the program's next call reports the error.
                if n < asked && (c.nonblock || asleep) {
                    break;
                }
            }
            Err(Away::Again) => {}
            Ok(Err(_)) | Err(Away::Failed(_)) if c.done > 0 => break,
            Ok(Err(e)) => return after_kernel(s.sndtimeo.load(Ordering::Relaxed), transfer::pipe_signal(e, c.flags)),
            Err(away) => return c.leave(away),
        }
    }
    if upgrade.is_remote() {
        upgrade_client::after_send(fd, r);
    }
    if let Some(before) = watched {
        promote::after_send(fd, r, before);
    }
    Outcome::Done(c.done as isize)
}
