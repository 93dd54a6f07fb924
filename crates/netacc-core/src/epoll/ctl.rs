//! epoll_ctl(2).

use crate::epoll::cookies::{Kind, cookie, looks_like_cookie};
use crate::epoll::listeners::{listener_events, unhear_listener, watch_listener};
use crate::epoll::nested::linked;
use crate::epoll::paths::{each_registration, show_to_kernel};
use crate::epoll::ready::refresh;
use crate::epoll::{nested, new_registration, release_registration, shared, stash, subscription};
use crate::fdtable;
use crate::fdtable::Entry;
use crate::object::instance::{
    ACCEPTED, DISABLED, Epoll, GONE, KERNEL, LISTENED, LIVENESS_WATCHED, OLD_SUBFLOW_WATCHED, ON_KERNEL,
    PEER_LIVENESS_WATCHED, POLLED, PROGRAMS, QUEUED, Registration, STRUCTURE, SUBSCRIBED,
};
use crate::object::reference::{Ref, at};
use crate::object::socket::{CANDIDATE, DORMANT, INHERITED, Path, Socket};
use crate::outcome::Outcome;
use crate::socket::adopt;
use crate::socket::create::materialize;
use core::sync::atomic::Ordering;
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLEXCLUSIVE, EPOLLIN, EPOLLONESHOT};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::raw;

/// epoll_ctl(2). `event` is the application's, if the operation has one.
pub fn control(epfd: i32, op: i32, fd: i32, event: Option<(u32, u64)>) -> Outcome {
    let Some(re) = fdtable::epoll(epfd) else {
        return Outcome::Pass;
    };
    let e = re.obj;
    let entry = fdtable::get(fd);
    if event.is_none() && op != EPOLL_CTL_DEL {
        return Outcome::Failed(Errno::FAULT);
    }
    let is_epoll = matches!(entry, Some(Entry::Epoll(_)));
    let itself = matches!(entry, Some(Entry::Epoll(r)) if core::ptr::eq(r.obj, e));
    if itself || (entry.is_some() && exclusive_misused(op, event, is_epoll)) {
        return Outcome::Failed(Errno::INVAL);
    }
    // What a child removes that does not use the instance is removed for that child alone.
    if entry.is_some() && op != EPOLL_CTL_DEL {
        shared::claim(e);
    }
    match entry {
        Some(Entry::Socket(rs)) => socket(e, op, fd, rs, event),
        Some(Entry::Epoll(rc)) => nested::control(e, op, fd, rc, event),
        None if fd < 0 => Outcome::Pass,
        None => {
            // To be done before the kernel's set forgets what it has the descriptor as.
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

/// Notes that the kernel's set has a registration whose events it says only once.
pub(super) fn note_edges(e: &Epoll, events: u32) {
    if events & (EPOLLET | EPOLLONESHOT) as u32 != 0 {
        e.edges.store(1, Ordering::Relaxed);
    }
}

fn find(e: &Epoll, s: &Socket, fd: i32) -> Option<&'static Registration> {
    let mut p = s.registrations.load(Ordering::Relaxed);
    while let Some(reg) = at(p) {
        if core::ptr::eq(reg.epoll.load(Ordering::Relaxed), e) && reg.fd.load(Ordering::Relaxed) == fd {
            return Some(reg);
        }
        p = reg.next_sock.load(Ordering::Relaxed);
    }
    None
}

fn socket(e: &'static Epoll, op: i32, fd: i32, r: Ref<Socket>, event: Option<(u32, u64)>) -> Outcome {
    let s = r.obj;
    if op == EPOLL_CTL_ADD && s.has(INHERITED | DORMANT) {
        adopt::wake(fd, r);
    }
    if s.path() == Path::New
        && op == EPOLL_CTL_ADD
        && let Err(err) = materialize(fd, s)
    {
        // A template's duplicate must not enter the kernel's set: it would outlive the socket there.
        return Outcome::Failed(err);
    }
    let _s = STRUCTURE.lock();
    if !r.valid() {
        return Outcome::Failed(Errno::BADF);
    }
    let known = find(e, s, fd);
    match (op, s.path()) {
        (_, Path::Tcp) if known.is_none() && !s.has(CANDIDATE) => {
            stash::forget_descriptor(e, fd);
            note_edges(e, event.map_or(0, |(events, _)| events));
            Outcome::Pass
        }
        (EPOLL_CTL_ADD, path) => match (known, event) {
            (Some(_), _) => Outcome::Failed(Errno::EXIST),
            (None, None) => Outcome::Failed(Errno::FAULT),
            (None, Some(ev)) => add(e, path, fd, s, ev).into(),
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

pub(super) fn link(
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

fn add(e: &'static Epoll, path: Path, fd: i32, s: &'static Socket, ev: (u32, u64)) -> Result<()> {
    match path {
        Path::New | Path::Tcp => {
            note_edges(e, ev.0);
            let data = ev.1;
            let reg = link(e, Some(s), fd, ev)?;
            // The kernel's set has the application's own value, unless that looks like one of ours.
            let in_kernel = kernel_data(s, reg, data);
            if in_kernel != data {
                e.add_ours(1);
                reg.flags.fetch_or(SUBSCRIBED, Ordering::Relaxed);
            }
            e.enter_plain(reg, EPOLL_CTL_ADD, ev.0, in_kernel).inspect_err(|_| unlink(e, reg))?;
            reg.flags.fetch_or(KERNEL, Ordering::Relaxed);
            Ok(())
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

/// What stands for an application's value in the kernel's set: itself, unless it looks like ours or we must see the event.
fn kernel_data(s: &Socket, reg: &'static Registration, data: u64) -> u64 {
    if s.path() == Path::Tcp && s.has(CANDIDATE) {
        cookie(Kind::Candidate, reg)
    } else if looks_like_cookie(data) {
        cookie(Kind::Foreign, reg)
    } else {
        data
    }
}

/// A socket that was registered before it connected by TCP may be promoted.
pub fn candidate(s: &'static Socket) {
    if s.registrations.load(Ordering::Acquire).is_null() {
        return;
    }
    let _s = STRUCTURE.lock();
    each_registration(s, |e, reg| {
        let events = reg.events.load(Ordering::Relaxed);
        if reg.flags.load(Ordering::Relaxed) & KERNEL != 0
            && e.enter_plain(reg, EPOLL_CTL_MOD, events, cookie(Kind::Candidate, reg)).is_ok()
            && reg.flags.fetch_or(SUBSCRIBED, Ordering::Relaxed) & SUBSCRIBED == 0
        {
            e.add_ours(1);
        }
    });
}

/// Takes back what a registration was counted as, since it changes its kind.
pub(super) fn uncount(e: &Epoll, reg: &Registration) -> u32 {
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

/// From now on the registration of an accelerated connection is ours.
pub(super) fn listen_in(e: &'static Epoll, reg: &'static Registration, s: &'static Socket) {
    uncount(e, reg);
    e.add_ours(1);
    let Some(ep) = s.endpoint() else { return };
    if subscription::attach(e, ep, core::ptr::from_ref(reg) as usize) {
        reg.flags.fetch_or(SUBSCRIBED, Ordering::Relaxed);
    } else {
        reg.flags.fetch_or(POLLED, Ordering::Relaxed);
        e.polled.fetch_add(1, Ordering::Relaxed);
        let liveness = if ep.link().is_inherited() { ep.liveness_to_poll() } else { -1 };
        let events = (libc::EPOLLIN | libc::EPOLLRDHUP | EPOLLET) as u32;
        if liveness >= 0 && e.enter(EPOLL_CTL_ADD, liveness, events, cookie(Kind::Liveness, reg)).is_ok() {
            reg.flags.fetch_or(LIVENESS_WATCHED, Ordering::Relaxed);
            e.based.fetch_add(1, Ordering::Relaxed);
        }
    }
    touch(e, reg);
}

/// Queues a registration that may be ready and wakes the threads that sleep.
pub(super) fn touch(e: &'static Epoll, reg: &'static Registration) {
    touch_as(e, reg, false);
}

/// As [`touch`]; `linked`: the registration was to be reported anyway, so that this is news for no thread.
fn touch_as(e: &'static Epoll, reg: &'static Registration, linked: bool) {
    {
        let _g = e.lock.lock();
        refresh(e, reg, linked);
    }
    e.kick();
}

/// shutdown(2) was called on a listener, which is an edge for every registration of it.
pub fn stirred(s: &'static Socket) {
    if s.registrations.load(Ordering::Acquire).is_null() {
        return;
    }
    let _s = STRUCTURE.lock();
    each_registration(s, touch);
}

/// What epoll_ctl(2) says about EPOLLEXCLUSIVE: only with ADD, for no epoll instance, beside few other bits.
fn exclusive_misused(op: i32, event: Option<(u32, u64)>, nested: bool) -> bool {
    const BESIDE: u32 =
        (EPOLLIN | libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE)
            as u32;
    let Some((events, _)) = event.filter(|_| op != EPOLL_CTL_DEL) else {
        return false;
    };
    events & EPOLLEXCLUSIVE as u32 != 0 && (op != EPOLL_CTL_ADD || nested || events & !BESIDE != 0)
}

pub(super) fn modify(e: &'static Epoll, reg: &'static Registration, fd: i32, (events, data): (u32, u64)) -> Result<()> {
    if (events | reg.events.load(Ordering::Relaxed)) & EPOLLEXCLUSIVE as u32 != 0 {
        return Err(Errno::INVAL);
    }
    let path = at(reg.sock.load(Ordering::Relaxed)).map(|s| s.path());
    stash::forget(e, reg);
    // To be done before the kernel is told: what it reports from then on is one-shot anew.
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
        // The registration was disabled when its connection became the kernel's.
        Some(Path::Tcp) if reg.flags.load(Ordering::Relaxed) & KERNEL == 0 => show_to_kernel(e, reg, EPOLL_CTL_ADD),
        Some(Path::New | Path::Tcp) => Ok(()),
        _ => {
            touch_as(e, reg, linked);
            Ok(())
        }
    }
}

/// Why a registration is removed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Removed {
    /// epoll_ctl(2) asked for it.
    Requested,
    /// The descriptor or the instance is closed.
    Closed,
}

/// Removes a registration everywhere. Under `STRUCTURE`.
pub(crate) fn unlink(e: &'static Epoll, reg: &'static Registration) {
    remove(e, reg, Removed::Requested);
}

/// Removes a registration as [`unlink`] does, because the descriptor or the instance is closed here. A set of the
/// kernel's may also belong to another process, and there a close changes nothing as long as that process has the
/// socket.
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
    if flags & KERNEL != 0 {
        let plain = s.is_some_and(|s| matches!(s.path(), Path::New | Path::Tcp));
        if plain && why == Removed::Requested {
            let _ = e.enter_plain(reg, EPOLL_CTL_DEL, 0, 0);
        } else if flags & PROGRAMS == 0 {
            del(fd);
        }
    }
    stash::forget(e, reg);
    if let Some(s) = s {
        match s.path() {
            Path::Listener => unhear_listener(e, reg, s),
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
    if flags & LISTENED != 0 {
        e.listened.fetch_sub(1, Ordering::Relaxed);
    }
    if flags & POLLED != 0 {
        e.polled.fetch_sub(1, Ordering::Relaxed);
    }
    if flags & LIVENESS_WATCHED != 0 {
        e.based.fetch_sub(1, Ordering::Relaxed);
        if let Some(liveness) = s.and_then(|s| s.endpoint()).map(|ep| ep.liveness_fd()).filter(|b| *b >= 0) {
            del(liveness);
        }
        if let Some(hinted) = s.and_then(|s| s.endpoint()).map(|ep| ep.liveness_to_poll()).filter(|b| *b >= 0) {
            del(hinted);
        }
    }
    if flags & ACCEPTED != 0
        && let Some(a) = s.and_then(|s| s.endpoint()).map(|ep| ep.accepted_fd()).filter(|a| *a >= 0)
    {
        del(a);
    }
    if flags & OLD_SUBFLOW_WATCHED != 0 {
        del(fd);
    }
    if flags & ON_KERNEL != 0
        && let Some(k) = s.and_then(|s| s.endpoint()).map(|ep| ep.kernel_fd()).filter(|k| *k >= 0)
    {
        del(k);
    }
    if flags & PEER_LIVENESS_WATCHED != 0
        && let Some(w) = s.and_then(|s| s.endpoint()).map(|ep| ep.peer_liveness_fd()).filter(|w| *w >= 0)
    {
        del(w);
    }
    if flags & (SUBSCRIBED | POLLED) != 0 {
        e.add_ours(-1);
    }
    let queued = {
        let _g = e.lock.lock();
        let (before, after) = (reg.prev_all.load(Ordering::Relaxed), reg.next_all.load(Ordering::Relaxed));
        at(before).map_or(&e.registrations, |x| &x.next_all).store(after, Ordering::Release);
        if let Some(x) = at(after) {
            x.prev_all.store(before, Ordering::Relaxed);
        }
        reg.sock.store(core::ptr::null_mut(), Ordering::Release);
        reg.child.store(core::ptr::null_mut(), Ordering::Release);
        // While it is queued it cannot be given to another socket.
        reg.set_queue_bits(GONE) & QUEUED != 0
    };
    if !queued {
        release_registration(reg);
    }
}

/// Registers a foreign descriptor whose value looks like a cookie: we keep the value.
fn translated(e: &'static Epoll, op: i32, fd: i32, events: u32, data: u64) -> Outcome {
    let _s = STRUCTURE.lock();
    let reg = match link(e, None, fd, (events, data)) {
        Ok(r) => r,
        Err(err) => return Outcome::Failed(err),
    };
    // Counted like a nested one by `unlink`; it is unlinked with the instance.
    e.nests();
    match raw::epoll_ctl(e.fd(), op, fd, events, cookie(Kind::Foreign, reg)) {
        Ok(()) => {
            e.add_ours(1);
            reg.flags.fetch_or(SUBSCRIBED, Ordering::Relaxed);
            Outcome::Done(0)
        }
        Err(err) => {
            unlink(e, reg);
            Outcome::Failed(err)
        }
    }
}
