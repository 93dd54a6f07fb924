//! Removal of registrations: by epoll_ctl(2), and at the close of the descriptor or the instance.

use crate::epoll::kernel_set::Usage;
use crate::epoll::listeners::unhear_listener;
use crate::epoll::registration::release_registration;
use crate::epoll::{nested, stash, subscription};
use crate::object::instance::{
    ACCEPTED, Epoll, GONE, OLD_SUBFLOW_WATCHED, ON_KERNEL, PEER_LIVENESS_WATCHED, PROGRAMS, QUEUED, Registration,
    STRUCTURE,
};
use crate::object::socket::{Path, Socket};
use crate::object::source::Source;
use core::sync::atomic::Ordering;
use libc::EPOLL_CTL_DEL;
use netacc_sys::raw;

/// Why a registration is removed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Removed {
    /// The program has called epoll_ctl(2).
    Requested,
    /// The descriptor or the instance is closed.
    Closed,
}

/// Removes a registration from all lists and sets. Under `STRUCTURE`.
pub(crate) fn unlink(e: &'static Epoll, reg: &'static Registration) {
    remove(e, reg, Removed::Requested);
}

/// Removes a registration because the descriptor or the instance is closed in this process. If another process shares
/// the kernel's set and has the socket open, the close changes nothing there.
pub(crate) fn unlink_closed(e: &'static Epoll, reg: &'static Registration) {
    remove(e, reg, Removed::Closed);
}

fn remove(e: &'static Epoll, reg: &'static Registration, why: Removed) {
    let s = reg.sock.get();
    let (flags, source) = (reg.flags.load(Ordering::Relaxed), reg.source());
    if source.is_in_kernels_set() {
        let plain = s.is_some_and(|s| matches!(s.path(), Path::New | Path::Tcp));
        if plain && why == Removed::Requested {
            let _ = e.enter_plain(reg, EPOLL_CTL_DEL, 0, 0);
        } else if flags & PROGRAMS == 0 && !(plain && source == Source::Kernel) {
            // With a value of the program's the entry means the same to every process that has the set.
            leave_set(e, reg.fd.get());
        }
    }
    if why == Removed::Requested && e.usage() == Usage::Apart && s.is_some_and(|s| s.path() == Path::Listener) {
        // What `shared::leave_to_others` has left there: the program's call is for all processes.
        let _ = raw::epoll_ctl(e.fd(), EPOLL_CTL_DEL, reg.fd.get(), 0, 0);
    }
    stash::forget(e, reg);
    if let Some(s) = s {
        leave_socket(e, reg, s);
    } else {
        nested::leave_own(e, reg);
        e.nested.subtract(1);
    }
    if let Some(ep) = s.and_then(Socket::endpoint) {
        let alive = source == Source::Liveness;
        for (watched, fd) in [
            (alive, ep.liveness.fd()),
            (alive, ep.heir_waker.fd()),
            (alive, ep.liveness.to_poll(&ep.side)),
            (flags & ACCEPTED != 0, ep.liveness.accepted_fd()),
            (flags & ON_KERNEL != 0, ep.passed.kernel_fd()),
            (flags & PEER_LIVENESS_WATCHED != 0, ep.liveness.peer_fd()),
        ] {
            if watched && fd >= 0 {
                leave_set(e, fd);
            }
        }
    }
    if flags & OLD_SUBFLOW_WATCHED != 0 {
        leave_set(e, reg.fd.get());
    }
    reg.set_source(e, Source::Nothing);
    if !leave_instance(e, reg) {
        release_registration(reg);
    }
}

/// Removes a descriptor from the kernel's set, if it is there.
fn leave_set(e: &Epoll, fd: i32) {
    let _ = e.enter(EPOLL_CTL_DEL, fd, 0, 0);
}

/// Takes a registration out of the lists of its socket and of the socket's listener or connection.
fn leave_socket(e: &'static Epoll, reg: &'static Registration, s: &'static Socket) {
    match (s.path(), s.listener(), s.endpoint()) {
        (Path::Listener, Some(l), _) => unhear_listener(e, reg, s, l),
        (Path::Shm, _, Some(ep)) => subscription::detach(e, ep, reg),
        _ => {}
    }
    s.registrations.take_out(reg, |reg| &reg.next_sock);
}

/// Takes a registration out of its instance's list. Returns whether it is in the ready queue still: then it must not be
/// used for another socket yet.
fn leave_instance(e: &'static Epoll, reg: &'static Registration) -> bool {
    let _g = e.lock.lock();
    let (before, after) = (reg.prev_all.get(), reg.next_all.get());
    before.map_or(&e.registrations, |x| &x.next_all).store(after);
    if let Some(x) = after {
        x.prev_all.set(before);
    }
    reg.sock.store(None);
    reg.child.store(None);
    reg.set_queue_bits(GONE) & QUEUED != 0
}

/// Removes the registrations of `child`, which is closed. Under `STRUCTURE`.
pub(crate) fn forget_child(e: &'static Epoll, child: &Epoll) {
    for reg in e.registered() {
        if reg.child.is(child) {
            unlink(e, reg);
        }
    }
}

/// Removes the registrations of a socket whose last descriptor is closed, as the kernel does.
pub fn forget_socket(s: &'static Socket) {
    if s.registrations.load().is_none() {
        return;
    }
    let _s = STRUCTURE.lock();
    let kernels = matches!(s.path(), Path::New | Path::Tcp);
    while let Some(reg) = s.registrations.get() {
        let Some(e) = reg.epoll.get() else { break };
        if kernels {
            // The kernel removes a closed file itself, and the number may belong to another file by now.
            reg.set_source(e, Source::Nothing);
        }
        unlink_closed(e, reg);
    }
}
