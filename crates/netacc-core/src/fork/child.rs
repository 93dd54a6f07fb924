//! What the child of a fork does before its program goes on.

use crate::conn;
use crate::fd::table::Entry;
use crate::fd::{later, placeholder, table};
use crate::fork::descendants::{CONNECTED, FORKING, LOCK, WAITING, hold};
use crate::fork::prepare::{FORK_LOCK, Forking, NewSpaces};
use crate::listen::adopt;
use crate::object::socket::SHARED;
use crate::switch::{queued, redispatch};
use core::sync::atomic::Ordering;
use netacc_stats::Reason;
use netacc_sys::{lock, reserved_fds};

/// To be called in a child that begins in `new`: what this process knows of the network is not true there.
pub fn child_in(f: Forking, new: NewSpaces) {
    child(f);
    if new.network && crate::runtime::get().is_some() {
        crate::fallback::from_here(Reason::Namespace);
    }
}

/// To be called in the child, where no other thread exists, locks may be in any state, and the links are the parent's.
/// Nothing here allocates: the child of _Fork(3) finds the allocator as other threads have left it.
pub fn child(f: Forking) {
    lock::forget_held();
    netacc_sys::cancel::forget();
    LOCK.reset();
    FORK_LOCK.reset();
    CONNECTED.after_fork();
    WAITING.after_fork();
    FORKING.store(0, Ordering::Relaxed);
    // The writing end stays open as long as we live: that is its purpose.
    if let Some((reading, writing)) = f.pipe {
        reserved_fds::close(reading);
        hold(writing);
    }
    crate::startup::reset_locks();
    crate::epoll::shared::reset_locks();
    placeholder::drop_ready_sockets();
    later::after_fork();
    crate::wait::held::after_fork();
    crate::object::socket::reset_locks();
    crate::object::listener::reset_locks();
    netacc_transport::shm::reset_locks();
    conn::pool::after_fork();
    netacc_transport::rdma::engine::after_fork(&f.engines);
    queued::after_fork();
    redispatch::after_fork();
    adopt::after_fork();
    netacc_transport::shm::promote::after_fork();
    table::forget_leaving();
    table::each(0, usize::MAX, |_, e| {
        let Entry::Socket(r) = e else { return };
        for l in [&r.obj.rx, &r.obj.tx, &r.obj.meta] {
            l.reset();
        }
        if let Some(l) = r.obj.listener() {
            l.after_fork();
        }
        if let Some(ep) = r.obj.endpoint() {
            // Its sockets must not be kept open by the child, or the parent's death would go unnoticed.
            ep.link().inherit();
            ep.reset_if_untold();
            ep.forget_sleepers();
            ep.forget_missing();
            if !r.obj.has(SHARED) {
                r.obj.disown();
            }
        }
    });
    // These locks are free already, and after _Fork(3) nothing may be given back to the allocator.
    core::mem::forget((f.unread, f.engines, f.guard));
    reserved_fds::fill_gaps();
    crate::runtime::after_fork(table::numbers());
    crate::operator::work::after_fork();
}
