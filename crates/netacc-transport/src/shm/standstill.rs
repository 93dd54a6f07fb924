//! Connections at a standstill: both ends write, neither reads, and both rings are full.
//!
//! A ring holds less than the buffers of a TCP connection, which grow for a writer that waits. So two programs that each
//! write all that they have before they read would wait for each other here, and not by TCP. One direction alone that is
//! full is no standstill: its reader is slow, and its writer has to wait.
//!
//! A writer that finds no room notes the standstill, and threads that are about to sleep wake for the next look
//! ([`due`]). The socket layer leaves the ring when no byte has moved for some time.

use crate::shm::ShmEndpoint;
use crate::shm::enough::peer_waits;
use crate::shm::rings::Rings;
use crate::shm::segment::CONNECT_TAKEN;
use crate::shm::side::Side;
use crate::shm::slot_side::View;
use crate::shm::windows;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use netacc_sys::time;

/// The time (ns) between two looks.
const LOOK: u64 = time::ns(crate::timeouts::STANDSTILL_LOOK);

/// When the connections that stand still are looked at next ([`time::now`]); 0: none does.
static DUE: AtomicU64 = AtomicU64::new(0);

/// Number of looks that have to find the same before the ring is left: a program that was kept from running for long reads
/// what has come after the first ones.
const LOOKS: u32 = 3;
/// How long (ns) a connection whose peer does not wait is looked at. One that waits again notes the standstill itself.
const ABSENT: u64 = 10 * LOOK;

/// How many standstills with untrusted users may still end so in this process. To leave such a ring takes a relay process, and
/// whoever is at its other end can bring the standstill about.
static STRANGERS: AtomicU32 = AtomicU32::new(16);

/// When connections at a standstill are to be looked at ([`time::now`]); `None`: there are none.
#[inline]
pub fn due() -> Option<u64> {
    // Relaxed: a thread that sees an old value is woken by the thread that notes a standstill, if it sleeps for the
    // connection.
    match DUE.load(Ordering::Relaxed) {
        0 => None,
        due => Some(due),
    }
}

/// Time of the next look of a thread that goes to sleep now.
pub(super) fn next_look() -> u64 {
    time::now().saturating_add(LOOK)
}

/// Begins a look at the time `now`. `None`: it is not due, or another thread looks. The value is for [`end_round`].
pub fn begin_round(now: u64) -> Option<u64> {
    let (due, next) = (DUE.load(Ordering::Relaxed), now.saturating_add(LOOK));
    // Acquire: pairs with [`wake_for`], so that this thread sees which connections were noted.
    let mine = due != 0 && now >= due && DUE.compare_exchange(due, next, Ordering::Acquire, Ordering::Relaxed).is_ok();
    mine.then_some(next)
}

/// Ends a look that has found no connection at a standstill, unless one was noted meanwhile.
pub fn end_round(next: u64) {
    let _ = DUE.compare_exchange(next, 0, Ordering::Relaxed, Ordering::Relaxed);
}

/// Has threads look at the connections that stand still, one of which was noted just now.
fn wake_for(now: u64) {
    // Release: see `begin_round`. A nanosecond more shows a thread that looks just now that it may have missed this one.
    let _ = DUE.fetch_update(Ordering::Release, Ordering::Relaxed, |due| {
        Some(if due == 0 { now.saturating_add(LOOK) } else { due.saturating_add(1) })
    });
}

/// What one side has seen of a connection at a standstill.
#[derive(Debug, Default)]
pub struct Standstill {
    /// Number of bytes that were written to and read from both rings at the last look.
    moved: AtomicU64,
    /// When a look first found that number ([`time::now`]); 0: the connection was not at a standstill; [`GIVEN_UP`].
    since: AtomicU64,
    /// Number of looks that have found it.
    looks: AtomicU32,
}

/// Value of [`Standstill::since`] for a connection that stays in its ring, and is not looked at.
const GIVEN_UP: u64 = u64::MAX;

impl Standstill {
    /// Begins with a connection that is not at a standstill.
    pub(super) fn begin(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    /// Whether the last look has found a standstill.
    pub fn is_noted(&self) -> bool {
        !matches!(self.since.load(Ordering::Acquire), 0 | GIVEN_UP)
    }

    /// Leaves the connection in its ring whatever comes: it cannot become a kernel socket, or this process has none to give.
    pub fn give_up(&self) {
        self.since.store(GIVEN_UP, Ordering::Relaxed);
    }

    /// Notes that the connection `ep` is at a standstill if it is. To be called by a writer that has asked for room and
    /// found none: the writers of both ends first ask and then look, so one of them sees the other. Returns whether the
    /// standstill is new.
    #[cold]
    pub(super) fn note(&self, ep: &ShmEndpoint, v: &View) -> bool {
        // Acquire: see `restart`.
        let new = self.since.load(Ordering::Acquire) == 0 && peer_waits(v) && are_both_full(ep, v);
        if new && !may_leave(ep) {
            self.give_up();
            return false;
        }
        if new {
            let now = time::now();
            self.restart(now, moved(v));
            wake_for(now);
        }
        new
    }

    /// Looks once more at the connection `ep`, and returns for how long (ns) no byte has moved there; `None`: it is not
    /// at a standstill any more.
    pub fn look(&self, ep: &ShmEndpoint, now: u64) -> Option<u64> {
        let Some(v) = ep.side.view().filter(|v| are_both_full(ep, v)) else {
            self.begin();
            return None;
        };
        let (since, moved) = (self.since.load(Ordering::Acquire), moved(&v));
        if since == 0 || self.moved.load(Ordering::Acquire) != moved {
            self.restart(now, moved);
            return Some(0);
        }
        // Relaxed: threads look one at a time (`begin_round`).
        let looks = self.looks.load(Ordering::Relaxed).saturating_add(1);
        self.looks.store(looks, Ordering::Relaxed);
        let for_how_long = now.saturating_sub(since);
        match peer_waits(&v) {
            true if looks >= LOOKS => Some(for_how_long),
            // A peer that waits in steps does not wait between two of them.
            false if for_how_long > ABSENT => {
                self.begin();
                None
            }
            _ => Some(0),
        }
    }

    fn restart(&self, now: u64, moved: u64) {
        // Release, the time first: a thread that sees the new number sees the time that belongs to it.
        self.looks.store(0, Ordering::Relaxed);
        self.since.store(now.max(1), Ordering::Release);
        self.moved.store(moved, Ordering::Release);
    }
}

/// Whether the connection may leave its ring for a standstill. Each answer counts as one.
pub fn may_leave(ep: &ShmEndpoint) -> bool {
    // Relaxed: the number stands for itself.
    let one_less = || STRANGERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
    ep.side.link().trust_is_mutual() || one_less().is_ok()
}

/// Whether neither writer has room. A connection to another host is not meant: its bytes move by the engine's work, and
/// no kernel socket here leads there.
fn are_both_full(ep: &ShmEndpoint, v: &View) -> bool {
    let state = ep.side.state.look();
    let lives = !(state.is_left() || state.is_dead() || state.is_read_side_over() || state.is_write_side_over());
    // A connect that nobody has accepted has no writer at its other end.
    let taken = v.slot.open.outcome.load(Ordering::Relaxed) == CONNECT_TAKEN;
    lives && taken && !ep.side.is_remote() && !windows::has_room(ep, v) && !Rings::peer_has_room(v)
}

/// Number of bytes that were written to and read from both rings. The words only grow, so an equal sum means that none has
/// changed. A peer that stores other values decides only when this side leaves the ring.
fn moved(v: &View) -> u64 {
    let of = |side| {
        let (written, read) = (&line!(v, producer, side).head, &line!(v, consumer, side).tail);
        written.load(Ordering::Relaxed).wrapping_add(read.load(Ordering::Relaxed))
    };
    of(v.me).wrapping_add(of(v.me.other()))
}
