//! Connects that no process has taken yet, to a listener that several processes serve.
//!
//! In the kernel any of these processes takes the next connect. Here each link has one process at its other end, and
//! if that one is stopped, or busy for long, a connect would wait for it though others are idle. So a thread that
//! goes to sleep wakes in time for such a connect and makes it once more: at a process that waits for connects
//! ([`redispatch::elsewhere`]), or by TCP ([`redispatch::bypass`]).
//!
//! Connects to another host of which no more is known than that it has answered ([`engine::RouteHandle::optimistic`]) are
//! watched in the same way: if the thread that is to connect their queue pair does not get to it, no other thread would
//! make them again.

use crate::object::reference::Ref;
use crate::object::socket::Socket;
use crate::switch::queued::{ANY, LOCK, PART, QueuedConnect, are_there_any, parts, with_endpoint};
use crate::switch::redispatch;
use crate::timeouts;
use core::sync::atomic::{AtomicU64, Ordering};
use netacc_sys::time::Deadline;
use netacc_sys::{lock, time};
use netacc_transport::rdma::engine;
use netacc_transport::shm::ShmEndpoint;

const QUEUED_CONNECT: u64 = time::ns(timeouts::QUEUED_CONNECT);

/// Time (ns) between the looks for another process that waits for connects, at which the connect is made again sooner.
const STEP: u64 = 10_000_000;

/// Most time (ns) that a fork waits for connects to other hosts.
const AWAITED: i64 = 3_000_000_000;

/// When ([`time::coarse`]) the engine thread looks at the entries again.
static NEXT_LOOK: AtomicU64 = AtomicU64::new(0);
/// Whether the connect waits for a queue pair to another host.
fn is_remote(r: Ref<Socket>) -> bool {
    r.obj.endpoint().is_some_and(ShmEndpoint::is_remote)
}

/// What is to be done with connects to other hosts that wait for a first queue pair.
struct Due {
    /// Connects that are made by TCP: their route has been given up, or has kept them waiting for too long.
    now: [Option<Ref<Socket>>; PART],
    /// Whether others may still get a queue pair.
    patient: bool,
}

fn remote_ones(part: &[QueuedConnect]) -> Due {
    let mut due = Due { now: [None; PART], patient: false };
    let _g = LOCK.lock();
    let now = time::now();
    for (e, due_now) in part.iter().zip(&mut due.now) {
        let Some(r) = e.look() else { continue };
        if !is_remote(r) {
            continue;
        }
        if is_orphaned(r) || engine::is_late(now - e.idle(r, now), now) {
            *due_now = Some(r);
        } else {
            due.patient = true;
        }
    }
    due
}

/// Makes those that are due by TCP, after `before`. Returns whether there were any, and whether others still wait.
fn make_what_is_due(before: impl Fn()) -> (bool, bool) {
    let found = parts().fold((false, false), |(made, patient), part| {
        let due = remote_ones(part);
        let any = due.now.iter().any(Option::is_some);
        if any {
            before();
        }
        due.now.into_iter().flatten().for_each(make_by_tcp);
        (made | any, patient | due.patient)
    });
    are_there_any();
    found
}

fn is_orphaned(r: Ref<Socket>) -> bool {
    with_endpoint(r, ShmEndpoint::orphaned).unwrap_or(false)
}

/// Makes a connect by TCP, since a thread that waits for something else would not do so. A connect whose server has a
/// queue pair by now waits on, even if that one has no place for it.
fn make_by_tcp(r: Ref<Socket>) {
    if !is_orphaned(r)
        && let (Some(ep), Some(server)) = (r.obj.endpoint(), r.obj.peer.get())
    {
        engine::end_optimistic(server, ep.link().engine());
    }
    if is_orphaned(r) {
        redispatch::complete_switch(r);
    }
}

/// For the engine thread, without a lock: looks after connects whose program may wait in a call that is none of
/// ours. Returns whether to look again soon.
pub fn tend(before: impl Fn()) -> bool {
    if ANY.load(Ordering::Relaxed) == 0 {
        return false;
    }
    // Relaxed: only one thread uses it. Between its rounds it has other things to do.
    let now = time::coarse();
    if now < NEXT_LOOK.load(Ordering::Relaxed) {
        return true;
    }
    NEXT_LOOK.store(now + STEP, Ordering::Relaxed);
    let (made, patient) = make_what_is_due(before);
    made || patient
}

/// To be called before a fork: after this each connect that was promised a queue pair has one, or goes by TCP. Nothing
/// is allocated but for a connect that goes by TCP.
pub fn await_queue_pairs() {
    if ANY.load(Ordering::Relaxed) == 0 || lock::interrupted() {
        return;
    }
    // Other threads may go on connecting.
    let end = Deadline::after(AWAITED);
    loop {
        let (_, patient) = make_what_is_due(|| ());
        if !patient || end.passed() {
            return;
        }
        redispatch::nap();
    }
}

/// To be called before a sleep, without any lock: makes sure that no connect waits longer than it should; the caller
/// sleeps until `deadline` or the next connect's time. After an earlier end the caller looks around and comes again.
#[inline]
pub fn within(deadline: Deadline) -> Deadline {
    // A handler that has interrupted its thread in the middle of a call of ours takes no lock, since that call may hold
    // it.
    if ANY.load(Ordering::Relaxed) == 0 || lock::interrupted() { deadline } else { serve(deadline) }
}

#[cold]
fn serve(deadline: Deadline) -> Deadline {
    let now = time::now();
    parts().for_each(|part| serve_part(part, now));
    let left = deadline.left();
    if !are_there_any() || (0..=STEP as i64).contains(&left) {
        return deadline;
    }
    Deadline::At(now + STEP)
}

fn serve_part(part: &[QueuedConnect], now: u64) {
    let mut due = [None; PART];
    {
        let _g = LOCK.lock();
        for (e, due) in part.iter().zip(&mut due) {
            let Some(r) = e.look() else { continue };
            let idle = e.idle(r, now);
            if is_remote(r) {
                let late = is_orphaned(r) || engine::is_late(now - idle, now);
                *due = late.then_some((r, true));
                continue;
            }
            if idle >= STEP {
                *due = Some((r, idle >= QUEUED_CONNECT));
            }
            if idle >= QUEUED_CONNECT {
                // Where TCP does not take it at once either, it is tried again.
                e.since.store(now, Ordering::Relaxed);
            }
        }
    }
    for (e, due) in part.iter().zip(&due) {
        let Some((r, long)) = *due else { continue };
        if is_remote(r) {
            make_by_tcp(r);
        } else if redispatch::elsewhere(r) {
            // What is remembered is about the process that the connect has left. If the entry is another connect's by
            // now, that one is looked at anew.
            e.since.store(0, Ordering::Relaxed);
        } else if long {
            redispatch::bypass(r);
        }
    }
}
