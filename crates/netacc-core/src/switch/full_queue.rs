//! Queued connects whose server process has died while the kernel's queue of the listener, which another process still
//! has, was full.
//!
//! In the kernel such a connection keeps its place in the queue. Here it has no place there yet: it stays where it is,
//! as a connection that nobody has accepted, and is made by TCP when the kernel says that there is room. Threads look
//! for that before they sleep, and when they use the connection.

use crate::conn::kernel_queue;
use crate::fd::table::{self, Entry};
use crate::object::socket::{PLACEHOLDER, SHARED, Socket};
use crate::switch::redispatch;
use crate::timeouts;
use core::sync::atomic::{AtomicU64, Ordering};
use netacc_sys::time::Deadline;
use netacc_sys::{lock, time};
use netacc_transport::shm::ShmEndpoint;
use netacc_transport::shm::owner::Owned;

const ROOM_CHECK: u64 = time::ns(timeouts::ROOM_CHECK);
const ROOM_RETRY: u64 = time::ns(timeouts::ROOM_RETRY);

/// Time ([`time::now`]) at which the waiting connects are looked at again; 0: none waits.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Whether the withdrawn connect of `old` has to wait for room in the kernel's queue. If so it is queued again where it
/// was. Under both direction locks of `s`.
pub(super) fn wait_for_room(s: &Socket, old: &ShmEndpoint) -> bool {
    let full = |found: Owned| found.room() == 0;
    let target = s.peer.get().filter(|_| may_wait(s, old));
    target.and_then(kernel_queue::listener).is_some_and(full) && keep(old, ROOM_CHECK)
}

/// Queues a connect again where it was, after an attempt by TCP that the kernel did not answer. False: it cannot wait.
/// Under both direction locks of `s`.
pub(super) fn wait_after_timeout(s: &Socket, old: &ShmEndpoint) -> bool {
    // A socket that has begun to connect under the program's own number cannot begin again.
    may_wait(s, old) && s.has(PLACEHOLDER) && keep(old, ROOM_RETRY)
}

/// Whether only this process decides about the connect: its server has died, and no child has it, too.
fn may_wait(s: &Socket, old: &ShmEndpoint) -> bool {
    !old.side.is_remote() && !s.has(SHARED) && old.side.link().is_lost()
}

fn keep(old: &ShmEndpoint, pause: u64) -> bool {
    let next = time::now() + pause;
    let kept = old.connect.queue_again(&old.side, next);
    if kept {
        // Relaxed: a thread that sees an older time only looks too early, or once more.
        let _ = NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
            Some(if old == 0 { next } else { old.min(next) })
        });
    }
    kept
}

/// Whether any connect waits for room in a queue of the kernel's.
#[inline]
pub(super) fn does_any_wait() -> bool {
    NEXT.load(Ordering::Relaxed) != 0
}

/// To be called before a sleep, without any lock: makes the connects for which there is room, and returns `deadline`
/// or the time of the next look if that is earlier.
#[cold]
pub(super) fn within(deadline: Deadline) -> Deadline {
    if lock::interrupted() {
        return deadline;
    }
    let now = time::now();
    let (next, later) = (NEXT.load(Ordering::Relaxed), now + ROOM_CHECK);
    // One thread looks, and the others sleep until the next look.
    if next != 0 && now >= next && NEXT.compare_exchange(next, later, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        let mut waits = false;
        table::each(0, usize::MAX, |_, e| {
            if let Entry::Socket(r) = e
                && r.obj.is_shm()
                && !r.obj.has(SHARED)
                && let Some(ep) = r.obj.endpoint().filter(|ep| ep.side.is_queued() && ep.side.link().is_lost())
            {
                if ep.connect.is_orphaned(&ep.side) {
                    redispatch::redispatch(r);
                }
                waits |= ep.side.is_queued();
            }
        });
        if !waits {
            let _ = NEXT.compare_exchange(later, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
    match (NEXT.load(Ordering::Relaxed), deadline) {
        (0, _) | (_, Deadline::Now) => deadline,
        (next, Deadline::Never) => Deadline::At(next),
        (next, Deadline::At(end)) => Deadline::At(next.min(end)),
    }
}

/// Called in the child of a fork, which leaves such connects to its parent until it uses them.
pub fn after_fork() {
    NEXT.store(0, Ordering::Relaxed);
}
