//! Takes connections to the kernel whose ends both write while neither reads: TCP's buffers grow for a writer that waits,
//! and hold what a ring cannot ([`netacc_transport::shm::standstill`]).
//!
//! A slow reader is no reason: the direction towards its own program is not full, or it would not wait to write.

use crate::fd::table;
use crate::object::reference::Ref;
use crate::object::socket::Socket;
use crate::switch::demote;
use crate::timeouts;
use netacc_stats::Reason;
use netacc_sys::errno::Errno;
use netacc_sys::time::Deadline;
use netacc_sys::{lock, time};
use netacc_transport::shm::{ShmEndpoint, standstill};

const STANDSTILL: u64 = time::ns(timeouts::STANDSTILL);

/// To be called without any lock in each call that waits for several connections, and in each that has found no room: the
/// program may make it again and again and never sleep.
#[inline]
pub fn check() {
    if standstill::due().is_some() {
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
    let now = time::now();
    let Some(next) = standstill::begin_round(now) else { return };
    let mut any = false;
    table::each_socket(|fd, r| any |= stands_still(fd, r, now));
    if !any {
        standstill::end_round(next);
    }
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

/// Whether the connection is to be looked at again. One that has stood still for long enough goes to the kernel.
fn stands_still(fd: i32, r: Ref<Socket>, now: u64) -> bool {
    let noted = |r: Ref<Socket>| r.obj.ring().filter(|ep| ep.standstill.is_noted());
    if noted(r).is_none() {
        return false;
    }
    // The pin keeps the connection's object. What is looked at is the head of its segment, whose addresses stay mapped.
    let Some(_pin) = r.pin() else { return false };
    let Some(ep) = noted(r) else { return false };
    match ep.standstill.look(ep, now) {
        None => false,
        Some(for_how_long) if for_how_long < STANDSTILL => true,
        Some(_) => match demote::demote_now(fd, r, Reason::Standstill) {
            // The peer or another sharer is moving it.
            Err(Errno::AGAIN) => r.obj.is_shm(),
            Err(e) => {
                netacc_log::log!(
                    Warn,
                    "fd {fd}: both ends write and neither reads; cannot become a kernel socket: {e}"
                );
                ep.standstill.give_up();
                false
            }
            Ok(()) => false,
        },
    }
}
