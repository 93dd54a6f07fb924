//! Writers that wait for room in a ring, although TCP would have given it to them.
//!
//! A ring holds less than the buffers of a TCP connection, which grow for a writer that waits. So programs that each
//! write all that they have before they read would wait for each other here, and not by TCP. There are three signs:
//!
//! - *Neither end reads.* Both rings of a connection are full, both writers wait, and no byte moves.
//! - *A circle.* A process waits for room on one connection, keeps the writer of another one waiting, and no byte moves in either
//!   of these directions. In a circle of any length this is so for the process that begins to wait last, at the latest: the one
//!   before it in the circle waits already. Nothing has to be known of other processes. A process that passes bytes on shows the
//!   same sign while its reader makes a long pause, so it has to last much longer.
//!
//! - *A queue.* The connect of a writer that waits is not accepted for long. TCP takes more bytes for one that is in the listener's
//!   queue, and the process that would accept it may be part of a circle.
//!
//! One direction alone that is full is none of them: its reader is slow, and its writer has to wait.
//!
//! A writer that finds no room notes that, and threads that are about to sleep wake for the next look ([`due`]). The socket
//! layer leaves the ring when no byte has moved for some time.

use crate::shm::ShmEndpoint;
use crate::shm::enough::peer_waits;
use crate::shm::rings::Rings;
use crate::shm::segment::CONNECT_TAKEN;
use crate::shm::side::Side;
use crate::shm::slot_side::View;
use crate::shm::windows;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use netacc_sys::time;

/// The time (ns) between two looks at connections neither of whose ends reads.
const LOOK: u64 = time::ns(crate::timeouts::STANDSTILL_LOOK);
/// The time (ns) between two looks at other writers that wait.
const WRITER_LOOK: u64 = time::ns(crate::timeouts::WRITER_LOOK);

/// When the writers that wait are looked at next ([`time::now`]); 0: none does.
static DUE: AtomicU64 = AtomicU64::new(0);

/// Number of looks that have to find the same before the ring is left: a program that was kept from running for long reads
/// what has come after the first ones.
const LOOKS: u32 = 3;
/// How long (ns) a connection with two full rings is looked at often while its peer does not wait. One that waits again notes
/// that itself.
const ABSENT: u64 = 10 * LOOK;

/// How many connections with untrusted users may still leave their ring so in this process. To leave such a ring takes a relay
/// process, and whoever is at its other end can bring that about.
static STRANGERS: AtomicU32 = AtomicU32::new(16);

/// When writers that wait are to be looked at ([`time::now`]); `None`: there are none.
#[inline]
pub fn due() -> Option<u64> {
    // Relaxed: a thread that sees an old value is woken by the thread that notes a writer, if it sleeps for the
    // connection.
    match DUE.load(Ordering::Relaxed) {
        0 => None,
        due => Some(due),
    }
}

/// What a look has found: the later the variant, the sooner the next look. `None`: no writer waits.
pub type Pace = Option<Looks>;

/// How often writers that wait are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Looks {
    /// A writer waits for its reader.
    Seldom,
    /// Neither end of a connection reads.
    Often,
}

/// A look at the writers that wait, which one thread makes at a time.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    now: u64,
    next: u64,
}

impl Round {
    /// Begins a look at the time `now`. `None`: it is not due, or another thread looks.
    pub fn begin(now: u64) -> Option<Round> {
        let (due, next) = (DUE.load(Ordering::Relaxed), now.saturating_add(WRITER_LOOK));
        // Acquire: pairs with [`wake_for`], so that this thread sees which connections were noted.
        let mine =
            due != 0 && now >= due && DUE.compare_exchange(due, next, Ordering::Acquire, Ordering::Relaxed).is_ok();
        mine.then_some(Round { now, next })
    }

    /// When the look was begun.
    pub fn now(self) -> u64 {
        self.now
    }

    /// Ends the look. A writer that was noted meanwhile has decided when the next one begins.
    pub fn end(self, pace: Pace) {
        let due = match pace {
            None => 0,
            Some(Looks::Seldom) => return,
            Some(Looks::Often) => self.now.saturating_add(LOOK),
        };
        let _ = DUE.compare_exchange(self.next, due, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Has threads look at the writers that wait, one of which was noted just now, at the time `at` or before it.
fn wake_for(at: u64) {
    // Release: see `Round::begin`. A nanosecond more shows a thread that looks just now that it may have missed this one.
    let _ = DUE.fetch_update(Ordering::Release, Ordering::Relaxed, |due| {
        Some(if due == 0 || at < due { at } else { due.saturating_add(1) })
    });
}

/// For how long a number of bytes has been the same, as looks have seen it.
#[derive(Debug, Default)]
struct Unmoved {
    bytes: AtomicU64,
    /// When the number was first seen ([`time::now`]); 0: it was not looked at.
    since: AtomicU64,
}

impl Unmoved {
    // Relaxed throughout: threads look one at a time (`Round::begin`), and what a writer stores before that is released with the
    // state of its connection.
    fn begin(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    /// Sees the number `bytes` at the time `now`, and returns for how long (ns) it has been that.
    fn see(&self, bytes: u64, now: u64) -> u64 {
        let since = self.since.load(Ordering::Relaxed);
        if self.bytes.swap(bytes, Ordering::Relaxed) == bytes && since != 0 {
            return now.saturating_sub(since);
        }
        self.since.store(now.max(1), Ordering::Relaxed);
        0
    }

    fn is(&self, bytes: u64) -> bool {
        self.bytes.load(Ordering::Relaxed) == bytes
    }
}

/// What one side has seen of the writers of a connection.
#[derive(Debug, Default)]
pub struct Standstill {
    /// [`FREE`], [`NOTED`], [`ALONE`] or [`GIVEN_UP`].
    state: AtomicU32,
    /// The bytes of both rings.
    both: Unmoved,
    /// Number of looks that have found both writers waiting for these.
    looks: AtomicU32,
    /// The bytes of the ring that this side writes.
    own: Unmoved,
    /// The bytes of the ring that this side reads.
    peers: Unmoved,
}

/// Value of [`Standstill::state`]: no writer is known to wait.
const FREE: u32 = 0;
/// Value of [`Standstill::state`]: our writer waits, and is looked at.
const NOTED: u32 = 1;
/// Value of [`Standstill::state`]: our writer waits for a reader that is slow. It is noted again once a byte has moved.
const ALONE: u32 = 2;
/// Value of [`Standstill::state`]: the connection stays in its ring, and is not looked at.
const GIVEN_UP: u32 = 3;

/// How a writer that waits is found, with the time (ns) for which no byte has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Both ends write and neither reads. Until that is certain, the time is 0.
    NeitherReads(u64),
    /// The peer may be a slow reader.
    PeerReadsNot(u64),
    /// The connect waits in its queue, where nobody reads.
    NotAccepted(u64),
}

impl Standstill {
    /// Begins with a connection whose writers do not wait.
    pub(super) fn begin(&self) {
        self.state.store(FREE, Ordering::Relaxed);
        self.peers.begin();
    }

    /// Whether our writer was found waiting, and is looked at.
    pub fn is_noted(&self) -> bool {
        // Acquire: what was seen first is seen with it.
        self.state.load(Ordering::Acquire) == NOTED
    }

    /// Leaves the connection in its ring whatever comes: it cannot become a kernel socket, or this process has none to give.
    pub fn give_up(&self) {
        self.state.store(GIVEN_UP, Ordering::Relaxed);
    }

    /// Leaves our writer waiting: its process keeps no other writer waiting.
    pub fn leave_alone(&self) {
        self.state.store(ALONE, Ordering::Relaxed);
    }

    /// Notes our writer of the connection `ep` if it waits. To be called by a writer that has asked for room and found
    /// none: the writers of both ends first ask and then look, so one of them sees the other. Returns whether that is new.
    #[cold]
    pub(super) fn note(&self, ep: &ShmEndpoint, v: &View) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        if matches!(state, NOTED | GIVEN_UP) || !waits(ep, v) {
            return false;
        }
        let (own, neither_reads) = (moved(v, v.me), is_kept(ep, v));
        if !neither_reads && (state == ALONE && self.own.is(own) || !ep.side.link().trust_is_mutual()) {
            return false;
        }
        if neither_reads && !may_leave(ep) {
            self.give_up();
            return false;
        }
        let now = time::now();
        self.both.begin();
        self.both.see(own.wrapping_add(moved(v, v.me.other())), now);
        self.own.begin();
        self.own.see(own, now);
        self.looks.store(0, Ordering::Relaxed);
        // Release: see `is_noted`.
        self.state.store(NOTED, Ordering::Release);
        wake_for(now.saturating_add(if neither_reads { LOOK } else { WRITER_LOOK }));
        true
    }

    /// Looks once more at our writer of the connection `ep`; `None`: it has room by now.
    pub fn look(&self, ep: &ShmEndpoint, now: u64) -> Option<Found> {
        let Some(v) = ep.side.view().filter(|v| waits(ep, v)) else {
            self.state.store(FREE, Ordering::Relaxed);
            return None;
        };
        let own = moved(&v, v.me);
        let both = self.both.see(own.wrapping_add(moved(&v, v.me.other())), now);
        let alone = self.own.see(own, now);
        if !is_accepted(&v) {
            return Some(Found::NotAccepted(alone));
        }
        // Relaxed: threads look one at a time.
        if both == 0 {
            self.looks.store(0, Ordering::Relaxed);
        }
        let peer_is_full = is_full(ep, &v);
        if peer_is_full && peer_waits(&v) {
            let looks = self.looks.fetch_add(1, Ordering::Relaxed) + 1;
            return Some(Found::NeitherReads(if looks >= LOOKS { both } else { 0 }));
        }
        // A peer that waits in steps does not wait between two of them.
        Some(if peer_is_full && both < ABSENT { Found::NeitherReads(0) } else { Found::PeerReadsNot(alone) })
    }

    /// For how long (ns) looks have found the peer's writer waiting while this side read no byte. 0: not at all, or this
    /// is the first look. `sure` says that a writer without room is taken for one that waits.
    pub fn keeps_peer(&self, ep: &ShmEndpoint, sure: bool, now: u64) -> u64 {
        let Some(v) = ep.side.view().filter(|v| is_full(ep, v)) else {
            self.peers.begin();
            return 0;
        };
        // A writer of this process does not wait while its thread looks.
        if sure || peer_waits(&v) { self.peers.see(moved(&v, v.me.other()), now) } else { 0 }
    }
}

/// Whether the connection may leave its ring for a standstill. Each answer counts as one.
pub fn may_leave(ep: &ShmEndpoint) -> bool {
    // Relaxed: the number stands for itself.
    let one_less = || STRANGERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
    ep.side.link().trust_is_mutual() || one_less().is_ok()
}

/// Whether the connection is in its ring. One to another host is not meant: its bytes move by the engine's work, and no kernel
/// socket here leads there.
fn lives(ep: &ShmEndpoint) -> bool {
    let state = ep.side.state.look();
    !(state.is_left() || state.is_dead() || ep.side.is_remote())
}

/// Whether a process has accepted the connection, and is at its other end.
fn is_accepted(v: &View) -> bool {
    v.slot.open.outcome.load(Ordering::Relaxed) == CONNECT_TAKEN
}

/// Whether our writer has no room.
fn waits(ep: &ShmEndpoint, v: &View) -> bool {
    lives(ep) && !ep.side.state.look().is_write_side_over() && !windows::has_room(ep, v)
}

/// Whether the peer's writer has no room.
fn is_full(ep: &ShmEndpoint, v: &View) -> bool {
    lives(ep) && is_accepted(v) && !ep.side.state.look().is_read_side_over() && !Rings::peer_has_room(v)
}

/// Whether the peer's writer has no room and waits for it.
fn is_kept(ep: &ShmEndpoint, v: &View) -> bool {
    is_full(ep, v) && peer_waits(v)
}

/// Number of bytes that were written to and read from the ring that `producer` writes. The words only grow, so an equal sum
/// means that none has changed. A peer that stores other values decides only when this side leaves the ring.
fn moved(v: &View, producer: Side) -> u64 {
    let (written, read) = (&line!(v, producer, producer).head, &line!(v, consumer, producer.other()).tail);
    written.load(Ordering::Relaxed).wrapping_add(read.load(Ordering::Relaxed))
}
