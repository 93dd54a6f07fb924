//! Instances that nobody waits in by epoll_wait: nested in another one, or asked by poll(2) whether they are readable.

use crate::epoll::nested::absorb_children;
use crate::epoll::stash::stash;
use crate::epoll::wait::{handle, settle};
use crate::epoll::{Epoll, STASH};
use crate::fdtable;
use core::sync::atomic::Ordering;
use netacc_sys::raw;

/// Moves what the kernel's set holds of ours into our queue and notes whether there is something else, for
/// somebody who only asks whether the instance is readable. Nested instances first: their descriptors are
/// part of what ours says. True: something that the kernel says once is kept by us now.
pub(crate) fn absorb(e: &'static Epoll) -> bool {
    if e.displaced.load(Ordering::Relaxed) != 0 {
        settle(e);
    }
    absorb_children(e);
    if e.is_plain() {
        let there = crate::socket::listen::tcp_ready(e.fd());
        e.foreign.store(there.into(), Ordering::Relaxed);
        return false;
    }
    let mut buf = [libc::epoll_event { events: 0, u64: 0 }; STASH];
    let have = e.stash_len.load(Ordering::Relaxed) as usize;
    let room = STASH.saturating_sub(have);
    // A thread that sleeps in it hears for itself: what we took from the kernel's set would not wake it.
    if room == 0 || e.sleepers.load(Ordering::SeqCst) > 0 {
        return false;
    }
    let n = raw::epoll_wait(e.fd(), buf.as_mut_ptr(), room as i32, 0, core::ptr::null()).unwrap_or(0);
    let (mut foreign, mut own, mut kept) = (false, false, false);
    for ev in buf.iter().take(n) {
        if let Some((events, data)) = handle(e, ev.events, ev.u64) {
            foreign = true;
            // What is registered by level the kernel will say again.
            if e.edges.load(Ordering::Relaxed) != 0 {
                stash(e, events, data, ev.u64);
                kept = true;
            }
        } else {
            own = true;
        }
    }
    e.foreign.store(foreign.into(), Ordering::Relaxed);
    if own {
        // Somebody may have gone to sleep there in the meantime.
        e.kick();
    }
    kept
}

/// Whether an instance of ours would be reported readable; the outer `None` means it is none of ours.
pub fn readable(fd: i32) -> Option<bool> {
    let e = fdtable::epoll(fd)?.obj;
    if e.is_plain() {
        return None;
    }
    if absorb(e) && e.is_inner() {
        // A thread that sleeps in an instance around this one has not been told, and is not by the kernel any more.
        e.ring();
    }
    Some(super::ready::is_ready(e))
}

/// Arms an instance for a sleep on its descriptor; false when it is readable already.
pub fn arm(fd: i32) -> bool {
    fdtable::epoll(fd).is_none_or(|r| super::ready::arm(r.obj))
}
