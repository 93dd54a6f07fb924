//! Instances that are registered in another one: epoll_ctl(2) on them, and their part in a wait of the outer one.

use crate::epoll::absorb::absorb;
use crate::epoll::cookies::{Kind, cookie};
use crate::epoll::modify::modify;
use crate::epoll::nested::enter_own;
use crate::epoll::ready::{news, touch};
use crate::epoll::registration::link;
use crate::epoll::unlink::unlink;
use crate::object::instance::{Epoll, FRESH, QUEUED, Registration, STRUCTURE};
use crate::object::reference::Ref;
use crate::object::source::Source;
use crate::outcome::Outcome;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLONESHOT};
use netacc_sys::errno::{Errno, Result};

/// Whether a nested instance that the kernel reports was woken by a foreign descriptor. Events of our own descriptors
/// are counted in `news`, and their wakers are also written for other purposes.
pub(crate) fn stirred_by_others(reg: &Registration) -> bool {
    let Some(child) = reg.child.get() else { return false };
    let child = Ref { obj: child, generation: child.generation() };
    // Events are not taken from the kernel's set while another thread sleeps in the instance.
    let unknown = child.obj.sleepers.load(Ordering::SeqCst) > 0;
    if !unknown && child.valid() {
        absorb(child.obj);
    }
    unknown || child.obj.foreign.get() || child.obj.stash_len.get() > 0
}

/// epoll_ctl(2) with an instance as its descriptor.
pub(crate) fn control(e: &'static Epoll, op: i32, fd: i32, child: Ref<Epoll>, event: Option<(u32, u64)>) -> Outcome {
    if op != EPOLL_CTL_DEL {
        // Events in the child's kernel set count for its readiness. This takes locks, so it is done before any other
        // lock is taken.
        absorb(child.obj);
    }
    let _s = STRUCTURE.lock();
    if !child.valid() {
        return Outcome::Failed(Errno::BADF);
    }
    let is_meant = |reg: &&Registration| reg.fd.get() == fd && !reg.child.is_none();
    let known = e.registered().filter(is_meant).last();
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

fn add_nested(e: &'static Epoll, fd: i32, child: Ref<Epoll>, ev: (u32, u64)) -> Result<()> {
    e.ensure_kick()?;
    child.obj.becomes_inner();
    let reg = link(e, None, fd, ev)?;
    e.nests();
    // The kernel checks for loops and depth, and wakes us for the child's descriptors.
    e.enter(EPOLL_CTL_ADD, fd, ev.0 & !(EPOLLONESHOT as u32), cookie(Kind::Nested, reg))
        .inspect_err(|_| unlink(e, reg))?;
    reg.set_source(e, Source::Nested);
    reg.child.store(Some(child.obj));
    enter_own(e, reg, child.obj);
    touch(e, reg);
    Ok(())
}

/// Number of directly nested instances that are collected without allocating.
const FEW: usize = 8;

pub(crate) fn absorb_children(e: &'static Epoll) {
    if e.nested.get() == 0 {
        return;
    }
    // The list may only be followed under the lock: a registration that is removed meanwhile may serve another
    // instance's list next. Absorbing takes locks that come before this one in the order, so it is done afterwards, for
    // the instances that were found.
    let mut few = [None; FEW];
    let mut more = Vec::new();
    {
        let _g = e.lock.lock();
        let mut room = few.iter_mut();
        for reg in e.registered() {
            if let Some(child) = reg.child.get() {
                let child = Ref { obj: child, generation: child.generation() };
                match room.next() {
                    Some(cell) => *cell = Some(child),
                    None => more.push(child),
                }
            }
        }
    }
    for child in few.into_iter().flatten().chain(more) {
        // A child that was closed meanwhile is skipped: its number may belong to another instance, whose events must
        // not be taken.
        if child.valid() {
            absorb(child.obj);
        }
    }
}

impl Epoll {
    /// Prepares the instance for its registration in another one: from now on it tracks which registrations the kernel
    /// would have in its ready list. At first these are the queued ones.
    fn becomes_inner(&self) {
        let _g = self.lock.lock();
        if self.is_inner() {
            return;
        }
        self.inner.set(true);
        for reg in self.registered() {
            let level = reg.events.get() & EPOLLET as u32 == 0;
            if news(reg, true) || (level && reg.queue() & QUEUED != 0) {
                reg.set_queue_bits(FRESH);
            }
        }
    }
}
