//! The last steps of a connect over a link: the slot that was claimed becomes the socket's connection, and is queued.

use crate::conn::source_port::{narrow, no_port, reserve, shares_port};
use crate::conn::{ports, shown};
use crate::epoll::paths;
use crate::object::socket::{ConnState, Path, Socket};
use core::net::{IpAddr, SocketAddr};
use netacc_stats::Reason;
use netacc_sys::errno::Errno;
use netacc_transport::rdma::engine::order;
use netacc_transport::shm::claim::{Claim, Pushed};
use netacc_transport::shm::{ShmEndpoint, waker};

/// Attaches the socket to the claimed slot and queues the connect.
pub(super) fn occupy(
    fd: i32,
    s: &'static Socket,
    claim: Claim,
    bound: Option<SocketAddr>,
    ip: IpAddr,
    target: SocketAddr,
) -> core::result::Result<(), Reason> {
    let (link, slot) = (claim.link, claim.claimed.slot);
    let named = bound.filter(|b| b.port() != 0);
    let port = local_port(fd, s, &claim, bound, ip).inspect_err(|_| link.slots.closed(slot))?;
    let local = SocketAddr::new(ip, port);
    // A socket that was bound has taken its pair already (`take_pair`).
    if named.is_none() && shares_port(s) && !s.pair_name.take(local, target) {
        link.slots.closed(slot);
        return Err(Reason::NoPort);
    }
    let ep = claim.begin(local, target)?;
    waker::make_ahead(link);
    let locks = queue(s, ep, claim, (local, target))?;
    if named.is_some_and(|b| b.ip().is_unspecified()) {
        narrow(fd, s, local);
    }
    drop(locks);
    paths::accelerated(fd, s);
    shown::opened(s, ep, local, target);
    Ok(())
}

/// The local port of a connect: the one that the socket is bound to, that of the slot, or a new one.
fn local_port(
    fd: i32,
    s: &'static Socket,
    claim: &Claim,
    bound: Option<SocketAddr>,
    ip: IpAddr,
) -> core::result::Result<u16, Reason> {
    match bound.map(|b| b.port()).filter(|p| *p != 0) {
        Some(p) => Ok(p),
        None if claim.claimed.port != 0 && bound.is_none() && !shares_port(s) => Ok(claim.claimed.port),
        None => reserve(fd, s, claim.link, claim.claimed.slot, ip).map_err(|e| match e {
            // The address has left this host since it was last asked for.
            Errno::ADDRNOTAVAIL => {
                ports::forget_local(ip);
                Reason::OtherHost
            }
            e => no_port(e),
        }),
    }
}

/// Makes the socket the connection whose end `ep` is, and queues its connect. Returns the locks of both directions.
///
/// The server may be another thread of this process, and may use this end as soon as it accepts: so the socket is connected
/// before the connect is queued. If the connect is not queued after all, no thread has touched the endpoint, since other
/// calls wait for the locks. The claim holds the pool's lock, which comes after these two in the order. But a call that has
/// the locks of a socket which is not connected does not look for a link.
fn queue(
    s: &'static Socket,
    ep: &'static ShmEndpoint,
    claim: Claim,
    (local, target): (SocketAddr, SocketAddr),
) -> core::result::Result<impl Sized, Reason> {
    let (link, generation) = (claim.link, claim.claimed.generation);
    if let Some(engine) = link.engine() {
        order::enter(engine, target);
    }
    let leave_order = || link.engine().map_or((), |engine| order::withdraw(engine, target));
    let locks = (s.rx.lock_out_of_order(), s.tx.lock_out_of_order());
    // Another thread may have connected the socket meanwhile, and then it has an endpoint.
    let is_new = s.path() == Path::New;
    if is_new {
        s.local.set(local);
        s.peer.set(target);
        s.set_endpoint(ep);
    }
    if !(is_new && connects(s)) {
        ep.side.never_mind(generation);
        if is_new {
            s.detach();
        }
        leave_order();
        return Err(Reason::SharedSocket);
    }
    let pushed = claim.push();
    let goes_elsewhere = pushed == Pushed::Left || !link.accepting();
    if pushed == Pushed::Full || (goes_elsewhere && ep.side.withdraw()) {
        // The listener has ended meanwhile and has not taken the connect: kernel TCP will find out what listens there
        // now. The server cannot release a slot that was never queued.
        if pushed == Pushed::Full {
            ep.side.never_mind(generation);
        }
        s.set_state(ConnState::New);
        s.detach();
        leave_order();
        return Err(if pushed == Pushed::Left { Reason::NotTaken } else { Reason::Refused });
    }
    Ok(locks)
}

/// Makes the socket a connection in a ring. False: it has become one that a child of this process has, too.
fn connects(s: &Socket) -> bool {
    // A forking thread may be about to put a real socket under the number: see `materialize`.
    let _g = s.meta.lock();
    s.change(ConnState::New, ConnState::Shm)
}
