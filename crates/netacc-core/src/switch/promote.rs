//! Promotion: the switch of a live connection from kernel TCP to shared memory.
//!
//! With `NACC_CONN_TCP_FIRST` a client connects by TCP and then offers the server, over a link, to go on in a slot. The
//! server looks for a connection with these addresses among those that it accepted and switches: it ends its half of
//! the TCP stream and writes to the ring from then on. The client sees that its offer was accepted and does the same.
//! Each side first reads the bytes that are still in the kernel; the end of the kernel's stream marks the byte where
//! the ring goes on ([`netacc_transport::shm::OldSubflow::set`]).
//!
//! A client whose server is in another network namespace begins the same way, and offers the connection to one process
//! after the other ([`neighbours`]). The server then looks for the connection by the client's address and the time
//! stamp of its SYN.
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

use crate::conn::neighbours;
use crate::conn::pool::{self, ClaimFor};
use crate::fd::table::{self, Entry};
use crate::limits::CALLS_BEFORE_SEARCH;
use crate::listen::heirs;
use crate::object::reference::Ref;
use crate::object::socket::{ConnState, Socket, Upgrade};
use crate::switch::offers::{listen_for_offers, settle_offers};
use crate::switch::proof::{self, Other, Proof};
use crate::switch::to_ring::{decided, promoted, switch_to_ring, tail_is_short};
use crate::switch::{comeback, syn_stamp, upgrade};
use crate::timeouts;
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use netacc_stats::Reason;
use netacc_sys::time;
use netacc_transport::Endpoint;
use netacc_transport::shm::claim::Claim;
use netacc_transport::shm::segment::{CONNECT_QUEUED, CONNECT_TAKEN};
use netacc_transport::shm::{ShmEndpoint, promote};

const PROMOTION_ANSWER: u64 = time::ns(timeouts::PROMOTION_ANSWER);
const NEIGHBOUR_OFFER: u64 = time::ns(timeouts::NEIGHBOUR_OFFER);
const NEIGHBOUR_ANSWER_PAUSE: u64 = time::ns(timeouts::NEIGHBOUR_ANSWER_PAUSE);

/// Switches a candidate if that is possible now. True: it is on shared memory now.
#[cold]
pub fn advance(fd: i32, r: Ref<Socket>) -> bool {
    let s = r.obj;
    settle_offers();
    match s.candidate() {
        Some(Upgrade::AwaitOffer) => {
            // A server that blocks on this single connection notices offers only here. A neighbour makes none before it has
            // made some calls, and short connections should not pay for a look.
            let neighbours = s.upgrade.when.load(Ordering::Relaxed) != 0;
            if s.upgrade.held_by.heir.load(Ordering::Relaxed) != 0 {
                heirs::attend(s);
                settle_offers();
            }
            let turn = if neighbours { CALLS_BEFORE_SEARCH - 1 } else { 1 };
            if s.calls.load(Ordering::Relaxed) % CALLS_BEFORE_SEARCH == turn {
                listen_for_offers();
            }
            // Waits for another thread that may be accepting the offer.
            drop(s.rx.lock());
            s.is_shm()
        }
        Some(Upgrade::ToOffer) => {
            // No offer is made before the kernel has connected, and only one thread makes it.
            if neighbours::is_due(s)
                && comeback::is_due(s)
                && netacc_sys::addr::peer_of(fd).is_some()
                && tail_is_short(fd)
                && s.change(ConnState::Candidate(Upgrade::ToOffer), ConnState::Candidate(Upgrade::Linking))
                && let Err(why) = offer(fd, r)
                && !offers_again(r, why)
            {
                neighbours::note_reason(s, why);
                decide(fd, r, Otherwise::GiveUp);
            }
            s.is_shm()
        }
        Some(Upgrade::Offered) => match s.endpoint() {
            Some(ep)
                if ep.side.outcome() == CONNECT_QUEUED
                    && !ep.side.link().is_lost()
                    && ep.side.age() < patience(s, ep) =>
            {
                ep.side.link().service_if_readable();
                false
            }
            Some(ep) if ep.side.outcome() == CONNECT_TAKEN => decide(fd, r, Otherwise::Wait),
            Some(_) if s.upgrade.search.is_on() => decide(fd, r, Otherwise::GoOn),
            // Another process may have been asked than the one that has the connection, or one that is busy or off.
            Some(_) if comeback::tries_again(s) => decide(fd, r, Otherwise::Rest),
            Some(_) => decide(fd, r, Otherwise::GiveUp),
            // Another thread has decided meanwhile.
            None => s.is_shm(),
        },
        Some(Upgrade::AwaitRequest | Upgrade::Prepared | Upgrade::ToRequest | Upgrade::Requested) => {
            upgrade::advance(fd, r)
        }
        Some(Upgrade::Linking) | None => s.is_shm(),
    }
}

/// Whether the connection is offered to a neighbour, or may be offered by one, so that [`before_send`] is to be called.
#[inline]
pub fn is_watched(s: &Socket) -> bool {
    s.upgrade.search.is_on() || s.upgrade.watched.load(Ordering::Relaxed) != 0
}

/// To be called before a send on a connection that is offered to a neighbour, or perhaps by one. Returns the number of
/// bytes sent before, if [`after_send`] is to be called with it.
#[cold]
pub fn before_send(fd: i32, r: Ref<Socket>, nonblock: bool) -> Option<u64> {
    if !r.obj.upgrade.search.is_on() {
        proof::count_unasked(r.obj);
    }
    let other = proof::other(fd, r.obj)?;
    let (proof, watched) = proof::before_send(fd, r.obj, other, nonblock);
    act_on(proof, fd, r, other);
    watched
}

/// To be called after a watched send.
#[cold]
pub fn after_send(fd: i32, r: Ref<Socket>, before: u64) {
    if let Some(other) = proof::other(fd, r.obj) {
        act_on(proof::after_send(r.obj, other, before), fd, r, other);
    }
}

/// Confirms the offer; or makes it to another process, or refuses it.
#[inline(never)]
fn act_on(proof: Proof, fd: i32, r: Ref<Socket>, other: Other) {
    let s = r.obj;
    if proof != Proof::Open {
        neighbours::leave_turn(s);
    }
    match (other, proof) {
        (_, Proof::Open) => {}
        (Other::Server(_), Proof::Failed) => drop(decide(fd, r, Otherwise::GoOn)),
        (Other::Server(ep), Proof::Given) => {
            s.upgrade.search.confirmed.store(time::now(), Ordering::Relaxed);
            if ep.side.link().control.confirm_neighbour(&ep.side).is_err() {
                decide(fd, r, Otherwise::GoOn);
            }
        }
        (Other::Client(fd, offer), proof) => {
            let given = proof == Proof::Given;
            if given {
                neighbours::note_found(s)
            } else {
                neighbours::note_lost(s)
            }
            promote::answer(fd, offer, given);
            settle_offers();
        }
    }
}

/// Client: waits briefly for a neighbour's answer to the confirmed offer. A server accepts only while few bytes are in
/// flight, which a client that sends without a pause would never allow. True: the connection is on shared memory now.
#[cold]
pub fn await_neighbour(fd: i32, r: Ref<Socket>) -> bool {
    let s = r.obj;
    let confirmed = s.upgrade.search.confirmed.load(Ordering::Relaxed);
    let is_late = || time::now().saturating_sub(confirmed) >= NEIGHBOUR_ANSWER_PAUSE;
    while confirmed != 0 && s.is(ConnState::Candidate(Upgrade::Offered)) {
        match s.endpoint() {
            Some(ep) if ep.side.outcome() == CONNECT_TAKEN => return advance(fd, r),
            Some(ep) if ep.side.outcome() == CONNECT_QUEUED && !is_late() => upgrade::pause(),
            _ => break,
        }
    }
    s.is_shm()
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

/// Client: whether the connection, for which nobody takes an offer for this reason, is to be offered again later.
fn offers_again(r: Ref<Socket>, why: Reason) -> bool {
    let s = r.obj;
    let _g = (s.rx.lock(), s.tx.lock());
    if !r.valid() || !s.is(ConnState::Candidate(Upgrade::Linking)) {
        // Another thread has decided.
        return true;
    }
    let comes_back = comeback::was_in_ring(s);
    if comes_back {
        comeback::postpone(s);
    }
    let again = comes_back || neighbours::search_again(s, why);
    if again {
        s.set_state(ConnState::Candidate(Upgrade::ToOffer));
    }
    again
}

/// Client: claims a slot for an offer to a server on this host.
fn claim(s: &Socket, comes_back: bool, local: SocketAddr, target: SocketAddr) -> core::result::Result<Claim, Reason> {
    crate::conn::ports::local_source(target.ip(), time::now()).ok_or(Reason::OtherHost)?;
    let member = s.member.load(Ordering::Relaxed);
    // Port 0, since for the connection's own port the kernel would name the connection and not its listener.
    let from = SocketAddr::new(local.ip(), 0);
    // The kernel's socket of a connection that was in a ring before leads to no listener.
    let listener = if comes_back { s.peer.get().ok_or(Reason::Refused)? } else { target };
    pool::claim(from, listener, (member != 0).then_some(member), ClaimFor::Offer)
}

/// Client: offers the connection to the server.
fn offer(fd: i32, r: Ref<Socket>) -> core::result::Result<(), Reason> {
    let s = r.obj;
    let local = netacc_sys::addr::local_of(fd).ok_or(Reason::Refused)?;
    let target = netacc_sys::addr::peer_of(fd).ok_or(Reason::Refused)?;
    let ip = netacc_transport::shm::rendezvous::destination;
    let local = SocketAddr::new(ip(local.ip()), local.port());
    let target = SocketAddr::new(ip(target.ip()), target.port());
    let comes_back = comeback::was_in_ring(s);
    let across = s.upgrade.search.is_on();
    let stamp =
        across.then(|| syn_stamp::of_client(fd, s.upgrade.when.load(Ordering::Relaxed)).ok_or(Reason::NoTimeStamps));
    let stamp = stamp.transpose()?;
    let claim = if across { neighbours::claim(s, local, target)? } else { claim(s, comes_back, local, target)? };
    let (link, claimed) = (claim.link, claim.claimed);
    let ep = claim.begin(local, target)?;
    drop(claim);
    // The endpoint is set before the offer is sent: the server may accept it at once, and a thread that checks then
    // must find the endpoint to switch to.
    let _g = (s.rx.lock(), s.tx.lock());
    let wanted = r.valid() && s.is(ConnState::Candidate(Upgrade::Linking));
    if wanted {
        if !comes_back {
            s.local.set(local);
            s.peer.set(target);
        }
        s.set_endpoint(ep);
        s.set_state(ConnState::Candidate(Upgrade::Offered));
        if across {
            s.upgrade.watched.store(1, Ordering::Relaxed);
            publish_read(fd, s);
        }
        let sent = match stamp {
            Some(stamp) => link.control.offer_to_neighbour(claimed.slot as u32, claimed.generation, stamp),
            None => link.control.offer(claimed.slot as u32, claimed.generation),
        };
        if sent.is_ok() {
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
    if r.obj.candidate().is_some_and(Upgrade::is_remote) {
        upgrade::give_up(fd, r)
    } else {
        decide(fd, r, Otherwise::GiveUp)
    }
}

/// Withdraws the offer of a connection that has been in a ring, which then rests. True: it was too late, and the
/// connection is on shared memory.
pub(super) fn rest(fd: i32, r: Ref<Socket>) -> bool {
    decide(fd, r, Otherwise::Rest)
}

/// Cancels a promotion in a process that closes its last number for a connection which others have, too.
pub fn cancel_here(fd: i32, r: Ref<Socket>) {
    decide(fd, r, Otherwise::Close);
}

/// What becomes of a candidate whose offer was not accepted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Otherwise {
    /// Another thread has decided already, or will.
    Wait,
    /// The connection is offered to another process.
    GoOn,
    /// It is offered again when an operator permits that.
    Rest,
    /// The connection stays with the kernel for good.
    GiveUp,
    /// So it does in this process, which closes it.
    Close,
}

/// Decides for the client, or for a thread that cancels: switches if the offer was accepted. True: the connection is on
/// shared memory now.
fn decide(fd: i32, r: Ref<Socket>, otherwise: Otherwise) -> bool {
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
                    || (otherwise != Otherwise::Wait && !ep.side.withdraw() && ep.side.outcome() == CONNECT_TAKEN) =>
            {
                if !switch_to_ring(fd, r, ep) {
                    return false;
                }
                ep
            }
            _ => {
                if let Some(ep) = offered.filter(|_| otherwise != Otherwise::Wait && s.upgrade.search.is_on()) {
                    // The server looks at the offer again, and releases its slot. It does so in any case when the link ends.
                    let _ = ep.side.link().control.confirm_neighbour(&ep.side);
                }
                match otherwise {
                    Otherwise::Wait => {}
                    Otherwise::GoOn if offered.is_some() => {
                        neighbours::note_denied(s);
                        s.set_state(ConnState::Candidate(Upgrade::ToOffer));
                        s.detach();
                    }
                    Otherwise::Rest if offered.is_some() => {
                        comeback::postpone(s);
                        s.set_state(ConnState::Candidate(Upgrade::ToOffer));
                        s.detach();
                    }
                    Otherwise::GoOn | Otherwise::Rest => {}
                    Otherwise::GiveUp | Otherwise::Close => {
                        if otherwise == Otherwise::GiveUp {
                            // From here on the program's calls go to the kernel, and are not counted.
                            s.upgrade.held_by.spoil();
                        }
                        heirs::done(s);
                        neighbours::note_reason(s, Reason::Unsupported);
                        s.set_state(if comeback::was_in_ring(s) { ConnState::Demoted } else { ConnState::Tcp });
                        s.detach();
                    }
                }
                return false;
            }
        }
    };
    if s.upgrade.search.is_on() {
        neighbours::note_found(s);
    }
    promoted(fd, s, ep);
    true
}

/// Tells the process to which `fd` is offered, or the clients that may have its other end, how many bytes were read
/// here. Called under the `rx` lock after each read.
#[cold]
pub fn publish_read(fd: i32, s: &Socket) {
    let read = s.kernel_read.load(Ordering::Relaxed);
    if s.upgrade.search.is_on() {
        // The endpoint stays while the lock is held.
        if let Some(ep) = s.endpoint().filter(|_| s.is(ConnState::Candidate(Upgrade::Offered))) {
            ep.side.publish_read(read);
        }
    } else {
        promote::each_for(fd, |_, ep| ep.side.publish_read(read));
    }
}

/// How long an answer to the offer is waited for: a neighbour's is not due before the offer is confirmed.
fn patience(s: &Socket, ep: &ShmEndpoint) -> u64 {
    let confirmed = s.upgrade.search.confirmed.load(Ordering::Relaxed);
    match (s.upgrade.search.is_on(), confirmed) {
        (true, 0) if ep.side.peer_has_read().is_some() => NEIGHBOUR_OFFER,
        (true, when) if when != 0 => ep.side.age().saturating_add(PROMOTION_ANSWER).saturating_sub(time::now() - when),
        _ => PROMOTION_ANSWER,
    }
}

/// Ends the candidacy before a call that candidates do not support on TCP. True: the connection is on shared memory
/// already.
pub fn given_up(fd: i32) -> bool {
    table::socket(fd).is_some_and(|r| match r.obj.state() {
        ConnState::Candidate(_) => cancel(fd, r),
        state => state == ConnState::Shm,
    })
}
