//! epoll_ctl(2) with EPOLL_CTL_MOD.

use crate::epoll::cookies::{Kind, cookie};
use crate::epoll::listeners::listener_events;
use crate::epoll::nested::linked;
use crate::epoll::ready::touch_as;
use crate::epoll::registration::{kernel_data, note_edges, show_to_kernel};
use crate::epoll::stash;
use crate::object::instance::{DISABLED, Epoll, KERNEL, Registration};
use crate::object::reference::at;
use crate::object::socket::Path;
use core::sync::atomic::Ordering;
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLEXCLUSIVE, EPOLLONESHOT};
use netacc_sys::errno::{Errno, Result};

pub(crate) fn modify(e: &'static Epoll, reg: &'static Registration, fd: i32, (events, data): (u32, u64)) -> Result<()> {
    if (events | reg.events.load(Ordering::Relaxed)) & EPOLLEXCLUSIVE as u32 != 0 {
        return Err(Errno::INVAL);
    }
    let path = at(reg.sock.load(Ordering::Relaxed)).map(|s| s.path());
    stash::forget(e, reg);
    // Done before the kernel's entry changes: its later events count for the new one-shot registration.
    let linked = {
        let _g = e.lock.lock();
        let linked = linked(e, reg);
        reg.events.store(events, Ordering::Relaxed);
        reg.data.store(data, Ordering::Relaxed);
        reg.unmark(DISABLED);
        linked
    };
    if reg.flags.load(Ordering::Relaxed) & KERNEL != 0 {
        let (ev, in_kernel) = match path {
            Some(Path::Listener) => (listener_events(events), cookie(Kind::TcpListener, reg)),
            None => (events & !(EPOLLONESHOT as u32), cookie(Kind::Nested, reg)),
            _ => (events, at(reg.sock.load(Ordering::Relaxed)).map_or(data, |s| kernel_data(s, reg, data))),
        };
        note_edges(e, ev);
        match path {
            Some(Path::New | Path::Tcp) => e.enter_plain(reg, EPOLL_CTL_MOD, ev, in_kernel)?,
            _ => e.enter(EPOLL_CTL_MOD, fd, ev, in_kernel)?,
        }
    }
    match path {
        // The registration was disabled (EPOLLONESHOT) when its connection became a kernel socket, and has no entry in
        // the kernel's set.
        Some(Path::Tcp) if reg.flags.load(Ordering::Relaxed) & KERNEL == 0 => show_to_kernel(e, reg, EPOLL_CTL_ADD),
        Some(Path::New | Path::Tcp) => Ok(()),
        _ => {
            touch_as(e, reg, linked);
            Ok(())
        }
    }
}
