//! What a process does for others before it ends.

use crate::fd::table;
use crate::fd::table::Entry;
use crate::listen::withdrawal::hand_on;
use crate::object::socket::SHARED;
use crate::switch::redispatch;
use core::sync::atomic::Ordering;
use netacc_sys::lock;

/// The process ends: what waits at the listeners that others have goes to these. A process that has served none of them,
/// such as a child that only executes a program, leaves them alone.
pub fn hand_on_all() {
    if lock::interrupted() {
        return;
    }
    table::each(0, usize::MAX, |_, e| {
        if let Entry::Socket(r) = e
            && let Some(_pin) = r.pin()
            && let Some(l) = r.obj.listener()
            && l.many.load(Ordering::Relaxed) != 0
            && l.serves_here()
        {
            l.take_all_links();
            l.with_links_held(|links| hand_on(links.iter().copied().flatten()));
        }
    });
}

/// The process ends: a connect of its own that waits where no process takes it any more is made again, as the kernel
/// would go on with what was written. Where a child has the connection too, that sees to it.
pub fn settle_orphans() {
    if lock::interrupted() {
        return;
    }
    table::each(0, usize::MAX, |_, e| {
        if let Entry::Socket(r) = e
            && let Some(_pin) = r.pin()
            && r.obj.is_shm()
            && !r.obj.has(SHARED)
            // In the child of a fork a connect that another thread of the parent was making is the parent's.
            && let Some(ep) = r.obj.endpoint().filter(|ep| !ep.is_remote() && !ep.link().is_inherited() && ep.is_queued())
        {
            ep.link().service_if_readable();
            if ep.orphaned() {
                redispatch::redispatch(r);
            }
        }
    });
}

/// The process ends: connections whose peers have left the rings follow them, so that what was sent by them still arrives
/// if all was read, as it does when a program that ends leaves it to the kernel to close its sockets.
pub fn settle_switches() {
    if lock::interrupted() {
        return;
    }
    table::each(0, usize::MAX, |_, e| {
        if let Entry::Socket(r) = e
            && let Some(_pin) = r.pin()
            && r.obj.is_shm()
            // Another thread that is in a call follows by itself.
            && let (Some(_rx), Some(_tx)) = (r.obj.rx.try_lock(), r.obj.tx.try_lock())
            && let Some(ep) = r.obj.endpoint().filter(|ep| r.valid() && !ep.is_remote())
        {
            ep.settle_switch();
        }
    });
}
