//! A process that is accelerated no further: it went where what we know of the host is not true, confined itself so
//! that our system calls may be forbidden, or enters the kernel by instructions of its own. Its new sockets are the
//! kernel's, its listeners are left to it.

use crate::fdtable::Entry;
use crate::object::reference::Ref;
use crate::object::socket::{Path, Socket};
use crate::socket::{demote, listen};
use crate::{fdtable, socket};
use core::sync::atomic::{AtomicU32, Ordering};
use netacc_stats::Reason;
use netacc_sys::reserved_fds;
use rustix::process::{Resource, getrlimit};

/// Why nothing more is accelerated, as a [`Reason`]; 0: the process is accelerated as ever.
static WHY: AtomicU32 = AtomicU32::new(0);

/// Why nothing more is accelerated, if so.
#[inline]
pub fn reason() -> Option<Reason> {
    // Relaxed: the thread that changed the word knows it; for other threads the change may come at any time.
    match WHY.load(Ordering::Relaxed) {
        0 => None,
        n => Reason::from_u32(n),
    }
}

/// Nothing is accelerated from the start, before there is anything that could be.
pub(crate) fn from_the_start(why: Reason) {
    // Relaxed: the runtime, without which nothing is accelerated, is published afterwards.
    WHY.store(why as u32, Ordering::Relaxed);
}

/// Nothing more is accelerated; connections go on where they are.
pub fn from_here(why: Reason) {
    WHY.store(why as u32, Ordering::Relaxed);
    netacc_log::log!(Info, "process: further connections use kernel TCP: {}", why.sentence());
    each(|fd, r| {
        if r.obj.path() == Path::Listener {
            listen::abandon(fd, r.obj);
        }
    });
    socket::create::drop_ready_sockets();
    socket::fd_cache::close_all();
}

/// The process is about to install a filter on system calls (seccomp(2)), which allows what the program needs and knows
/// nothing of us, or to give up all descriptors. From now on we need neither.
#[cold]
pub fn before_filter() {
    netacc_sys::user::stop_probing();
    fall_back(Reason::Confined);
    netacc_log::end();
}

/// A server has used up its descriptors for connections. Some are ours: a link's, an epoll instance's, and one for each
/// connection whose peer has forked. With TCP all of them would be the program's, so it gets them. False if ours are
/// not the cause: then the error is the program's as well.
#[cold]
pub fn give_back_descriptors() -> bool {
    if reason().is_some() {
        return false;
    }
    let mut used = 0;
    each(|_, r| {
        if let Some(ep) = r.obj.endpoint() {
            used += 1 + u64::from(ep.peer_liveness_fd() >= 0);
        }
    });
    // A program whose other files have used them up would have run out with TCP, too.
    if used * 4 < getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) {
        return false;
    }
    reserved_fds::release_reserve();
    fall_back(Reason::NoDescriptors);
    true
}

/// Nothing more is accelerated, and every connection becomes a kernel socket.
#[cold]
pub fn fall_back(why: Reason) {
    // What frees descriptors comes first, since to leave takes a few: the listeners, then the connections that have
    // two.
    from_here(why);
    for two in [true, false] {
        each(|fd, r| {
            if r.obj.endpoint().is_some_and(|ep| ep.peer_liveness_fd() >= 0) == two
                && !costs_more(r, why)
                && let Err(e) = demote::demote(fd, r, why)
            {
                netacc_log::log!(
                    Warn,
                    "fd {fd}: cannot become a kernel socket ({}: {e}); stays in shared memory",
                    why.name()
                );
            }
        });
    }
}

/// Whether the connection would need a process of its own to go to the kernel, though descriptors are wanted.
fn costs_more(r: Ref<Socket>, why: Reason) -> bool {
    why == Reason::NoDescriptors && r.obj.endpoint().is_some_and(|ep| !ep.link().trust_is_mutual())
}

/// Calls `f` for every number of a socket of ours.
pub(crate) fn each(mut f: impl FnMut(i32, Ref<Socket>)) {
    fdtable::each(0, usize::MAX, |fd, e| {
        if let Entry::Socket(r) = e {
            f(fd, r);
        }
    });
}
