//! The work that a process does for its peers and sharers before it ends.

use crate::fd::table;
use crate::fd::table::Entry;
use crate::listen::withdrawal::hand_on;
use crate::listen::{entrance, heirs};
use crate::object::reference::Ref;
use crate::object::socket::{SHARED, Socket};
use crate::switch::redispatch;
use crate::timeouts;
use core::sync::atomic::Ordering;
use netacc_sys::{lock, time};

const SWITCHES_AT_EXIT: u64 = time::ns(timeouts::SWITCHES_AT_EXIT);

/// Calls `f` for the sockets of the process, each of which is pinned meanwhile. Does nothing in a handler that has
/// interrupted a holder of locks.
fn each_socket(mut f: impl FnMut(Ref<Socket>)) {
    if lock::interrupted() {
        return;
    }
    table::each(0, usize::MAX, |_, e| {
        if let Entry::Socket(r) = e
            && let Some(_pin) = r.pin()
        {
            f(r);
        }
    });
}

/// Passes the queued connects of listeners that other processes have to these, before the process ends. A process that
/// has served no client there, such as a child that only executes a program, leaves them alone.
pub fn hand_on_all() {
    each_socket(|r| {
        if let Some(l) = r.obj.listener()
            && l.many.load(Ordering::Relaxed) != 0
            && l.serves_here()
        {
            l.take_all_links();
            l.with_links_held(|links| hand_on(links.iter().copied().flatten()));
        }
    });
}

/// Removes the names of the process's listeners from the host directory, before the process ends.
pub fn leave_host_directory() {
    each_socket(|r| r.obj.listener().into_iter().for_each(entrance::leave));
    heirs::leave();
}

/// Redispatches the process's own connects whose server has ended, before the process ends: the kernel would deliver
/// the written bytes. If a child has the connection too, it does so.
pub fn settle_orphans() {
    each_socket(|r| {
        if r.obj.is_shm()
            && !r.obj.has(SHARED)
            // In the child of a fork, a connect that another thread of the parent was making belongs to the parent.
            && let Some(ep) = r.obj.endpoint().filter(|ep| {
                !ep.side.is_remote() && !ep.side.link().is_inherited() && ep.side.is_queued()
            })
        {
            ep.side.link().service_if_readable();
            if ep.connect.is_orphaned(&ep.side) {
                redispatch::redispatch(r);
            }
        }
    });
}

/// Follows the peers that have left the rings, before the process ends: if it has read everything, the bytes that it
/// has sent still arrive, as when the kernel closes the sockets of an ending program. The time for all peers together
/// is limited.
pub fn settle_switches() {
    let until = time::now().saturating_add(SWITCHES_AT_EXIT);
    each_socket(|r| {
        if r.obj.is_shm()
            && time::now() < until
            // A thread that is in a call on the connection, and so holds a lock, follows by itself.
            && let (Some(_rx), Some(_tx)) = (r.obj.rx.try_lock(), r.obj.tx.try_lock())
            && let Some(ep) = r.obj.endpoint().filter(|ep| r.valid() && !ep.side.is_remote())
        {
            ep.settle_switch();
        }
    });
}
