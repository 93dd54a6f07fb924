//! epoll_ctl(2).

use crate::epoll::cookies::{Kind, cookie, looks_like_cookie};
use crate::epoll::listeners::watch_listener;
use crate::epoll::modify::modify;
use crate::epoll::paths::listen_in;
use crate::epoll::registration::{find, link, note_edges, show_to_kernel};
use crate::epoll::unlink::unlink;
use crate::epoll::{children, shared, stash};
use crate::fd::placeholder::materialize;
use crate::fd::table::{self, Entry};
use crate::listen::{adopt, unsettled};
use crate::object::instance::{Epoll, STRUCTURE};
use crate::object::reference::Ref;
use crate::object::socket::{ConnState, Path, Socket};
use crate::object::source::Source;
use crate::outcome::Outcome;
use crate::process_mode;
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLEXCLUSIVE, EPOLLIN};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::raw;

/// epoll_ctl(2). `event` is the application's, if the operation has one.
pub fn control(epfd: i32, op: i32, fd: i32, event: Option<(u32, u64)>) -> Outcome {
    let Some(re) = table::epoll(epfd) else { return Outcome::Pass };
    let e = re.obj;
    let entry = table::get(fd);
    if event.is_none() && op != EPOLL_CTL_DEL {
        return Outcome::Failed(Errno::FAULT);
    }
    let is_epoll = matches!(entry, Some(Entry::Epoll(_)));
    let itself = matches!(entry, Some(Entry::Epoll(r)) if core::ptr::eq(r.obj, e));
    if itself || (entry.is_some() && exclusive_misused(op, event, is_epoll)) {
        return Outcome::Failed(Errno::INVAL);
    }
    // A child that does not use the instance removes a registration for itself alone.
    if entry.is_some() && op != EPOLL_CTL_DEL {
        shared::claim(e);
    }
    match entry {
        Some(Entry::Socket(rs)) => socket(e, op, fd, rs, event),
        Some(Entry::Epoll(rc)) => children::control(e, op, fd, rc, event),
        None if fd < 0 => Outcome::Pass,
        None => {
            // Done first, since the value of the descriptor is read from the kernel's set.
            stash::forget_descriptor(e, fd);
            foreign(e, op, fd, event)
        }
    }
}

/// epoll_ctl(2) for a descriptor that is none of ours.
fn foreign(e: &'static Epoll, op: i32, fd: i32, event: Option<(u32, u64)>) -> Outcome {
    match event {
        Some((events, data)) if looks_like_cookie(data) && op != EPOLL_CTL_DEL => translated(e, op, fd, events, data),
        Some((events, _)) => {
            note_edges(e, events);
            Outcome::Pass
        }
        None => Outcome::Pass,
    }
}

fn socket(e: &'static Epoll, op: i32, fd: i32, r: Ref<Socket>, event: Option<(u32, u64)>) -> Outcome {
    let s = r.obj;
    if op == EPOLL_CTL_ADD && s.sleeps() {
        adopt::wake(fd, r);
    }
    if s.path() == Path::New
        && op == EPOLL_CTL_ADD
        && let Err(err) = materialize(fd, s)
    {
        // A duplicate of a template must not enter the kernel's set: the template's file, and so the entry, would stay
        // after the close.
        return Outcome::Failed(err);
    }
    let guard = STRUCTURE.lock();
    // Another thread has closed the number, or has left the socket to the kernel: the number is looked up once more.
    if !r.valid() {
        return Outcome::ANEW;
    }
    let known = find(e, s, fd);
    match (op, s.path()) {
        (_, Path::Tcp)
            if known.is_none() && !s.is_candidate() && !comes_back(op, fd, s) && !is_translated(op, event) =>
        {
            drop(guard);
            stash::forget_descriptor(e, fd);
            foreign(e, op, fd, event)
        }
        (EPOLL_CTL_ADD, path) => match (known, event) {
            (Some(_), _) => Outcome::Failed(Errno::EXIST),
            (None, None) => Outcome::Failed(Errno::FAULT),
            (None, Some(ev)) => match add(e, path, fd, s, ev).inspect(|()| note_unsettled(s)) {
                // Another thread has left the listener to the kernel meanwhile.
                Err(Errno::BADF) if path == Path::Listener && s.path() != Path::Listener => Outcome::ANEW,
                done => done.into(),
            },
        },
        (EPOLL_CTL_MOD, _) => match (known, event) {
            (None, _) => Outcome::Failed(Errno::NOENT),
            (_, None) => Outcome::Failed(Errno::FAULT),
            (Some(reg), Some(ev)) => modify(e, reg, fd, ev).into(),
        },
        (EPOLL_CTL_DEL, _) => match known {
            None => Outcome::Failed(Errno::NOENT),
            Some(reg) => {
                unlink(e, reg);
                Outcome::Done(0)
            }
        },
        _ => Outcome::Failed(Errno::INVAL),
    }
}

/// Whether the operation adds a listener of the kernel's that an operator may bring back, such as one that was made while the
/// process was off: its registration has to be known then.
fn comes_back(op: i32, fd: i32, s: &Socket) -> bool {
    op == EPOLL_CTL_ADD && process_mode::is_awaited() && adopt::is_kernels_listener(fd, s)
}

/// Has the next wait look at a socket that other processes may make a listener.
fn note_unsettled(s: &Socket) {
    if s.is(ConnState::InheritedNew) {
        unsettled::note();
    }
}

/// Whether the operation adds a socket with a value that looks like one of ours, in place of which the kernel's set gets
/// such a one.
fn is_translated(op: i32, event: Option<(u32, u64)>) -> bool {
    op == EPOLL_CTL_ADD && event.is_some_and(|(_, data)| looks_like_cookie(data))
}

fn add(e: &'static Epoll, path: Path, fd: i32, s: &'static Socket, ev: (u32, u64)) -> Result<()> {
    match path {
        Path::New | Path::Tcp => {
            let reg = link(e, Some(s), fd, ev)?;
            show_to_kernel(e, reg, s, EPOLL_CTL_ADD).inspect_err(|_| unlink(e, reg))
        }
        Path::Shm => {
            e.ensure_kick()?;
            let reg = link(e, Some(s), fd, ev)?;
            listen_in(e, reg, s);
            Ok(())
        }
        Path::Listener => {
            e.ensure_kick()?;
            let reg = link(e, Some(s), fd, ev)?;
            watch_listener(e, reg, fd, s).inspect_err(|_| unlink(e, reg))
        }
    }
}

/// Whether EPOLLEXCLUSIVE is used against the rules of epoll_ctl(2): only with ADD, not for an epoll instance, and only
/// with certain other bits.
fn exclusive_misused(op: i32, event: Option<(u32, u64)>, nested: bool) -> bool {
    const BESIDE: u32 =
        (EPOLLIN | libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE)
            as u32;
    let Some((events, _)) = event.filter(|_| op != EPOLL_CTL_DEL) else { return false };
    events & EPOLLEXCLUSIVE as u32 != 0 && (op != EPOLL_CTL_ADD || nested || events & !BESIDE != 0)
}

/// Registers a foreign descriptor whose value has the form of a cookie: the value is stored in a registration of ours.
fn translated(e: &'static Epoll, op: i32, fd: i32, events: u32, data: u64) -> Outcome {
    let _s = STRUCTURE.lock();
    let reg = match link(e, None, fd, (events, data)) {
        Ok(r) => r,
        Err(err) => return Outcome::Failed(err),
    };
    // Counted like a nested one by `unlink`; it is unlinked with the instance.
    e.nests();
    reg.set_source(e, Source::Foreign);
    match raw::epoll_ctl(e.fd(), op, fd, events, cookie(Kind::Foreign, reg)) {
        Ok(()) => Outcome::Done(0),
        Err(err) => {
            unlink(e, reg);
            Outcome::Failed(err)
        }
    }
}
