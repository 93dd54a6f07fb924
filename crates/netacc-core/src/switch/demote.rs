//! Demotion: the switch of a live connection from shared memory to a kernel socket.
//!
//! Some calls need a kernel socket: exec by a program that inherits the connection, passing it to another process,
//! stdio, urgent data, signal-driven I/O, setuid(2) with a peer in another container. So the connection gets one under
//! the same number, and the byte stream goes on there. `offer_switch` in [`netacc_transport::shm`] explains how no byte
//! is lost. If the two sides do not trust each other, or more bytes are unread than a socket takes, the ring stays, and a
//! process of our own relays between it and the socket ([`ring_relay`]).

use crate::fd::placeholder::{share, to_kernel};
use crate::fd::table;
use crate::object::reference::Ref;
use crate::object::socket::{Path, SLEPT_ON, Socket};
use crate::switch::to_kernel::complete;
use crate::switch::{comeback, pair, promote, redispatch, relay, ring_relay};
use netacc_stats::Reason;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{raw, time};
use netacc_transport::Endpoint;
use netacc_transport::shm::segment::Leave;
use netacc_transport::shm::switch::Left;
use netacc_transport::shm::{ShmEndpoint, reset_at_close};
use rustix::fd::AsRawFd;

/// Number of checks, a millisecond apart, of a connection that the peer or another sharer is already switching.
const TRIES: usize = 2_000;

/// What a socket's buffer is to have (bytes) that has to take all that a ring can have. The kernel doubles the number, and
/// limits it (`net.core.wmem_max`, socket(7)).
const WHOLE_RING: i32 = netacc_ring::LARGE as i32;

/// Makes the number an ordinary kernel socket that carries on the connection. If it is one already, this costs one
/// look-up. A failure is logged, and a caller that cannot report it continues without the switch.
pub fn by_number(fd: i32, why: Reason) -> Result<()> {
    let done = table::socket(fd).map_or(Ok(()), |r| demote(fd, r, why));
    if let Err(e) = done {
        netacc_log::log!(Warn, "fd {fd}: cannot become a kernel socket ({}): {e}", why.name());
    }
    done
}

/// Demotes the socket if it is connected, for calls that only a kernel socket supports. A socket that is not connected
/// yet remembers the call as an option instead.
pub fn by_number_if_connected(fd: i32, why: Reason) {
    if let Some(r) = table::socket(fd).filter(|r| matches!(r.obj.path(), Path::Shm | Path::Tcp)) {
        let _ = demote(fd, r, why);
    }
}

/// Makes `fd` a kernel socket as [`by_number`] does, but does not log a failure.
#[cold]
pub fn demote(fd: i32, r: Ref<Socket>, why: Reason) -> Result<()> {
    demote_in(TRIES, fd, r, why)
}

/// As [`demote`], but does not wait for a peer or a sharer that moves the connection already: `EAGAIN` then.
pub(crate) fn demote_now(fd: i32, r: Ref<Socket>, why: Reason) -> Result<()> {
    demote_in(1, fd, r, why)
}

fn demote_in(tries: usize, fd: i32, r: Ref<Socket>, why: Reason) -> Result<()> {
    loop {
        demote_once(tries, fd, r, why)?;
        // The peer may have left for an operator's request in between: what comes next needs the kernel's socket.
        if why == Reason::Operator || !r.obj.is_candidate() || !promote::cancel(fd, r) {
            return Ok(());
        }
    }
}

fn demote_once(tries: usize, fd: i32, r: Ref<Socket>, why: Reason) -> Result<()> {
    let s = r.obj;
    match s.path() {
        // A thread that is just making an offer is not waited for; the caller tries again.
        Path::Tcp if why == Reason::Operator && comeback::may_rest(s) && !promote::rest(fd, r) => Ok(()),
        Path::New if matches!(why, Reason::Passed | Reason::Exec) => share(fd, s),
        Path::New => to_kernel(fd, s),
        Path::Listener => {
            crate::listen::opening::abandon(fd, s);
            Ok(())
        }
        Path::Tcp if !s.is_candidate() || !promote::cancel(fd, r) => Ok(()),
        Path::Tcp | Path::Shm => {
            // A connect that waits for a queue pair has no peer yet, so the kernel makes it instead.
            redispatch::instead(r);
            if s.endpoint().is_some_and(|ep| ep.old_subflow.fd() >= 0) {
                // The peer of a promotion may be in this process and not have switched yet, and no other thread might
                // do that.
                promote::advance_all();
            }
            for n in 1..=tries {
                match offer(r, why) {
                    Err(Errno::AGAIN) => {
                        redispatch::complete_switch(r);
                        if n < tries {
                            time::pause();
                        }
                    }
                    done => return done,
                }
            }
            Err(Errno::AGAIN)
        }
    }
}

/// Offers the peer the switch to a kernel socket and makes it. `EAGAIN`: another switch of the connection is in
/// progress, or the program has to read first, which only an operator's request waits for.
fn offer(r: Ref<Socket>, why: Reason) -> Result<()> {
    let s = r.obj;
    let _locks = (s.rx.lock(), s.tx.lock());
    let Some(ep) = s.endpoint().filter(|_| r.valid() && s.is_shm()) else { return Ok(()) };
    // A peer that has just died is detected before the switch begins. If the peer has forked, the peer liveness socket
    // shows its death.
    if ep.liveness.peer_fd() < 0 {
        ep.side.link().service_if_readable();
    }
    ep.readiness();
    if ep.side.is_moving() || ep.must_switch() {
        return Err(Errno::AGAIN);
    }
    if ep.side.has_accepted() {
        return bypass(s, ep, why);
    }
    let (local_end, peer_end) = pair::connected(s)?;
    let how_long = comeback::how_long(s, ep, why);
    let unread = Left::unread(ep, &peer_end);
    // A relay, which a connection between two users has, reads any number of bytes.
    if why == Reason::Operator && unread != Left::Fits && ep.side.link().trust_is_mutual() {
        // It has carried nothing, and is made again at the next attempt: no number of a port is to stay in use for it.
        reset_at_close(local_end.as_raw_fd());
        pair::discard(local_end);
        pair::discard(peer_end);
        return Err(Errno::AGAIN);
    }
    // A relay reads what a socket does not take, so that this call does not wait for the program. It would not read an
    // old subflow.
    let all_at_once = unread != Left::TooMuch || ep.old_subflow.fd() >= 0;
    let left = if ep.side.link().trust_is_mutual() && all_at_once {
        let left = ep.offer_switch(&local_end, &peer_end, how_long);
        pair::discard(peer_end);
        left
    } else {
        ring_relay::start(s, ep, peer_end)
    };
    if let Err(e) = left {
        pair::discard(local_end);
        return Err(e);
    }
    note_sleepers(s);
    complete(s, ep, local_end.as_raw_fd(), (why, how_long));
    pair::discard(local_end);
    Ok(())
}

/// Notes that calls may sleep on a socket that is about to become the kernel's: if another thread closes the number before a
/// woken call is made anew, the call goes on by a number of ours, as in the kernel it has the file.
fn note_sleepers(s: &Socket) {
    // A call that does not sleep may have the reference: then the close looks at the socket for nothing.
    if s.is_pinned_beside(1) {
        s.set(SLEPT_ON, true);
    }
}

/// Demotes a connection whose peer has left the ring before we have read it to its end: the unread bytes are passed on
/// before those of the peer's socket.
fn bypass(s: &'static Socket, ep: &'static ShmEndpoint, why: Reason) -> Result<()> {
    let (local_end, peer_end) = pair::connected(s)?;
    let buffer = raw::getsockopt_int(peer_end.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF).unwrap_or(0);
    if buffer < 2 * WHOLE_RING {
        // Nobody but the relay sends there, so it needs no buffer that grows by itself.
        let _ = raw::setsockopt_int(peer_end.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, WHOLE_RING);
    }
    let done = ep.drain_rest(&local_end, &peer_end).and_then(|all| match all {
        // The drained bytes are no longer in the ring, so a failure ends the connection.
        true => relay::start(peer_end.as_raw_fd(), ep.passed.kernel_fd()).inspect_err(|_| ep.fail(Errno::CONNRESET)),
        false => Ok(()),
    });
    pair::discard(peer_end);
    if done.is_ok() {
        note_sleepers(s);
        complete(s, ep, local_end.as_raw_fd(), (why, Leave::ForGood));
    }
    pair::discard(local_end);
    done
}
