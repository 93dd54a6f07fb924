//! An instance that is registered in another one: epoll_ctl(2) on it, and what a wait in the outer one does with it.

use crate::epoll::absorb::absorb;
use crate::epoll::cookies::{Kind, cookie};
use crate::epoll::modify::modify;
use crate::epoll::nested::enter_own;
use crate::epoll::ready::{news, touch};
use crate::epoll::registration::link;
use crate::epoll::unlink::unlink;
use crate::object::instance::{Epoll, FRESH, KERNEL, QUEUED, Registration, STRUCTURE, SUBSCRIBED};
use crate::object::reference::{Ref, at};
use crate::outcome::Outcome;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLONESHOT};
use netacc_sys::errno::{Errno, Result};

/// The kernel says that a nested instance stirred: whether by a descriptor that is not ours. What ours have to say we
/// count ourselves, and their wakers ring for more than that.
pub(crate) fn stirred_by_others(reg: &Registration) -> bool {
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
pub(crate) fn control(e: &'static Epoll, op: i32, fd: i32, child: Ref<Epoll>, event: Option<(u32, u64)>) -> Outcome {
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

/// Number of instances directly inside of one that are found without allocating.
const FEW: usize = 8;

pub(crate) fn absorb_children(e: &'static Epoll) {
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

impl Epoll {
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
