//! fork(2): what the child may touch.

use crate::fdtable::{self, Entry};
use crate::socket::{self, Path, SHARED};
use core::sync::atomic::Ordering;
use netacc_stats::{Counter, page};
use netacc_transport::shm::Link;

/// Before the fork, in the parent: every unconnected socket becomes real, every connection gets what both
/// processes need to share it.
pub fn prepare() {
    page().count(Counter::Forks);
    fdtable::each(0, usize::MAX, |fd, e| {
        let Entry::Socket(r) = e else { return };
        match r.obj.path() {
            Path::New => {
                let _ = socket::create::materialize(fd, r.obj);
            }
            Path::Shm => {
                r.obj.set(SHARED, true);
            }
            Path::Listener => {
                if let Some(l) = r.obj.listener() {
                    l.many.store(1, Ordering::Relaxed);
                }
            }
            Path::Tcp => {}
        }
    });
}

/// In the child: no other thread exists, locks may be in any state, the links are the parent's.
pub fn child() {
    crate::runtime::reset_locks();
    crate::epoll::reset_locks();
    socket::reset_locks();
    netacc_transport::shm::link::reset_after_fork();
    socket::pool::after_fork();
    fdtable::each(0, usize::MAX, |_, e| {
        let Entry::Socket(r) = e else { return };
        for l in [&r.obj.rx, &r.obj.tx, &r.obj.meta] {
            l.reset();
        }
        if let Some(l) = r.obj.listener() {
            l.after_fork();
        }
        if let Some(ep) = r.obj.endpoint() {
            inherit(ep.link());
        }
    });
    let mut live = alloc::vec::Vec::new();
    fdtable::each(0, usize::MAX, |fd, _| live.push(fd));
    crate::runtime::after_fork(live);
}

/// A link of the parent's: its sockets must not be kept open by the child, or the parent's death would go
/// unnoticed.
pub fn inherit(link: &'static Link) {
    if link.inherited.swap(1, Ordering::Relaxed) == 0 {
        link.reset_locks();
        link.slots.reset_lock();
        link.close_descriptors();
    }
}
