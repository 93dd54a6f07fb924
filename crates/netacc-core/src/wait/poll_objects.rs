//! The objects behind the entries of an array of poll(2), and the events that they have.

use crate::epoll::absorb;
use crate::fd::table;
use crate::fd::table::Entry;
use crate::listen::adopt;
use crate::object::listener::Listener;
use crate::object::reference::Ref;
use crate::object::socket::{ConnState, Path, Socket};
use crate::switch::{offers, promote};
use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT};
use netacc_sys::raw;
use netacc_transport::{Endpoint, Interest, Readiness, WaitSet};

/// The object behind an entry of the array.
#[derive(Clone, Copy)]
pub(super) enum Ours {
    Connection(&'static Socket),
    Listener(&'static Socket),
    Epoll,
}

pub(super) fn ours(fd: i32) -> Option<Ours> {
    match table::get(fd)? {
        Entry::Socket(r) => of(fd, r),
        Entry::Epoll(r) => (!r.obj.is_plain()).then_some(Ours::Epoll),
    }
}

pub(super) fn of(fd: i32, r: Ref<Socket>) -> Option<Ours> {
    if r.obj.is_shm() {
        return Some(Ours::Connection(r.obj));
    }
    match r.obj.path() {
        Path::Tcp if r.obj.is_candidate() && promote::advance(fd, r) => Some(Ours::Connection(r.obj)),
        // The socket has just become a connection.
        Path::Shm => Some(Ours::Connection(r.obj)),
        Path::Listener => {
            if r.obj.sleeps() {
                adopt::wake(fd, r);
            }
            Some(Ours::Listener(r.obj))
        }
        Path::Tcp if r.obj.is_inherited() && adopt::wake(fd, r) => Some(Ours::Listener(r.obj)),
        Path::New | Path::Tcp => None,
    }
}

/// Whether the kernel's answer for the descriptor alone does not do. For a candidate the kernel answers, but an end of stream may
/// be the peer's switch, so it is checked again before it is reported.
pub(super) fn is_looked_at(fd: i32) -> bool {
    match table::get(fd) {
        Some(Entry::Socket(r)) => of(fd, r).is_some() || r.obj.is_candidate() || is_unsettled(r),
        Some(Entry::Epoll(r)) => !r.obj.is_plain(),
        None => false,
    }
}

/// Whether it is a socket that was unconnected when other processes got it, any of which may have called listen(2) or
/// connect(2) since. While it is unconnected the kernel reports POLLHUP for it, so no wait sleeps on it.
pub(super) fn is_unsettled(r: Ref<Socket>) -> bool {
    r.obj.is(ConnState::InheritedNew)
}

/// The events that `o` has now, of those requested in `events`. `None`: another thread has just moved the connection to
/// a kernel socket, or ended the listener, and the kernel knows them.
pub(super) fn look(o: Ours, fd: i32, events: i16) -> Option<i16> {
    let mask = (events | POLLERR | POLLHUP) as u16 as u32;
    let found = match o {
        Ours::Connection(s) => match s.endpoint() {
            Some(e) => e.readiness().0,
            None if s.is_shm() => POLLNVAL as u32,
            None => return None,
        },
        Ours::Listener(s) => match s.listener() {
            Some(l) => {
                l.take_links();
                if waits_in_memory(s, l) || l.starves() { Readiness::IN } else { kernels_events(l, fd, events) }
            }
            // The state changes before the listener part goes, so this is no listener any more.
            None => return None,
        },
        Ours::Epoll => {
            if absorb::readable(fd).unwrap_or(false) {
                Readiness::IN
            } else {
                0
            }
        }
    };
    Some((found & (mask | POLLNVAL as u32)) as i16)
}

/// The events that the kernel has for the listener `l` with the number `fd`: a connection, or that another thread has shut
/// it down. The accept that follows then asks the kernel, whatever its last answer was.
fn kernels_events(l: &Listener, fd: i32, events: i16) -> u32 {
    let events = raw::events_now(l.kernel_fd(fd), events | POLLIN);
    if events != 0 {
        l.tcp_waits.note();
    }
    u32::from(events.cast_unsigned())
}

/// As [`look`], but without a question to the kernel about a listener: it sees the connects over links that have been taken
/// up.
pub(super) fn glance(o: Ours, fd: i32, events: i16) -> Option<i16> {
    let Ours::Listener(s) = o else { return look(o, fd, events) };
    s.listener().map(|l| if waits_in_memory(s, l) { events & Readiness::IN as i16 } else { 0 })
}

/// Whether a connect waits in shared memory at the listener `l` of `s`.
fn waits_in_memory(s: &Socket, l: &'static Listener) -> bool {
    l.note_polled(s);
    offers::settle_offers();
    l.queued()
}

/// The descriptors at which clients of the listener `l` with the number `fd` arrive that are not in shared memory yet.
pub(super) fn arrivals(l: &'static Listener, fd: i32) -> impl Iterator<Item = i32> {
    l.doors().chain(l.hellos()).chain([l.kernel_fd(fd)])
}

/// Whether nobody has arrived at a listener with the number `fd`, as the kernel has reported for `set`. A descriptor that is
/// not in the set counts as one at which somebody has arrived, and so does a client for whom there was no descriptor.
pub(super) fn is_quiet(o: Ours, fd: i32, set: &WaitSet) -> bool {
    let Ours::Listener(s) = o else { return false };
    s.listener().is_some_and(|l| !l.has_starved() && arrivals(l, fd).all(|fd| set.events_of(fd) == Some(0)))
}

pub(super) fn interest(events: i16) -> Interest {
    // Errors and the end of the stream are reported even if not requested, and wake like data.
    Interest { read: true, write: events & POLLOUT != 0 }
}
