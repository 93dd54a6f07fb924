//! The server's side of a promotion ([`crate::switch::promote`]): which connection an offer is for, and the switch.

use crate::fd::table;
use crate::fd::table::Entry;
use crate::listen::{heirs, withdrawal};
use crate::object::held_by::Standing;
use crate::object::reference::Ref;
use crate::object::socket::{ConnState, Socket, Upgrade};
use crate::process_mode;
use crate::switch::to_ring::{promoted, switch_to_ring, tail_is_short};
use crate::switch::{comeback, syn_stamp};
use crate::timeouts;
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use netacc_sys::time;
use netacc_transport::shm::promote::{Neighbour, Offer, Settled};
use netacc_transport::shm::segment::CONNECT_QUEUED;
use netacc_transport::shm::{Link, ShmEndpoint, owner, promote};

const PROMOTION_ANSWER: u64 = time::ns(timeouts::PROMOTION_ANSWER);
const NEIGHBOUR_OFFER: u64 = time::ns(timeouts::NEIGHBOUR_OFFER);

/// Server: answers the offers that wait: one load if there is none.
#[inline]
pub fn settle_offers() {
    if promote::waiting() {
        match_offers();
    }
}

/// Server: takes up waiting links and offers for all listeners.
pub(super) fn listen_for_offers() {
    table::each(0, usize::MAX, |_, e| {
        if let Entry::Socket(r) = e
            && let Some(l) = r.obj.listener()
        {
            // A thread that sleeps on the listener takes links up itself; it would not notice the end of a link that
            // was taken up here.
            l.take_if(|l| l.waiters.load(Ordering::SeqCst) == 0);
            l.service_links();
            if l.has_siblings() {
                // This process goes on serving its connection, so what else its new clients want is for another one.
                withdrawal::leave_to_siblings(r.obj, l);
            }
        }
    });
    settle_offers();
}

/// Server: looks for the connections that clients have offered to promote.
#[cold]
fn match_offers() {
    promote::each(|link, Offer { slot, generation, neighbour }| {
        let Some(ep) = link.endpoint(slot as usize).filter(|e| slot != 0 && !e.side.is_live()) else {
            return Settled::Done;
        };
        let Some(open) = link.segment().and_then(|g| g.slot(slot as usize)).map(|s| &s.open) else {
            return Settled::Done;
        };
        let (Some(client), Some(server)) = (open.address(0), open.address(1)) else {
            ep.side.refuse(generation);
            return Settled::Done;
        };
        if process_mode::is_off() {
            ep.side.refuse(generation);
            return Settled::Done;
        }
        if let Some(neighbour) = neighbour {
            return match_neighbour(ep, generation, client, neighbour);
        }
        let found = find(client, server);
        let age = time::now().saturating_sub(open.when.load(Ordering::Relaxed));
        match found {
            Some((fd, r)) if may_claim(link, client, server) && tail_is_short(fd) => {
                accept_offer(fd, r, ep, generation);
                Settled::Done
            }
            // The server may still accept the connection, or read from it, in time.
            _ if age < PROMOTION_ANSWER && !link.is_lost() => Settled::Waits,
            _ => {
                ep.side.refuse(generation);
                Settled::Done
            }
        }
    });
}

/// Server: looks at an offer of a client in another network namespace. The connection whose SYN has the client's address
/// and time stamp may be the one; while the client finds out, it is told how much of the connection was read here.
#[inline(never)]
fn match_neighbour(ep: &'static ShmEndpoint, generation: u32, client: SocketAddr, neighbour: Neighbour) -> Settled {
    let known = if neighbour.fd < 0 { None } else { awaiting(neighbour.fd, client) };
    let found = known.or_else(|| find_neighbour(client, neighbour.stamp));
    // The kernel of this network namespace does not know whose socket a stranger's is, and this process may have become
    // another user since it was connected.
    match found.filter(|_| ep.side.link().trust_is_mutual() && ep.side.outcome() == CONNECT_QUEUED) {
        Some((fd, r))
            if neighbour.confirmed && tail_is_short(fd) && r.obj.upgrade.held_by.standing() != Standing::Shared =>
        {
            accept_offer(fd, r, ep, generation);
            Settled::Done
        }
        Some((fd, r)) if ep.side.age() < NEIGHBOUR_OFFER => {
            r.obj.upgrade.watched.store(1, Ordering::Relaxed);
            ep.side.publish_read(r.obj.kernel_read.load(Ordering::Relaxed));
            // A confirmed one only waits until few bytes are in flight.
            if neighbour.confirmed { Settled::Waits } else { Settled::For(fd) }
        }
        // The client makes its offer after some answers of the program, which had accepted the connection by then.
        _ => {
            ep.side.refuse(generation);
            Settled::Done
        }
    }
}

/// Server: accepts an offer and switches. Other threads see this as one step.
fn accept_offer(fd: i32, r: Ref<Socket>, ep: &'static ShmEndpoint, generation: u32) {
    let s = r.obj;
    {
        let _g = (s.rx.lock(), s.tx.lock());
        let awaited = r.valid() && s.is(ConnState::Candidate(Upgrade::AwaitOffer));
        let alone = s.upgrade.held_by.standing() == Standing::Alone;
        let there = awaited && alone && table::get(fd).is_some_and(|e| e.is(r));
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
    heirs::done(s);
    promoted(fd, s, ep);
}

/// The candidate for which `fits` is true.
fn find_awaiting(fits: impl Fn(i32, &Socket) -> bool) -> Option<(i32, Ref<Socket>)> {
    let mut found = None;
    table::each(0, usize::MAX, |fd, e| {
        if let Entry::Socket(r) = e
            && r.obj.is(ConnState::Candidate(Upgrade::AwaitOffer))
            && is_ours(r.obj)
            && fits(fd, r.obj)
        {
            found = Some((fd, r));
        }
    });
    found
}

/// Whether a connection is not one that a child of this process uses. The kernel tells only the first who asks about its
/// SYN.
fn is_ours(s: &Socket) -> bool {
    let held_by = &s.upgrade.held_by;
    !held_by.is_counted() || held_by.heir.load(Ordering::Relaxed) != 0
}

fn find(client: SocketAddr, server: SocketAddr) -> Option<(i32, Ref<Socket>)> {
    find_awaiting(|fd, s| {
        if comeback::was_in_ring(s) {
            comeback::is_between(fd, s, client, server)
        } else {
            s.peer.get() == Some(client) && s.local.get() == Some(server)
        }
    })
}

/// The connection of a client in another network namespace. The client's address is the same on both sides, unless the
/// network translates it; the server's may differ.
fn find_neighbour(client: SocketAddr, stamp: u32) -> Option<(i32, Ref<Socket>)> {
    find_awaiting(|fd, s| {
        s.peer.get() == Some(client) && !comeback::was_in_ring(s) && syn_stamp::matches(fd, &s.upgrade.stamp, stamp)
    })
}

/// The candidate under this number, if it still has the client at this address.
fn awaiting(fd: i32, client: SocketAddr) -> Option<(i32, Ref<Socket>)> {
    let r = table::socket(fd).filter(|r| is_ours(r.obj))?;
    (r.obj.is(ConnState::Candidate(Upgrade::AwaitOffer)) && r.obj.peer.get() == Some(client)).then_some((fd, r))
}

/// Whether the peer may promote the connection: a peer of another user may promote only connections that belong to that
/// user according to the kernel.
fn may_claim(link: &Link, client: SocketAddr, server: SocketAddr) -> bool {
    link.peer.is_trusted() || owner::connection_uid(client, server) == Some(link.peer.uid())
}
