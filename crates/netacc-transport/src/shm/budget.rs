//! The memory that the windows of this process may use, in the three stages of `tcp_mem` (tcp(7)).
//!
//! Each connection costs its small windows, and each large window that this process writes costs as many bytes
//! as are open of it. The kernel charges a page to the process that touches it first, which is the writer, so each process
//! counts the windows that it writes. Up to half of the budget windows open as their writers need; above it each opens to 32 KiB at most; at its end none
//! opens, and a writer that finds its small window full waits for the reader, as a TCP sender does.

use crate::shm::memory_limit::Limits;
use crate::timeouts;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use netacc_ring::{SMALL, STEP};
use netacc_stats::{Counter, page};
use netacc_sys::{SharedCell, time};

/// What a connection costs without its large windows (bytes): its small ones, its shared words, and what both ends know of it
/// (measured).
const CONNECTION: u64 = 2 * SMALL as u64 + 2048;
/// As long as the windows use less (bytes), the limits of the process are not read.
const UNQUESTIONED: u64 = 1 << 20;
/// The part of the smallest limit that windows may use, and the most that they may use without being configured (bytes).
const PART: u64 = 8;
const MOST: u64 = 1 << 30;
/// The budget (bytes) of a process that cannot know its limits: /proc or the control groups are hidden from it. It is that of a
/// small container.
const UNKNOWN: u64 = 8 << 20;
/// The part of what is left of a limit that windows may take until that is read again.
const PART_OF_REST: u64 = 16;
/// The part of the budget that the connections with untrusted users may have together: nobody else is stopped by them.
const PART_OF_STRANGERS: u64 = 4;
/// The extent (bytes) to which a window may open when more than half of the budget is used.
pub(super) const MODEST: usize = 32 << 10;
/// What drained windows may keep (bytes): this, and for each connection [`KEPT_EACH`].
const KEPT: u64 = 1 << 20;
const KEPT_EACH: u64 = 8 << 10;

/// What the windows use (bytes), and of that the windows towards untrusted users.
static USED: AtomicU64 = AtomicU64::new(0);
static STRANGERS: AtomicU64 = AtomicU64::new(0);
/// The number of the process among its ancestors, each of which has counted its connections itself; never 0.
static PROCESS: SharedCell<u32> = SharedCell::<u32>::new(1);
/// Number of connections that [`USED`] counts.
static CONNECTIONS: AtomicU64 = AtomicU64::new(0);
/// The budget in bytes; `u64::MAX` until it is first needed.
static BUDGET: SharedCell<u64> = SharedCell::<u64>::new(u64::MAX);
/// The budget (bytes) that the configuration gives; 0: it follows from the limits of the process.
static CONFIGURED: SharedCell<u64> = SharedCell::<u64>::new(0);
/// When the limits are read again ([`time::coarse`]).
static READ_AGAIN: AtomicU64 = AtomicU64::new(0);

/// The kind of user that owns the process at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// Our own user, root, or a member of the host directory's group.
    Trusted,
    /// Any other user.
    Stranger,
}

/// Sets the budget (bytes); 0: it follows from the limits of the process.
pub fn configure(bytes: u64) {
    CONFIGURED.set(bytes);
}

/// Counts a connection that begins.
pub(super) fn connection_begins() {
    CONNECTIONS.fetch_add(1, Ordering::Relaxed);
    charge(Peer::Trusted, CONNECTION);
}

/// Counts a connection that has ended, and the `open` bytes of its large window.
pub(super) fn connection_ended(peer: Peer, open: usize) {
    let _ = CONNECTIONS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
    release(Peer::Trusted, CONNECTION);
    closed(peer, open);
}

/// Whether there is memory for a new connection.
pub fn admits() -> bool {
    // Relaxed, here and below: the numbers order nothing. A budget that another thread has just used up is exceeded by
    // what the threads of the process ask for at one time.
    let used = USED.load(Ordering::Relaxed);
    used < UNQUESTIONED || used.saturating_add(MODEST as u64) <= budget()
}

/// Opens a large window to the extent `wanted` (bytes), of which `open` are open already, as far as there is memory for it.
/// Returns the extent that is open then.
pub(super) fn extend(peer: Peer, open: usize, wanted: usize) -> usize {
    // With enough memory a window that opens has room for a few messages, so that it need not begin anew with each.
    let generous = if is_scarce() { wanted } else { wanted.max(MODEST) };
    let modest = wanted.min(MODEST);
    // The last is what `may_extend` promises.
    let extents = [generous, wanted, modest, open + STEP];
    let granted = extents.into_iter().find(|extent| *extent > open && has_room(peer, open, *extent));
    let Some(extent) = granted else {
        page().count(Counter::WindowsRefused);
        return open;
    };
    charge(peer, (extent - open) as u64);
    extent
}

/// Charges what is open without having been granted here: another process has opened it.
pub(super) fn take(peer: Peer, bytes: usize) {
    charge(peer, bytes as u64);
}

/// Whether a window of which `open` bytes are open may open another step.
pub(super) fn may_extend(peer: Peer, open: usize) -> bool {
    has_room(peer, open, open + STEP)
}

fn has_room(peer: Peer, open: usize, extent: usize) -> bool {
    let more = extent.saturating_sub(open) as u64;
    let after = USED.load(Ordering::Relaxed).saturating_add(more);
    let strangers = match peer {
        Peer::Trusted => 0,
        Peer::Stranger => STRANGERS.load(Ordering::Relaxed).saturating_add(more),
    };
    after <= UNQUESTIONED || fits(budget(), extent, after, strangers)
}

/// Whether a window may be open to `extent` if all windows use `after` bytes then, and `strangers` of them towards
/// untrusted users.
fn fits(budget: u64, extent: usize, after: u64, strangers: u64) -> bool {
    let stage = if extent <= MODEST { budget } else { budget / 2 };
    after <= stage && strangers <= budget / PART_OF_STRANGERS
}

/// Uncharges `bytes` of a large window that were closed.
pub(super) fn closed(peer: Peer, bytes: usize) {
    release(peer, bytes as u64);
}

fn charge(peer: Peer, bytes: u64) {
    let used = USED.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
    if peer == Peer::Stranger {
        STRANGERS.fetch_add(bytes, Ordering::Relaxed);
    }
    page().set(Counter::WindowBytes, used);
    if used > page().value(Counter::WindowPeakBytes) {
        page().set(Counter::WindowPeakBytes, used);
    }
}

fn release(peer: Peer, bytes: u64) {
    let less = |n: u64| Some(n.saturating_sub(bytes));
    let _ = USED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    if peer == Peer::Stranger {
        let _ = STRANGERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
    page().set(Counter::WindowBytes, USED.load(Ordering::Relaxed));
}

/// The number by which a connection notes which process has counted it.
pub(super) fn process() -> u32 {
    PROCESS.get()
}

/// Whether more than half of the budget is used, so that no window opens further than a little.
pub(super) fn is_scarce() -> bool {
    let used = USED.load(Ordering::Relaxed);
    used > UNQUESTIONED && used > budget() / 2
}

/// Whether drained windows have to be closed although they were in use a moment ago: there are more than a process may
/// keep for its next messages.
pub fn is_over() -> bool {
    let connections = CONNECTIONS.load(Ordering::Relaxed);
    large() > KEPT.saturating_add(connections.saturating_mul(KEPT_EACH))
}

/// What the large windows of this process use, in bytes.
pub fn large() -> u64 {
    let connections = CONNECTIONS.load(Ordering::Relaxed);
    USED.load(Ordering::Relaxed).saturating_sub(connections.saturating_mul(CONNECTION))
}

/// The budget in bytes. The limits of the process may change at any time, so they are read again now and then.
fn budget() -> u64 {
    let now = time::coarse();
    let due = READ_AGAIN.load(Ordering::Relaxed);
    // One thread reads, and the others go on with what was read before.
    let next = now.saturating_add(time::ns(timeouts::MEMORY_LEFT_BELIEVED));
    if now < due || READ_AGAIN.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return BUDGET.get();
    }
    let (budget, believed) = match CONFIGURED.get() {
        0 => of_limits(&Limits::read(), USED.load(Ordering::Relaxed), BUDGET.get()),
        configured => (configured, timeouts::MEMORY_LIMIT_BELIEVED),
    };
    READ_AGAIN.store(now.saturating_add(time::ns(believed)), Ordering::Relaxed);
    BUDGET.set(budget);
    page().set(Counter::WindowBudgetBytes, budget);
    budget
}

/// The budget (bytes) that follows from `limits` if the windows use `used` bytes and had the budget `before`, and how long it
/// may be believed. Other processes have the same limits, and each of them takes a part of what is left at most, so that they
/// share it without knowing of each other.
fn of_limits(limits: &Limits, used: u64, before: u64) -> (u64, Duration) {
    let own = (limits.smallest / PART).min(MOST);
    let own = match (limits.are_known, before) {
        (true, _) => own,
        (false, u64::MAX) => own.min(UNKNOWN),
        // What cannot be read now, since no descriptor is free or /proc is hidden by now, may still hold.
        (false, before) => own.min(before),
    };
    let shared = used.saturating_add(limits.left / PART_OF_REST);
    if shared < own { (shared, timeouts::MEMORY_LEFT_BELIEVED) } else { (own, timeouts::MEMORY_LIMIT_BELIEVED) }
}

/// To be called in the child of a fork, whose stats page is empty: its connections are counted anew, by
/// [`connection_begins`] and [`take`].
pub(super) fn after_fork() {
    PROCESS.set(process().wrapping_add(1).max(1));
    for n in [&USED, &STRANGERS, &CONNECTIONS] {
        n.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_ring::LARGE;

    #[test]
    fn there_are_three_stages() {
        let budget = 8 << 20;
        let of = |extent, after| fits(budget, extent, after, 0);
        assert!(of(LARGE, budget / 2) && of(MODEST, budget / 2), "free");
        assert!(!of(LARGE, budget / 2 + 1) && of(MODEST, budget / 2 + 1) && of(STEP, budget), "pressure");
        assert!(!of(STEP, budget + 1), "the end");
    }

    #[test]
    fn strangers_have_a_part() {
        let budget = 8 << 20;
        assert!(fits(budget, STEP, 0, budget / 4) && !fits(budget, STEP, 0, budget / 4 + 1));
    }

    #[test]
    fn processes_share_what_is_left() {
        let of = |left, used| {
            let limits = Limits { smallest: 800 << 20, left, are_known: true };
            of_limits(&limits, used, u64::MAX).0
        };
        assert_eq!((of(u64::MAX, 0), of(1600 << 20, 0)), (100 << 20, 100 << 20));
        assert_eq!(of(160 << 20, 30 << 20), 40 << 20);
        assert_eq!(of(0, 30 << 20), 30 << 20, "none opens");
        // Thirty processes that take all that they may, each knowing what the others have left.
        let mut left = 640u64 << 20;
        for _ in 0..30 {
            let taken = of(left, 0);
            assert!(taken < left);
            left -= taken;
        }
        assert!(left > 64 << 20);
    }

    #[test]
    fn unknown_limits_leave_what_was_known_or_little() {
        let of = |before| {
            let limits = Limits { smallest: 800 << 20, left: u64::MAX, are_known: false };
            of_limits(&limits, 0, before).0
        };
        assert_eq!((of(u64::MAX), of(50 << 20), of(200 << 20)), (UNKNOWN, 50 << 20, 100 << 20));
    }
}
