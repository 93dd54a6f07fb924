//! What a process does that is accelerated no further: its listeners are left to the kernel, and where it needs the
//! descriptors or the memory, its connections too.

use crate::fd::{fd_cache, placeholder, table};
use crate::listen::opening;
use crate::object::reference::Ref;
use crate::object::socket::{Path, Socket};
use crate::process_fallback;
use crate::process_fallback::reason;
use crate::switch::demote;
use netacc_stats::Reason;
use netacc_sys::reserved_fds;
use rustix::process::{Resource, getrlimit};

/// Nothing more is accelerated; connections go on where they are.
pub fn from_here(why: Reason) {
    process_fallback::set(why);
    netacc_log::log!(Info, "process: further connections use kernel TCP: {}", why.sentence());
    table::each_socket(|fd, r| {
        if r.obj.path() == Path::Listener {
            opening::abandon(fd, r.obj);
        }
    });
    placeholder::drop_ready_sockets();
    fd_cache::close_all();
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
    table::each_socket(|_, r| {
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
        table::each_socket(|fd, r| {
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
