//! Registrations: how they come into the lists of their socket and their instance, and what they are counted as.

use crate::epoll::cookies::{self, Kind, cookie, looks_like_cookie};
use crate::object::instance::{Epoll, Registration, registered};
use crate::object::socket::Socket;
use crate::object::source::Source;
use libc::{EPOLLET, EPOLLONESHOT};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::slab::Slab;

static REGISTRATIONS: Slab<Registration> = Slab::new();

pub(crate) fn new_registration() -> Result<&'static Registration> {
    let r = REGISTRATIONS.alloc().ok_or(Errno::NOMEM)?;
    cookies::enter(r).inspect_err(|_| REGISTRATIONS.release(r))?;
    r.begin();
    Ok(r)
}

pub(crate) fn release_registration(r: &'static Registration) {
    r.epoll.set(None);
    REGISTRATIONS.release(r);
}

/// Enters the registration of a socket that the kernel serves into the kernel's set, or changes the entry (`op`). What
/// stands there is the program's value, unless that looks like one of ours or we must see the events. Under
/// `STRUCTURE`.
pub(crate) fn show_to_kernel(e: &'static Epoll, reg: &'static Registration, s: &Socket, op: i32) -> Result<()> {
    let (events, data) = (reg.events.get(), reg.data.get());
    let (source, in_kernel) = if s.is_candidate() {
        (Source::Translated, cookie(Kind::Candidate, reg))
    } else if looks_like_cookie(data) {
        (Source::Translated, cookie(Kind::Foreign, reg))
    } else {
        (Source::Kernel, data)
    };
    note_edges(e, events);
    // A cookie is counted before the kernel can report it, and until the kernel cannot any more: the calls of an
    // instance without registrations of ours pass through.
    let before = reg.source();
    if source == Source::Translated {
        reg.set_source(e, source);
    }
    let done = e.enter_plain(reg, op, events, in_kernel);
    reg.set_source(e, if done.is_ok() { source } else { before });
    done
}

pub(crate) fn each_registration(s: &'static Socket, mut f: impl FnMut(&'static Epoll, &'static Registration)) {
    for reg in registered(s) {
        if let Some(e) = reg.epoll.get() {
            f(e, reg);
        }
    }
}

/// Notes that the kernel's set has a registration whose events it says only once.
pub(crate) fn note_edges(e: &Epoll, events: u32) {
    if events & (EPOLLET | EPOLLONESHOT) as u32 != 0 {
        e.edges.set(true);
    }
}

pub(crate) fn find(e: &Epoll, s: &Socket, fd: i32) -> Option<&'static Registration> {
    registered(s).find(|reg| reg.epoll.is(e) && reg.fd.get() == fd)
}

pub(crate) fn link(
    e: &'static Epoll,
    s: Option<&'static Socket>,
    fd: i32,
    (events, data): (u32, u64),
) -> Result<&'static Registration> {
    let reg = new_registration()?;
    reg.fd.set(fd);
    reg.events.set(events);
    reg.data.set(data);
    if let Some(s) = s {
        reg.sock.store(Some(s));
        reg.next_sock.set(s.registrations.get());
        s.registrations.store(Some(reg));
    }
    reg.epoll.set(Some(e));
    let _g = e.lock.lock();
    let first = e.registrations.get();
    reg.next_all.set(first);
    reg.prev_all.set(None);
    if let Some(first) = first {
        first.prev_all.set(Some(reg));
    }
    e.registrations.store(Some(reg));
    Ok(reg)
}
