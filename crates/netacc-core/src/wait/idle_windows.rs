//! Gives the memory of drained windows back to the system, by threads that are about to sleep or have just not had to, and by
//! some of those that receive something.
//!
//! A hand goes round the numbers of the process's sockets, some at each look. It closes a window into which nothing was
//! written since its last visit and from which everything was read, so a connection in use keeps its window. Rounds begin a
//! second apart or more; while drained windows keep more than a process may have for its next messages, the hand goes on at
//! each sleep.

use crate::fd::table::{self, Entry};
use crate::object::reference::Ref;
use crate::object::socket::Socket;
use crate::timeouts;
use netacc_ring::SMALL;
use netacc_sys::{Locked, SharedCell, lock_rank, time};
use netacc_transport::shm::{budget, windows};

/// Number of numbers that a look which is due visits, and of windows that it closes.
const DUE: (usize, usize) = (1024, 32);
/// Number of numbers that a look visits, and of windows that it closes, in a thread that was not woken for a look.
const PASSING: (usize, usize) = (16, 4);
/// One of so many small messages of a connection has its reader look.
const SMALL_MESSAGES: u64 = 64;
/// The time between two rounds doubles this often at most while no window can be closed.
const DOUBLED: u32 = 4;
/// The time (ns) between two looks of a round.
const WITHIN_ROUND: u64 = time::ns(timeouts::IDLE_WINDOW_LOOK);
/// The shortest time (ns) between two looks of threads that were not woken for them.
const BETWEEN_PASSES: u64 = time::ns(timeouts::IDLE_WINDOW_PASS);
/// The time (ns) between two rounds.
const ROUND: u64 = time::ns(timeouts::IDLE_WINDOW_ROUND);

/// Where the looks have come to.
struct Turn {
    /// The number at which the next look begins.
    hand: usize,
    /// When a thread that was not woken for it has looked last ([`time::now`]).
    passed_at: u64,
    /// Number of windows that were closed in this round.
    closed: usize,
    /// Number of rounds in a row in which none was closed.
    idle_rounds: u32,
}

/// Taken by the thread that looks. Others go on without a look.
static TURN: Locked<{ lock_rank::NONE }, Turn> = Locked::new(Turn { hand: 0, passed_at: 0, closed: 0, idle_rounds: 0 });
/// When the next look is due ([`time::now`]). Written by the thread that looks, and read by all.
static DUE_AT: SharedCell<u64> = SharedCell::<u64>::new(0);

/// To be called before a thread sleeps. Returns the time ([`time::now`]) at which it is to wake for the next look, if one
/// will be due.
#[inline]
pub fn look() -> Option<u64> {
    if budget::large() == 0 { None } else { look_now() }
}

/// To be called where a thread has found what it waited for without a sleep: a program whose threads never sleep for long in a
/// call of ours keeps no memory for that.
#[inline]
pub fn look_in_passing() {
    // The coarse clock is late by some milliseconds at most, and so is the look.
    if budget::large() != 0 && time::coarse() >= DUE_AT.get() {
        look_now();
    }
}

/// To be called when a thread has received the `count`th message of a connection, of `n` bytes, perhaps without a wait: one
/// that sleeps in other calls alone comes by nowhere else. Of small messages one in some pays for the look at the clock.
#[inline]
pub fn look_after_message(n: usize, count: u64) {
    if n > SMALL || count.is_multiple_of(SMALL_MESSAGES) {
        look_in_passing();
    }
}

#[cold]
fn look_now() -> Option<u64> {
    let mut turn = TURN.try_lock()?;
    // The clock by which sleepers wake: by a coarser one a thread that wakes for a look would find it not due yet.
    let now = time::now();
    let due = DUE_AT.get();
    let (visits, closings) = match (now >= due, budget::is_over()) {
        (true, _) => DUE,
        (false, true) if now >= turn.passed_at.saturating_add(BETWEEN_PASSES) => {
            turn.passed_at = now;
            PASSING
        }
        (false, _) => return Some(due),
    };
    let mut closed = 0;
    let mut at = turn.hand;
    let end = at.saturating_add(visits).min(table::end());
    while at < end && closed < closings {
        table::each(at, at, |_, e| {
            if let Entry::Socket(r) = e {
                closed += usize::from(give_back(r, now));
            }
        });
        at += 1;
    }
    turn.closed += closed;
    let next = if at >= table::end() {
        turn.idle_rounds = if turn.closed == 0 { turn.idle_rounds.saturating_add(1).min(DOUBLED) } else { 0 };
        turn.closed = 0;
        turn.hand = 0;
        ROUND << turn.idle_rounds
    } else {
        turn.hand = at;
        WITHIN_ROUND
    };
    let next = now.saturating_add(next);
    DUE_AT.set(next);
    (budget::large() > 0).then_some(next)
}

/// Gives back the window of a connection that is idle. A connection that a thread is writing to just now is not.
fn give_back(r: Ref<Socket>, now: u64) -> bool {
    let s = r.obj;
    // Whether the window is open is looked at without the lock first, since most windows are not.
    let open = || s.ring().is_some_and(windows::is_open);
    if !open() {
        return false;
    }
    let Some(_writer) = s.tx.try_lock() else { return false };
    open() && s.endpoint().is_some_and(|ep| windows::give_back_if_idle(ep, now))
}
