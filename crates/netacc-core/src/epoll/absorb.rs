//! Instances in which no thread waits by epoll_wait: nested in another one, or asked by poll(2) whether they are
//! readable.

use crate::epoll::children::absorb_children;
use crate::epoll::shared;
use crate::epoll::sift::{Said, complete_switches, handle};
use crate::epoll::stash::stash;
use crate::fd::table;
use crate::object::instance::{Epoll, STASH};
use core::sync::atomic::Ordering;

/// Moves what the kernel's set holds of ours into our queue and notes whether there is something else, for a caller
/// that only asks whether the instance is readable. Nested instances come first, since their descriptors are part of
/// what ours says. True: we keep something now that the kernel says only once.
pub(crate) fn absorb(e: &'static Epoll) -> bool {
    if e.switch_due.load(Ordering::Relaxed) != 0 {
        complete_switches(e);
    }
    absorb_children(e);
    if e.is_plain() {
        let there = crate::object::listener::tcp_ready(e.fd());
        e.foreign.store(there.into(), Ordering::Relaxed);
        return false;
    }
    let mut buf = [libc::epoll_event { events: 0, u64: 0 }; STASH];
    let have = e.stash_len.load(Ordering::Relaxed) as usize;
    let room = STASH.saturating_sub(have);
    // A thread that sleeps in it hears for itself: what we took from the kernel's set would not wake that thread.
    if room == 0 || e.sleepers.load(Ordering::SeqCst) > 0 {
        return false;
    }
    let n = shared::poll_sets(e, buf.as_mut_ptr(), room as i32, 0, core::ptr::null()).unwrap_or(0);
    let (mut foreign, mut own, mut kept) = (false, false, false);
    for ev in buf.iter().take(n) {
        match handle(e, ev.events, ev.u64) {
            Said::Program(events, data) => {
                foreign = true;
                // The kernel will say again what is registered by level.
                if e.edges.load(Ordering::Relaxed) != 0 {
                    stash(e, events, data, ev.u64);
                    kept = true;
                }
            }
            Said::Ours => own = true,
            Said::Stranger => {}
        }
    }
    e.foreign.store(foreign.into(), Ordering::Relaxed);
    if own {
        // A thread may have gone to sleep there in the meantime.
        e.kick();
    }
    kept
}

/// Whether an instance of ours would be reported readable; the outer `None` means that `fd` is no instance of ours.
pub fn readable(fd: i32) -> Option<bool> {
    let e = table::epoll(fd)?.obj;
    if e.is_plain() {
        return None;
    }
    shared::claim(e);
    if absorb(e) && e.is_inner() {
        // A thread that sleeps in an instance around this one has not been told, and the kernel will not tell it any
        // more.
        e.ring();
    }
    Some(super::ready::is_ready(e))
}

/// The descriptor on which a thread sleeps that waits for instance `fd`.
pub fn sleeps_on(fd: i32) -> i32 {
    table::epoll(fd).map_or(fd, |r| match r.obj.set_fd() {
        // `set` may be another number of the instance: the caller's own is as good.
        set if set == r.obj.fd() => fd,
        set => set,
    })
}

/// When a sleep on its descriptor is to end at the latest, to look at the instance again.
pub fn held_until(fd: i32) -> Option<u64> {
    let until = table::epoll(fd)?.obj.held_until.load(core::sync::atomic::Ordering::Relaxed);
    (until != 0).then_some(until)
}

/// Arms an instance for a sleep on its descriptor; false when it is readable already.
pub fn arm(fd: i32) -> bool {
    table::epoll(fd).is_none_or(|r| super::ready::arm(r.obj))
}
