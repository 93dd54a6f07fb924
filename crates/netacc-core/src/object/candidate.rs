//! A socket's data about its switch to a ring whose other end is on another host ([`crate::switch::upgrade`]) or in
//! another network namespace ([`crate::conn::neighbours`]).

use crate::object::held_by::HeldBy;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use netacc_wire::companion::TOKEN;

/// Data of a candidate whose other end is on another host.
#[derive(Debug, Default)]
pub struct Candidate {
    /// At a client, the time of its next or its last request; at a server, the time until which a request is accepted.
    /// At a client of a neighbour, the time at which it began to connect.
    pub(crate) when: AtomicU64,
    /// At a server, the number of read bytes at which it is prepared; 0: no request names one.
    pub(crate) wanted: AtomicU64,
    pub(crate) token: [AtomicU64; 2],
    /// Number of calls that are sending without the lock.
    pub(crate) sending: AtomicU32,
    /// At a client, its search for the neighbour that has the connection.
    pub(crate) search: Search,
    /// At a server, the time stamp of the SYN; see [`crate::switch::syn_stamp`].
    pub(crate) stamp: AtomicU64,
    /// Not 0 once the connection was offered to a process in another network namespace, or such a process has offered one
    /// that may be this one: it is told how much of it was read here.
    pub(crate) watched: AtomicU32,
    /// How far this side is in finding out whether that process has the other end.
    pub(crate) proving: Proving,
    /// An error that the kernel returned to a look of ours; the next call of the program reports it.
    pub(crate) error: AtomicI32,
    /// At a server, the processes that have the connection after forks.
    pub(crate) held_by: HeldBy,
    /// How often the connection has left a ring: a thread that was in a call meanwhile has to do with another kernel
    /// socket. Written under both direction locks.
    pub(crate) left: AtomicU32,
    /// For a connection that may come back to a ring, the ports of its kernel socket: its own in the lower half, the
    /// peer's in the upper. 0 for every other one.
    pub(crate) ports: AtomicU32,
    /// At the client of a connection that may come back, the time (ns) between its last attempt and the next one.
    pub(crate) pause: AtomicU64,
    /// Number of its offers that were refused, or not answered in time.
    pub(crate) refused: AtomicU32,
}

/// How far a client is in its search among the entrances in the host directory.
#[derive(Debug, Default)]
pub struct Search {
    /// A [`Stage`].
    pub(crate) stage: AtomicU32,
    /// Identifier of the entrance that was tried last.
    pub(crate) tried: AtomicU64,
    /// Port of that entrance's listener.
    pub(crate) port: AtomicU32,
    /// Number of entrances that were tried.
    pub(crate) tries: AtomicU32,
    /// Set once a process has shown that it may have the connection.
    pub(crate) matched: AtomicU32,
    /// Time at which the present offer was confirmed; 0: it was not.
    pub(crate) confirmed: AtomicU64,
    /// Set once a process that listens at the destination's port has said that the connection is not its own.
    pub(crate) denied: AtomicU32,
    /// Set once the socket of such a process was not ours to connect to.
    pub(crate) strange: AtomicU32,
    /// Number of searches that found nobody and were to be repeated.
    pub(crate) repeated: AtomicU32,
    /// Time (ns, [`netacc_sys::time::coarse`]) from which a repetition is due.
    pub(crate) due: AtomicU64,
}

/// How far a side is in finding out whether a process has the other end ([`crate::switch::proof`]).
#[derive(Debug, Default)]
pub struct Proving {
    /// Set if the process is the one by which an earlier connection from here to there was found.
    pub(crate) known: AtomicU32,
    /// Set if it is this connection's turn to delay its sends.
    pub(crate) turn: AtomicU32,
    /// Number of sends that the process's count has followed, for the present offer.
    pub(crate) proofs: AtomicU32,
    /// Number of sends that it has not followed in time.
    pub(crate) watched: AtomicU32,
    /// Number of sends in a row for which it had not read everything before.
    pub(crate) behind: AtomicU32,
    /// At a server, the offer: the number of its link, its slot and its generation.
    pub(crate) offer: [AtomicU32; 3],
    /// At a server, the number of bytes that it had read when it counted `unasked`.
    pub(crate) heard: AtomicU64,
    /// At a server, the number of its sends since it has read anything.
    pub(crate) unasked: AtomicU32,
}

impl Proving {
    /// Begins anew with another process.
    pub(crate) fn begin(&self) {
        for w in [&self.known, &self.proofs, &self.watched, &self.behind] {
            w.store(0, Ordering::Relaxed);
        }
    }
}

/// Which entrances a client tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stage {
    /// None: the other end is no neighbour.
    None = 0,
    /// The one by which an earlier connection to the destination was found.
    Remembered = 1,
    /// Those of listeners at the destination's port.
    SamePort = 2,
    /// All others: the port may be a published one, which the network translates.
    Others = 3,
    /// Those of processes that were forked for this connection.
    Own = 4,
}

impl Search {
    pub(crate) fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Relaxed) {
            1 => Stage::Remembered,
            2 => Stage::SamePort,
            3 => Stage::Others,
            4 => Stage::Own,
            _ => Stage::None,
        }
    }

    /// Begins anew, with this stage.
    pub(crate) fn begin(&self, stage: Stage) {
        for w in [&self.tries, &self.denied, &self.strange, &self.matched] {
            w.store(0, Ordering::Relaxed);
        }
        self.tried.store(0, Ordering::Relaxed);
        self.stage.store(stage as u32, Ordering::Relaxed);
    }

    /// Whether the other end may be a neighbour.
    pub(crate) fn is_on(&self) -> bool {
        self.stage() != Stage::None
    }
}

impl Candidate {
    /// Resets the data for another connection.
    pub(crate) fn reset(&self) {
        for w in [&self.when, &self.wanted, &self.stamp, &self.search.confirmed, &self.search.due, &self.pause] {
            w.store(0, Ordering::Relaxed);
        }
        let search = &self.search;
        for w in [
            &self.sending,
            &self.watched,
            &self.left,
            &self.ports,
            &self.refused,
            &search.repeated,
            &self.proving.turn,
            &self.proving.unasked,
        ] {
            w.store(0, Ordering::Relaxed);
        }
        search.begin(Stage::None);
        self.proving.begin();
        self.proving.heard.store(0, Ordering::Relaxed);
        self.proving.offer.iter().for_each(|w| w.store(0, Ordering::Relaxed));
        self.error.store(0, Ordering::Relaxed);
        self.held_by.reset();
    }

    pub(crate) fn set_token(&self, token: [u8; TOKEN]) {
        let n = u128::from_ne_bytes(token);
        let [a, b] = &self.token;
        a.store(n as u64, Ordering::Relaxed);
        b.store((n >> 64) as u64, Ordering::Relaxed);
    }

    pub(crate) fn token(&self) -> [u8; TOKEN] {
        let [a, b] = &self.token;
        (u128::from(b.load(Ordering::Relaxed)) << 64 | u128::from(a.load(Ordering::Relaxed))).to_ne_bytes()
    }
}
