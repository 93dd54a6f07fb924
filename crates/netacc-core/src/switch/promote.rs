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
//! - *One word says that a socket is a candidate, and how far it is* ([`ConnState`]). So a call that sees no candidate finds
//!   the path decided, and one that sees a candidate takes the locks. Nobody passes on to the kernel in between.
//! - A call that has to wait does so inside the kernel, which keeps the file whatever becomes of the number. The
//!   peer's half close wakes it, or our own; then it looks at the path.

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

/// Looks whether a candidate can go over. True: it is on shared memory now.
#[cold]
pub fn advance(fd: i32, r: Ref<Socket>) -> bool {
    let s = r.obj;
    if promote::waiting() {
        match_offers();
    }
    match s.candidate() {
        Some(Upgrade::AwaitOffer) => {
            // A server that blocks in this one connection hears of offers only here.
            if s.calls.load(Ordering::Relaxed) % 16 == 1 {
                listen_for_offers();
            }
            // Another thread may be about to take the offer.
            drop(s.rx.lock());
            s.is_shm()
        }
        Some(Upgrade::ToOffer) => {
            // Until the kernel has connected there is nothing to offer. One thread makes the offer.
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
            Some(ep) if ep.outcome() == CONNECT_QUEUED && !ep.link().is_lost() && ep.age() < PROMOTION_ANSWER => {
                ep.link().service_if_readable();
                false
            }
            Some(ep) => decide(fd, r, ep.outcome() != CONNECT_TAKEN),
            // Another thread has decided since.
            None => s.is_shm(),
        },
        Some(Upgrade::AwaitRequest | Upgrade::Prepared | Upgrade::ToRequest | Upgrade::Requested) => {
            upgrade::advance(fd, r)
        }
        Some(Upgrade::Linking) | None => s.is_shm(),
    }
}

/// Lets every connection whose offer was taken go over.
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
    crate::conn::ports::local_source(target.ip(), time::now()).ok_or(Reason::OtherHost)?;
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
    let wanted = r.valid() && s.is(ConnState::Candidate(Upgrade::Linking));
    if wanted {
        s.local.set(local);
        s.peer.set(target);
        s.set_endpoint(ep);
        s.set_state(ConnState::Candidate(Upgrade::Offered));
        if link.offer(claimed.slot as u32, claimed.generation).is_ok() {
            return Ok(());
        }
        s.set_state(ConnState::Candidate(Upgrade::Linking));
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
    if r.obj.candidate().is_some_and(Upgrade::is_remote) { upgrade::give_up(fd, r) } else { decide(fd, r, true) }
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
        let offered = s.endpoint().filter(|_| s.is(ConnState::Candidate(Upgrade::Offered)));
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
            Some((fd, r)) if may_claim(link, client, server) && tail_is_short(fd) => {
                accept_offer(fd, r, ep, generation);
                true
            }
            // The connection is still to be accepted, or to be read from.
            _ if age < PROMOTION_ANSWER && !link.is_lost() => false,
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
        let awaited = r.valid() && s.is(ConnState::Candidate(Upgrade::AwaitOffer));
        let there = awaited && table::get(fd).is_some_and(|e| e.is(r));
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
            && r.obj.is(ConnState::Candidate(Upgrade::AwaitOffer))
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

/// Ends a candidacy for a call that we do not follow on TCP; true if the connection is on shared memory already.
pub fn given_up(fd: i32) -> bool {
    table::socket(fd).is_some_and(|r| if r.obj.is_candidate() { cancel(fd, r) } else { r.obj.is_shm() })
}
