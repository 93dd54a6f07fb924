//! Ending the sharing of a connection whose other sharers have ended.

use crate::fd::table;
use crate::fd::table::Entry;
use crate::fork::descendants::{CONNECTED, WAITING, alone};
use crate::object::socket::{SHARED, Socket};
use crate::timeouts;
use core::sync::atomic::{AtomicU64, Ordering};
use netacc_sys::time;

const DESCENDANT_CHECK_INTERVAL: u64 = time::ns(timeouts::DESCENDANT_CHECK_INTERVAL);

static NEXT_CHECK: AtomicU64 = AtomicU64::new(0);

/// Ends the sharing of a connection if no other process has it. The caller holds both direction locks of `s`.
pub fn unshare_if_alone(s: &Socket) {
    if s.has(SHARED)
        && alone()
        && let Some(ep) = s.endpoint().filter(|e| !e.side.link().is_inherited())
    {
        ep.unshare();
        s.set(SHARED, ep.side.is_shared());
    }
}

/// Called whenever a thread goes to sleep: ends the sharing of connections whose other sharers have ended. Without this
/// they would stay shared, which is correct and a little slower; so it need not be done during a sleep, in which the
/// thread uses no connection.
#[inline]
pub fn idle_check() {
    if !(CONNECTED.none() && WAITING.none()) {
        look_for_ended();
    }
}

#[cold]
fn look_for_ended() {
    let now = time::now();
    let due = NEXT_CHECK.load(Ordering::Relaxed);
    if now < due
        || NEXT_CHECK
            .compare_exchange(due, now + DESCENDANT_CHECK_INTERVAL, Ordering::Relaxed, Ordering::Relaxed)
            .is_err()
    {
        return;
    }
    WAITING.all_ended();
    if CONNECTED.none() || !alone() {
        return;
    }
    table::each(0, usize::MAX, |_, e| {
        if let Entry::Socket(r) = e
            && r.obj.has(SHARED)
            && let Some(rx) = r.obj.rx.try_lock()
            && let Some(tx) = r.obj.tx.try_lock()
        {
            unshare_if_alone(r.obj);
            drop((rx, tx));
        }
    });
}
