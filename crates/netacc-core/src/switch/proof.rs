//! How a client finds out whether a process in another network namespace has the other end of its connection.
//!
//! A token in the stream, as for RDMA, would come to the wrong program if the process did not have the connection after
//! all: two pairs of containers may have the same addresses and ports, and have connected at the same moment. So nothing
//! is written that the program has not written. Instead the process publishes how many bytes of the kernel's stream it
//! has read, and the client watches that count while it sends what the program sends in any case. It delays a send by a
//! random time, in which the count must not move, and after the send the count must follow at once. A process that reads
//! another connection moves its count at other times, and is found out by the first count that is too high. Further
//! connections to the same destination and process need one send, without a delay.
//!
//! The sends are counted under the `tx` lock, and another thread that sends meanwhile makes a look worthless, not wrong.

use crate::conn::neighbours;
use crate::limits::{PROOFS, SENDS_WATCHED};
use crate::object::socket::{ConnState, Socket, Upgrade};
use crate::timeouts;
use core::sync::atomic::Ordering;
use netacc_sys::{raw, time};
use netacc_transport::shm::ShmEndpoint;
use rustix::rand::{GetRandomFlags, getrandom};

const PROOF_DELAY: u64 = time::ns(timeouts::PROOF_DELAY);
const PROOF_REACTION: u64 = time::ns(timeouts::PROOF_REACTION);

/// What a client has found out about an offered connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// Nothing yet.
    Open,
    /// The process has the connection.
    Given,
    /// The process does not have the connection, or cannot show that it has it.
    Failed,
}

/// How the count of the other process compares with the bytes that were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    /// All bytes were read, and so many were sent.
    All(u64),
    /// Fewer were read, or it is not known which were sent: a thread is sending.
    Fewer,
    /// More were read than were sent.
    More,
}

fn count(s: &Socket, ep: &ShmEndpoint) -> Count {
    let _g = s.tx.lock();
    // SeqCst: see `upgrade_client::Sending`. A thread that sends without the lock has counted itself before.
    if s.upgrade.sending.load(Ordering::SeqCst) != 0 {
        return Count::Fewer;
    }
    let sent = s.kernel_sent.load(Ordering::Relaxed);
    let read = ep.side.peer_has_read();
    if read.is_some() {
        s.upgrade.search.matched.store(1, Ordering::Relaxed);
    }
    match read {
        Some(read) if read == sent => Count::All(sent),
        Some(read) if read > sent => Count::More,
        _ => Count::Fewer,
    }
}

/// Number of sends that have to be followed. One is enough where another connection to the same destination was found at
/// the same process: then it is known that this network leads there.
fn needed(s: &Socket) -> u32 {
    if s.upgrade.search.known.load(Ordering::Relaxed) != 0 { 1 } else { PROOFS }
}

/// The endpoint of a connection that is offered to a neighbour and not proven yet.
pub(super) fn watched(s: &Socket) -> Option<&'static ShmEndpoint> {
    let open = s.upgrade.search.is_on() && s.upgrade.search.proofs.load(Ordering::Relaxed) < needed(s);
    s.endpoint().filter(|_| open && s.is(ConnState::Candidate(Upgrade::Offered)))
}

fn delay(ns: u64) {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: ns.cast_signed() };
    let _ = raw::ppoll(core::ptr::null_mut(), 0, &raw mut ts, core::ptr::null());
}

/// To be called before a send: delays it while the count must not move. The result of `Open` is the number of bytes sent
/// so far if the send is to be watched.
pub(super) fn before_send(s: &Socket, ep: &ShmEndpoint) -> (Proof, Option<u64>) {
    let search = &s.upgrade.search;
    if search.known.load(Ordering::Relaxed) == 0 && neighbours::is_known_by_now(s) {
        search.known.store(1, Ordering::Relaxed);
        if search.proofs.load(Ordering::Relaxed) > 0 {
            return (Proof::Given, None);
        }
    }
    let before = match count(s, ep) {
        Count::All(sent) => sent,
        Count::Fewer => return (Proof::Open, None),
        Count::More => return (Proof::Failed, None),
    };
    if needed(s) == 1 {
        return (Proof::Open, Some(before));
    }
    if !neighbours::takes_turn(s) {
        return (Proof::Open, None);
    }
    let mut random = [0u8; 4];
    if getrandom(&mut random, GetRandomFlags::empty()) != Ok(random.len()) {
        return (Proof::Open, None);
    }
    delay(u64::from(u32::from_ne_bytes(random)) % PROOF_DELAY);
    match count(s, ep) {
        Count::All(sent) if sent == before => (Proof::Open, Some(before)),
        Count::More => (Proof::Failed, None),
        Count::All(_) | Count::Fewer => (Proof::Open, None),
    }
}

/// To be called after a watched send, before which `before` bytes had been sent: waits for the count to follow.
pub(super) fn after_send(s: &Socket, ep: &ShmEndpoint, before: u64) -> Proof {
    let search = &s.upgrade.search;
    let until = time::now().saturating_add(PROOF_REACTION);
    loop {
        match count(s, ep) {
            Count::All(sent) if sent > before => {
                let proofs = search.proofs.fetch_add(1, Ordering::Relaxed) + 1;
                return if proofs >= needed(s) { Proof::Given } else { Proof::Open };
            }
            Count::More => return Proof::Failed,
            Count::All(_) | Count::Fewer => {}
        }
        if time::now() >= until {
            break;
        }
        // The server may need this processor.
        delay(PROOF_REACTION / 10);
    }
    let watched = search.watched.fetch_add(1, Ordering::Relaxed);
    if watched >= SENDS_WATCHED { Proof::Failed } else { Proof::Open }
}
