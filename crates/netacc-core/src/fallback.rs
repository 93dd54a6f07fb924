//! A process that is left to the kernel for good ([`process_mode`]) leaves its listeners to it, and its connections too
//! if it needs their descriptors.

use crate::fd::{fd_cache, placeholder, table};
use crate::fork::rights;
use crate::listen::opening;
use crate::object::reference::Ref;
use crate::object::socket::{Path, Socket};
use crate::process_mode;
use crate::process_mode::reason;
use crate::startup;
use crate::switch::demote;
use netacc_stats::Reason;
use netacc_sys::{libc_kind, own_limit, reserved_fds};

/// Divisor of the limit of descriptors: if ours are a smaller part of it, they are not why the program has run out.
const PART_OF_LIMIT: u64 = 16;

/// Ends acceleration of new sockets and of listeners. Connections stay on their path.
pub fn from_here(why: Reason) {
    process_mode::leave_to_kernel(why);
    netacc_log::log!(Info, "process: further connections use kernel TCP: {}", why.sentence());
    table::each_socket(|fd, r| {
        if r.obj.path() == Path::Listener {
            opening::abandon(fd, r.obj);
        }
    });
    placeholder::drop_ready_sockets();
    fd_cache::close_all();
}

/// Called when the process is about to install a filter on system calls (seccomp(2)), which may forbid ours, or to give
/// up all descriptors: from now on no system call or descriptor of our own is needed.
#[cold]
pub fn before_filter() {
    netacc_sys::user::stop_probing();
    netacc_sys::delivery::stop();
    own_limit::forbid();
    fall_back(Reason::Confined);
    rights::before_fewer_rights();
    netacc_log::end();
}

/// Whether [`before_filter`] was called before.
pub fn is_prepared() -> bool {
    !netacc_sys::user::is_probing()
}

/// Whether the calls of a library that the program opens have to come to us, so that it is opened without RTLD_DEEPBIND
/// (dlopen(3)).
#[cold]
pub fn follows_library() -> bool {
    let follows = accelerates();
    if follows {
        netacc_log::log!(
            Info,
            "program: opens a library with RTLD_DEEPBIND; it is opened without, for its calls on sockets"
        );
    }
    follows
}

/// Called before the program opens a library that has a libc of its own (dlmopen(3)), whose calls we do not see.
#[cold]
pub fn before_apart() {
    if accelerates() {
        fall_back(Reason::OwnCalls);
    }
}

/// Whether something of the program may be accelerated. musl knows neither the flag nor the function above.
fn accelerates() -> bool {
    libc_kind::is_known() && !libc_kind::is_musl() && startup::ensure().is_some_and(|rt| rt.accelerates())
}

/// Called when accept(2) finds no free descriptor. Some descriptors are ours: those of links and epoll instances, and
/// one for each connection whose peer has forked. With TCP the program could use them, so they are released. False:
/// ours are not the cause, and the program gets the error.
#[cold]
pub fn give_back_descriptors() -> bool {
    if reason().is_some() {
        return false;
    }
    // A program whose own files use up the limit would have run out with TCP, too.
    let limit = own_limit::of_program();
    if reserved_fds::below(limit) * PART_OF_LIMIT < limit {
        return false;
    }
    reserved_fds::release_reserve();
    reserved_fds::release_spare();
    fall_back(Reason::NoDescriptors);
    true
}

/// Ends all acceleration and demotes every connection.
#[cold]
pub fn fall_back(why: Reason) {
    // Steps that free descriptors come first, since a demotion needs a few: the listeners, then the connections that
    // have two.
    from_here(why);
    // A connection may get its second one meanwhile, so the last round takes all.
    for all in [false, true] {
        table::each_socket(|fd, r| {
            if (all || r.obj.endpoint().is_some_and(|ep| ep.liveness.peer_fd() >= 0))
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

/// Whether the demotion would need a relay process, which does not free descriptors.
fn costs_more(r: Ref<Socket>, why: Reason) -> bool {
    why == Reason::NoDescriptors && r.obj.endpoint().is_some_and(|ep| !ep.side.link().trust_is_mutual())
}
