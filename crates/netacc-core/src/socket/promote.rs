//! From kernel TCP to shared memory, while the connection lives.
//!
//! With `NACC_CONN_TCP_FIRST` a client connects by TCP and then offers the server, over a link, to go on in
//! a slot. The server looks for a connection with these addresses among those it accepted and goes over: it
//! ends its half of the TCP stream and writes to the ring from then on. The client sees that its offer was
//! taken and does the same. Each side first reads what is still in the kernel; the end of the kernel's stream marks the
//! byte where the ring goes on ([`ShmEndpoint::set_old_subflow`]).
//!
//! As long as a connection may be promoted (a *candidate*), its bytes pass through our hands.
//!
//! Threads meet here: several may use one connection, and client and server may be threads of one process.
//! What keeps them from seeing the middle of a promotion:
//!
//! - *Every decision is made with both direction locks held, and is whole when they are free again.* The server
//!   marks the offer as taken under them, before anything can be seen of it, and the path is changed under the
//!   same hold; so is the client's path. A thread that finds an end of stream on the kernel's socket, or is told of one
//!   by poll or epoll, asks again behind the lock ([`advance`]): if the end was the peer's going over, the path says
//!   so.
//! - *A socket is a candidate until its path says what it became.* `CANDIDATE` is cleared last, so a call that
//!   does not see it finds the path decided, and one that does takes the locks. Nobody passes on to the kernel
//!   in between.
//! - A call that has to wait does so inside the kernel, which keeps the file whatever becomes of the number. The
//!   peer's half close wakes it, or our own; then it looks at the path.

use crate::epoll::paths;
use crate::fd::table;
use crate::fd::table::Entry;
use crate::object::reference::Ref;
use crate::object::socket::{CANDIDATE, DEMOTED, LINKING, NONBLOCK, OFFERS, Path, REMOTE, Socket};
use crate::outcome::Outcome;
use crate::socket::io::deadline;
use crate::socket::{pool, upgrade, upgrade_client};
use crate::timeouts;
use crate::wait::held::Held;
use crate::wait::sleep;
use core::sync::atomic::Ordering;
use netacc_stats::{Reason, Transport, page};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::signals::Blocked;
use netacc_sys::{raw, time};
use netacc_transport::shm::segment::{CONNECT_QUEUED, CONNECT_TAKEN};
use netacc_transport::shm::{Link, ShmEndpoint, owner, promote};
use netacc_transport::{Endpoint, Iov};

const PROMOTION_ANSWER: u64 = time::ns(timeouts::PROMOTION_ANSWER);

/// Looks whether a candidate can go over. True: it is on shared memory now.
#[cold]
pub fn advance(fd: i32, r: Ref<Socket>) -> bool {
    let s = r.obj;
    if promote::waiting() {
        match_offers();
    }
    // In this order: a thread that does not see the flag sees the path that was decided on.
    if !s.has(CANDIDATE) {
        return s.path() == Path::Shm;
    }
    if s.has(REMOTE) {
        return upgrade::advance(fd, r);
    }
    if !s.has(OFFERS) {
        // A server that blocks in this one connection hears of offers only here.
        if s.calls.load(Ordering::Relaxed) % 16 == 1 {
            listen_for_offers();
        }
        // Another thread may be about to take the offer.
        drop(s.rx.lock());
        return s.path() == Path::Shm;
    }
    match s.endpoint() {
        None => {
            // Until the kernel has connected there is nothing to offer. One thread makes the offer.
            if netacc_sys::addr::peer_of(fd).is_some() && !s.set(LINKING, true) && offer(fd, r).is_err() {
                decide(fd, r, true);
            }
            s.path() == Path::Shm
        }
        Some(ep) if ep.outcome() == CONNECT_QUEUED && !ep.link().is_lost() && ep.age() < PROMOTION_ANSWER => {
            ep.link().service_if_readable();
            false
        }
        Some(ep) => decide(fd, r, ep.outcome() != CONNECT_TAKEN),
    }
}

/// Lets every connection whose offer was taken go over.
#[cold]
pub fn advance_all() {
    table::each(0, usize::MAX, |fd, e| {
        if let Entry::Socket(r) = e
            && r.obj.path() == Path::Tcp
            && r.obj.has(CANDIDATE)
        {
            advance(fd, r);
        }
    });
}

/// Server: takes up links and offers that wait, on behalf of all listeners.
fn listen_for_offers() {
    table::each(0, usize::MAX, |_, e| {
        if let Entry::Socket(r) = e
            && let Some(l) = r.obj.listener()
        {
            // A thread that sleeps on the listener does that itself; it would not hear of the end of a link that we took.
            l.take_if(|l| l.waiters.load(Ordering::SeqCst) == 0);
            l.service_links();
        }
    });
    if promote::waiting() {
        match_offers();
    }
}

/// Client: offers the connection to the server.
fn offer(fd: i32, r: Ref<Socket>) -> core::result::Result<(), Reason> {
    let s = r.obj;
    let local = netacc_sys::addr::local_of(fd).ok_or(Reason::Refused)?;
    let target = netacc_sys::addr::peer_of(fd).ok_or(Reason::Refused)?;
    let ip = netacc_transport::shm::rendezvous::destination;
    let local = core::net::SocketAddr::new(ip(local.ip()), local.port());
    let target = core::net::SocketAddr::new(ip(target.ip()), target.port());
    super::ports::local_source(target.ip(), time::now()).ok_or(Reason::OtherHost)?;
    let member = s.member.load(Ordering::Relaxed);
    // If it were asked for this very port, the kernel would name the connection, and not its listener.
    let from = core::net::SocketAddr::new(local.ip(), 0);
    let claim = pool::claim(from, target, (member != 0).then_some(member), false)?;
    let (link, claimed) = (claim.link, claim.claimed);
    let Some(ep) = link.endpoint(claimed.slot).filter(|e| e.begin(claimed.generation)) else {
        link.slots.burned();
        return Err(Reason::NoMemory);
    };
    if let Some(sl) = link.segment().and_then(|seg| seg.slot(claimed.slot)) {
        sl.open.write(local, target);
    }
    drop(claim);
    // The endpoint is there before the offer goes out: the server may take it at once, and a thread that looks then
    // must find what to go over to.
    let _g = (s.rx.lock(), s.tx.lock());
    let wanted = r.valid() && s.has(CANDIDATE);
    if wanted {
        s.local.set(local);
        s.peer.set(target);
        s.set_endpoint(ep);
        if link.offer(claimed.slot as u32, claimed.generation).is_ok() {
            return Ok(());
        }
        s.drop_endpoint();
    }
    ep.withdraw();
    // The server never saw the slot, so it cannot say that it is done with it.
    ep.never_mind(claimed.generation);
    ep.close(true);
    Err(Reason::Refused)
}

/// Gives a promotion up. True if it was too late for that, and the connection is on shared memory.
pub fn cancel(fd: i32, r: Ref<Socket>) -> bool {
    if r.obj.has(REMOTE) { upgrade::give_up(fd, r) } else { decide(fd, r, true) }
}

/// Whether a connection that is no candidate any more has gone over. Under both direction locks.
pub(super) fn decided(r: Ref<Socket>) -> Option<bool> {
    let s = r.obj;
    (!r.valid() || !s.has(CANDIDATE)).then(|| r.valid() && s.path() == Path::Shm)
}

/// For the client, and for a thread that gives up: goes over if the offer was taken; otherwise, with `give_up`, the
/// connection is the kernel's for good. True: it is on shared memory now.
fn decide(fd: i32, r: Ref<Socket>, give_up: bool) -> bool {
    let s = r.obj;
    let ep = {
        let _g = (s.rx.lock(), s.tx.lock());
        if let Some(switched) = decided(r) {
            return switched;
        }
        let offered = s.endpoint().filter(|_| s.has(OFFERS));
        match offered {
            Some(ep)
                if ep.outcome() == CONNECT_TAKEN || (give_up && !ep.withdraw() && ep.outcome() == CONNECT_TAKEN) =>
            {
                if !switch_to_ring(fd, r, ep) {
                    return false;
                }
                ep
            }
            _ => {
                if give_up {
                    s.set(CANDIDATE, false);
                    s.detach();
                }
                return false;
            }
        }
    };
    promoted(fd, s, ep);
    true
}

/// Goes over to the ring: our half of the TCP stream ends here. Under both direction locks, and for the server
/// under the same hold as `take`.
pub(super) fn switch_to_ring(fd: i32, r: Ref<Socket>, ep: &'static ShmEndpoint) -> bool {
    let s = r.obj;
    // A handler of this thread must not close the number in the middle.
    let _b = Blocked::all();
    let Some(fd) = number(fd, r) else { return false };
    let _ = raw::shutdown(fd, libc::SHUT_WR);
    ep.set_old_subflow(fd, s.kernel_sent.load(Ordering::Relaxed), s.kernel_read.load(Ordering::Relaxed));
    paths::accelerate(s, || {
        s.set_endpoint(ep);
        s.set_path(Path::Shm);
        s.set(CANDIDATE, false);
    });
    true
}

/// A number of the socket, `fd` if that still is one; under a direction lock. A number that was closed may belong to
/// another file by now. A thread that closes a number ends the candidacy before (`closing::remove`), so the number is
/// good as long as it is in the table and we hold the lock.
pub(super) fn number(fd: i32, r: Ref<Socket>) -> Option<i32> {
    Some(fd).filter(|n| table::get(*n).is_some_and(|e| e.is(r))).or_else(|| table::number_of(r, fd))
}

pub(super) fn promoted(fd: i32, s: &'static Socket, ep: &'static ShmEndpoint) {
    let remote = ep.is_remote();
    let entry = s.stats();
    page().promoted(entry.map_or(Reason::None, |e| e.reason()));
    if let Some(e) = entry {
        e.set_transport(if remote { Transport::Rdma } else { Transport::Shm });
        e.set_reason(Reason::None);
        // Of a connection to another host only the engine in our own process is seen here.
        e.set_peer_pid(if remote { 0 } else { ep.link().peer_pid() });
        e.set_link(ep.stats_link());
    }
    netacc_log::log!(Info, "fd {fd}: promoted to {}", if remote { "RDMA" } else { "shared memory" });
}

/// Server: looks for the connections that clients offered to promote.
#[cold]
pub fn match_offers() {
    promote::each(|link, slot, generation| {
        let Some(ep) = link.endpoint(slot as usize).filter(|e| slot != 0 && !e.is_live()) else { return true };
        let Some(open) = link.segment().and_then(|g| g.slot(slot as usize)).map(|s| &s.open) else { return true };
        let (Some(client), Some(server)) = (open.address(0), open.address(1)) else {
            ep.refuse(generation);
            return true;
        };
        let found = find(client, server);
        let age = time::now().saturating_sub(open.when.load(Ordering::Relaxed));
        match found {
            Some((fd, r)) if may_claim(link, client, server) => {
                accept_offer(fd, r, ep, generation);
                true
            }
            None if age < PROMOTION_ANSWER && !link.is_lost() => false,
            _ => {
                ep.refuse(generation);
                true
            }
        }
    });
}

/// Server: takes an offer and goes over, as one step for every other thread.
fn accept_offer(fd: i32, r: Ref<Socket>, ep: &'static ShmEndpoint, generation: u32) {
    let s = r.obj;
    {
        let _g = (s.rx.lock(), s.tx.lock());
        let there = r.valid() && s.has(CANDIDATE) && table::get(fd).is_some_and(|e| e.is(r));
        if !there || !ep.has_windows() {
            return ep.refuse(generation);
        }
        if !ep.take() {
            return ep.never_mind(generation);
        }
        if !ep.begin(generation) || !switch_to_ring(fd, r, ep) {
            return;
        }
    }
    promoted(fd, s, ep);
}

fn find(client: core::net::SocketAddr, server: core::net::SocketAddr) -> Option<(i32, Ref<Socket>)> {
    let mut found = None;
    table::each(0, usize::MAX, |fd, e| {
        if let Entry::Socket(r) = e
            && r.obj.path() == Path::Tcp
            && r.obj.has(CANDIDATE)
            && !r.obj.has(OFFERS | REMOTE)
            && r.obj.peer.get() == Some(client)
            && r.obj.local.get() == Some(server)
        {
            found = Some((fd, r));
        }
    });
    found
}

/// Whether the peer may promote the connection: a peer of another user may promote only connections that the kernel
/// says are that user's.
fn may_claim(link: &Link, client: core::net::SocketAddr, server: core::net::SocketAddr) -> bool {
    link.trusts_peer() || owner::connection_uid(client, server) == Some(link.peer_uid())
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
    let s = r.obj;
    if !s.has(CANDIDATE) || expired(fd, r) {
        // Another thread may have promoted it since the caller looked.
        return if s.path() == Path::Shm { reread(r, dst, flags) } else { Outcome::Pass };
    }
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
        match upgrade::before_read(fd, s) {
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
        if s.has(REMOTE) && !s.has(OFFERS) {
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
        Ok(0) if s.has(DEMOTED) => Outcome::Pass,
        Ok(n) => {
            if flags & libc::MSG_PEEK == 0 {
                let _g = s.rx.lock();
                match s.endpoint().filter(|_| s.path() == Path::Shm) {
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
fn expired(fd: i32, r: Ref<Socket>) -> bool {
    const CALLS: u32 = 256;
    if r.obj.has(REMOTE) {
        return upgrade::expired(fd, r);
    }
    let n = r.obj.calls.load(Ordering::Relaxed) + 1;
    r.obj.calls.store(n, Ordering::Relaxed);
    n > CALLS && !r.obj.has(OFFERS) && !cancel(fd, r)
}

/// The call goes on over shared memory, by the object, since the number may be closed.
fn reread(r: Ref<Socket>, dst: &mut Iov<'_>, flags: i32) -> Outcome {
    match r.obj.endpoint() {
        Some(ep) => super::io::receive(r, ep, dst, flags).into(),
        // The connection has left shared memory again meanwhile, or was closed.
        None if r.obj.path() == Path::Tcp => Outcome::Pass,
        None => Outcome::Failed(Errno::BADF),
    }
}

/// A write-like call on a socket without an endpoint.
pub fn transmit(fd: i32, r: Ref<Socket>, src: &mut Iov<'_>, flags: i32) -> Outcome {
    let s = r.obj;
    if !s.has(CANDIDATE) || expired(fd, r) {
        return if s.path() == Path::Shm { rewrite(r, src, flags, 0) } else { Outcome::Pass };
    }
    if flags & !(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE) != 0 || src.left() == 0 || src.bad() {
        return if cancel(fd, r) { rewrite(r, src, flags, 0) } else { Outcome::Pass };
    }
    let nonblock = flags & libc::MSG_DONTWAIT != 0 || s.has(NONBLOCK);
    if s.has(REMOTE) {
        upgrade_client::before_send(s, nonblock);
    }
    // The kernel must not decide whether the application gets SIGPIPE.
    let flags_there = flags | libc::MSG_NOSIGNAL;
    let (mut sent, mut pin) = (0usize, None);
    while src.left() > 0 {
        let asked = if src.whole().is_some() { src.left() } else { src.first().map_or(0, |(_, n)| n) };
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
            let res = by_kernel(fd, src, flags_there | libc::MSG_DONTWAIT, true);
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
            res = by_kernel(fd, src, flags_there, true);
            if res == Err(Errno::PIPE) && advance(fd, r) {
                return rewrite(r, src, flags, sent);
            }
            if res == Err(Errno::PIPE) && s.has(DEMOTED) {
                return if sent > 0 { Outcome::Done(sent as isize) } else { Outcome::Pass };
            }
        }
        match res {
            Ok(n) => {
                src.skip(n);
                sent += n;
                let _g = s.tx.lock();
                match s.endpoint().filter(|_| s.path() == Path::Shm) {
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
            Err(e) => return Outcome::Failed(super::io::pipe_signal(e, flags)),
        }
    }
    if s.has(REMOTE) {
        upgrade_client::after_send(fd, r);
    }
    Outcome::Done(sent as isize)
}

fn rewrite(r: Ref<Socket>, src: &mut Iov<'_>, flags: i32, sent: usize) -> Outcome {
    match r.obj.endpoint().map(|ep| super::io::transmit(r, ep, src, flags)) {
        Some(Ok(n)) => Outcome::Done((sent + n) as isize),
        _ if sent > 0 => Outcome::Done(sent as isize),
        Some(Err(e)) => Result::<usize>::Err(e).into(),
        // The connection has left shared memory again meanwhile, or was closed.
        None if r.obj.path() == Path::Tcp => Outcome::Pass,
        None => Outcome::Failed(Errno::BADF),
    }
}

/// Ends a candidacy for a call that we do not follow on TCP; true if the connection is on shared memory already.
pub fn given_up(fd: i32) -> bool {
    table::socket(fd).is_some_and(|r| if r.obj.has(CANDIDATE) { cancel(fd, r) } else { r.obj.path() == Path::Shm })
}
