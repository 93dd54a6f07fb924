//! What a process does for others before it ends.

use crate::fd::table;
use crate::fd::table::Entry;
use crate::listen::withdrawal::hand_on;
use crate::object::reference::Ref;
use crate::object::socket::{SHARED, Socket};
use crate::switch::redispatch;
use crate::timeouts;
use core::sync::atomic::Ordering;
use netacc_sys::{lock, time};

const SWITCHES_AT_EXIT: u64 = time::ns(timeouts::SWITCHES_AT_EXIT);

/// Calls `f` for the sockets of the process, each of which stays while it is looked at. A thread that was interrupted in the
/// middle of our work leaves everything as it is.
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

/// The process ends: what waits at the listeners that others have goes to these. A process that has served none of them,
/// such as a child that only executes a program, leaves them alone.
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

/// The process ends: a connect of its own that waits where no process takes it any more is made again, as the kernel
/// would go on with what was written. Where a child has the connection too, that sees to it.
pub fn settle_orphans() {
    each_socket(|r| {
        if r.obj.is_shm()
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

/// The process ends: it follows the peers that have left the rings, so that what it has sent still arrives if it has read
/// everything, as it does when the kernel closes the sockets of a program that ends. All peers together are waited for
/// for a bounded time.
pub fn settle_switches() {
    let until = time::now().saturating_add(SWITCHES_AT_EXIT);
    each_socket(|r| {
        if r.obj.is_shm()
            && time::now() < until
            // Another thread that is in a call follows by itself.
            && let (Some(_rx), Some(_tx)) = (r.obj.rx.try_lock(), r.obj.tx.try_lock())
            && let Some(ep) = r.obj.endpoint().filter(|ep| r.valid() && !ep.is_remote())
        {
            ep.settle_switch();
        }
    });
}
