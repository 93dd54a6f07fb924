//! How a process finds out whether one in another network namespace has the other end of its connection.
//!
//! A token in the stream, as for RDMA, would come to the wrong program if the process did not have the connection after
//! all: two pairs of containers may have the same addresses and ports, and have connected at the same moment. So nothing
//! is written that the program has not written. Instead each of the two processes publishes how many bytes of the
//! kernel's stream it has read, and one watches the other's count while it sends what the program sends in any case. It
//! delays a send by a random time, in which the count must not move, and after the send the count must follow at once. A
//! process that reads another connection moves its count at other times, and is found out by the first count that is too
//! high. Further connections to the same place and process need one send, without a delay.
//!
//! The client does that, which chooses the process. If it sends nothing the server does it, with its own sends and the
//! client's count.
//!
//! The sends are counted under the `tx` lock, and another thread that sends meanwhile makes a look worthless, not wrong.

use crate::conn::neighbours;
use crate::limits::{PROOFS, SENDS_BEHIND, SENDS_WATCHED, UNASKED_SENDS};
use crate::object::socket::{ConnState, Socket, Upgrade};
use crate::timeouts;
use core::cmp::Ordering as Order;
use core::sync::atomic::Ordering;
use netacc_sys::{raw, time};
use netacc_transport::shm::ShmEndpoint;
use netacc_transport::shm::promote::{self, OfferName};
use netacc_transport::shm::segment::CONNECT_QUEUED;
use rustix::rand::{GetRandomFlags, getrandom};

const PROOF_DELAY: u64 = time::ns(timeouts::PROOF_DELAY);
const PROOF_REACTION: u64 = time::ns(timeouts::PROOF_REACTION);
const PROOF_READER: u64 = time::ns(timeouts::PROOF_READER);

/// A process that may have the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Other {
    /// The server to which the client has offered it.
    Server(&'static ShmEndpoint),
    /// The client that has made this offer to the server, whose connection has this descriptor.
    Client(i32, OfferName),
}

impl Other {
    /// How many bytes of the kernel's stream it has read, as it says.
    fn has_read(self) -> Option<u64> {
        match self {
            Other::Server(ep) => ep.side.peer_has_read(),
            Other::Client(fd, offer) => {
                let mut read = None;
                promote::each_for(fd, |name, ep| {
                    if name == offer {
                        read = ep.side.peer_has_read();
                    }
                });
                read
            }
        }
    }
}

/// What a side has found out about a process.
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
    /// So many were read, which are not all.
    Fewer(u64),
    /// There is no count yet, or it is not known how many bytes were sent, since a thread is sending.
    Unknown,
    /// More were read than were sent.
    More,
}

fn count(s: &Socket, other: Other) -> Count {
    let _g = s.tx.lock();
    // SeqCst: see `upgrade_client::Sending`. A thread that sends without the lock has counted itself before.
    if s.upgrade.sending.load(Ordering::SeqCst) != 0 {
        return Count::Unknown;
    }
    let sent = s.kernel_sent.load(Ordering::Relaxed);
    let Some(read) = other.has_read() else { return Count::Unknown };
    s.upgrade.search.matched.store(1, Ordering::Relaxed);
    match read.cmp(&sent) {
        Order::Equal => Count::All(sent),
        Order::Less => Count::Fewer(read),
        Order::Greater => Count::More,
    }
}

/// Number of sends that have to be followed. One is enough where another connection to the same place was found at the
/// same process: then it is known that this network leads there.
fn needed(s: &Socket) -> u32 {
    if s.upgrade.proving.known.load(Ordering::Relaxed) != 0 { 1 } else { PROOFS }
}

fn is_open(s: &Socket) -> bool {
    s.upgrade.proving.proofs.load(Ordering::Relaxed) < needed(s)
}

/// The process about which this side finds out by its sends, if there is one.
pub(super) fn other(fd: i32, s: &Socket) -> Option<Other> {
    match s.candidate() {
        Some(Upgrade::Offered) if s.upgrade.search.is_on() => {
            s.endpoint().filter(|_| is_open(s) && s.is(ConnState::Candidate(Upgrade::Offered))).map(Other::Server)
        }
        Some(Upgrade::AwaitOffer) => client(fd, s),
        _ => None,
    }
}

/// Server: the client whose offer may be for this connection, if it sends nothing itself.
fn client(fd: i32, s: &Socket) -> Option<Other> {
    let proving = &s.upgrade.proving;
    if proving.unasked.load(Ordering::Relaxed) < UNASKED_SENDS {
        return None;
    }
    let stored = || {
        let [link, slot, generation] = proving.offer.each_ref().map(|w| w.load(Ordering::Relaxed));
        OfferName { link, slot, generation }
    };
    let mut found = None;
    promote::each_for(fd, |name, ep| {
        // The one of the last send, as long as it waits.
        if ep.side.outcome() == CONNECT_QUEUED && (found.is_none() || name == stored()) {
            found = Some(name);
        }
    });
    let offer = found?;
    if offer != stored() {
        for (cell, word) in proving.offer.iter().zip([offer.link, offer.slot, offer.generation]) {
            cell.store(word, Ordering::Relaxed);
        }
        proving.begin();
    }
    is_open(s).then_some(Other::Client(fd, offer))
}

/// Server: counts a send, and whether the client has sent anything since the last one.
pub(super) fn count_unasked(s: &Socket) {
    let (proving, read) = (&s.upgrade.proving, s.kernel_read.load(Ordering::Relaxed));
    if proving.heard.swap(read, Ordering::Relaxed) == read {
        let sends = proving.unasked.load(Ordering::Relaxed);
        proving.unasked.store(sends.saturating_add(1), Ordering::Relaxed);
    } else {
        proving.unasked.store(0, Ordering::Relaxed);
    }
}

fn delay(ns: u64) {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: ns.cast_signed() };
    let _ = raw::ppoll(core::ptr::null_mut(), 0, &raw mut ts, core::ptr::null());
}

/// To be called before a send: delays it while the count must not move. The result of `Open` is the number of bytes sent
/// so far if the send is to be watched.
pub(super) fn before_send(fd: i32, s: &Socket, other: Other, nonblock: bool) -> (Proof, Option<u64>) {
    let proving = &s.upgrade.proving;
    if proving.known.load(Ordering::Relaxed) == 0 && neighbours::is_known_by_now(s) {
        proving.known.store(1, Ordering::Relaxed);
        if proving.proofs.load(Ordering::Relaxed) > 0 {
            return (Proof::Given, None);
        }
    }
    let before = match count(s, other) {
        Count::All(sent) => sent,
        Count::Fewer(_) => match await_reader(fd, s, other, nonblock) {
            Some(sent) => sent,
            None => return (Proof::Open, None),
        },
        Count::Unknown => return (Proof::Open, None),
        Count::More => return (Proof::Failed, None),
    };
    proving.behind.store(0, Ordering::Relaxed);
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
    match count(s, other) {
        Count::All(sent) if sent == before => (Proof::Open, Some(before)),
        Count::More => (Proof::Failed, None),
        Count::All(_) | Count::Fewer(_) | Count::Unknown => (Proof::Open, None),
    }
}

/// Waits for a reader that is always behind, which otherwise never has read all that was sent: now and then, and not for
/// long. As long as the kernel holds bytes for it, it loses nothing by the pause; nor does a sender that the kernel would
/// have wait for the reader in any case. Returns the number of bytes sent, once all of them were read.
#[cold]
fn await_reader(fd: i32, s: &Socket, other: Other, nonblock: bool) -> Option<u64> {
    let sends = s.upgrade.proving.behind.fetch_add(1, Ordering::Relaxed) + 1;
    if sends < SENDS_BEHIND || !sends.is_power_of_two() || !neighbours::takes_turn(s) {
        return None;
    }
    let waits_anyway = !nonblock && raw::events_now(fd, libc::POLLOUT) == 0;
    let patience = if waits_anyway { PROOF_READER } else { PROOF_READER / 5 };
    let until = time::now().saturating_add(patience);
    loop {
        match count(s, other) {
            Count::All(sent) => return Some(sent),
            Count::Fewer(_) if time::now() < until => delay(PROOF_READER / 100),
            Count::Fewer(_) | Count::Unknown | Count::More => return None,
        }
    }
}

/// To be called after a watched send, before which `before` bytes had been sent: waits for the count to follow.
pub(super) fn after_send(s: &Socket, other: Other, before: u64) -> Proof {
    let proving = &s.upgrade.proving;
    let until = time::now().saturating_add(PROOF_REACTION);
    loop {
        match count(s, other) {
            Count::All(sent) if sent > before => {
                let proofs = proving.proofs.fetch_add(1, Ordering::Relaxed) + 1;
                return if proofs >= needed(s) { Proof::Given } else { Proof::Open };
            }
            Count::More => return Proof::Failed,
            Count::All(_) | Count::Fewer(_) | Count::Unknown => {}
        }
        if time::now() >= until {
            break;
        }
        // The other process may need this processor.
        delay(PROOF_REACTION / 10);
    }
    let watched = proving.watched.fetch_add(1, Ordering::Relaxed);
    if watched >= SENDS_WATCHED { Proof::Failed } else { Proof::Open }
}
