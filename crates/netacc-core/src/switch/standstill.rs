//! Takes connections to the kernel whose writers would wait for ever: TCP's buffers grow for a writer that waits, and hold
//! what a ring cannot ([`netacc_transport::shm::standstill`]).
//!
//! A slow reader is no reason: its process does not wait to write, or it would not keep this one waiting and be kept by it.

use crate::fd::table;
use crate::fork::vfork;
use crate::object::reference::Ref;
use crate::object::socket::{SHARED, Socket};
use crate::switch::{demote, queued_connects};
use crate::timeouts;
use netacc_stats::Reason;
use netacc_sys::errno::Errno;
use netacc_sys::time::Deadline;
use netacc_sys::{lock, time};
use netacc_transport::shm::ShmEndpoint;
use netacc_transport::shm::standstill::{self, Found, Looks, Pace, Round};

const STANDSTILL: u64 = time::ns(timeouts::STANDSTILL);
const CIRCLE: u64 = time::ns(timeouts::CIRCLE);
/// How long (ns) a writer is looked at that waits for its reader: two looks more than a circle takes to be seen.
const WATCHED: u64 = CIRCLE + 3 * time::ns(netacc_transport::timeouts::WRITER_LOOK);

/// To be called without any lock in each call that waits for several connections, and in each that has found no room: the
/// program may make it again and again and never sleep.
#[inline]
pub fn check() {
    if standstill::due().is_some_and(|due| time::coarse() >= due) {
        look();
    }
}

/// To be called before a sleep, without any lock: takes connections that stand still to the kernel, and returns `deadline`
/// or the time of the next look if that is earlier. A caller that wakes for the latter calls this again.
#[inline]
pub fn within(deadline: Deadline) -> Deadline {
    if standstill::due().is_none() { deadline } else { until_next(deadline) }
}

#[cold]
fn until_next(deadline: Deadline) -> Deadline {
    look();
    // A signal handler that has interrupted one of our calls does not look, and would find the same time again.
    match (standstill::due().filter(|_| !lock::interrupted()), deadline) {
        (None, _) | (_, Deadline::Now) => deadline,
        (Some(due), Deadline::Never) => Deadline::At(due),
        (Some(due), Deadline::At(end)) => Deadline::At(due.min(end)),
    }
}

#[cold]
fn look() {
    if lock::interrupted() {
        return;
    }
    let Some(round) = Round::begin(time::now()) else { return };
    let (mut pace, mut waits_long) = (None, false);
    table::each_socket(|fd, r| match look_at(r, round.now()) {
        None => {}
        Some(Found::NeitherReads(since)) if since >= STANDSTILL => pace = pace.max(leave_ring(fd, r)),
        Some(Found::NeitherReads(_)) => pace = pace.max(Some(Looks::Often)),
        Some(Found::PeerReadsNot(since)) => {
            pace = pace.max(Some(Looks::Seldom));
            waits_long |= since >= CIRCLE;
        }
        Some(Found::NotAccepted(since)) => {
            pace = pace.max(Some(Looks::Seldom));
            if since >= CIRCLE {
                queued_connects::leave_queue(r);
            }
        }
    });
    if waits_long {
        look_for_circle(round.now());
    }
    round.end(pace);
}

/// What becomes of writers that have waited for long: where this process keeps another writer waiting, their connections go to
/// the kernel, so that it may come to read. Where it keeps none, their readers are slow.
#[cold]
fn look_for_circle(now: u64) {
    // The writer that this thread keeps waiting may be itself.
    let only_this = vfork::has_one_thread();
    // The other end of a connection may be in this process: two are enough to find one that is not.
    let mut kept: [Option<Ref<Socket>>; 2] = [None; 2];
    table::each_socket(|_, r| {
        if in_ring(r, |ep| ep.standstill.keeps_peer(ep, only_this, now)).is_some_and(|since| since != 0)
            && !kept.iter().flatten().any(|k| core::ptr::eq(k.obj, r.obj))
            && let Some(place) = kept.iter_mut().find(|place| place.is_none())
        {
            *place = Some(r);
        }
    });
    // A reader that would have to be this thread is not slow.
    let waits_for_us = |k: &Socket, s: &Socket| !are_ends(k, s) || (only_this && !k.has(SHARED));
    table::each_socket(|fd, r| {
        let Some(Found::PeerReadsNot(since)) = look_at(r, now) else { return };
        if since >= CIRCLE && kept.iter().flatten().any(|k| waits_for_us(k.obj, r.obj)) {
            leave_ring(fd, r);
        } else if since >= WATCHED {
            in_ring(r, |ep| ep.standstill.leave_alone());
        }
    });
}

/// Whether both are ends of one connection.
fn are_ends(a: &Socket, b: &Socket) -> bool {
    a.local.get() == b.peer.get() && a.peer.get() == b.local.get()
}

/// Calls `f` for the connection, if it is in a ring.
fn in_ring<T>(r: Ref<Socket>, f: impl FnOnce(&ShmEndpoint) -> T) -> Option<T> {
    // The pin keeps the connection's object. What is looked at is the head of its segment, whose addresses stay mapped.
    let _pin = r.pin()?;
    r.obj.endpoint().filter(|_| r.obj.is_shm()).map(f)
}

/// Looks at the connection's writer, if it was found waiting.
fn look_at(r: Ref<Socket>, now: u64) -> Option<Found> {
    // Most are not, and need no pin to be passed by.
    if !r.obj.endpoint().is_some_and(|ep| ep.standstill.is_noted()) {
        return None;
    }
    in_ring(r, |ep| if ep.standstill.is_noted() { ep.standstill.look(ep, now) } else { None }).flatten()
}

/// Takes a connection to the kernel whose reader waits for more bytes than the ring has, while the writer waits for room that
/// it gets only if some are read. False: that is not possible, and the reader has to do with what is there.
#[cold]
pub fn leave(r: Ref<Socket>, ep: &ShmEndpoint) -> bool {
    let Some(fd) = table::reach(r).filter(|_| standstill::may_leave(ep)) else { return false };
    let left = demote::demote(fd, r, Reason::Standstill);
    if let Err(e) = left {
        netacc_log::log!(
            Info,
            "fd {fd}: a reader waits for more than the ring holds; cannot become a kernel socket: {e}"
        );
    }
    left.is_ok()
}

/// Takes a connection that stands still to the kernel. Returns when to look at it again.
fn leave_ring(fd: i32, r: Ref<Socket>) -> Pace {
    match demote::demote_now(fd, r, Reason::Standstill) {
        // The peer or another sharer is moving it.
        Err(Errno::AGAIN) => r.obj.is_shm().then_some(Looks::Often),
        Err(e) => {
            netacc_log::log!(Warn, "fd {fd}: a writer waits for ever; cannot become a kernel socket: {e}");
            in_ring(r, |ep| ep.standstill.give_up());
            None
        }
        Ok(()) => None,
    }
}
