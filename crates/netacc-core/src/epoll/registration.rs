//! Registrations: how they come into the lists of their socket and their instance, and what they are counted as.

use crate::epoll::cookies;
use crate::epoll::cookies::{Kind, cookie, looks_like_cookie};
use crate::object::instance::{Epoll, KERNEL, LISTENED, POLLED, Registration, SUBSCRIBED};
use crate::object::reference::at;
use crate::object::socket::Socket;
use core::sync::atomic::Ordering;
use libc::{EPOLLET, EPOLLONESHOT};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::slab::Slab;

static REGISTRATIONS: Slab<Registration> = Slab::new();

pub(crate) fn new_registration() -> Result<&'static Registration> {
    let r = REGISTRATIONS.alloc().ok_or(Errno::NOMEM)?;
    cookies::enter(r).inspect_err(|_| REGISTRATIONS.release(r))?;
    r.flags.store(0, Ordering::Relaxed);
    r.queue.store(0, Ordering::Relaxed);
    r.sock.store(core::ptr::null_mut(), Ordering::Relaxed);
    r.child.store(core::ptr::null_mut(), Ordering::Relaxed);
    r.alias.store(core::ptr::null_mut(), Ordering::Relaxed);
    Ok(r)
}

pub(crate) fn release_registration(r: &'static Registration) {
    r.epoll.store(core::ptr::null_mut(), Ordering::Relaxed);
    REGISTRATIONS.release(r);
}

/// Enters a registration into the kernel's set, with the application's value unless that looks like one of ours.
pub(crate) fn show_to_kernel(e: &'static Epoll, reg: &'static Registration, op: i32) -> Result<()> {
    let (events, data) = (reg.events.load(Ordering::Relaxed), reg.data.load(Ordering::Relaxed));
    let mut in_kernel = data;
    if looks_like_cookie(data) {
        in_kernel = cookie(Kind::Foreign, reg);
        if reg.flags.fetch_or(SUBSCRIBED, Ordering::Relaxed) & SUBSCRIBED == 0 {
            e.add_ours(1);
        }
    }
    note_edges(e, events);
    if e.is_inherited() {
        // It is entered when this process first uses the instance.
        return Ok(());
    }
    e.enter_plain(reg, op, events, in_kernel)?;
    reg.flags.fetch_or(KERNEL, Ordering::Relaxed);
    Ok(())
}

pub(crate) fn each_registration(s: &'static Socket, mut f: impl FnMut(&'static Epoll, &'static Registration)) {
    let mut p = s.registrations.load(Ordering::Relaxed);
    while let Some(reg) = at(p) {
        p = reg.next_sock.load(Ordering::Relaxed);
        if let Some(e) = at(reg.epoll.load(Ordering::Relaxed)) {
            f(e, reg);
        }
    }
}

/// Notes that the kernel's set has a registration whose events it says only once.
pub(crate) fn note_edges(e: &Epoll, events: u32) {
    if events & (EPOLLET | EPOLLONESHOT) as u32 != 0 {
        e.edges.store(1, Ordering::Relaxed);
    }
}

pub(crate) fn find(e: &Epoll, s: &Socket, fd: i32) -> Option<&'static Registration> {
    let mut p = s.registrations.load(Ordering::Relaxed);
    while let Some(reg) = at(p) {
        if core::ptr::eq(reg.epoll.load(Ordering::Relaxed), e) && reg.fd.load(Ordering::Relaxed) == fd {
            return Some(reg);
        }
        p = reg.next_sock.load(Ordering::Relaxed);
    }
    None
}

pub(crate) fn link(
    e: &'static Epoll,
    s: Option<&'static Socket>,
    fd: i32,
    (events, data): (u32, u64),
) -> Result<&'static Registration> {
    let reg = new_registration()?;
    reg.fd.store(fd, Ordering::Relaxed);
    reg.events.store(events, Ordering::Relaxed);
    reg.data.store(data, Ordering::Relaxed);
    let p = core::ptr::from_ref(reg).cast_mut();
    if let Some(s) = s {
        reg.sock.store(core::ptr::from_ref(s).cast_mut(), Ordering::Release);
        reg.next_sock.store(s.registrations.load(Ordering::Relaxed), Ordering::Relaxed);
        s.registrations.store(p, Ordering::Release);
    }
    reg.epoll.store(core::ptr::from_ref(e).cast_mut(), Ordering::Relaxed);
    let _g = e.lock.lock();
    let first = e.registrations.load(Ordering::Relaxed);
    reg.next_all.store(first, Ordering::Relaxed);
    reg.prev_all.store(core::ptr::null_mut(), Ordering::Relaxed);
    if let Some(first) = at(first) {
        first.prev_all.store(p, Ordering::Relaxed);
    }
    e.registrations.store(p, Ordering::Release);
    Ok(reg)
}

/// What stands for an application's value in the kernel's set: itself, unless it looks like ours or we must see the
/// event.
pub(crate) fn kernel_data(s: &Socket, reg: &'static Registration, data: u64) -> u64 {
    if s.is_candidate() {
        cookie(Kind::Candidate, reg)
    } else if looks_like_cookie(data) {
        cookie(Kind::Foreign, reg)
    } else {
        data
    }
}

/// Takes back what a registration was counted as, since it changes its kind.
pub(crate) fn uncount(e: &Epoll, reg: &Registration) -> u32 {
    let old = reg.flags.fetch_and(!(SUBSCRIBED | POLLED | LISTENED), Ordering::Relaxed);
    if old & LISTENED != 0 {
        e.listened.fetch_sub(1, Ordering::Relaxed);
    }
    if old & POLLED != 0 {
        e.polled.fetch_sub(1, Ordering::Relaxed);
    }
    if old & (SUBSCRIBED | POLLED) != 0 {
        e.add_ours(-1);
    }
    old
}

/// Called in the child of a fork: frees the lock, which another thread of the parent may have held.
pub(crate) fn reset_locks() {
    REGISTRATIONS.reset_lock();
}
