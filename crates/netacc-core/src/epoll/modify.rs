//! epoll_ctl(2) with EPOLL_CTL_MOD.

use crate::epoll::cookies::{Kind, cookie};
use crate::epoll::kernel_set::Usage;
use crate::epoll::listeners::listener_events;
use crate::epoll::nested::linked;
use crate::epoll::ready::touch_as;
use crate::epoll::registration::{note_edges, show_to_kernel};
use crate::epoll::stash;
use crate::object::instance::{DISABLED, Epoll, Registration};
use crate::object::socket::Path;
use crate::object::source::Source;
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLEXCLUSIVE, EPOLLONESHOT};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::raw;

pub(crate) fn modify(e: &'static Epoll, reg: &'static Registration, fd: i32, (events, data): (u32, u64)) -> Result<()> {
    if (events | reg.events.get()) & EPOLLEXCLUSIVE as u32 != 0 {
        return Err(Errno::INVAL);
    }
    let s = reg.sock.get();
    stash::forget(e, reg);
    // Done before the kernel's entry changes: its later events count for the new one-shot registration.
    let linked = {
        let _g = e.lock.lock();
        let linked = linked(e, reg);
        reg.events.set(events);
        reg.data.set(data);
        reg.unmark(DISABLED);
        linked
    };
    let change = |ev, in_kernel| {
        note_edges(e, ev);
        e.enter(EPOLL_CTL_MOD, fd, ev, in_kernel)
    };
    match s.map(|s| (s, s.path())) {
        Some((s, Path::New | Path::Tcp)) => {
            // A registration that EPOLLONESHOT had disabled when its connection became a kernel socket has no entry.
            let op = if reg.source() == Source::Nothing { EPOLL_CTL_ADD } else { EPOLL_CTL_MOD };
            return show_to_kernel(e, reg, s, op);
        }
        Some((_, Path::Listener)) if reg.source().is_in_kernels_set() => {
            change(listener_events(events), cookie(Kind::TcpListener, reg))?;
            if e.usage() == Usage::Apart {
                // What `shared::leave_to_others` has left there.
                let _ = raw::epoll_ctl(e.fd(), EPOLL_CTL_MOD, fd, events, data);
            }
        }
        Some(_) => {}
        None => change(events & !(EPOLLONESHOT as u32), cookie(Kind::Nested, reg))?,
    }
    touch_as(e, reg, linked);
    Ok(())
}
