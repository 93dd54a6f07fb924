//! Epoll instances that are registered in other instances.
//!
//! If an inner instance is registered edge-triggered, the outer one gets an event whenever the kernel would wake its
//! sleepers: when a requested event of the inner one occurs (`ep_poll_callback`), and when a registration there is
//! added or changed that is ready and was not in the ready list already (`ep_insert`, `ep_modify`). So an inner
//! instance counts these events ([`Epoll::notify_outer`]), and tracks for each of its registrations whether the kernel
//! would have it in its ready list: it is queued and has `FRESH`. An instance that is in no other one does neither.

use crate::epoll::cookies::{Kind, cookie};
use crate::epoll::ready::{arm, changed, look, news, note_hold};
use crate::fd::table::{self, Entry};
use crate::object::instance::{DISABLED, Epoll, FRESH, GONE, QUEUED, Registration};
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLLET, EPOLLONESHOT};
use netacc_sys::SharedCell;

/// Whether an instance was ever registered in another one. Programs that often make and close instances hardly ever do
/// that, so they skip the work.
static NESTING: SharedCell<u32> = SharedCell::<u32>::new(0);

/// The value of [`NESTING`].
pub(super) fn ever() -> bool {
    NESTING.get() != 0
}

impl Epoll {
    /// Counts one more instance that is registered in this one. Under `STRUCTURE`.
    pub(super) fn nests(&self) {
        NESTING.set(1);
        self.nested.add(1);
    }
}

/// Whether the kernel would have a registration of an inner instance in its ready list. Under the instance's lock.
pub(super) fn linked(e: &Epoll, reg: &Registration) -> bool {
    e.is_inner() && reg.queue() & (QUEUED | FRESH | DISABLED) == QUEUED | FRESH
}

/// Handles a hint for a registration of an inner instance: if the kernel would wake the instance for it, the
/// registration is to be reported, and the outer instances get an event. Under the instance's lock.
#[cold]
pub(super) fn on_hint(e: &Epoll, reg: &'static Registration) {
    if reg.queue() & (DISABLED | GONE) != 0 {
        return;
    }
    // A listener has no edge counters, and without a subscription no hints either: its readiness itself is the event.
    let marked = reg.sock.get().is_none_or(|s| s.listener().is_none());
    let looked_at = reg.source().is_polled() && !marked;
    let new = if looked_at { reg.queue() & FRESH == 0 && look(e, reg) != 0 } else { changed(reg, true) };
    if new {
        reg.set_queue_bits(FRESH);
        e.notify_outer();
    }
}

/// Enters the separate set that a nested instance may have for our own entries, since that has to wake the outer
/// instance as well.
pub(super) fn enter_own(e: &Epoll, reg: &Registration, child: &Epoll) {
    let own = child.set_fd();
    if own != child.fd() {
        let events = reg.events.get() & !(EPOLLONESHOT as u32);
        let _ = e.enter(EPOLL_CTL_ADD, own, events, cookie(Kind::Nested, reg));
    }
}

/// Undoes [`enter_own`].
pub(super) fn leave_own(e: &Epoll, reg: &Registration) {
    if let Some(child) = reg.child.get().filter(|c| c.set_fd() != c.fd()) {
        let _ = e.enter(EPOLL_CTL_DEL, child.set_fd(), 0, 0);
    }
}

/// Enters a nested registration into a new set. Under `STRUCTURE`.
pub(super) fn enter(e: &Epoll, reg: &Registration) {
    let (fd, events) = (reg.fd.get(), reg.events.get());
    let _ = e.enter(EPOLL_CTL_ADD, fd, events & !(EPOLLONESHOT as u32), cookie(Kind::Nested, reg));
    if let Some(child) = reg.child.get() {
        enter_own(e, reg, child);
    }
}

/// Enters the new separate set of `child` into its outer instances. Under `STRUCTURE`.
pub(super) fn show_own(child: &Epoll) {
    if !child.is_inner() {
        return;
    }
    table::each(0, usize::MAX, |_, entry| {
        let Entry::Epoll(outer) = entry else { return };
        for reg in outer.obj.registered() {
            if reg.child.is(child) {
                enter_own(outer.obj, reg, child);
            }
        }
    });
}

/// Arms the nested instances. Under the parent's lock.
pub(crate) fn arm_children(e: &Epoll) -> bool {
    if e.nested.get() == 0 {
        return true;
    }
    let mut quiet = true;
    for reg in e.registered() {
        if let Some(child) = reg.child.get() {
            let events = reg.events.get();
            let idle = arm(child);
            let held = child.held_until.get();
            if held != 0 {
                note_hold(e, held);
            }
            let wanted = reg.queue() & DISABLED == 0
                && events & libc::EPOLLIN as u32 != 0
                && (events & EPOLLET as u32 == 0 || news(reg, false));
            quiet &= idle || !wanted;
        }
    }
    quiet
}
