//! Readability of instances in which no thread calls epoll_wait: nested instances, and those in a poll(2) or select(2).

use crate::epoll::children::absorb_children;
use crate::epoll::ready::is_ready;
use crate::epoll::shared;
use crate::epoll::sift::{Said, complete_switches, handle};
use crate::epoll::stash::stash;
use crate::epoll::unheard::{is_unheard, serve_polled};
use crate::fd::table;
use crate::object::instance::{Epoll, STASH};
use core::sync::atomic::Ordering;

/// Number of looks at the kernel's set in one call, as long as they find events of ours alone.
const LOOKS: usize = 2;

/// Moves our own events from the kernel's set into the ready queue and notes whether there are others, for a caller
/// that only checks whether the instance is readable. Nested instances are processed first, since they determine the
/// readiness of this one. True: a foreign event that the kernel reports only once was stashed.
pub(crate) fn absorb(e: &'static Epoll) -> bool {
    let mut kept = false;
    for _ in 0..LOOKS {
        let taken = absorb_once(e);
        kept |= taken.kept;
        // What an event of ours tells may be told by several of them: the end of a process, then that of the last sharer.
        if !taken.own || is_ready(e) {
            break;
        }
    }
    kept
}

/// What a look at the kernel's set has taken out of it.
#[derive(Default)]
struct Taken {
    /// A foreign event that the kernel reports only once was stashed.
    kept: bool,
    /// There were events of ours.
    own: bool,
}

fn absorb_once(e: &'static Epoll) -> Taken {
    if e.switch_due.get() {
        complete_switches(e);
    }
    absorb_children(e);
    if e.is_plain() {
        let there = crate::object::listener::tcp_ready(e.fd());
        e.foreign.set(there);
        return Taken::default();
    }
    if is_unheard(e) {
        serve_polled(e);
    }
    let mut buf = [libc::epoll_event { events: 0, u64: 0 }; STASH];
    let have = e.stash_len.get() as usize;
    let room = STASH.saturating_sub(have);
    // A thread that sleeps in the instance handles the events itself; an event that was taken here would not wake it.
    if room == 0 || e.sleepers.load(Ordering::SeqCst) > 0 {
        return Taken::default();
    }
    let n = shared::poll_sets(e, buf.as_mut_ptr(), room as i32, 0, core::ptr::null()).unwrap_or(0);
    let (mut foreign, mut own, mut kept) = (false, false, false);
    for ev in buf.iter().take(n) {
        match handle(e, ev.events, ev.u64) {
            Said::Program(events, data) => {
                foreign = true;
                // The kernel will report level-triggered events again.
                if e.edges.get() {
                    stash(e, events, data, ev.u64);
                    kept = true;
                }
            }
            Said::Ours => own = true,
            Said::Stranger => {}
        }
    }
    e.foreign.set(foreign);
    if own {
        // A thread may have gone to sleep there in the meantime.
        e.kick();
    }
    Taken { kept, own }
}

/// Whether an epoll instance would be reported readable; `None`: `fd` is no instance with accelerated connections.
pub fn readable(fd: i32) -> Option<bool> {
    let e = table::epoll(fd)?.obj;
    if e.is_plain() {
        return None;
    }
    shared::claim(e);
    if absorb(e) && e.is_inner() {
        // A thread that sleeps in an outer instance was not woken for the stashed event, and the kernel will not wake
        // it any more.
        e.ring();
    }
    Some(is_ready(e))
}

/// The descriptor on which a thread that waits for instance `fd` has to sleep.
pub fn sleeps_on(fd: i32) -> i32 {
    table::epoll(fd).map_or(fd, |r| match r.obj.set_fd() {
        // `set` may be another number of the same instance, so the caller's own number serves as well.
        set if set == r.obj.fd() => fd,
        set => set,
    })
}

/// Latest time at which a sleep on the instance's descriptor has to end, for another look at the instance.
pub fn held_until(fd: i32) -> Option<u64> {
    let until = table::epoll(fd)?.obj.held_until.get();
    (until != 0).then_some(until)
}

/// Arms an instance for a sleep on its descriptor; false when it is readable already.
pub fn arm(fd: i32) -> bool {
    table::epoll(fd).is_none_or(|r| super::ready::arm(r.obj))
}
