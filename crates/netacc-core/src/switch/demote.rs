//! From shared memory to a kernel socket, while the connection lives.
//!
//! What a ring cannot do (exec by a program that inherits the connection, passing it to another process, stdio,
//! urgent data, signal-driven I/O), a kernel socket can do: so the connection gets one, under the same number, and the
//! byte stream goes on there. See [`netacc_transport::shm`]'s `offer_switch` for how no byte is lost on the way. Where the
//! two sides do not trust each other the ring stays, and a process of our own stands between it and the socket
//! ([`ring_relay`]).

use crate::fd::placeholder::to_kernel;
use crate::fd::table;
use crate::object::reference::Ref;
use crate::object::socket::{Path, Socket};
use crate::switch::to_kernel::complete;
use crate::switch::{pair, promote, redispatch, relay, ring_relay};
use netacc_stats::Reason;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::time;
use netacc_transport::Endpoint;
use netacc_transport::shm::ShmEndpoint;
use rustix::fd::AsRawFd;

/// Number of looks, a millisecond apart, at a connection that the peer or another of our sharers moves already.
const TRIES: usize = 2_000;

/// Makes the number a kernel socket like any other, with everything that comes over the connection. Costs one look-up
/// where it is one already. A failure is logged; a caller that passes no error on goes on without.
pub fn by_number(fd: i32, why: Reason) -> Result<()> {
    let done = table::socket(fd).map_or(Ok(()), |r| demote(fd, r, why));
    if let Err(e) = done {
        netacc_log::log!(Warn, "fd {fd}: cannot become a kernel socket ({}): {e}", why.name());
    }
    done
}

/// For calls that only a kernel socket carries: as [`by_number`], but only for a connection. A socket that is not
/// connected yet gets the same by way of its remembered options.
pub fn by_number_if_connected(fd: i32, why: Reason) {
    if let Some(r) = table::socket(fd).filter(|r| matches!(r.obj.path(), Path::Shm | Path::Tcp)) {
        let _ = demote(fd, r, why);
    }
}

/// Makes `fd` a kernel socket as [`by_number`] does, without logging a failure.
#[cold]
pub fn demote(fd: i32, r: Ref<Socket>, why: Reason) -> Result<()> {
    demote_in(TRIES, fd, r, why)
}

/// As [`demote`], but does not wait for a peer or a sharer that moves the connection already: `EAGAIN` then.
pub(crate) fn demote_now(fd: i32, r: Ref<Socket>, why: Reason) -> Result<()> {
    demote_in(1, fd, r, why)
}

fn demote_in(tries: usize, fd: i32, r: Ref<Socket>, why: Reason) -> Result<()> {
    let s = r.obj;
    match s.path() {
        Path::New => to_kernel(fd, s),
        Path::Listener => {
            crate::listen::opening::abandon(fd, s);
            Ok(())
        }
        Path::Tcp if !s.is_candidate() || !promote::cancel(fd, r) => Ok(()),
        Path::Tcp | Path::Shm => {
            // A connect that waits for a queue pair has no other side yet: it is made by the kernel instead.
            redispatch::instead(r);
            if s.endpoint().is_some_and(|ep| ep.old_subflow_fd() >= 0) {
                // The other end may be in this process too, and not have come over yet: no other thread would do that.
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

/// Takes the connection off the ring. `EAGAIN` when it is on its way elsewhere already.
fn offer(r: Ref<Socket>, why: Reason) -> Result<()> {
    let s = r.obj;
    let _locks = (s.rx.lock(), s.tx.lock());
    let Some(ep) = s.endpoint().filter(|_| r.valid() && s.is_shm()) else { return Ok(()) };
    // That a peer has just died is found out before anything is begun; for a peer that has forked the peer liveness
    // socket tells it.
    if ep.peer_liveness_fd() < 0 {
        ep.link().service_if_readable();
    }
    ep.readiness();
    if ep.is_moving() || ep.must_switch() {
        return Err(Errno::AGAIN);
    }
    if ep.has_accepted() {
        return bypass(s, ep, why);
    }
    let (local_end, peer_end) = pair::connected(s)?;
    let left = if ep.link().trust_is_mutual() {
        ep.offer_switch(&local_end, peer_end)
    } else {
        ring_relay::start(s, ep, peer_end)
    };
    if let Err(e) = left {
        pair::discard(local_end);
        return Err(e);
    }
    complete(s, ep, local_end.as_raw_fd(), why);
    pair::discard(local_end);
    Ok(())
}

/// The peer has left, and our ring is not read to its end: passes what is left on before what comes over its socket.
fn bypass(s: &'static Socket, ep: &'static ShmEndpoint, why: Reason) -> Result<()> {
    let (local_end, peer_end) = pair::connected(s)?;
    let done = ep.drain_rest(&local_end, &peer_end).and_then(|all| match all {
        // What was drained has left the ring for good.
        true => relay::start(peer_end.as_raw_fd(), ep.kernel_fd()).inspect_err(|_| ep.fail(Errno::CONNRESET)),
        false => Ok(()),
    });
    pair::discard(peer_end);
    if done.is_ok() {
        complete(s, ep, local_end.as_raw_fd(), why);
    }
    pair::discard(local_end);
    done
}
