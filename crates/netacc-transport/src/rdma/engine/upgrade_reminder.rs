//! Client's host: when the connections that are still on kernel TCP ask to go on by a queue pair.

use crate::host::host;
use crate::rdma::engine::status;
use core::sync::atomic::{AtomicU64, Ordering};
use netacc_sys::time;

/// When ([`time::now`]) the thread looks which connections are to ask; 0: there is none.
static NEXT: AtomicU64 = AtomicU64::new(0);
/// Time (ns) between its looks while there are some.
const EVERY: u64 = 50_000_000;

/// To be called when a connection wants to ask.
pub fn upgrade_soon() {
    // Relaxed: a connection that is noted too late for one look is found by the next one.
    if NEXT.load(Ordering::Relaxed) == 0 {
        NEXT.store(time::now(), Ordering::Relaxed);
        if let Some(first) = status::at(0) {
            first.ring();
        }
    }
}

/// To be called when a route is open: the connections that wait ask at once.
pub(super) fn hurry() {
    if NEXT.load(Ordering::Relaxed) != 0 {
        NEXT.store(1, Ordering::Relaxed);
    }
}

/// By the first engine's thread, without its lock: has the connections ask that want to. Returns in how many ms to look
/// again, if ever.
pub(super) fn remind() -> Option<i64> {
    let due = NEXT.load(Ordering::Relaxed);
    if due == 0 {
        return None;
    }
    let now = time::now();
    if now >= due {
        NEXT.store(0, Ordering::Relaxed);
        if !host().is_some_and(|host| host.request_upgrades()) {
            return None;
        }
        NEXT.store(now.saturating_add(EVERY), Ordering::Relaxed);
    }
    Some(1 + NEXT.load(Ordering::Relaxed).saturating_sub(now).min(EVERY).cast_signed() / 1_000_000)
}
