//! The end of an epoll instance.

use crate::epoll::unlink::{forget_child, unlink_closed};
use crate::epoll::{nested, ready, subscription};
use crate::fd::table;
use crate::fd::table::Entry;
use crate::object::instance::{Epoll, STRUCTURE};
use core::sync::atomic::Ordering;
use netacc_sys::reserved_fds;
use netacc_sys::signals::Blocked;
use netacc_sys::slab::Slab;

pub(crate) static EPOLLS: Slab<Epoll> = Slab::new();

/// Drops a reference; the last one ends the instance.
pub fn put(e: &'static Epoll) {
    if e.refs.fetch_sub(1, Ordering::AcqRel) != 1 {
        // If the closed number was the one in use, another number of the same instance replaces it.
        table::each(0, usize::MAX, |fd, entry| {
            if matches!(entry, Entry::Epoll(r) if core::ptr::eq(r.obj, e)) {
                e.fd.set(fd);
            }
        });
        return;
    }
    // Signals are blocked, since a handler may close a listener or a connection, which needs this lock.
    let _b = Blocked::all();
    let _s = STRUCTURE.lock();
    e.generation.fetch_add(1, Ordering::Release);
    while let Some(reg) = e.registrations.get() {
        unlink_closed(e, reg);
    }
    // Outer instances forget it, as in the kernel.
    if nested::ever() {
        table::each(0, usize::MAX, |_, entry| {
            if let Entry::Epoll(outer) = entry
                && outer.obj.nested.get() > 0
            {
                forget_child(outer.obj, e);
            }
        });
    }
    ready::discard(e);
    subscription::drop_all(e);
    let k = e.kick.swap(0, Ordering::AcqRel);
    if k != 0 {
        reserved_fds::close(k - 1);
    }
    let own = e.own.swap(0, Ordering::AcqRel);
    if own != 0 {
        reserved_fds::close(own - 1);
    }
    EPOLLS.release(e);
}
