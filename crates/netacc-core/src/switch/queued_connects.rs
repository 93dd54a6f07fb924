//! Watches connects that no process has accepted yet, to a listener that several processes serve.
//!
//! In the kernel any of these processes accepts the next connect. Here each link leads to one process, and if that one
//! is stopped, or busy for a long time, a connect would wait for it though others are idle. So a thread that goes to
//! sleep wakes in time and makes such a connect once more: at a process that waits for connects
//! ([`redispatch::elsewhere`]), or by TCP ([`redispatch::bypass`]). All of a process's connects that wait at the same
//! one go by TCP together: one that stayed would be accepted before older ones that have gone.
//!
//! Optimistic connects to another host, which has answered a probe only ([`engine::RouteHandle::optimistic`]), are
//! watched in the same way: if the engine thread does not get to connect their queue pair, no other thread would make
//! them again.

use crate::conn::{kernel_queue, pool};
use crate::fd::table;
use crate::object::reference::Ref;
use crate::object::socket::{SHARED, Socket};
use crate::switch::queued::{ANY, LOCK, PART, QueuedConnect, are_there_any, parts, with_endpoint};
use crate::switch::{full_queue, queued, redispatch};
use crate::timeouts;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use netacc_stats::Reason;
use netacc_sys::time::Deadline;
use netacc_sys::{lock, raw, time};
use netacc_transport::rdma::engine;
use netacc_transport::shm::segment::{Segment, ServedBy};
use netacc_transport::shm::{Link, ServerState, ShmEndpoint, is_handing_on, redial, rendezvous};

const QUEUED_CONNECT: u64 = time::ns(timeouts::QUEUED_CONNECT);
const MOVES: u64 = time::ns(timeouts::QUEUED_CONNECT_MOVES);
const LINK_TAKEN_UP: u64 = time::ns(timeouts::LINK_TAKEN_UP);

/// Time (ns) between two looks at the connects in the list.
const STEP: u64 = MOVES / 2;

/// Longest time (ns) for which a fork waits for connects to other hosts.
const AWAITED: i64 = 3_000_000_000;

/// Time ([`time::coarse`]) at which the engine thread checks the entries again.
static NEXT_LOOK: AtomicU64 = AtomicU64::new(0);
/// Time ([`time::coarse`]) of the next look by a thread that does not sleep.
static NEXT_IN_PASSING: AtomicU64 = AtomicU64::new(0);

/// Whether the connect waits for a queue pair to another host.
fn is_remote(r: Ref<Socket>) -> bool {
    r.obj.endpoint().is_some_and(|ep| ep.side.is_remote())
}

/// Result of checking a part of the list for connects to other hosts that wait for a first queue pair.
struct Due {
    /// Connects that are now made by TCP, since their route was abandoned or has kept them waiting for too long.
    now: [Option<Ref<Socket>>; PART],
    /// Whether other connects may still get a queue pair.
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

/// Makes the due connects by TCP, after a call of `before`. Returns whether there were any, and whether others still
/// wait.
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
    with_endpoint(r, |ep| ep.connect.is_orphaned(&ep.side)).unwrap_or(false)
}

/// Makes a connect by TCP, since a thread that waits for something else would not do so. A connect whose server has a
/// queue pair by now keeps waiting, even if that queue pair has no place for it.
fn make_by_tcp(r: Ref<Socket>) {
    if !is_orphaned(r)
        && let (Some(ep), Some(server)) = (r.obj.endpoint(), r.obj.peer.get())
    {
        engine::end_optimistic(server, ep.side.link().engine());
    }
    if is_orphaned(r) {
        redispatch::complete_switch(r);
    }
}

/// Called by the engine thread without a lock: makes the due connects of a program that may be sleeping in a call that
/// is not intercepted. Returns whether to check again soon.
pub fn maintain(before: impl Fn()) -> bool {
    if ANY.load(Ordering::Relaxed) == 0 {
        return false;
    }
    // Relaxed: only the engine thread uses the time, which spaces the checks.
    let now = time::coarse();
    if now < NEXT_LOOK.load(Ordering::Relaxed) {
        return true;
    }
    NEXT_LOOK.store(now + STEP, Ordering::Relaxed);
    let (made, patient) = make_what_is_due(before);
    made || patient
}

/// To be called before a fork: after this each optimistic connect has a queue pair or goes by TCP. Memory is allocated
/// only for a connect that goes by TCP.
pub fn await_queue_pairs() {
    if ANY.load(Ordering::Relaxed) == 0 || lock::interrupted() {
        return;
    }
    // The time is limited, since other threads may keep connecting.
    let end = Deadline::after(AWAITED);
    loop {
        let (_, patient) = make_what_is_due(|| ());
        if !patient || end.passed() {
            return;
        }
        redispatch::nap();
    }
}

/// To be called before a fork, without any lock: makes the connects of this process by TCP that wait at a process which
/// may not be the one that accepts them. After the fork this process and its child have the connect, and could not agree
/// which of them makes it again. A listener of this process is one that its child will have, too. Which process takes a new
/// link up is not decided yet. Memory is allocated only for a connect that goes by TCP.
pub fn leave_before_fork() {
    let may_stay_behind = |_: &Socket, ep: &ShmEndpoint| {
        let link = ep.side.link();
        link.segment().is_some_and(|segment| {
            segment.server() != ServerState::Pending && (segment.served_by_many() || link.peer_pid() == raw::getpid())
        })
    };
    if !lock::interrupted() {
        leave_queues(may_stay_behind, Reason::Fork);
    }
}

/// To be called while an operator's request takes this process off, without any lock: makes the connects by TCP that wait at
/// a process which may not be the one that accepts them. Switched to a socket of the kernel's there, they could not be made
/// again, however long that process is busy.
pub fn leave_for_operator() {
    if ANY.load(Ordering::Relaxed) != 0 {
        leave_queues(may_be_accepted_elsewhere, Reason::Operator);
    }
}

/// Whether [`leave_for_operator`] has left the connect where it waits, or its server is about to pass it on to the kernel's queue.
pub fn is_left_behind(s: &Socket) -> bool {
    let stays = |ep: &ShmEndpoint| {
        let may_move = ANY.load(Ordering::Relaxed) != 0 && may_be_accepted_elsewhere(s, ep);
        ep.side.is_queued() && !ep.side.is_remote() && (may_move || is_handing_on(ep.side.link()))
    };
    s.is_shm() && !s.has(SHARED) && s.endpoint().is_some_and(stays)
}

/// Whether another process than the one that has the connect in its queue, or is the first to take its link up, may accept it.
fn may_be_accepted_elsewhere(s: &Socket, ep: &ShmEndpoint) -> bool {
    let is_shared = || s.peer.get().and_then(kernel_queue::listener).is_some_and(|found| found.is_shared);
    ep.side
        .link()
        .segment()
        .is_some_and(|segment| segment.served_by_many() || (segment.server() == ServerState::Pending && is_shared()))
}

/// Makes the connects to processes of this host by TCP that wait in a queue, where `may_stay_behind` is true of one. Those to one
/// destination go together, whatever link each of them waits on, so that their order stays. Before a fork those of one link do:
/// none can be moved afterwards, so as many as have room are, and the order counts less.
fn leave_queues(may_stay_behind: impl Fn(&Socket, &ShmEndpoint) -> bool, why: Reason) {
    let mut found: Vec<((SocketAddr, usize), u64, Ref<Socket>)> = Vec::new();
    let by_link = why == Reason::Fork;
    table::each_socket(|_, r| {
        if let Some(dest) = r.obj.peer.get().filter(|_| r.obj.is_shm() && !r.obj.has(SHARED)) {
            let waits = |ep: &'static ShmEndpoint| {
                (ep.side.is_queued() && !ep.side.is_remote() && may_stay_behind(r.obj, ep)).then(|| {
                    (
                        (dest, if by_link { core::ptr::from_ref(ep.side.link()).addr() } else { 0 }),
                        queued::made_at(ep),
                        r,
                    )
                })
            };
            found.extend(with_endpoint(r, waits).flatten());
        }
    });
    found.sort_unstable_by_key(|(_, when, _)| *when);
    while let Some((key, ..)) = found.first().copied() {
        let (mut queue, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|(of, ..)| *of == key);
        // A socket with several numbers is found several times.
        queue.dedup_by_key(|(.., r)| core::ptr::from_ref(r.obj));
        // In the kernel's queue they would come behind younger ones that are there already, and before older ones that a server is
        // just passing on.
        if by_link || !(kernel_queue::holds_ours(key.0) || pool::is_handed_on(key.0)) {
            redispatch::bypass(&queue.into_iter().map(|(.., r)| r).collect::<Vec<_>>(), why);
        }
        found = others;
    }
}

/// To be called in each call that a program makes in a loop in which it may never sleep, without any lock: makes the due
/// connects again.
#[inline]
pub fn check() {
    if ANY.load(Ordering::Relaxed) != 0 {
        look_in_passing();
    }
}

#[cold]
#[inline(never)]
fn look_in_passing() {
    // Relaxed: the time only spaces the looks of all threads.
    let now = time::coarse();
    if now < NEXT_IN_PASSING.load(Ordering::Relaxed) || lock::interrupted() {
        return;
    }
    NEXT_IN_PASSING.store(now + STEP, Ordering::Relaxed);
    serve(Deadline::Now);
}

/// To be called before a sleep, without any lock: makes the due connects again, and returns `deadline` or the next
/// connect's time if that is earlier. A caller that wakes for the latter checks its own condition and calls this again.
#[inline]
pub fn within(deadline: Deadline) -> Deadline {
    // A signal handler that has interrupted one of our calls takes no lock, since that call may hold it.
    let deadline = if ANY.load(Ordering::Relaxed) == 0 || lock::interrupted() { deadline } else { serve(deadline) };
    let deadline = if full_queue::does_any_wait() { full_queue::within(deadline) } else { deadline };
    if redial::is_owed() { before_redial(deadline) } else { deadline }
}

/// Makes connections to liveness sockets that are owed, and returns `deadline` or the time of the next attempt if that
/// is earlier.
#[cold]
fn before_redial(deadline: Deadline) -> Deadline {
    let due = if lock::interrupted() { None } else { redial::make_owed_dials() };
    match (due, deadline) {
        (Some(due), Deadline::Never) => Deadline::At(due),
        (Some(due), Deadline::At(end)) => Deadline::At(due.min(end)),
        _ => deadline,
    }
}

#[cold]
fn serve(deadline: Deadline) -> Deadline {
    let now = time::now();
    let mut bypassed: Vec<&Link> = Vec::new();
    for due in due_connects(now) {
        let r = due.socket;
        if is_remote(r) {
            make_by_tcp(r);
        } else if redispatch::elsewhere(r) {
            // The entry describes the process that the connect has left. If it belongs to another connect by now, that
            // one is checked from the start.
            due.entry.since.store(0, Ordering::Relaxed);
        } else if due.long
            && let Some(link) = with_endpoint(r, |ep| ep.side.link())
            && !bypassed.iter().any(|l| core::ptr::eq(*l, link))
        {
            bypassed.push(link);
            note_others(r, now);
            redispatch::bypass(&queued_at_link(link), Reason::NotTaken);
        }
    }
    let left = deadline.left();
    if !are_there_any() || (0..=STEP as i64).contains(&left) {
        return deadline;
    }
    Deadline::At(now + STEP)
}

/// Notes that several processes serve the listener of a connect whose link none has taken up, if the connect should not wait
/// for that: another process has a rendezvous of its own, and the one that the client has found may accept no more. Where all
/// of them take links up at one rendezvous, the link waits there for whichever is idle, as in the kernel's queue. Only after a
/// long time it goes to that queue, since a process may have begun to take it up and then been busy.
fn note_others(r: Ref<Socket>, now: u64) {
    let Some(dest) = r.obj.peer.get() else { return };
    with_endpoint(r, |ep| {
        let link = ep.side.link();
        let untold = |s: &Segment| s.server() == ServerState::Pending && !s.served_by_many();
        let is_old = || now.saturating_sub(queued::made_at(ep)) >= LINK_TAKEN_UP;
        if let Some(segment) = link.segment().filter(untold)
            && kernel_queue::listener(dest).is_some_and(|found| found.is_shared)
            && (is_old() || rendezvous::has_others(dest, link.listener.member.load(Ordering::Relaxed)))
        {
            segment.set_served_by(ServedBy::Several);
        }
    });
}

/// A connect that has waited for some time.
struct DueConnect {
    entry: &'static QueuedConnect,
    socket: Ref<Socket>,
    /// Time at which the program made it.
    made_at: u64,
    /// Whether it has waited long enough to be made by TCP if no other process waits for it.
    long: bool,
}

/// The connects that have waited for some time, oldest first: the processes that accept them afterwards do so in the
/// order in which they are made again.
fn due_connects(now: u64) -> Vec<DueConnect> {
    let mut due = Vec::new();
    {
        let _g = LOCK.lock();
        for entry in parts().flatten() {
            let Some(socket) = entry.look() else { continue };
            let idle = entry.idle(socket, now);
            let remote = is_remote(socket);
            let long =
                if remote { is_orphaned(socket) || engine::is_late(now - idle, now) } else { idle >= QUEUED_CONNECT };
            if long || (!remote && idle >= MOVES) {
                due.push(DueConnect { entry, socket, made_at: made_at(socket), long });
            }
            if long && !remote {
                // If TCP does not connect at once either, the connect is tried again.
                entry.since.store(now, Ordering::Relaxed);
            }
        }
    }
    due.sort_unstable_by_key(|due| due.made_at);
    due
}

/// All connects in the list that wait on the link, oldest first.
fn queued_at_link(link: &Link) -> Vec<Ref<Socket>> {
    let mut found: Vec<Ref<Socket>> = {
        let _g = LOCK.lock();
        let is_there = |r: &Ref<Socket>| with_endpoint(*r, |ep| core::ptr::eq(ep.side.link(), link)) == Some(true);
        parts().flatten().filter_map(QueuedConnect::waiting).filter(is_there).collect()
    };
    found.sort_by_key(|r| made_at(*r));
    found
}

fn made_at(r: Ref<Socket>) -> u64 {
    with_endpoint(r, queued::made_at).unwrap_or(0)
}
