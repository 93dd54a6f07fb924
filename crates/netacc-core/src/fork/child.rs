//! The work in the child of a fork before its program continues.

use crate::conn;
use crate::fd::table::Entry;
use crate::fd::{later, placeholder, table};
use crate::fork::descendants::{CONNECTED, FORKING, Tracked, WAITING, hold};
use crate::fork::namespace;
use crate::fork::prepare::{Counting, Forking, NewSpaces};
use crate::listen::heirs;
use crate::object::socket::{SHARED, SHARED_HERE, Socket};
use crate::switch::{queued, redispatch};
use core::sync::atomic::Ordering;
use netacc_stats::Reason;
use netacc_sys::{lock, reserved_fds};
use netacc_transport::shm::windows;

/// To be called in a child that begins in the namespaces `new`, where the parent's knowledge of the network does not
/// hold.
pub fn child_in(f: Forking, new: NewSpaces) {
    child(f);
    if new.network && crate::runtime::get().is_some() {
        crate::fallback::from_here(Reason::Namespace);
    }
}

/// To be called in the child, where no other thread exists, and the links are the parent's. All that a fork must reset
/// is reset from here; locks need not be, since each knows the process that holds it.
/// Nothing here allocates: in the child of _Fork(3) another thread of the parent may have held the allocator's lock.
pub fn child(f: Forking) {
    lock::begin_process();
    netacc_sys::cancel::forget();
    CONNECTED.after_fork();
    WAITING.after_fork();
    FORKING.store(0, Ordering::Relaxed);
    // The writing end stays open for the life of this process, which the parent observes by it.
    if let Tracked::By { reading, writing } = f.tracked {
        reserved_fds::close(reading);
        hold(writing);
    }
    crate::startup::after_fork();
    namespace::after_fork();
    crate::epoll::shared::after_fork();
    placeholder::drop_ready_sockets();
    later::after_fork();
    crate::wait::held::after_fork();
    crate::object::kept::after_fork();
    crate::wait::bell::after_fork();
    netacc_transport::shm::after_fork();
    conn::targets::after_fork();
    conn::ports::after_fork();
    conn::kernel_queue::after_fork();
    conn::neighbours::after_fork();
    netacc_transport::rdma::engine::after_fork(&f.engines);
    queued::after_fork();
    redispatch::after_fork();
    heirs::after_fork();
    netacc_transport::shm::promote::after_fork();
    table::forget_leaving();
    table::each(0, usize::MAX, |_, e| {
        let Entry::Socket(r) = e else { return };
        inherit(r.obj, f.counting.counts(r.obj));
    });
    Counting::after_fork();
    // The locks among them are free in this process, and after _Fork(3) no memory may be freed.
    core::mem::forget((f.unread, f.engines, f.guard));
    reserved_fds::fill_gaps();
    crate::runtime::after_fork(table::numbers());
    crate::operator::work::after_fork();
}

/// Takes over a socket of the parent's. `counted`: the fork has counted this process as a holder of its connection.
fn inherit(s: &'static Socket, counted: bool) {
    s.upgrade.held_by.inherit();
    s.set(SHARED_HERE, false);
    s.kept.forget();
    if !s.is_shm() {
        // No fork has counted this process as a holder of a connection that has left the rings.
        s.holders.forget();
    }
    if let Some(l) = s.listener() {
        l.after_fork();
    }
    if let Some(ep) = s.endpoint() {
        // The child must not keep the link's sockets open, or the parent's death would go unnoticed.
        ep.side.link().inherit();
        windows::recount(ep);
        ep.side.reset_if_untold();
        ep.forget_sleepers();
        ep.forget_missing();
        // A connection that another thread of the parent opened during the fork was not prepared for this child, though it
        // may have been for that of a further thread that forked.
        if !s.has(SHARED) || !counted {
            s.holders.forget();
            s.disown();
        }
    }
}
