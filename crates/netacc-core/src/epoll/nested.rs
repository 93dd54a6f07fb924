//! Instances inside of instances.
//!
//! An outer instance in which another one is registered by edges hears of that one as often as the kernel would wake
//! its sleepers: when something in the inner one is woken for what it asked for (`ep_poll_callback`), and when a
//! registration there is added or changed that is ready and was not to be reported anyway (`ep_insert`, `ep_modify`).
//! So an inner instance counts these ([`Epoll::notify_outer`]), and keeps for each of its registrations whether the
//! kernel would have it in its ready list: it is queued and has `FRESH`. An instance that is in no other one does
//! neither.

use crate::epoll::absorb::absorb;
use crate::epoll::cookies::{Kind, cookie};
use crate::epoll::ctl::{link, modify, touch, unlink};
use crate::epoll::ready::{arm, changed, look, news, note_hold};
use crate::fdtable;
use crate::fdtable::Entry;
use crate::object::instance::{
    DISABLED, Epoll, FRESH, GONE, KERNEL, POLLED, QUEUED, Registration, STRUCTURE, SUBSCRIBED,
};
use crate::object::reference::{Ref, at};
use crate::outcome::Outcome;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLONESHOT};
use netacc_sys::errno::{Errno, Result};

/// Whether an instance was ever put into another one: programs that make and close instances all the time hardly ever
/// do that.
static NESTING: AtomicU32 = AtomicU32::new(0);

/// The value of [`NESTING`].
pub(super) fn ever() -> bool {
    NESTING.load(Ordering::Relaxed) != 0
}

impl Epoll {
    /// Counts one more instance that is registered in this one. Under `STRUCTURE`.
    pub(super) fn nests(&self) {
        NESTING.store(1, Ordering::Relaxed);
        self.nested.fetch_add(1, Ordering::Relaxed);
    }

    /// It is about to be registered in another instance: from now on it keeps what the kernel would have in its ready
    /// list, and at first that is what is queued.
    fn becomes_inner(&self) {
        let _g = self.lock.lock();
        if self.is_inner() {
            return;
        }
        self.inner.store(1, Ordering::Relaxed);
        let mut p = self.registrations.load(Ordering::Relaxed);
        while let Some(reg) = at(p) {
            p = reg.next_all.load(Ordering::Relaxed);
            let level = reg.events.load(Ordering::Relaxed) & EPOLLET as u32 == 0;
            if news(reg, true) || (level && reg.queue() & QUEUED != 0) {
                reg.set_queue_bits(FRESH);
            }
        }
    }
}

/// Whether the kernel would have a registration of an inner instance in its ready list. Under the instance's lock.
pub(super) fn linked(e: &Epoll, reg: &Registration) -> bool {
    e.is_inner() && reg.queue() & (QUEUED | FRESH | DISABLED) == QUEUED | FRESH
}

/// A hint came for a registration of an inner instance. If the kernel would wake it for that, it is to be reported, and the
/// instances around hear of it. Under the instance's lock.
#[cold]
pub(super) fn on_hint(e: &Epoll, reg: &'static Registration) {
    if reg.queue() & (DISABLED | GONE) != 0 {
        return;
    }
    // A listener has no marks, and without a subscription no hints either: what is new there is that it is ready.
    let marked = at(reg.sock.load(Ordering::Relaxed)).is_none_or(|s| s.listener().is_none());
    let looked_at = reg.flags.load(Ordering::Relaxed) & POLLED != 0 && !marked;
    let new = if looked_at { reg.queue() & FRESH == 0 && look(e, reg) != 0 } else { changed(reg, true) };
    if new {
        reg.set_queue_bits(FRESH);
        e.notify_outer();
    }
}

/// The kernel says that a nested instance stirred: whether by a descriptor that is not ours. What ours have to say we
/// count ourselves, and their wakers ring for more than that.
pub(super) fn stirred_by_others(reg: &Registration) -> bool {
    let Some(child) = at(reg.child.load(Ordering::Relaxed)) else { return false };
    let child = Ref { obj: child, generation: child.generation() };
    // No thread takes from the set of an instance in which another one sleeps.
    let unknown = child.obj.sleepers.load(Ordering::SeqCst) > 0;
    if !unknown && child.valid() {
        absorb(child.obj);
    }
    unknown || child.obj.foreign.load(Ordering::Relaxed) != 0 || child.obj.stash_len.load(Ordering::Relaxed) > 0
}

/// epoll_ctl(2) with an instance as its descriptor.
pub(super) fn control(e: &'static Epoll, op: i32, fd: i32, child: Ref<Epoll>, event: Option<(u32, u64)>) -> Outcome {
    if op != EPOLL_CTL_DEL {
        // What waits in the child's kernel set counts for the answer whether it is ready. To be done before any lock is
        // taken.
        absorb(child.obj);
    }
    let _s = STRUCTURE.lock();
    if !child.valid() {
        return Outcome::Failed(Errno::BADF);
    }
    let mut p = e.registrations.load(Ordering::Relaxed);
    let mut known = None;
    while let Some(reg) = at(p) {
        if reg.fd.load(Ordering::Relaxed) == fd && !reg.child.load(Ordering::Relaxed).is_null() {
            known = Some(reg);
        }
        p = reg.next_all.load(Ordering::Relaxed);
    }
    let result = match (op, known, event) {
        (EPOLL_CTL_ADD, None, Some(ev)) => add_nested(e, fd, child, ev),
        (EPOLL_CTL_ADD, Some(_), _) => Err(Errno::EXIST),
        (EPOLL_CTL_MOD, Some(reg), Some(ev)) => modify(e, reg, fd, ev),
        (EPOLL_CTL_DEL, Some(reg), _) => {
            unlink(e, reg);
            Ok(())
        }
        (EPOLL_CTL_MOD | EPOLL_CTL_DEL, None, _) => Err(Errno::NOENT),
        (_, _, None) => Err(Errno::FAULT),
        _ => Err(Errno::INVAL),
    };
    result.into()
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

fn add_nested(e: &'static Epoll, fd: i32, child: Ref<Epoll>, ev: (u32, u64)) -> Result<()> {
    e.ensure_kick()?;
    child.obj.becomes_inner();
    let reg = link(e, None, fd, ev)?;
    e.nests();
    // The kernel checks for loops and depth, and wakes us when the child's descriptors stir.
    e.enter(EPOLL_CTL_ADD, fd, ev.0 & !(EPOLLONESHOT as u32), cookie(Kind::Nested, reg))
        .inspect_err(|_| unlink(e, reg))?;
    e.add_ours(1);
    reg.flags.fetch_or(KERNEL | SUBSCRIBED, Ordering::Relaxed);
    reg.child.store(core::ptr::from_ref(child.obj).cast_mut(), Ordering::Release);
    enter_own(e, reg, child.obj);
    touch(e, reg);
    Ok(())
}

/// Enters the set that a nested instance may have for what is ours: that wakes the instance around it as well.
fn enter_own(e: &Epoll, reg: &Registration, child: &Epoll) {
    let own = child.set_fd();
    if own != child.fd() {
        let events = reg.events.load(Ordering::Relaxed) & !(EPOLLONESHOT as u32);
        let _ = e.enter(EPOLL_CTL_ADD, own, events, cookie(Kind::Nested, reg));
    }
}

/// Undoes [`enter_own`].
pub(super) fn leave_own(e: &Epoll, reg: &Registration) {
    if let Some(child) = at(reg.child.load(Ordering::Relaxed)).filter(|c| c.set_fd() != c.fd()) {
        let _ = e.enter(EPOLL_CTL_DEL, child.set_fd(), 0, 0);
    }
}

/// Enters a nested registration into a new set. Under `STRUCTURE`.
pub(super) fn enter(e: &Epoll, reg: &Registration) {
    let (fd, events) = (reg.fd.load(Ordering::Relaxed), reg.events.load(Ordering::Relaxed));
    let _ = e.enter(EPOLL_CTL_ADD, fd, events & !(EPOLLONESHOT as u32), cookie(Kind::Nested, reg));
    if let Some(child) = at(reg.child.load(Ordering::Relaxed)) {
        enter_own(e, reg, child);
    }
}

/// `child` has a set of its own from here on: enters that set into the instances around it. Under `STRUCTURE`.
pub(super) fn show_own(child: &Epoll) {
    if !child.is_inner() {
        return;
    }
    fdtable::each(0, usize::MAX, |_, entry| {
        let Entry::Epoll(outer) = entry else { return };
        let mut p = outer.obj.registrations.load(Ordering::Relaxed);
        while let Some(reg) = at(p) {
            p = reg.next_all.load(Ordering::Relaxed);
            if core::ptr::eq(reg.child.load(Ordering::Relaxed), child) {
                enter_own(outer.obj, reg, child);
            }
        }
    });
}

/// Number of instances directly inside of one that are found without allocating.
const FEW: usize = 8;

pub(super) fn absorb_children(e: &'static Epoll) {
    if e.nested.load(Ordering::Relaxed) == 0 {
        return;
    }
    // The list may only be followed under the lock: a registration that is removed meanwhile may serve another
    // instance's list next. Absorbing takes locks that come before this one, so it happens afterwards, to the instances
    // that were there.
    let mut few = [None; FEW];
    let mut more = Vec::new();
    {
        let _g = e.lock.lock();
        let mut room = few.iter_mut();
        let mut p = e.registrations.load(Ordering::Relaxed);
        while let Some(reg) = at(p) {
            p = reg.next_all.load(Ordering::Relaxed);
            if let Some(child) = at(reg.child.load(Ordering::Relaxed)) {
                let child = Ref { obj: child, generation: child.generation() };
                match room.next() {
                    Some(cell) => *cell = Some(child),
                    None => more.push(child),
                }
            }
        }
    }
    for child in few.into_iter().flatten().chain(more) {
        // A child that was closed meanwhile is skipped: its number may be another instance's, whose events are not ours
        // to take.
        if child.valid() {
            absorb(child.obj);
        }
    }
}

/// Arms the nested instances. Under the parent's lock.
pub(crate) fn arm_children(e: &Epoll) -> bool {
    if e.nested.load(Ordering::Relaxed) == 0 {
        return true;
    }
    let mut quiet = true;
    let mut p = e.registrations.load(Ordering::Relaxed);
    while let Some(reg) = at(p) {
        p = reg.next_all.load(Ordering::Relaxed);
        if let Some(child) = at(reg.child.load(Ordering::Relaxed)) {
            let events = reg.events.load(Ordering::Relaxed);
            let idle = arm(child);
            let held = child.held_until.load(Ordering::Relaxed);
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
