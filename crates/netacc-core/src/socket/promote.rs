//! From kernel TCP to shared memory, while the connection lives.
//!
//! With `NACC_CONN_TCP_FIRST` a client connects by TCP and then offers the server, over a link, to go on in
//! a slot. The server looks for a connection with these addresses among those it accepted and goes over: it
//! ends its half of the TCP stream and writes to the ring from then on. The client sees that its offer was
//! taken and does the same. What is still in the kernel each side reads first; the end of the kernel's stream
//! marks the byte where the ring goes on ([`ShmEndpoint::set_tail`]).
//!
//! As long as a connection may be promoted (a *candidate*), its bytes pass through our hands, one call at a
//! time under the direction locks, so that nobody sits in the kernel when the path changes.

use crate::epoll;
use crate::fdtable::{self, Entry, Ref};
use crate::outcome::Outcome;
use crate::socket::{CANDIDATE, NONBLOCK, OFFERS, Path, Socket, pool};
use core::sync::atomic::Ordering;
use netacc_stats::{Counter, Reason, Transport, page};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::time::Deadline;
use netacc_sys::{raw, time};
use netacc_transport::shm::segment::{FATE_QUEUED, FATE_TAKEN};
use netacc_transport::shm::{Link, ShmEndpoint, owner, promote};
use netacc_transport::{Endpoint, Iov};

/// An offer that nobody matched for so long (ns) is refused, and an offer that got no answer is withdrawn.
const PATIENCE: u64 = 2_000_000_000;

/// A candidate looks whether it can go over. True: it is on shared memory now.
#[cold]
pub fn advance(fd: i32, r: Ref<Socket>) -> bool {
    let s = r.obj;
    if promote::waiting() {
        settle();
    }
    if s.path() == Path::Shm {
        return true;
    }
    if !s.has(CANDIDATE) {
        return false;
    }
    if !s.has(OFFERS) {
        // A server that blocks in this connection alone hears of offers only here.
        if s.calls.load(Ordering::Relaxed) % 16 == 1 {
            listen_for_offers();
        }
        return s.path() == Path::Shm;
    }
    match s.endpoint() {
        None => {
            // Connected yet? Until then there is nothing to offer.
            if crate::addr::peer_of(fd).is_some() && offer(fd, s).is_err() {
                s.set(CANDIDATE, false);
            }
            false
        }
        Some(ep) => match ep.fate() {
            FATE_TAKEN => enter(fd, r, ep),
            FATE_QUEUED if !ep.link().is_lost() && ep.age() < PATIENCE => {
                ep.link().service_if_readable();
                false
            }
            _ => cancel(fd, r),
        },
    }
}

/// Lets every connection whose offer was taken go over.
#[cold]
pub fn advance_all() {
    fdtable::each(0, usize::MAX, |fd, e| {
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
    fdtable::each(0, usize::MAX, |_, e| {
        if let Entry::Socket(r) = e
            && let Some(l) = r.obj.listener()
        {
            l.take_links();
            l.service_links();
        }
    });
    if promote::waiting() {
        settle();
    }
}

/// Client: offers the connection to the server.
fn offer(fd: i32, s: &'static Socket) -> core::result::Result<(), Reason> {
    let local = crate::addr::local_of(fd).ok_or(Reason::Refused)?;
    let target = crate::addr::peer_of(fd).ok_or(Reason::Refused)?;
    let ip = netacc_transport::shm::rendezvous::destination;
    let local = core::net::SocketAddr::new(ip(local.ip()), local.port());
    let target = core::net::SocketAddr::new(ip(target.ip()), target.port());
    super::ports::local_source(target.ip(), time::now()).ok_or(Reason::OtherHost)?;
    let claim = pool::claim(target)?;
    let (link, claimed) = (claim.link, claim.claimed);
    let ep = link.endpoint(claimed.slot).filter(|e| e.begin(claimed.epoch)).ok_or(Reason::NoMemory)?;
    if let Some(sl) = link.segment().and_then(|seg| seg.slot(claimed.slot)) {
        sl.open.tell(local, target);
    }
    drop(claim);
    s.local.set(local);
    s.peer.set(target);
    if link.offer(claimed.slot as u32, claimed.epoch).is_err() {
        ep.withdraw();
        ep.close(true);
        return Err(Reason::Refused);
    }
    s.set_endpoint(ep);
    Ok(())
}

/// Gives a promotion up. True if it was too late for that, and the connection is on shared memory.
pub fn cancel(fd: i32, r: Ref<Socket>) -> bool {
    let s = r.obj;
    if s.path() == Path::Shm {
        return true;
    }
    if let Some(ep) = s.endpoint()
        && s.has(OFFERS)
        && !ep.withdraw()
        && ep.fate() == FATE_TAKEN
    {
        return enter(fd, r, ep);
    }
    let _g = (s.rx.lock(), s.tx.lock());
    if s.path() == Path::Shm {
        return true;
    }
    if s.set(CANDIDATE, false) {
        s.detach();
    }
    false
}

/// Goes over to the ring: our half of the TCP stream ends here.
fn enter(fd: i32, r: Ref<Socket>, ep: &'static ShmEndpoint) -> bool {
    let s = r.obj;
    {
        let _g = (s.rx.lock(), s.tx.lock());
        if !r.valid() || s.path() != Path::Tcp || !s.set(CANDIDATE, false) {
            return s.path() == Path::Shm;
        }
        let _ = raw::shutdown(fd, libc::SHUT_WR);
        ep.set_tail(fd);
        s.set_endpoint(ep);
        s.set_path(Path::Shm);
    }
    page().count(Counter::Promotions);
    if let Some(e) = s.stats() {
        e.set_transport(Transport::Shm);
        e.set_reason(Reason::None);
        e.set_peer_pid(ep.link().peer_pid());
        e.set_link(ep.link().id().into());
    }
    crate::log!(Info, "fd {fd}: promoted to shared memory");
    epoll::accelerated(fd, s);
    true
}

/// Server: looks for the connections that clients offered to promote.
#[cold]
pub fn settle() {
    promote::each(|link, slot, epoch| {
        let Some(ep) = link.endpoint(slot as usize).filter(|e| slot != 0 && !e.is_live()) else { return true };
        let Some(open) = link.segment().and_then(|g| g.slot(slot as usize)).map(|s| &s.open) else { return true };
        let (Some(client), Some(server)) = (open.told(0), open.told(1)) else {
            ep.refuse(epoch);
            return true;
        };
        let found = find(client, server);
        let age = time::now().saturating_sub(open.when.load(Ordering::Relaxed));
        match found {
            Some((fd, r)) if may_claim(link, client, server) => {
                if !ep.take() {
                    ep.never_mind(epoch);
                } else if ep.begin(epoch) && !enter(fd, r, ep) {
                    ep.close(true);
                }
                true
            }
            None if age < PATIENCE && !link.is_lost() => false,
            _ => {
                ep.refuse(epoch);
                true
            }
        }
    });
}

fn find(client: core::net::SocketAddr, server: core::net::SocketAddr) -> Option<(i32, Ref<Socket>)> {
    let mut found = None;
    fdtable::each(0, usize::MAX, |fd, e| {
        if let Entry::Socket(r) = e
            && r.obj.path() == Path::Tcp
            && r.obj.has(CANDIDATE)
            && !r.obj.has(OFFERS)
            && r.obj.peer.get() == Some(client)
            && r.obj.local.get() == Some(server)
        {
            found = Some((fd, r));
        }
    });
    found
}

/// A peer of another user may only promote connections that the kernel says are that user's.
fn may_claim(link: &Link, client: core::net::SocketAddr, server: core::net::SocketAddr) -> bool {
    link.trusts_peer() || owner::connection_uid(client, server) == Some(link.peer_uid())
}

fn kernel_deadline(ns: u64) -> Deadline {
    if ns == 0 { Deadline::Never } else { Deadline::after(ns as i64) }
}

/// Waits for the kernel's half of a candidate; the caller looks at the path again afterwards.
fn wait_kernel(fd: i32, events: i16, until: Deadline) -> Result<()> {
    let mut p = libc::pollfd { fd, events, revents: 0 };
    loop {
        let left = until.left();
        let mut ts = libc::timespec { tv_sec: left.max(0) / 1_000_000_000, tv_nsec: left.max(0) % 1_000_000_000 };
        let ts = if left < 0 { core::ptr::null_mut() } else { &raw mut ts };
        match raw::ppoll(&raw mut p, 1, ts, core::ptr::null()) {
            Ok(0) => return Err(Errno::AGAIN),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) if crate::wait::restarts(until) => {}
            Err(e) => return Err(e),
        }
    }
}

/// A read-like call on a socket without a channel: a candidate's bytes, or nothing of ours.
pub fn receive(fd: i32, r: Ref<Socket>, dst: &mut Iov<'_>, flags: i32) -> Outcome {
    let s = r.obj;
    if !s.has(CANDIDATE) || expired(fd, r) {
        // Another thread may have promoted it since the caller looked.
        return if s.path() == Path::Shm { again_read(fd, dst, flags) } else { Outcome::Pass };
    }
    // Calls with a meaning of their own are the kernel's; so is this connection then, for good.
    if flags & !(libc::MSG_DONTWAIT | libc::MSG_PEEK | libc::MSG_NOSIGNAL) != 0 || dst.left() == 0 || dst.bad() {
        return if cancel(fd, r) { again_read(fd, dst, flags) } else { Outcome::Pass };
    }
    let nonblock = flags & libc::MSG_DONTWAIT != 0 || s.has(NONBLOCK);
    let mut until = None;
    loop {
        let res = {
            let _g = s.rx.lock();
            if s.path() != Path::Tcp {
                drop(_g);
                return again_read(fd, dst, flags);
            }
            let Some((p, n)) = dst.first() else { return Outcome::Pass };
            raw::recv(fd, p, n, flags | libc::MSG_DONTWAIT)
        };
        match res {
            // The peer may have gone over between our look and this read: then it is no end.
            Ok(0) if advance(fd, r) => return again_read(fd, dst, flags),
            Ok(n) => {
                if let Some(e) = s.stats().filter(|_| flags & libc::MSG_PEEK == 0) {
                    e.received(n as u64);
                }
                return Outcome::Done(n as isize);
            }
            Err(Errno::AGAIN) if !nonblock => {
                let until = *until.get_or_insert_with(|| kernel_deadline(s.rcvtimeo.load(Ordering::Relaxed)));
                let Some(_pin) = r.pin() else { return Outcome::Failed(Errno::BADF) };
                if let Err(e) = wait_kernel(fd, libc::POLLIN, until) {
                    return Outcome::Failed(e);
                }
                advance(fd, r);
            }
            Err(e) => return Outcome::Failed(e),
        }
    }
}

/// A server's connection that nobody offered to promote for so many calls is left to the kernel.
fn expired(fd: i32, r: Ref<Socket>) -> bool {
    const CALLS: u32 = 256;
    let n = r.obj.calls.load(Ordering::Relaxed) + 1;
    r.obj.calls.store(n, Ordering::Relaxed);
    n > CALLS && !r.obj.has(OFFERS) && !cancel(fd, r)
}

fn again_read(fd: i32, dst: &mut Iov<'_>, flags: i32) -> Outcome {
    match super::io::channel(fd) {
        Some((r, ep)) => super::io::receive(r, ep, dst, flags).into(),
        None => Outcome::Failed(Errno::BADF),
    }
}

/// A write-like call on a socket without a channel.
pub fn transmit(fd: i32, r: Ref<Socket>, src: &mut Iov<'_>, flags: i32) -> Outcome {
    let s = r.obj;
    if !s.has(CANDIDATE) || expired(fd, r) {
        return if s.path() == Path::Shm { again_write(fd, src, flags, 0) } else { Outcome::Pass };
    }
    if flags & !(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE) != 0 || src.left() == 0 || src.bad() {
        return if cancel(fd, r) { again_write(fd, src, flags, 0) } else { Outcome::Pass };
    }
    let nonblock = flags & libc::MSG_DONTWAIT != 0 || s.has(NONBLOCK);
    let (mut sent, mut until) = (0usize, None);
    let partial = |sent: usize, e: Errno| if sent > 0 { Outcome::Done(sent as isize) } else { Outcome::Failed(e) };
    loop {
        let res = {
            let _g = s.tx.lock();
            if s.path() != Path::Tcp {
                drop(_g);
                return again_write(fd, src, flags, sent);
            }
            let Some((p, n)) = src.first() else { return Outcome::Done(sent as isize) };
            raw::send(fd, p, n, flags | libc::MSG_DONTWAIT)
        };
        match res {
            Ok(n) => {
                src.skip(n);
                sent += n;
                if let Some(e) = s.stats() {
                    e.sent(n as u64);
                }
                if src.left() == 0 {
                    return Outcome::Done(sent as isize);
                }
            }
            Err(Errno::AGAIN) if !nonblock => {
                let until = *until.get_or_insert_with(|| kernel_deadline(s.sndtimeo.load(Ordering::Relaxed)));
                let Some(_pin) = r.pin() else { return Outcome::Failed(Errno::BADF) };
                if let Err(e) = wait_kernel(fd, libc::POLLOUT, until) {
                    return partial(sent, e);
                }
                advance(fd, r);
            }
            Err(e) => return partial(sent, e),
        }
    }
}

fn again_write(fd: i32, src: &mut Iov<'_>, flags: i32, sent: usize) -> Outcome {
    match super::io::channel(fd).map(|(r, ep)| super::io::transmit(r, ep, src, flags)) {
        Some(Ok(n)) => Outcome::Done((sent + n) as isize),
        _ if sent > 0 => Outcome::Done(sent as isize),
        Some(Err(e)) => Outcome::Failed(e),
        None => Outcome::Failed(Errno::BADF),
    }
}

/// Calls that we do not follow on TCP end a candidacy; true if the connection is on shared memory already.
pub fn given_up(fd: i32) -> bool {
    fdtable::socket(fd).is_some_and(|r| r.obj.has(CANDIDATE) && cancel(fd, r))
}
