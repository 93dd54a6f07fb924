//! Changes of registrations when a socket changes its path.

use crate::epoll::cookies::{Kind, cookie};
use crate::epoll::kernel_set::Usage;
use crate::epoll::listeners::{unhear_listener, watch_listener};
use crate::epoll::ready::touch;
use crate::epoll::registration::{each_registration, show_to_kernel};
use crate::epoll::shared::{leave_to_others, take_back};
use crate::epoll::subscription::{self, Attached, attach};
use crate::object::instance::{
    DISABLED, Epoll, OLD_SUBFLOW_WATCHED, ON_KERNEL, PEER_LIVENESS_WATCHED, PROGRAMS, Registration, STRUCTURE,
    registered,
};
use crate::object::listener::Listener;
use crate::object::socket::Socket;
use crate::object::source::Source;
use core::sync::atomic::Ordering;
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET};
use netacc_transport::shm::ShmEndpoint;

/// Adapts the registrations of a socket that was registered before it connected and is accelerated now.
pub fn accelerated(_fd: i32, s: &'static Socket) {
    if s.registrations.load().is_none() {
        return;
    }
    accelerate(s, || {});
}

/// Calls `change`, which puts a socket on shared memory, under the lock of its registrations: so no thread adds or
/// changes one for the kernel when the socket is no longer the kernel's.
pub fn accelerate(s: &'static Socket, change: impl FnOnce()) {
    let _s = STRUCTURE.lock();
    change();
    each_registration(s, |e, reg| {
        hide_from_kernel(e, reg);
        let _ = e.ensure_kick();
        listen_in(e, reg, s);
    });
}

/// Calls `change`, which gives an accelerated connection another endpoint, under the lock of its registrations: so no
/// thread registers it with the old endpoint after they were moved.
pub fn switched(s: &'static Socket, old: &'static ShmEndpoint, change: impl FnOnce()) {
    let _s = STRUCTURE.lock();
    change();
    each_registration(s, |e, reg| {
        subscription::detach(e, old, reg);
        listen_in(e, reg, s);
    });
}

/// Removes a registration that the kernel served alone from the kernel's set.
fn hide_from_kernel(e: &Epoll, reg: &Registration) {
    if reg.source().is_in_kernels_set() {
        let _ = e.enter_plain(reg, EPOLL_CTL_DEL, 0, 0);
        reg.flags.fetch_and(!PROGRAMS, Ordering::Relaxed);
        reg.set_source(e, Source::Nothing);
    }
}

/// To be called before the kernel sockets of an accelerated connection are replaced by another one: removes them from
/// the kernel's sets, in which a file stays as long as any process has it open. Their flags stay set until
/// [`to_kernel`], so that none is entered again. A thread that enters one does both, the flag and the entry, under the
/// instance's lock: else it might enter the number when that has its new file already.
pub fn withdraw(s: &'static Socket, ep: &'static ShmEndpoint) {
    let _s = STRUCTURE.lock();
    each_registration(s, |e, reg| {
        let _g = e.lock.lock();
        let flags = reg.flags.fetch_or(PEER_LIVENESS_WATCHED | ON_KERNEL | OLD_SUBFLOW_WATCHED, Ordering::Relaxed);
        for (entered, fd) in [
            (flags & PEER_LIVENESS_WATCHED != 0, ep.liveness.peer_fd()),
            (flags & ON_KERNEL != 0, ep.passed.kernel_fd()),
            (reg.source() == Source::Liveness, ep.liveness.fd()),
            (reg.source() == Source::Liveness, ep.heir_waker.fd()),
            (flags & OLD_SUBFLOW_WATCHED != 0, ep.old_subflow.fd()),
        ] {
            if entered && fd >= 0 {
                let _ = e.enter(EPOLL_CTL_DEL, fd, 0, 0);
            }
        }
    });
}

/// Enters the registrations of an accelerated connection in the kernel's sets after it has become a kernel socket,
/// which its path shows already.
pub fn to_kernel(s: &'static Socket, old: &'static ShmEndpoint) {
    let _s = STRUCTURE.lock();
    each_registration(s, |e, reg| {
        subscription::detach(e, old, reg);
        {
            // A thread that finds the flags cleared finds the new path, too.
            let _g = e.lock.lock();
            reg.flags.fetch_and(!(PEER_LIVENESS_WATCHED | ON_KERNEL | OLD_SUBFLOW_WATCHED), Ordering::Relaxed);
        }
        reg.set_source(e, Source::Nothing);
        // A registration that EPOLLONESHOT has disabled is entered when the application enables it again.
        if reg.queue() & DISABLED == 0 {
            return_to_kernel(e, reg, s);
        }
    });
}

/// Enters a registration that listens to nothing in the kernel's set again. In a set that is a parent's it is entered
/// when this process first uses the instance.
fn return_to_kernel(e: &'static Epoll, reg: &'static Registration, s: &'static Socket) {
    if !e.is_inherited() {
        let _ = show_to_kernel(e, reg, s, EPOLL_CTL_ADD);
    }
}

/// Adapts the registrations of a socket that was registered before listen(2) and is a listener now.
pub fn became_listener(fd: i32, s: &'static Socket) {
    if s.registrations.load().is_none() {
        return;
    }
    let _s = STRUCTURE.lock();
    for reg in registered(s) {
        // The entries of an inherited instance are its parent's, and stay until this process waits there.
        let Some(e) = reg.epoll.get().filter(|e| !e.is_inherited()) else {
            continue;
        };
        if !leave_to_others(e, reg) {
            hide_from_kernel(e, reg);
        }
        let _ = e.ensure_kick();
        let _ = watch_listener(e, reg, fd, s);
    }
}

/// Whether a socket is registered with an instance that this process uses, and not only its parent.
pub fn is_watched_here(s: &'static Socket) -> bool {
    if s.registrations.load().is_none() {
        return false;
    }
    let _s = STRUCTURE.lock();
    let mut watched = false;
    each_registration(s, |e, _| watched |= e.usage() != Usage::Inherited);
    watched
}

/// Calls `change`, which makes the listener `l` an ordinary kernel socket again, under the lock of its registrations, and enters
/// these in the kernel's sets afterwards. So no thread registers the socket as a listener that is none any more, and one that
/// gets an event of the kernel's asks the kernel alone for what that tells of. `None`: nothing was changed.
pub fn no_listener<T>(s: &'static Socket, l: &'static Listener, change: impl FnOnce() -> Option<T>) -> Option<T> {
    let _s = STRUCTURE.lock();
    let changed = change()?;
    each_registration(s, |e, reg| {
        unhear_listener(e, reg, s, l);
        let _ = e.enter(EPOLL_CTL_DEL, reg.fd.get(), 0, 0);
        reg.set_source(e, Source::Nothing);
        if !take_back(e, reg) {
            return_to_kernel(e, reg, s);
        }
    });
    Some(changed)
}

/// Makes the registration of an accelerated connection report by our own ready queue.
pub(crate) fn listen_in(e: &'static Epoll, reg: &'static Registration, s: &'static Socket) {
    let Some(ep) = s.endpoint() else { return };
    if attach(e, ep, reg) == Attached::Here {
        reg.set_source(e, Source::ReadySet);
    } else {
        reg.set_source(e, Source::Rounds);
        let liveness = if ep.side.link().is_inherited() { ep.liveness.to_poll(&ep.side) } else { -1 };
        let events = (libc::EPOLLIN | libc::EPOLLRDHUP | EPOLLET) as u32;
        if liveness >= 0 && e.enter(EPOLL_CTL_ADD, liveness, events, cookie(Kind::Liveness, reg)).is_ok() {
            reg.set_source(e, Source::Liveness);
            let waker = ep.heir_waker.fd();
            if waker >= 0 && e.enter(EPOLL_CTL_ADD, waker, events, cookie(Kind::Liveness, reg)).is_err() {
                ep.heir_waker.give_up();
            }
            subscription::note_instance(ep, reg);
        }
    }
    touch(e, reg);
}

/// Adapts the registrations of a socket that was registered before it connected by TCP and is a candidate now.
pub fn candidate(s: &'static Socket) {
    if s.registrations.load().is_none() {
        return;
    }
    let _s = STRUCTURE.lock();
    each_registration(s, |e, reg| {
        if reg.source().is_in_kernels_set() {
            let _ = show_to_kernel(e, reg, s, EPOLL_CTL_MOD);
        }
    });
}

/// Notes an edge for every registration: of a listener on which shutdown(2) was called, or of a connection whose ring has to be
/// read to its end before it goes on elsewhere.
pub fn stirred(s: &'static Socket) {
    if s.registrations.load().is_none() {
        return;
    }
    let _s = STRUCTURE.lock();
    each_registration(s, touch);
}
