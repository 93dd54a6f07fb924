//! Promotion: the switch of a live connection from kernel TCP to shared memory.
//!
//! With `NACC_CONN_TCP_FIRST` a client connects by TCP and then offers the server, over a link, to go on in a slot. The
//! server looks for a connection with these addresses among those that it accepted and switches: it ends its half of
//! the TCP stream and writes to the ring from then on. The client sees that its offer was accepted and does the same.
//! Each side first reads the bytes that are still in the kernel; the end of the kernel's stream marks the byte where
//! the ring goes on ([`netacc_transport::shm::OldSubflow::set`]).
//!
//! While a connection may be promoted (a *candidate*), the socket layer makes its reads and writes and does not pass
//! them to libc.
//!
//! Several threads may use one connection, and client and server may be threads of one process. Three rules keep them
//! from seeing an incomplete promotion:
//!
//! - *Every decision is made with both direction locks held, and is complete when they are released.* Under them the
//!   server marks the offer as accepted and changes the path, before any effect is visible; the client changes its path
//!   in the same way. A thread that reads an end of stream from the kernel socket, or gets it from poll or epoll,
//!   checks again under the locks ([`advance`]): if the end came from the peer's switch, the path shows it.
//! - *One word says that a socket is a candidate, and how far it is* ([`ConnState`]). So a call that sees no candidate
//!   finds the path decided, and one that sees a candidate takes the locks. No call is passed to the kernel in between.
//! - A call that has to wait sleeps inside the kernel, which keeps the file open even if the number is closed. The
//!   peer's half close or our own wakes it, and then it checks the path.

use crate::conn::pool;
use crate::fd::table;
use crate::fd::table::Entry;
use crate::object::reference::Ref;
use crate::object::socket::{ConnState, Socket, Upgrade};
use crate::switch::to_ring::{decided, promoted, switch_to_ring, tail_is_short};
use crate::switch::upgrade;
use crate::timeouts;
use core::sync::atomic::Ordering;
use netacc_stats::Reason;
use netacc_sys::time;
use netacc_transport::Endpoint;
use netacc_transport::shm::segment::{CONNECT_QUEUED, CONNECT_TAKEN};
use netacc_transport::shm::{Link, ShmEndpoint, owner, promote};

const PROMOTION_ANSWER: u64 = time::ns(timeouts::PROMOTION_ANSWER);

/// Switches a candidate if that is possible now. True: it is on shared memory now.
#[cold]
pub fn advance(fd: i32, r: Ref<Socket>) -> bool {
    let s = r.obj;
    if promote::waiting() {
        match_offers();
    }
    match s.candidate() {
        Some(Upgrade::AwaitOffer) => {
            // A server that blocks on this single connection notices offers only here.
            if s.calls.load(Ordering::Relaxed) % 16 == 1 {
                listen_for_offers();
            }
            // Waits for another thread that may be accepting the offer.
            drop(s.rx.lock());
            s.is_shm()
        }
        Some(Upgrade::ToOffer) => {
            // No offer is made before the kernel has connected, and only one thread makes it.
            if netacc_sys::addr::peer_of(fd).is_some()
                && tail_is_short(fd)
                && s.change(ConnState::Candidate(Upgrade::ToOffer), ConnState::Candidate(Upgrade::Linking))
                && offer(fd, r).is_err()
            {
                decide(fd, r, true);
            }
            s.is_shm()
        }
        Some(Upgrade::Offered) => match s.endpoint() {
            Some(ep)
                if ep.side.outcome() == CONNECT_QUEUED
                    && !ep.side.link().is_lost()
                    && ep.side.age() < PROMOTION_ANSWER =>
            {
                ep.side.link().service_if_readable();
                false
            }
            Some(ep) => decide(fd, r, ep.side.outcome() != CONNECT_TAKEN),
            // Another thread has decided meanwhile.
            None => s.is_shm(),
        },
        Some(Upgrade::AwaitRequest | Upgrade::Prepared | Upgrade::ToRequest | Upgrade::Requested) => {
            upgrade::advance(fd, r)
        }
        Some(Upgrade::Linking) | None => s.is_shm(),
    }
}

/// Switches every connection whose offer was accepted.
#[cold]
pub fn advance_all() {
    table::each(0, usize::MAX, |fd, e| {
        if let Entry::Socket(r) = e
            && r.obj.is_candidate()
        {
            advance(fd, r);
        }
    });
}

/// Server: takes up waiting links and offers for all listeners.
fn listen_for_offers() {
    table::each(0, usize::MAX, |_, e| {
        if let Entry::Socket(r) = e
            && let Some(l) = r.obj.listener()
        {
            // A thread that sleeps on the listener takes links up itself; it would not notice the end of a link that
            // was taken up here.
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
    crate::conn::ports::local_source(target.ip(), time::now()).ok_or(Reason::OtherHost)?;
    let member = s.member.load(Ordering::Relaxed);
    // Port 0, since for the connection's own port the kernel would name the connection and not its listener.
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
    // The endpoint is set before the offer is sent: the server may accept it at once, and a thread that checks then
    // must find the endpoint to switch to.
    let _g = (s.rx.lock(), s.tx.lock());
    let wanted = r.valid() && s.is(ConnState::Candidate(Upgrade::Linking));
    if wanted {
        s.local.set(local);
        s.peer.set(target);
        s.set_endpoint(ep);
        s.set_state(ConnState::Candidate(Upgrade::Offered));
        if link.control.offer(claimed.slot as u32, claimed.generation).is_ok() {
            return Ok(());
        }
        s.set_state(ConnState::Candidate(Upgrade::Linking));
        s.drop_endpoint();
    }
    ep.side.withdraw();
    // The server never saw the slot, so it cannot release it.
    ep.side.never_mind(claimed.generation);
    ep.close(true);
    Err(Reason::Refused)
}

/// Cancels a promotion. True: it was too late, and the connection is on shared memory.
pub fn cancel(fd: i32, r: Ref<Socket>) -> bool {
    if r.obj.candidate().is_some_and(Upgrade::is_remote) { upgrade::give_up(fd, r) } else { decide(fd, r, true) }
}

/// Decides for the client, or for a thread that cancels: switches if the offer was accepted; otherwise, with `give_up`,
/// the connection stays with the kernel for good. True: it is on shared memory now.
fn decide(fd: i32, r: Ref<Socket>, give_up: bool) -> bool {
    let s = r.obj;
    let ep = {
        let _g = (s.rx.lock(), s.tx.lock());
        if let Some(switched) = decided(r) {
            return switched;
        }
        let offered = s.endpoint().filter(|_| s.is(ConnState::Candidate(Upgrade::Offered)));
        match offered {
            Some(ep)
                if ep.side.outcome() == CONNECT_TAKEN
                    || (give_up && !ep.side.withdraw() && ep.side.outcome() == CONNECT_TAKEN) =>
            {
                if !switch_to_ring(fd, r, ep) {
                    return false;
                }
                ep
            }
            _ => {
                if give_up {
                    s.set_state(ConnState::Tcp);
                    s.detach();
                }
                return false;
            }
        }
    };
    promoted(fd, s, ep);
    true
}

/// Server: looks for the connections that clients have offered to promote.
#[cold]
pub fn match_offers() {
    promote::each(|link, slot, generation| {
        let Some(ep) = link.endpoint(slot as usize).filter(|e| slot != 0 && !e.side.is_live()) else { return true };
        let Some(open) = link.segment().and_then(|g| g.slot(slot as usize)).map(|s| &s.open) else { return true };
        let (Some(client), Some(server)) = (open.address(0), open.address(1)) else {
            ep.side.refuse(generation);
            return true;
        };
        let found = find(client, server);
        let age = time::now().saturating_sub(open.when.load(Ordering::Relaxed));
        match found {
            Some((fd, r)) if may_claim(link, client, server) && tail_is_short(fd) => {
                accept_offer(fd, r, ep, generation);
                true
            }
            // The server may still accept the connection, or read from it, in time.
            _ if age < PROMOTION_ANSWER && !link.is_lost() => false,
            _ => {
                ep.side.refuse(generation);
                true
            }
        }
    });
}

/// Server: accepts an offer and switches. Other threads see this as one step.
fn accept_offer(fd: i32, r: Ref<Socket>, ep: &'static ShmEndpoint, generation: u32) {
    let s = r.obj;
    {
        let _g = (s.rx.lock(), s.tx.lock());
        let awaited = r.valid() && s.is(ConnState::Candidate(Upgrade::AwaitOffer));
        let there = awaited && table::get(fd).is_some_and(|e| e.is(r));
        if !there || !ep.side.has_windows() {
            return ep.side.refuse(generation);
        }
        if !ep.side.take() {
            return ep.side.never_mind(generation);
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
            && r.obj.is(ConnState::Candidate(Upgrade::AwaitOffer))
            && r.obj.peer.get() == Some(client)
            && r.obj.local.get() == Some(server)
        {
            found = Some((fd, r));
        }
    });
    found
}

/// Whether the peer may promote the connection: a peer of another user may promote only connections that belong to that
/// user according to the kernel.
fn may_claim(link: &Link, client: core::net::SocketAddr, server: core::net::SocketAddr) -> bool {
    link.peer.is_trusted() || owner::connection_uid(client, server) == Some(link.peer.uid())
}

/// Ends the candidacy before a call that candidates do not support on TCP. True: the connection is on shared memory
/// already.
pub fn given_up(fd: i32) -> bool {
    table::socket(fd).is_some_and(|r| if r.obj.is_candidate() { cancel(fd, r) } else { r.obj.is_shm() })
}
