//! Ending the sharing of a connection whose other sharers have ended.

use crate::fd::table;
use crate::fd::table::Entry;
use crate::fork::descendants::{CONNECTED, WAITING, alone};
use crate::object::socket::{SHARED, SHARED_HERE, Socket};
use crate::timeouts;
use core::sync::atomic::{AtomicU64, Ordering};
use netacc_sys::time;
use netacc_transport::shm::ShmEndpoint;

const DESCENDANT_CHECK_INTERVAL: u64 = time::ns(timeouts::DESCENDANT_CHECK_INTERVAL);

static NEXT_CHECK: AtomicU64 = AtomicU64::new(0);

/// Whether this process is the last that has the connection: its count says so, or all its descendants have ended and
/// nobody else had the connection before the first of them. A count of one stays so while the caller keeps the threads of
/// this process from forking.
fn is_last(s: &Socket) -> bool {
    s.holders.is_alone() || (s.has(SHARED_HERE) && alone())
}

/// Ends the sharing of a connection if no other process has it. The caller holds both direction locks of `s`.
pub fn unshare_if_alone(s: &Socket) {
    if s.has(SHARED)
        && is_last(s)
        && let Some(ep) = s.endpoint()
    {
        end_sharing(s, ep);
    }
}

/// Ends the sharing of a connection that no other process has. The caller holds both direction locks of `s`.
pub(super) fn end_sharing(s: &Socket, ep: &'static ShmEndpoint) {
    // The RDMA engine that carries a connection for the child of a fork is another process's.
    if ep.side.link().is_inherited() && ep.side.is_remote() {
        return;
    }
    ep.unshare();
    if !ep.side.is_shared() {
        s.set(SHARED | SHARED_HERE, false);
        s.holders.end();
    }
}

/// To be called before a thread uses a connection: ends its sharing if the other processes have closed it, as the parent
/// does in every server that forks for each connection. Never waits.
#[inline]
pub fn settle(s: &Socket) {
    if s.has(SHARED) {
        try_to_end_sharing(s);
    }
}

#[cold]
fn try_to_end_sharing(s: &Socket) {
    // The locks are taken for a connection that is to become private, and not for each look at the count. The object may
    // have another connection by then, of which the same is true.
    if s.holders.is_alone()
        && let Some(rx) = s.rx.try_lock()
        && let Some(tx) = s.tx.try_lock()
    {
        if s.is_shm()
            && s.has(SHARED)
            && s.holders.is_alone()
            && let Some(ep) = s.endpoint()
        {
            end_sharing(s, ep);
        }
        drop((rx, tx));
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
