//! Removal of registrations: by epoll_ctl(2), and at the close of the descriptor or the instance.

use crate::epoll::listeners::unhear_listener;
use crate::epoll::registration::release_registration;
use crate::epoll::{nested, stash, subscription};
use crate::object::instance::{
    ACCEPTED, Epoll, GONE, OLD_SUBFLOW_WATCHED, ON_KERNEL, PEER_LIVENESS_WATCHED, PROGRAMS, QUEUED, Registration,
    STRUCTURE,
};
use crate::object::reference::at;
use crate::object::socket::{Path, Socket};
use crate::object::source::Source;
use core::sync::atomic::Ordering;
use libc::EPOLL_CTL_DEL;

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
    let del = |fd: i32| {
        let _ = e.enter(EPOLL_CTL_DEL, fd, 0, 0);
    };
    let fd = reg.fd.load(Ordering::Relaxed);
    let s = at(reg.sock.load(Ordering::Relaxed));
    let flags = reg.flags.load(Ordering::Relaxed);
    let source = reg.source();
    if source.is_in_kernels_set() {
        let plain = s.is_some_and(|s| matches!(s.path(), Path::New | Path::Tcp));
        if plain && why == Removed::Requested {
            let _ = e.enter_plain(reg, EPOLL_CTL_DEL, 0, 0);
        } else if flags & PROGRAMS == 0 && !(plain && source == Source::Kernel) {
            // With a value of the program's the entry means the same to every process that has the set.
            del(fd);
        }
    }
    stash::forget(e, reg);
    if let Some(s) = s {
        match s.path() {
            Path::Listener => {
                if let Some(l) = s.listener() {
                    unhear_listener(e, reg, s, l);
                }
            }
            Path::Shm => {
                if let Some(ep) = s.endpoint() {
                    subscription::detach(e, ep, core::ptr::from_ref(reg) as usize);
                }
            }
            Path::New | Path::Tcp => {}
        }
        let mut cell = &s.registrations;
        while let Some(x) = at(cell.load(Ordering::Relaxed)) {
            if core::ptr::eq(x, reg) {
                cell.store(x.next_sock.load(Ordering::Relaxed), Ordering::Release);
                break;
            }
            cell = &x.next_sock;
        }
    } else {
        nested::leave_own(e, reg);
        e.nested.fetch_sub(1, Ordering::Relaxed);
    }
    if source == Source::Liveness {
        if let Some(liveness) = s.and_then(|s| s.endpoint()).map(|ep| ep.liveness.fd()).filter(|b| *b >= 0) {
            del(liveness);
        }
        if let Some(waker) = s.and_then(|s| s.endpoint()).map(|ep| ep.heir_waker.fd()).filter(|fd| *fd >= 0) {
            del(waker);
        }
        if let Some(hinted) = s.and_then(|s| s.endpoint()).map(|ep| ep.liveness.to_poll(&ep.side)).filter(|b| *b >= 0) {
            del(hinted);
        }
    }
    if flags & ACCEPTED != 0
        && let Some(a) = s.and_then(|s| s.endpoint()).map(|ep| ep.liveness.accepted_fd()).filter(|a| *a >= 0)
    {
        del(a);
    }
    if flags & OLD_SUBFLOW_WATCHED != 0 {
        del(fd);
    }
    if flags & ON_KERNEL != 0
        && let Some(k) = s.and_then(|s| s.endpoint()).map(|ep| ep.passed.kernel_fd()).filter(|k| *k >= 0)
    {
        del(k);
    }
    if flags & PEER_LIVENESS_WATCHED != 0
        && let Some(w) = s.and_then(|s| s.endpoint()).map(|ep| ep.liveness.peer_fd()).filter(|w| *w >= 0)
    {
        del(w);
    }
    reg.set_source(e, Source::Nothing);
    let queued = {
        let _g = e.lock.lock();
        let (before, after) = (reg.prev_all.load(Ordering::Relaxed), reg.next_all.load(Ordering::Relaxed));
        at(before).map_or(&e.registrations, |x| &x.next_all).store(after, Ordering::Release);
        if let Some(x) = at(after) {
            x.prev_all.store(before, Ordering::Relaxed);
        }
        reg.sock.store(core::ptr::null_mut(), Ordering::Release);
        reg.child.store(core::ptr::null_mut(), Ordering::Release);
        // A queued registration must not be used for another socket yet.
        reg.set_queue_bits(GONE) & QUEUED != 0
    };
    if !queued {
        release_registration(reg);
    }
}

/// Removes the registrations of `child`, which is closed. Under `STRUCTURE`.
pub(crate) fn forget_child(e: &'static Epoll, child: &Epoll) {
    let mut p = e.registrations.load(Ordering::Relaxed);
    while let Some(reg) = at(p) {
        p = reg.next_all.load(Ordering::Relaxed);
        if core::ptr::eq(reg.child.load(Ordering::Relaxed), child) {
            unlink(e, reg);
        }
    }
}

/// Removes the registrations of a socket whose last descriptor is closed, as the kernel does.
pub fn forget_socket(s: &'static Socket) {
    if s.registrations.load(Ordering::Acquire).is_null() {
        return;
    }
    let _s = STRUCTURE.lock();
    let kernels = matches!(s.path(), Path::New | Path::Tcp);
    while let Some(reg) = at(s.registrations.load(Ordering::Relaxed)) {
        let Some(e) = at(reg.epoll.load(Ordering::Relaxed)) else { break };
        if kernels {
            // The kernel removes a closed file itself, and the number may belong to another file by now.
            reg.set_source(e, Source::Nothing);
        }
        unlink_closed(e, reg);
    }
}
